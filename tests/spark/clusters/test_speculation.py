"""Spark runs a second copy of a slow task, on another host: writing or reading, only one of the two counts."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.spark.kit import Place, start_job

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PATIENCE = 60.0
HOSTS = ("127.0.0.1", "127.0.0.2")  # Spark puts no copy on the host of the first attempt
CLASSES = "org.apache.spark.deploy"


@contextlib.contextmanager
def daemon(log: Path, *arguments: str) -> Iterator[Path]:
    """Run one of Spark's own processes; give its log."""
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), *arguments]
    with log.open("wb") as file:
        environ = {**os.environ, "SPARK_DAEMON_MEMORY": "256m"}
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environ)
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def said(log: Path, pattern: str) -> str:
    """Wait until a process has said something; return it."""
    deadline = time.monotonic() + PATIENCE
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < deadline, f"not said within {PATIENCE:g} s: {pattern}\n{log.read_text()[-2000:]}"
        time.sleep(0.05)
    return found[0]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A cluster of two hosts, with a core each."""
    with contextlib.ExitStack() as stack:
        ports = ("--port", "0", "--webui-port", "0")
        log = tmp_path / "master.log"
        stack.enter_context(daemon(log, f"{CLASSES}.master.Master", "--host", HOSTS[0], *ports))
        url = said(log, r"spark://127\.0\.0\.1:[1-9]\d*")
        for host in HOSTS:
            log = tmp_path / f"worker-{host}.log"
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / host))
            stack.enter_context(daemon(log, f"{CLASSES}.worker.Worker", "--host", host, *ports, *size, url))
            said(log, "Successfully registered with master")
        yield url


def test_speculation(place: Place, master: str) -> None:
    """Case 47: the copy wins while the first attempt hangs in the middle of its rows; each row counts once.

    By a sink and by ``write.format("jobpipe")``.
    """
    job = start_job(place, "speculation", master, place.folder / "speculation", JOBPIPE__COORDINATOR__LINGER="120s")
    outcome = job.result()
    assert min(outcome[side]["1"] for side in ("written", "saved", "read")) >= 2, (
        "Spark ran no copy of the task that hangs"
    )
    assert sorted(outcome["ids"]) == list(range(400))
    for partition in range(4):
        mine = [number for number in outcome["ids"] if number // 100 == partition]
        assert mine == sorted(mine)
    assert outcome["saved ids"] == {str(task): list(range(100 * task, 100 * task + 100)) for task in range(4)}
