"""Flow jobs whose tasks run on Spark."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import jobpipe
from jobpipe.errors import FlowFailed
from jobpipe.flows.flow_settings import FlowState
from jobpipe.testing import SCHEMA, Checker
from tests.spark.kit import Place, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.mark.core
def test_each_row_once_and_the_end_passes_on(spark: SparkSession, place: Place) -> None:
    """Publisher, flow, client: what arrives is what was sealed, in order, and the end mark comes through."""
    schema = place.rows("flow-in", partitions=2, rows=20)[0].tables(0)[0].schema

    def passed(batch: pa.RecordBatch, context: jobpipe.FlowContext) -> pa.RecordBatch:
        return batch

    with place.publisher("flow-in", parallelism=2) as publisher:
        place.seal(publisher, range(3))
        flow = jobpipe.flow(
            spark,
            subscribe="flow-in",
            name="passes",
            function=passed,
            publish="flow-out",
            schema=schema,
            starting="earliest",
            config=place.config(),
        )
        with flow, jobpipe.subscribe("flow-out", name="client", starting="earliest", config=place.config()) as client:
            checker = Checker(*place.rows("flow-in"))
            place.seal(publisher, range(3, 30))
            publisher.close(final=True)
            for batch in client.batches(timeout=60.0):
                checker.take(pa.Table.from_batches([batch]))
            flow.await_end(60.0)
            checker.check()
            assert flow.status().state is FlowState.ENDED


def test_a_function_that_fails_names_the_place_and_ends_the_flow(spark: SparkSession, place: Place) -> None:
    """Four failures at one place end it; what lies before is published, and nothing of what failed."""
    schema = pa.schema([("n", pa.int64())])

    def fails(batch: pa.RecordBatch, context: jobpipe.FlowContext) -> pa.RecordBatch:
        if context.offset == 2:
            raise ValueError("not this one")
        return batch

    settings = place.config()
    with jobpipe.publisher("flow-fails", schema=schema, config=settings) as publisher:
        for number in range(4):
            publisher.write([{"n": number}])
        flow = jobpipe.flow(
            spark,
            subscribe="flow-fails",
            name="fails",
            function=fails,
            publish="flow-failed",
            schema=schema,
            starting="earliest",
            config=settings,
        )
        with flow, jobpipe.subscribe("flow-failed", name="client", starting="earliest", config=settings) as client:
            with pytest.raises(
                FlowFailed, match=r"'flow-fails', offset 2, partition 0, row 0: ValueError: not this one"
            ):
                flow.await_end(90.0)
            assert flow.status().partitions[0].error is not None
            rows = [row["n"] for batch in client.batches(timeout=2.0) for row in batch.to_pylist()]
            assert rows == [0, 1]


def test_a_stopped_flow_goes_on_where_it_was(spark: SparkSession, place: Place) -> None:
    """Stop is quick, and the next start takes up the cursor."""
    schema = pa.schema([("n", pa.int64())])
    settings = place.config()

    def start() -> jobpipe.Flow:
        return jobpipe.flow(
            spark,
            subscribe="flow-stops",
            name="stops",
            function=lambda batch, context: batch,
            publish="flow-stopped",
            schema=schema,
            starting="earliest",
            config=settings,
        )

    with jobpipe.publisher("flow-stops", schema=schema, config=settings) as publisher:
        publisher.write([{"n": 0}])
        flow = start()
        until(lambda: flow.status().partitions[0].offset == 1, "the first row")
        began = time.monotonic()
        flow.stop()
        print(f"stopped within {time.monotonic() - began:.2f} s")
        assert flow.status().state is FlowState.STOPPED
        publisher.write([{"n": 1}])
        with (
            start() as again,
            jobpipe.subscribe("flow-stopped", name="client", starting="earliest", config=settings) as client,
        ):
            until(lambda: again.status().partitions[0].offset == 2, "the second row")
            rows = [row["n"] for batch in client.batches(timeout=2.0) for row in batch.to_pylist()]
            assert rows == [0, 1]


def test_a_worker_is_killed(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """``kill -9`` of the Python process that runs the function; another one goes on, each row once and in order."""
    rows, journal = place.rows("flow-killed", partitions=2, rows=20)
    folder = str(tmp_path)

    def setup() -> int:
        import os
        import pathlib

        pathlib.Path(folder, str(os.getpid())).touch()
        return os.getpid()

    settings = place.config()
    with place.publisher("flow-killed", parallelism=2) as publisher:
        place.seal(publisher, range(3))
        flow = jobpipe.flow(
            spark,
            subscribe="flow-killed",
            name="killed",
            function=lambda batch, context: batch,
            setup=setup,
            publish="flow-lived",
            schema=SCHEMA,
            starting="earliest",
            config=settings,
        )
        with flow, jobpipe.subscribe("flow-lived", name="client", starting="earliest", config=settings) as client:
            checker, killed = Checker(rows, journal), set[str]()
            batches = client.batches(timeout=60.0)
            for first in (3, 8, 13):
                pid = until(lambda: {path.name for path in tmp_path.iterdir()} - killed, "a worker")  # noqa: B023
                while checker.rows < journal.rows:
                    checker.take(pa.Table.from_batches([next(batches)]))
                killed |= pid
                os.kill(int(pid.pop()), signal.SIGKILL)
                place.seal(publisher, range(first, first + 5))
            publisher.close(final=True)
            for batch in batches:
                checker.take(pa.Table.from_batches([batch]))
            flow.await_end(60.0)
            checker.check()
            assert len(list(tmp_path.iterdir())) == 4
            assert {each.claim for each in flow.status().partitions} == {4}
