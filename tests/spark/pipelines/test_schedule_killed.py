"""Intervals of two seconds over a topic that never rests, by real Spark, with a server that is killed again and again.

Each row that was published is in the output of exactly one interval. ``JOBPIPE_INTERVALS=100`` lets it run for longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

import jobpipe
from jobpipe.config import load
from jobpipe.control.control_server import ControlServer
from jobpipe.jobs.launchers.local_launcher import RUNNER
from tests.pipelines.running import SMALL
from tests.pipelines.waiting import eventually
from tests.spark.kit import PATIENCE

ROOT = Path(__file__).parents[3]
INTERVALS = int(os.environ.get("JOBPIPE_INTERVALS", "8"))
KILLS = max(3, INTERVALS // 10)
FAILURES = 3
pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(300 + 60 * INTERVALS)]

FAILING = """
import os
from pathlib import Path


def sometimes(frame):
    for place in sorted(Path({folder!r}).glob("fail-*")):
        os.unlink(place)
        raise OSError(f"{{place.name}} was there")
    return frame
"""


class Rows:
    """Publishes numbered rows, a few every tenth of a second, until it is closed."""

    def __init__(self, topic: str, config: Path) -> None:
        self.published = 0
        self._publisher = jobpipe.publisher(topic, config=config)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        while not self._closed.wait(0.1):
            numbers = range(self.published, self.published + 3)
            self._publisher.write(pa.record_batch({"n": pa.array(numbers, pa.int64())}))
            self.published += 3

    def rest(self) -> None:
        """Publish no more; the topic is served still."""
        self._closed.set()
        self._thread.join()

    def close(self) -> None:
        """End."""
        self.rest()
        self._publisher.close()


@pytest.fixture
def server_of_home(home: Path) -> Iterator[None]:
    """Let the home, which other tests have too, be without a server's store afterwards."""
    yield
    shutil.rmtree(home / "server", ignore_errors=True)


@pytest.mark.usefixtures("server_of_home")
def test_each_row_is_in_one_interval(tmp_path: Path, settings_of_test: dict[str, str]) -> None:
    seed = int(os.environ.get("JOBPIPE_SEED", random.SystemRandom().randrange(2**32)))
    print(f"JOBPIPE_SEED={seed}")
    draw = random.Random(seed)
    file = tmp_path / "jobpipe.yaml"
    file.write_text(yaml.safe_dump({**settings_of_test, "jobpipe.server.roots": str(tmp_path)}))
    file.chmod(0o600)
    name, topic = f"p{uuid.uuid4().hex[:8]}", f"numbers-{uuid.uuid4().hex[:8]}"
    (tmp_path / "failing.py").write_text(FAILING.format(folder=str(tmp_path)))
    # The first interval begins before the first row: on a busy host the server takes a while until it has the file.
    start = datetime.fromtimestamp(time.time() // 2 * 2, UTC).isoformat()
    rows = Rows(topic, file)
    try:
        status = tmp_path / "status.json"
        (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(_pipeline(name, topic, start)))
        server = _Server(file, tmp_path)
        try:
            server.start()
            server.ask("submit")
            eventually(lambda: _schedule(status).get("accepted", "") > "2", PATIENCE)
            began = time.time()
            for number in range(FAILURES):
                (tmp_path / f"fail-{number}").touch()
            for _ in range(KILLS):
                time.sleep(draw.uniform(0.0, 6.0))
                server.kill()
                time.sleep(draw.choice((0.0, draw.uniform(0.0, 3.0))))
                server.start()
            time.sleep(max(0.0, began + 2 * INTERVALS - time.time()))
            rows.rest()
            rested = time.time()
            eventually(lambda: _seconds(_schedule(status)["accepted"]) > rested + 3, PATIENCE + 15 * INTERVALS)
            server.ask("stop")
            eventually(lambda: not (_schedule(status)["active"] or _schedule(status)["running"]), PATIENCE)
            assert not list(tmp_path.glob("fail-*"))
        finally:
            server.kill()
        with ControlServer(load(file, environ={}), config_file=file) as last:
            view = last.schedule(name, "copy")
            told = "\n".join(last.log(name, "copy"))
            assert (view.failed, view.problem) == (0, ""), (view, told)
            found = [each for each in last.intervals(name, "copy", limit=1000) if each.state != "WAITING"]
            runs = last.runs(name, "copy", limit=1000)
    finally:
        rows.close()
    assert {each.state for each in found} == {"SUCCEEDED"}
    assert len({each.run for each in found}) == len(found)
    assert sum(attempt.error == "OSError" for run in runs for attempt in run.attempts) == FAILURES
    places: Counter[int] = Counter()
    for part in (tmp_path / "out").glob("*/*.json"):
        places.update(json.loads(line)["n"] for line in part.read_text().splitlines())
    assert sorted(places) == list(range(rows.published)), "a row is missing"
    assert set(places.values()) == {1}, "a row is there twice"


def _pipeline(name: str, topic: str, start: str) -> dict[str, Any]:
    return {
        "pipeline": {
            "name": name,
            "configuration": SMALL,
            "launcher": {"type": "local", "master": "local[1]"},
            "restart": {"delay": "200ms", "max-delay": "1s", "max-attempts": 10},
        },
        "jobs": {
            "copy": {
                "execution": {"runtime-mode": "BATCH"},
                "source": {"type": "jobpipe", "subscribe": topic},
                "transform": [{"type": "python", "function": "failing:sometimes"}],
                "sink": {"type": "json", "path": "out/${run.lower}"},
                "schedule": {"every": "2 seconds", "start": start},
            }
        },
    }


class _Server:
    """One server after the other."""

    def __init__(self, config: Path, folder: Path) -> None:
        self._program = [sys.executable, "-m", "tests.control.server_program", str(config), str(folder), RUNNER]
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "server.log"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._program, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )

    def ask(self, what: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n".encode())
        self._process.stdin.flush()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            if self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
            self._process = None


def _schedule(status: Path) -> dict[str, Any]:
    """Return how the schedule stands, as the server has shown it last."""
    with contextlib.suppress(FileNotFoundError, KeyError):
        found: dict[str, Any] = json.loads(status.read_text())["jobs"]["copy"]["schedule"]
        return found
    return {}


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
