"""U10: ``jobpipe.run``, the last line of a job: signals, ends, exit codes, and what stands on the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery

import jobpipe
from jobpipe.spark.termination import job_signals, query_stop
from jobpipe.spark.termination.query_stop import GracefulStop
from tests.spark.jobs.session import started
from tests.spark.kit import JOB_SECONDS, JOBS, PATIENCE, ROOT, Place, our_lines, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


class Running:
    """A job in a process group of its own, as a shell starts it."""

    def __init__(self, place: Place, topic: str, what: str, command: list[str]) -> None:
        self.folder = place.folder / f"runs-{topic}-{what}-{len(list(place.folder.iterdir()))}"
        self.folder.mkdir()
        self._output = self.folder / "output"
        arguments = [str(JOBS / "runs.py"), str(self.folder), topic, what + "-name", what]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **place.environ(), "PYTHONPATH": f"{ROOT}{os.pathsep}{JOBS}"},
            )

    def wait_for(self, file: str) -> None:
        """Wait until the job has left this file."""
        until(lambda: (self.folder / file).exists() or self.process.poll() is not None, file, JOB_SECONDS)
        assert (self.folder / file).exists(), self.output

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group, as a terminal does at Ctrl-C."""
        os.killpg(self.process.pid, number)

    @property
    def output(self) -> str:
        """All that stands on the terminal."""
        return self._output.read_text()

    def ours(self) -> list[str]:
        """Return our lines; there are no others that tell of an end."""
        return our_lines(self.output)

    def half_done(self) -> set[str]:
        """Return the micro-batches that were begun and not ended."""
        begun, done = (
            {each.name.partition("-")[2] for each in self.folder.glob(f"{what}-*")} for what in ("begun", "done")
        )
        return begun - done


@contextmanager
def running(place: Place, topic: str, what: str, *command: str) -> Iterator[Running]:
    job = Running(place, topic, what, list(command) or [sys.executable])
    try:
        yield job
    finally:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait()


class Gate:
    """A callback for ``foreachBatch`` that ends no micro-batch before it is opened."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.done: list[int] = []
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self.begun.append(batch_id)
        df.count()
        self.entered.set()
        assert self.open.wait(PATIENCE)
        self.done.append(batch_id)


@contextmanager
def gated(spark: SparkSession, place: Place, topic: str, gate: Any) -> Iterator[StreamingQuery]:
    """Run a query over a topic with some batches."""
    with place.publisher(topic) as publisher:
        for batch_id in range(2):
            publisher.seal("q", batch_id, [pa.table({"a": [1, 2]})])
        stream = place.stream(spark, topic, "all", startingOffsets="earliest")
        writer = stream.writeStream.queryName(topic).foreachBatch(jobpipe.stoppable(gate))
        query = started(writer.option("checkpointLocation", str(place.checkpoint(topic))))
        try:
            yield query
        finally:
            query.stop()


@contextmanager
def meanwhile(*steps: Callable[[], object]) -> Iterator[None]:
    """Do these steps in another thread, until one says False: signals, and ``jobpipe.run``, are of the main one."""
    thread = threading.Thread(target=lambda: all(step() is not False for step in steps), daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE)


def send(number: signal.Signals) -> Callable[[], None]:
    """Return a step that sends a signal to this process."""
    return lambda: os.kill(os.getpid(), number)


def saying(capfd: pytest.CaptureFixture[str], text: str) -> Callable[[], None]:
    """Return a step that waits until this stands on standard error."""
    said: list[str] = []

    def heard() -> bool:
        said.append(capfd.readouterr().err)
        return text in "".join(said)

    def step() -> None:
        until(heard, text)

    return step


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_after_the_micro_batch(
    spark: SparkSession, place: Place, capfd: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    """U10: what the callback began it ends, Spark commits it, and the signals are as they were before."""
    gate, before = Gate(), [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    topic = f"gentle-{code}"
    heard = saying(capfd, "ends after the micro-batch it is in")
    with gated(spark, place, topic, gate) as query:
        steps = (lambda: gate.entered.wait(PATIENCE), send(number), heard, gate.open.set)
        with meanwhile(*steps):
            assert jobpipe.run(query, sinks=[]) == code
        assert not query.isActive
        assert query.exception() is None
        assert gate.begun == gate.done == [gate.begun[0]]
        assert (place.checkpoint(topic) / "commits" / str(gate.begun[0])).exists()
    assert f"{topic} stopped by {number.name} after a whole micro-batch, after" in capfd.readouterr().err
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_micro_batch_that_has_begun_runs_to_its_end(spark: SparkSession, tmp_path: Path) -> None:
    """Asked to end while a source is asked for rows: Spark looks again before it writes them, and would interrupt."""
    folder = tmp_path
    seen: list[int] = []
    asked, go = folder / "asked", folder / "go"

    class Reader(DataSourceStreamReader):
        at = 0

        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
            asked.touch()
            deadline = time.monotonic() + PATIENCE
            while not go.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.at += 1
            return {"at": self.at}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return iter([(1,), (2,)])

    class Held(DataSource):
        def schema(self) -> str:
            return "id long"

        def streamReader(self, schema: object) -> Reader:
            return Reader()

    spark.dataSource.register(Held)
    writer = spark.readStream.format("Held").load().writeStream.foreachBatch(lambda df, _: seen.append(df.count()))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        until(asked.exists, "the source is asked")
        ending = GracefulStop(query)
        assert not ending.poll()
        go.touch()
        until(ending.poll, "the end")
        assert query.exception() is None
    finally:
        query.stop()
    offsets, commits = (
        {path.name for path in (folder / "checkpoint" / kind).iterdir() if path.name.isdigit()}
        for kind in ("offsets", "commits")
    )
    assert offsets == commits >= {"0"}
    assert seen == [2] * len(commits)


def test_the_next_micro_batch_cannot_begin_while_the_end_is_prepared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked at is what is under way, however slow this process is to act on it."""
    checkpoint, gate, second = tmp_path / "checkpoint", threading.Event(), threading.Event()
    begun: list[int] = []
    looked: list[str] = []
    real = query_stop._current_phase

    def gated(df: DataFrame, batch_id: int) -> None:
        begun.append(batch_id)
        if len(begun) > 1:
            second.set()
        assert gate.wait(PATIENCE)
        df.count()

    def slowly(execution: object) -> Any:
        answer = real(execution)
        gate.set()  # the first one is being written: it could end, and the second one begin
        second.wait(1.0)
        looked.append(answer.name)
        return answer

    monkeypatch.setattr(query_stop, "_current_phase", slowly)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    query = rows.writeStream.foreachBatch(gated).option("checkpointLocation", str(checkpoint)).start()
    try:
        until(lambda: begun, "the first micro-batch")
        ending = GracefulStop(query)
        until(ending.poll, "the end")
        assert query.exception() is None
    finally:
        query.stop()
    assert [path.name for path in (checkpoint / "commits").iterdir() if path.name.isdigit()] == ["0"]
    assert (begun, looked) == ([0], ["WRITING"])


