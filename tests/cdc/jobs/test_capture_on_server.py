"""A capture that the control server supervises: killed, changed, and stopped; its rows are exact."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import yaml

from jobpipe.config import load
from jobpipe.jobs.launchers.local_launcher import RUNNER
from tests.cdc.capturing import Copy, Follower, rows_of
from tests.cdc.jobs.shop import CAPTURE, capture, changing, make_orders
from tests.databases.postgres import Postgres
from tests.pipelines.waiting import eventually

ROWS = 5_000
PATIENCE = 60.0
ROOT = Path(__file__).parents[3]


@pytest.fixture
def server_of_home(home: Path) -> Iterator[None]:
    """Let the home, which other tests have too, be without a server's store afterwards."""
    yield
    shutil.rmtree(home / "server", ignore_errors=True)


class Server:
    """A control server in a process of its own; a context manager that stops its jobs."""

    def __init__(self, config: Path, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.control.server_program", str(config), str(folder), RUNNER]
        self._status = folder / "status.json"
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.tell("stop")
            eventually(lambda: self.job()["state"] == "STOPPED", PATIENCE)
        finally:
            self._process.kill()
            self._process.communicate()

    def tell(self, word: str) -> None:
        """Let it submit the file, or stop its jobs."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def job(self) -> dict[str, Any]:
        """Return how the one job stands."""
        jobs = json.loads(self._status.read_text())["jobs"] if self._status.exists() else {}
        return dict(jobs.get(CAPTURE, {"state": ""}))

    def running(self, after: int = 0) -> int:
        """Return the process of the attempt that runs, which is another one than ``after``."""

        def found() -> int | None:
            said = json.loads(self._status.read_text()) if self._status.exists() else {"runs": []}
            attempts = [each for run in said["runs"] for each in run["attempts"] if each["ended"] is None]
            pids = [json.loads(each["launched"])["pid"] for each in attempts if each["launched"]]
            return next((pid for pid in pids if pid != after and self.job()["state"] == "RUNNING"), None)

        return int(eventually(found, PATIENCE))


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("server_of_home")
def test_the_server_restarts_a_capture(
    tmp_path: Path, settings_of_test: dict[str, str], decoded: Postgres, schema: str
) -> None:
    table, copy, name = make_orders(decoded, schema, ROWS), Copy("id"), f"p{uuid.uuid4().hex[:8]}"
    config = tmp_path / "jobpipe.yaml"
    config.write_text(yaml.safe_dump({**settings_of_test, "jobpipe.server.roots": str(tmp_path)}))
    config.chmod(0o600)

    def write(**options: object) -> None:
        section = {"name": name, "restart": {"delay": "200ms", "max-delay": "1s"}, "topic-prefix": f"{name}."}
        jobs = {CAPTURE: capture(decoded, schema, "orders", **{"chunk-size": 100, **options})}
        (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump({"pipeline": section, "jobs": jobs}))

    write()
    with Server(config, tmp_path) as server:
        server.tell("submit")
        first = server.running()
        follower = Follower(f"{name}.orders", copy, load(config, environ={}))
        try:
            with changing(decoded, table):
                follower.until(lambda: sum(copy.seen.values()) > ROWS // 10, "some rows")
                os.kill(first, signal.SIGKILL)
                second = server.running(first)
                follower.until(lambda: sum(copy.seen.values()) > ROWS // 2, "more rows")
                write(**{"batch-rows": 50})
                server.tell("submit")
                server.running(second)
            expected = rows_of(decoded, table, "id")
            follower.until(lambda: copy.rows == expected, "the rows of the table")
            eventually(lambda: server.job()["rows"], PATIENCE)
            assert (server.job()["kind"], server.job()["publishes"]) == ("capture", [f"{name}.orders"])
        finally:
            follower.close()
