"""The server is killed at random moments while its jobs run, end, fail and die: by real processes, over ZooKeeper.

The seed is printed; ``JOBPIPE_SEED`` draws the same moments again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.control.supervision.cheap_runner import ROWS

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(1500)]

STEADY = ("steady-1", "steady-2", "steady-3")
ROLES = {
    **dict.fromkeys(STEADY, ("steady", "0")),
    "ends-soon": ("ends", "1"),
    "ends-later": ("ends", "6"),
    "fails-soon": ("fails", "0.5"),
    "fails-later": ("fails", "3"),
    "dies": ("dies", "1"),
}
NAME = "kills"
ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("JOBPIPE_KILLS", "20"))
PATIENCE = 90.0  # of what a quiet machine does in a second
TRUE_SECONDS = 10.0  # after a server has come back, on a quiet machine


@dataclass(frozen=True)
class Line:
    """A line of a job's journal."""

    at: float
    attempt: int
    pid: int
    what: str


class Servers:
    """One server after the other, of one home, and the attempts of its jobs; ``more`` are keys of its configuration."""

    def __init__(self, folder: Path, home: Path, **more: str) -> None:
        self.folder = folder
        self._server_folder = home / "server"
        self._places = (str(folder), str(home / "pipelines" / NAME), str(home / "logs" / "pipelines" / NAME))
        self._config = folder / "jobpipe.yaml"
        settings = {
            "home": str(home),
            "server.roots": str(folder),
            "registerserver.topic.storage": f"/test-{uuid.uuid4().hex[:12]}/topics",
            "registerserver.session.timeout": "4s",
            "spool.dir": str(folder / "spool"),
            **more,
        }
        self._config.write_text(yaml.safe_dump({f"jobpipe.{key}": value for key, value in settings.items()}))
        self._config.chmod(0o600)
        jobs = {name: {"application": "own.py", "arguments": list(role)} for name, role in ROLES.items()}
        section = {"name": NAME, "restart": {"delay": "200ms", "max-delay": "1s", "max-attempts": None}}
        (folder / "own.py").write_text("")
        (folder / "pipeline.yaml").write_text(yaml.safe_dump({"pipeline": section, "jobs": jobs}))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start one; return when."""
        began = time.time()
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.control.server_program", str(self._config), str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        return began

    def ask(self, what: str) -> None:
        """Let it do something."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n".encode())
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill it where it is."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self.process.stdin.close()
            self.process = None

    def status(self) -> dict[str, Any]:
        """Return what the present server showed last; nothing before it did."""
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
            if self.process is not None and found["pid"] == self.process.pid:
                return found
        return {"at": 0.0, "jobs": {}, "runs": []}

    def job(self, name: str) -> dict[str, Any]:
        """Return how a job stands."""
        found: dict[str, Any] = self.status()["jobs"].get(name, {"state": "", "known_at": 0.0})
        return found

    def stored_attempts(self, job: str) -> dict[int, dict[str, Any]]:
        """Return what the server has stored of a job's attempts, by the number of the lease, as the journal has it."""
        with contextlib.closing(sqlite3.connect(self._server_folder / "server.db")) as store:
            rows = store.execute("SELECT number, state, rows, ended FROM attempts WHERE job = ?", (job,)).fetchall()
        return {number: {"state": state, "rows": done, "ended": ended} for number, state, done, ended in rows}

    def journal(self, job: str) -> list[Line]:
        """Return what the attempts of a job have done."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / f"{job}.journal").read_text().splitlines()
            parts = [line.split() for line in lines]
            return [Line(float(part[0]), int(part[1]), int(part[2]), part[3]) for part in parts]
        return []

    def until(self, question: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Wait for something."""
        deadline = time.monotonic() + seconds
        while not question():
            log = (self.folder / "server.log").read_text()[-3000:]
            assert time.monotonic() < deadline, f"{what} did not come: {self.status()['jobs']}\n{log}"
            assert self.process is not None
            assert self.process.poll() is None, log
            time.sleep(0.05)

    def close(self) -> None:
        """Kill all."""
        self.kill()
        for process in self.runners():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        deadline = time.monotonic() + PATIENCE
        while self.runners():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        shutil.rmtree(self._server_folder, ignore_errors=True)  # the home is that of other tests, too

    def runners(self) -> list[psutil.Process]:
        """Return the processes of attempts that live, and those that write their logs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = any(part.startswith(self._places) for part in process.cmdline())
                server = self.process is not None and process.pid == self.process.pid
                if mine and not server and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


@pytest.fixture
def servers(tmp_path: Path, home: Path) -> Iterator[Servers]:
    found = Servers(tmp_path, home)
    yield found
    found.close()


@pytest.mark.slow
def test_kills_at_random_moments(servers: Servers) -> None:
    seed = int(os.environ.get("JOBPIPE_SEED", random.SystemRandom().randrange(2**32)))
    print(f"JOBPIPE_SEED={seed}")
    draw = random.Random(seed)
    servers.start()
    servers.ask("submit")
    servers.until(lambda: servers.status()["jobs"], "the submission")
    for _ in range(KILLS):
        time.sleep(draw.choice((draw.uniform(0.0, 0.3), draw.uniform(0.0, 3.0))))
        servers.kill()
        time.sleep(draw.choice((0.0, draw.uniform(0.0, 2.0))))
        servers.start()
        if draw.random() < 0.7:  # else it may be killed while it starts
            servers.until(lambda: servers.status()["jobs"], "a server that is back")
    servers.until(lambda: servers.status()["jobs"], "the last server")
    back = servers.status()["at"]
    told_true(servers, back)
    for job in ("fails-soon", "fails-later", "dies"):
        seen = len(servers.journal(job))
        servers.until(lambda job=job, seen=seen: len(servers.journal(job)) > seen, f"another attempt of {job}")
    servers.ask("stop")
    servers.until(lambda: all(map(has_ended, servers.status()["jobs"].values())), "the end of all")
    servers.until(lambda: not servers.runners(), "the end of all processes")
    for job in ROLES:
        came_out_as_it_was(servers, job)


def has_ended(job: dict[str, Any]) -> bool:
    """Tell whether a job has; one that fails by itself may have done so just before it was to stop."""
    by_itself = ("FAILED",) if job["name"].startswith("fails") else ()
    return job["state"] in ("STOPPED", "FINISHED", "CANCELED", *by_itself)


def told_true(servers: Servers, back: float) -> None:
    """See that soon after its return the server says of each job what its processes show."""

    def is_true() -> bool:
        status = servers.status()
        for job in STEADY:
            shown = status["jobs"][job]
            working = [line for line in servers.journal(job) if line.what == "works"]
            if not (working and shown["state"] == "RUNNING" and shown["known_at"] >= back - 1.0):
                return False
        for job in ("ends-soon", "ends-later"):
            over = [line for line in servers.journal(job) if line.what == "FINISHED"]
            if bool(over) != (status["jobs"][job]["state"] == "FINISHED"):
                return False
        return True

    servers.until(is_true, "a true state of all", TRUE_SECONDS * (1 + psutil.getloadavg()[0]))


def came_out_as_it_was(servers: Servers, job: str) -> None:
    """Compare what attempts did with what the server says that they did."""
    journal = servers.journal(job)
    works = [line for line in journal if line.what == "works"]
    assert not [line for line in journal if line.what == "doubled"], journal
    assert len({line.attempt for line in works}) == len(works), journal
    if not job.startswith(("fails", "dies")):
        assert len(works) == 1, journal  # none was stopped, none started again
        assert servers.job(job)["state"] == ("STOPPED" if job in STEADY else "FINISHED")
    told = servers.stored_attempts(job)
    shown = [len(run["attempts"]) for run in servers.status()["runs"] if run["job"] == job]
    assert len(told) == sum(shown)
    newest = max(told)
    for line in journal:
        if line.what in ("FINISHED", "FAILED", "STOPPED") and line.attempt > newest - 90:
            view = told[line.attempt]
            assert (view["state"], view["rows"]) == (line.what, ROWS), (line, view)
    for line in works:
        if line.attempt > newest - 90:
            assert told[line.attempt]["ended"] is not None
            assert told[line.attempt]["state"] in ("FINISHED", "FAILED", "STOPPED", "CANCELED")
