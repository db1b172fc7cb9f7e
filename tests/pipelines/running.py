"""Runs ``jobpipe pipeline run`` as a user does, in a process of its own, and looks at the processes of its jobs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import psutil
import yaml

from jobpipe.config import Config, load
from jobpipe.jobs.launchers.local_launcher import RUNNER
from jobpipe.jobs.session_processes import members
from tests.harness.jvm import QUICK
from tests.harness.program import MARK, marked, module_of
from tests.spark.kit import PATIENCE

SECONDS = 300.0  # of one run; several JVMs start at once
SMALL = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
"""Short-lived JVMs on few cores."""


def write_pipeline(folder: Path, jobs: Mapping[str, object], **pipeline: object) -> Path:
    """Write a pipeline's file; its name is new, its JVMs are small, its restarts are quick."""
    name = f"p{uuid.uuid4().hex[:8]}"
    section = {
        "name": name,
        "topic-prefix": f"{name}.",
        "storage": "state",
        "configuration": SMALL,
        "launcher": {"type": "local", "master": "local[2]"},
        "restart": {"delay": "200ms", "max-delay": "1s", "max-attempts": None},
        **pipeline,
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump({"pipeline": section, "jobs": dict(jobs)}, sort_keys=False))
    return path


class Runner:
    """``jobpipe pipeline run FILE``, perhaps several times one after the other; a context manager.

    Args:
        folder: for configuration and output.
        home: with the embedded ZooKeeper.
    """

    def __init__(self, folder: Path, home: Path, file: Path) -> None:
        self.file = file
        self.name = str(yaml.safe_load(file.read_text())["pipeline"]["name"])
        self._config = folder / "jobpipe.yaml"
        self._output = folder / "output.txt"
        settings = {
            "home": str(home),
            "spool": {"dir": str(folder / "spool")},
            "registerserver": {
                "topic": {"storage": f"/test-{uuid.uuid4().hex[:12]}/topics"},
                "session": {"timeout": "4s"},
            },
            "coordinator": {"linger": "3s"},
        }
        self._config.write_text(yaml.safe_dump({"jobpipe": settings}))
        self._config.chmod(0o600)
        self.logs = home / "logs" / "pipelines" / self.name
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: set[int] = set()

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.runners()
            self._process.kill()
            self._process.wait()
        self.kill_sessions()

    @property
    def config(self) -> Config:
        """The configuration that it runs with."""
        return load(self._config, environ={})

    def tail(self, topic: str, *options: str) -> list[str]:
        """Return the lines that ``jobpipe topics tail`` prints of a topic that has ended, which is served meanwhile."""
        from jobpipe.publishing.serving.spool_server import SpoolServer

        command = [
            str(Path(sys.executable).with_name("jobpipe")),
            "--config",
            str(self._config),
            "topics",
            "tail",
            topic,
        ]
        with SpoolServer(self.config, topic):
            done = subprocess.run(
                [*command, "--from", "earliest", *options], capture_output=True, text=True, timeout=SECONDS, check=False
            )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    @property
    def output(self) -> str:
        """What it has printed, in all its runs."""
        return self._output.read_text(errors="replace")

    @property
    def told(self) -> str:
        """What it has printed, and the ends of its jobs' logs: for messages."""
        logs = [f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in sorted(self.logs.glob("*.log"))]
        return "\n".join([self.output, *logs])

    def start(self, *options: str) -> None:
        """Start it."""
        command = [str(Path(sys.executable).with_name("jobpipe"))]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--config", str(self._config), "pipeline", "run", str(self.file), "--plain", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, MARK: self.name},
            )

    def run(self, *options: str) -> int:
        """Run it to its end; return its exit code."""
        self.start(*options)
        return self.wait()

    def wait(self, seconds: float = SECONDS) -> int:
        """Wait for its end; return its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.told}") from None

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._process is None or self._process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def runners(self) -> dict[str, psutil.Process]:
        """Return the live processes of its jobs' attempts, by job."""
        assert self._process is not None
        found = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children():
                with contextlib.suppress(psutil.Error):
                    command = child.cmdline()
                    if RUNNER in command:
                        found[re.sub(r"-\d+\.json$", "", Path(command[-1]).name)] = child
                        self._sessions.add(child.pid)
        return found

    def kill_sessions(self) -> None:
        """Kill all processes of all attempts that were seen."""
        for session in self._sessions:
            for process in members(session):
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def coordinators(self) -> list[psutil.Process]:
        """Return the processes that its jobs have left to serve their topics, and those of live jobs."""
        of = [process for process in marked(self.name) if process.pid not in self._sessions]
        return [process for process in of if _module(process).startswith("jobpipe.coordinator")]

    def left(self) -> list[psutil.Process]:
        """Return the processes of attempts that still live."""
        return [process for session in self._sessions for process in members(session)]

    def until(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Wait for something; fails if it does not come, or the run ends before."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come:\n{self.told}"
            assert not self.ended, f"it ended before {what}:\n{self.told}"
            time.sleep(0.1)

    def states(self, job: str) -> list[str]:
        """Return the states of a job that were printed, in order."""
        return re.findall(rf"^ *\d+ s  job {re.escape(job)}: ([A-Z]+)", self.output, re.MULTILINE)


def _module(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return module_of(process)
    return ""


def committed(folder: Path) -> list[str]:
    """Return the files that Spark's log of a file sink has: readers see those alone."""
    found = []
    for entry in (folder / "_spark_metadata").iterdir():
        if entry.name.startswith("."):
            continue
        lines = entry.read_text().splitlines()[1:]
        found += [json.loads(line)["path"].removeprefix("file://") for line in lines]
    return sorted(set(found))


def read_topic(config: Config, topic: str) -> Iterator[dict[str, object]]:
    """Yield the rows of a topic that has ended, from its spool, served here."""
    from jobpipe.publishing.serving.spool_server import SpoolServer
    from jobpipe.subscribing.python_client import subscribe

    with (
        SpoolServer(config, topic),
        subscribe(topic, name=f"test-{uuid.uuid4().hex[:6]}", starting="earliest", config=config) as batches,
    ):
        for batch in batches.batches(PATIENCE):
            yield from batch.to_pylist()
