"""Ctrl-C in programs of users, and in our examples: real processes, and a real SIGINT."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from jobpipe.config import Config
from jobpipe.publishing.topic_publisher import Publisher
from tests.cli.conftest import environment
from tests.docs.pages import ROOT, block

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]

DEADLINE = 60.0
CLOSE_SECONDS = 8.0  # of a whole program on a slow machine; most of it is the end of the interpreter
WITHOUT_WITH = """
import jobpipe
for batch in jobpipe.subscribe("orders", name="notebook", starting="earliest"):
    print(batch.num_rows)
"""
PUBLISHER = """
import time
import pyarrow as pa
import jobpipe
with jobpipe.publisher("orders", name="till") as orders:
    for batch_id in range(10_000):
        orders.write(pa.table({"id": [batch_id]}), batch_id=batch_id)
        print(batch_id)
        time.sleep(0.01)
"""
Start = Callable[[str | Path], subprocess.Popen[str]]


@pytest.fixture
def start(settings_of_test: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start Python with a text, or a file, that finds the test's topics."""
    names = {key: f"JOBPIPE__{key.removeprefix('jobpipe.').replace('.', '__').upper()}" for key in settings_of_test}
    environ = {**environment(), **{names[key]: value for key, value in settings_of_test.items()}}
    started: list[subprocess.Popen[str]] = []

    def start(program: str | Path) -> subprocess.Popen[str]:
        code = [str(program)] if isinstance(program, Path) else ["-c", program]
        started.append(
            subprocess.Popen(
                [sys.executable, "-u", *code],
                cwd=tmp_path,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        killer = threading.Timer(DEADLINE, started[-1].kill)  # ends each wait for its output
        killer.daemon = True
        killer.start()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def orders(config: Config) -> Iterator[Publisher]:
    """A topic with two batches, and a publisher that stays."""
    publisher = Publisher("orders", config=config)
    for batch_id in range(2):
        publisher.seal("query", batch_id, [pa.table({"id": [1, 2, batch_id]})])
    yield publisher
    publisher.close()


def interrupted(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Send SIGINT; return the exit code, and what it printed on standard error."""
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=DEADLINE)
    assert time.monotonic() - began < CLOSE_SECONDS
    return process.returncode, said.splitlines()


def assert_pythons_own(code: int, said: list[str]) -> None:
    """One traceback, which is Python's, and nothing of threads, or of what was being closed."""
    assert code == -signal.SIGINT, said  # as Python ends of it; a shell calls it 130
    assert said[-1] == "KeyboardInterrupt", said
    assert sum(line.startswith("Traceback") for line in said) == 1, said
    assert not [line for line in said if "ignored" in line or "During handling" in line or "never" in line], said


@pytest.mark.slow
@pytest.mark.parametrize("code", [block("README.md", "client"), WITHOUT_WITH], ids=["README", "without with"])
def test_a_client_that_waits_for_rows(start: Start, orders: Publisher, code: str) -> None:
    """The loop, and the context manager, end by Python's own KeyboardInterrupt; the name is free."""
    process = start(code)
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline().startswith("3")
    assert_pythons_own(*interrupted(process))
    again = start(code)
    assert again.stdout is not None
    assert again.stdout.readline()
    assert_pythons_own(*interrupted(again))


@pytest.mark.slow
def test_a_client_amid_rows(start: Start, orders: Publisher) -> None:
    """Whatever it is doing; the moments are drawn by the machine."""
    stop = threading.Event()

    def publish() -> None:
        batch_id = 2
        while not stop.is_set():
            orders.seal("query", batch_id, [pa.table({"id": list(range(1000))})])
            batch_id += 1

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for _ in range(3):
            process = start(block("README.md", "client"))
            assert process.stdout is not None
            for _ in range(20):
                assert process.stdout.readline()
            assert_pythons_own(*interrupted(process))
    finally:
        stop.set()
        publisher.join()


@pytest.mark.slow
def test_a_client_that_waits_for_its_publisher(start: Start, config: Config) -> None:
    process = start(WITHOUT_WITH)
    assert process.stderr is not None
    assert "waiting for a publisher" in process.stderr.readline()
    assert_pythons_own(*interrupted(process))


@pytest.mark.slow
def test_a_client_of_a_coordinator_that_is_stopped(start: Start, orders: Publisher) -> None:
    """Closing waits for no answer for long."""
    process = start(block("README.md", "client"))
    assert process.stdout is not None
    assert process.stdout.readline()
    coordinator = psutil.Process(orders.coordinator.process.pid)
    coordinator.suspend()
    try:
        assert_pythons_own(*interrupted(process))
    finally:
        coordinator.resume()


@pytest.mark.slow
def test_a_plain_publisher(start: Start, config: Config) -> None:
    """It closes its topic, says who is waited for, and ends as Python does."""
    process = start(PUBLISHER)
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    assert_pythons_own(*interrupted(process))


@pytest.mark.slow
def test_our_example(start: Start, config: Config) -> None:
    """A program of ours ends with 130, and without a trace."""
    publisher = Publisher("flights", config=config)
    table = pa.table({"carrier": ["AA"], "dep_delay": pa.array([1], pa.int32())})
    publisher.seal("query", 0, [table])
    try:
        process = start(ROOT / "examples" / "follow.py")
        assert process.stdout is not None
        assert "1 flights" in process.stdout.readline()
        assert interrupted(process) == (130, [])
    finally:
        publisher.close()


@pytest.mark.spark
def test_ten_thousand(start: Start, tmp_path: Path) -> None:
    """The example that starts Spark jobs ends them, and its ZooKeeper."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples/ten_thousand/run.py"), "--work", str(tmp_path / "work")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        assert process.stdout is not None
        assert "three Spark jobs run" in process.stdout.readline()
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE)
        assert (process.returncode, said) == (130, "")
        _, alive = psutil.wait_procs(children, timeout=DEADLINE)
        assert not alive
    finally:
        process.kill()
        process.communicate()
