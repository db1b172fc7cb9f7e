"""H10: ``jobpipe.run`` with flow jobs: their ends, signals, exit codes, and the one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import jobpipe
from jobpipe.config import Config
from jobpipe.spark.termination import job_signals
from tests.bus.kit import PATIENCE, ROOT, until

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("flow_program.py")
SCHEMA = pa.schema([("n", pa.int64())])


class Gate:
    """A flow's function that returns nothing before it is opened, and notes the offsets that it was called with."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.called: list[int] = []
        self.entered = threading.Event()
        self.open = threading.Event()
        if is_open:
            self.open.set()

    def __call__(self, batch: pa.RecordBatch, context: jobpipe.FlowContext) -> pa.RecordBatch:
        self.called.append(context.offset)
        self.entered.set()
        assert self.open.wait(PATIENCE)
        return batch


@pytest.fixture
def orders(config: Config) -> Iterator[jobpipe.PlainPublisher]:
    """Two batches."""
    with jobpipe.publisher("orders", schema=SCHEMA, config=config, required_subscribers=["slow"]) as orders:
        for n in range(2):
            orders.write([{"n": n}])
        yield orders


@contextmanager
def gated(config: Config, gate: Gate) -> Iterator[jobpipe.Flow]:
    """Run the flow with this function."""
    flow = jobpipe.flow(
        subscribe="orders",
        name="slow",
        function=gate,
        publish="passed",
        schema=SCHEMA,
        starting="earliest",
        required_subscribers=["reader"],
        config=config,
    )
    try:
        yield flow
    finally:
        gate.open.set()
        flow.stop()


@contextmanager
def meanwhile(*steps: Callable[[], object]) -> Iterator[None]:
    """Do these steps in another thread: signals, and ``jobpipe.run``, are of the main one."""
    thread = threading.Thread(target=lambda: [step() for step in steps], daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE)


def start_again(config: Config, orders: jobpipe.PlainPublisher) -> tuple[list[int], list[int]]:
    """Run the flow to its end; return which offsets its function is given, and all rows that it has ever published."""
    gate = Gate(is_open=True)
    orders.close(final=True)
    with gated(config, gate) as flow, jobpipe.subscribe("passed", name="reader", config=config) as rows:
        found = [n for batch in rows.batches(timeout=PATIENCE) for n in batch["n"].to_pylist()]
        flow.await_end(PATIENCE)
    return gate.called, found


@pytest.mark.slow
def test_ctrl_c_ends_after_the_call(
    config: Config, orders: jobpipe.PlainPublisher, settings_of_test: dict[str, str], tmp_path: Path
) -> None:
    """As a program on a terminal: what the call returns is published, the next batch is left. Two lines, no Spark."""
    names = {key.removeprefix("jobpipe.").replace(".", "__").upper(): key for key in settings_of_test}
    environ = {**os.environ, **{f"JOBPIPE__{name}": settings_of_test[key] for name, key in names.items()}}
    output = tmp_path / "output"
    with output.open("wb") as out:
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        until((tmp_path / "begun-0").exists, PATIENCE, output.read_text)
        os.killpg(program.pid, signal.SIGINT)
        until(lambda: "SIGINT" in output.read_text(), PATIENCE, output.read_text)
        (tmp_path / "go").touch()
        assert program.wait(PATIENCE) == 130, output.read_text()
    finally:
        program.kill()
        program.wait()
    assert "Traceback" not in output.read_text()
    said, ended = [line for line in output.read_text().splitlines() if line.startswith("jobpipe: ")]
    assert said == (
        "jobpipe: SIGINT: each flow ends after the call that its function is in; a second signal ends it at once"
    )
    assert ended.startswith("jobpipe: slow stopped by SIGINT after a whole call of its function, after ")
    assert output.read_text().splitlines()[-1] == "False"  # PySpark was not loaded
    assert not (tmp_path / "begun-1").exists()
    assert start_again(config, orders) == ([1], [0, 1])


@pytest.mark.slow
def test_the_end_of_the_source(
    config: Config, orders: jobpipe.PlainPublisher, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0, and the publishers of the job are closed; their topics stay open without ``final``."""
    with jobpipe.publisher("other", schema=SCHEMA, config=config), gated(config, Gate(is_open=True)) as flow:
        assert not flow.join(0.0)
        orders.close(final=True)
        assert jobpipe.run(flow) == 0
        assert flow.join(0.0)
        assert not jobpipe.close("other")
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("jobpipe: ")]
    assert line.startswith("jobpipe: slow finished, after ")


@pytest.mark.slow
def test_a_second_signal_ends_at_once(
    config: Config,
    orders: jobpipe.PlainPublisher,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of a call that does not return: it is repeated at the next start."""
    monkeypatch.setattr(job_signals, "ONE_SECONDS", 0.0)
    gate, said = Gate(), [""]

    def heard() -> bool:
        said[0] += capfd.readouterr().err
        return "SIGTERM: each flow ends after the call" in said[0]

    def terminate() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with gated(config, gate) as flow:
        steps = (lambda: gate.entered.wait(PATIENCE), terminate, lambda: until(heard, PATIENCE, "the line"), terminate)
        with meanwhile(*steps):
            assert jobpipe.run(flow, sinks=[]) == 143
        assert flow.cut_short
    assert (
        "slow stopped at once by SIGTERM; its last call of its function is repeated at the next start"
        in said[0] + capfd.readouterr().err
    )
    assert start_again(config, orders) == ([0, 1], [0, 1])


@pytest.mark.slow
def test_a_timeout_and_a_failure(
    config: Config, orders: jobpipe.PlainPublisher, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the reason in the one line."""
    waits = jobpipe.flow(subscribe="orders", name="slow", function=lambda *_: None, config=config)
    assert jobpipe.run(waits, sinks=[], timeout=0.3) == 1
    assert waits.join(0.0)
    orders.write([{"n": 2}])
    failing = jobpipe.flow(subscribe="orders", name="slow", function=lambda *_: 1, config=config)  # type: ignore[arg-type,return-value]
    assert jobpipe.run(failing, sinks=[]) == 1
    late, failed = [line for line in capfd.readouterr().err.splitlines() if line.startswith("jobpipe: ")]
    assert late.startswith("jobpipe: slow was stopped before its end: the timeout has passed, after ")
    assert failed.startswith(
        "jobpipe: slow failed: FlowFailed: the flow's function failed with topic 'orders', offset "
    )