def test_a_second_signal_ends_at_once(
    spark: SparkSession, place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """U10: in the middle of a callback that does not return; the same signal within half a second is one."""
    monkeypatch.setattr(job_signals, "ONE_SECONDS", 0.0)
    gate = Gate()
    with gated(spark, place, "at-once", gate) as query:
        heard = saying(capfd, "ends after the micro-batch it is in")
        with meanwhile(lambda: gate.entered.wait(PATIENCE), send(signal.SIGTERM), heard, send(signal.SIGTERM)):
            assert jobpipe.run(query, sinks=[]) == 143
        assert not query.isActive
        assert not gate.done
        gate.open.set()
    assert "at-once stopped at once by SIGTERM" in capfd.readouterr().err


def test_signals_of_one_ctrl_c_are_one() -> None:
    """A terminal signals Spark's JVM as well, which passes it on."""
    noted = job_signals.JobSignals()
    with noted.noted():
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        until(lambda: noted.first, "the signal")
    assert (noted.first, noted.again) == (signal.SIGINT, False)


@pytest.mark.core
def test_the_end_of_all_queries(spark: SparkSession, place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    """U10: end marks are committed, the sink of one query passes its own on, and one line says so."""
    gate = Gate()
    gate.open.set()
    with place.publisher("ending") as publisher:
        publisher.seal("q", 0, [pa.table({"a": [1, 2]})])
        publisher.close(final=True)
    sink = place.sink("passed-on", parallelism=1)
    stream = place.stream(spark, "ending", "passes-on", startingOffsets="earliest")
    writer = stream.writeStream.queryName("first").foreachBatch(sink)
    first = started(writer.option("checkpointLocation", str(place.checkpoint("first"))))
    stream = place.stream(spark, "passed-on", "reads", startingOffsets="earliest")
    writer = stream.writeStream.queryName("second").foreachBatch(gate)
    second = started(writer.option("checkpointLocation", str(place.checkpoint("second"))))
    assert jobpipe.run(first, sinks=[sink], final=True) == 0
    assert jobpipe.run(second, first, sinks=[]) == 0
    (one, two) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("jobpipe: ")]
    assert one.startswith("jobpipe: first finished, after ")
    assert two.startswith("jobpipe: second, first finished, after ")
    assert gate.done


def test_a_query_and_a_flow(spark: SparkSession, place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    """H10: each comes to the end of the topic that it reads, the flow in an executor; one line names both."""
    gate = Gate()
    gate.open.set()
    with place.publisher("both") as publisher:
        publisher.seal("q", 0, [pa.table({"a": [1, 2]})])
        flow = jobpipe.flow(
            spark,
            subscribe="both",
            name="looks",
            function=lambda batch, context: None,
            starting="earliest",
            config=place.config(),
        )
        stream = place.stream(spark, "both", "reads", startingOffsets="earliest")
        writer = stream.writeStream.queryName("reads-both").foreachBatch(gate)
        query = started(writer.option("checkpointLocation", str(place.checkpoint("both"))))
        publisher.close(final=True)
        assert jobpipe.run(query, flow, sinks=[]) == 0
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("jobpipe: ")]
    assert line.startswith("jobpipe: reads-both, looks finished, after ")
    assert gate.done
    assert flow.exception() is None


@pytest.mark.core
def test_a_timeout_and_a_failure(spark: SparkSession, place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    """U10: exit code 1, the reason in the one line."""
    gate = Gate()
    gate.open.set()
    with gated(spark, place, "late", gate) as query:
        assert jobpipe.run(query, sinks=[], timeout=0.5) == 1
        assert not query.isActive

    def fail(df: DataFrame, batch_id: int) -> None:
        raise RuntimeError("the test wants this batch to fail")

    with gated(spark, place, "fails", fail) as query:
        assert jobpipe.run(query, sinks=[]) == 1
    late, failed = [line for line in capfd.readouterr().err.splitlines() if line.startswith("jobpipe: ")]
    assert late.startswith("jobpipe: late was stopped before its end: the timeout has passed, after ")
    assert failed.startswith("jobpipe: fails failed: RuntimeError: the test wants this batch to fail, after ")


def test_an_idle_query_ends_at_one_of_the_first_looks(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark lets go of its lock for a hundredth of each second: it is waited for, or the end would take many looks."""
    gate, looks, look = Gate(), [], GracefulStop._no_more_batches
    gate.open.set()
    monkeypatch.setattr(GracefulStop, "_no_more_batches", lambda end: bool(looks.append(1)) or look(end))
    with gated(spark, place, "idle", gate) as query:
        until(lambda: gate.done and query.status["message"].startswith("Getting offsets"), "nothing more to read")
        assert jobpipe.run(query, sinks=[], timeout=2.0) == 1
        assert not query.isActive
    assert 1 <= len(looks) <= 4


def test_outside_the_main_thread_it_waits(spark: SparkSession, place: Place) -> None:
    """No signal comes there; the query's own end ends it."""
    gate, codes = Gate(), []
    gate.open.set()
    with gated(spark, place, "threaded", gate) as query:
        thread = threading.Thread(target=lambda: codes.append(jobpipe.run(query, sinks=[])))
        thread.start()
        assert gate.entered.wait(PATIENCE)
        query.stop()
        thread.join(PATIENCE)
    assert codes == [0]


def test_ctrl_c_on_a_terminal(place: Place) -> None:
    """U10: the whole process group gets it. Two lines, and no trace, neither of Python nor of Spark's JVM."""
    with place.publisher("slow") as publisher, running(place, "slow", "subscribe") as job:
        publisher.seal("q", 0, [pa.table({"a": [1, 2]})])
        until(lambda: list(job.folder.glob("begun-*")), "a micro-batch", JOB_SECONDS)
        job.signal(signal.SIGINT)
        until(lambda: "SIGINT: each query ends after the micro-batch" in job.output, "it says that it ends")
        assert job.half_done()
        (job.folder / "go").touch()
        assert job.process.wait(PATIENCE) == 130
        assert not job.half_done()
        assert len(job.ours()) == 2


def test_spark_submit_leaves_the_end_to_us(place: Place) -> None:
    """U10: its JVM gets the signal, as the one that a supervisor knows; a publisher that sleeps ends now."""
    submit = str(Path(sys.executable).with_name("spark-submit"))
    with running(place, "submitted", "publish", submit, "--master", "local[2]") as job:
        job.wait_for("done-0")
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.process.wait(PATIENCE) == 143
        assert "stopped by SIGTERM after a whole micro-batch" in job.ours()[-1]
