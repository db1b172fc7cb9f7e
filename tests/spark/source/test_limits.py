"""How much Spark reads at once, and in how many tasks: what its progress and its tasks say of the limits."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing import SCHEMA, Checker
from tests.spark.kit import JOB_SECONDS, PATIENCE, Job, Place, Received, running, start_job, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = 100  # of each partition of each batch, in record batches of 10


def seal(
    place: Place, publisher: Publisher, batch_ids: Iterable[int], *, partitions: int = 2, rows: int = ROWS
) -> None:
    """Seal numbered batches of many record batches each."""
    numbered, journal = place.rows(publisher.topic, partitions=partitions, rows=rows)
    for batch_id in batch_ids:
        tables = [
            pa.concat_tables([table.slice(first, 10) for first in range(0, rows, 10)])
            for table in numbered.tables(batch_id)
        ]
        with journal.sealing(batch_id, numbered.ranges(batch_id)):
            publisher.seal("q", batch_id, tables)


def sizes(query: StreamingQuery) -> list[int]:
    """Rows of each micro-batch that had some, as Spark counted them."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def run(df: DataFrame, place: Place, name: str, **trigger: bool) -> tuple[list[int], Received]:
    """Run a query over what is there; return its micro-batches as its progress and as its callback saw them."""
    received = Received()
    with running(df, received, place.checkpoint(name), **trigger) as query:
        assert query.awaitTermination(int(PATIENCE)), f"not at its end within {PATIENCE:g} s"
    return sizes(query), received


def test_micro_batches_keep_the_limits(spark: SparkSession, place: Place) -> None:
    """Batches of 200 rows are read in parts, by bytes and by both limits; Trigger.Once takes everything."""
    with place.publisher("most", parallelism=2) as publisher:
        seal(place, publisher, range(2))
        size = publisher.status()["stored_bytes"] // 40  # of a record batch, about
        asked = {
            "bytes": {"maxBytesPerTrigger": 8 * size},
            "both": {"maxRowsPerTrigger": 90, "maxBytesPerTrigger": 4 * size},
        }
        most = {"bytes": 80, "both": 40}
        for name, limits in asked.items():
            stream = place.stream(spark, "most", name, startingOffsets="earliest", **limits)
            counted, received = run(stream, place, f"most-{name}", availableNow=True)
            assert max(counted) <= most[name], (name, counted)
            assert len(counted) >= 400 // most[name]
            received.check(*place.rows("most"))
        stream = place.stream(spark, "most", "once", startingOffsets="earliest", maxRowsPerTrigger=50)
        counted, received = run(stream, place, "most-once", once=True)
        assert counted == [400]
        received.check(*place.rows("most"))


def end(job: Job) -> None:
    """``kill -9`` of a driver program, its Java and the workers of that."""
    family = [psutil.Process(job.process.pid)]
    with contextlib.suppress(psutil.NoSuchProcess):
        family += family[0].children(recursive=True)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    job.kill()
    psutil.wait_procs(family, PATIENCE)


def test_killed_in_the_middle_of_a_batch(place: Place) -> None:
    """Case 3: a batch larger than maxBytesPerTrigger, read in parts; the job is killed inside it."""
    with place.publisher("killed", parallelism=2) as publisher:
        seal(place, publisher, range(2), rows=300)
        size = publisher.status()["stored_bytes"] // 120
        publisher.close(final=True)
        folder = place.folder / "killed"
        arguments = ("limited", folder, "killed", 5 * size)
        job = start_job(place, *arguments)
        try:
            until(lambda: len(list(folder.glob("*.parquet"))) >= 5, "5 micro-batches", JOB_SECONDS)
        finally:
            end(job)
        done = len(list(folder.glob("*.parquet")))
        print(f"killed with {done} micro-batches")
        assert done < 20, "the kill was meant to be before the end"
        assert start_job(place, *arguments).result() == {"ended": True}
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    assert max(table.num_rows for table in tables) <= 50
    checker = Checker(*place.rows("killed"))
    for table in tables:
        checker.take(table)
    checker.check()


def test_few_rows_wait_and_the_delay_releases_them(spark: SparkSession, place: Place) -> None:
    """minRowsPerTrigger holds 200 rows back until there are 400; maxTriggerDelay lets the next 200 go."""
    with place.publisher("least", parallelism=2) as publisher:
        publisher.declare(SCHEMA)
        received = Received()
        stream = place.stream(
            spark, "least", "l", startingOffsets="earliest", minRowsPerTrigger=400, maxTriggerDelay="20s"
        )
        with running(stream, received, place.checkpoint("least")) as query:
            until(lambda: 0 in received.batches, "the first, empty micro-batch")
            began = time.monotonic()
            seal(place, publisher, [0])
            time.sleep(2.0)  # nothing to be awaited: nothing happens
            assert received.rows == 0
            seal(place, publisher, [1])
            until(lambda: received.rows == 400, "enough rows")
            assert time.monotonic() - began < 18.0, "the delay was over, this shows nothing"
            seal(place, publisher, [2])
            until(lambda: received.rows == 600, "the rest, after the delay")
            until(lambda: sizes(query) == [400, 200], "progress of both")
        received.check(*place.rows("least"))


def test_no_deadlock_with_a_publisher_that_waits(spark: SparkSession, place: Place) -> None:
    """acks=all: each batch has 20 rows, a micro-batch wants a million, and the publisher goes on all the same."""
    options = {"jobpipe.acks": "all", "required_subscribers": ["w"]}
    with place.publisher("waits", parallelism=2, **options) as publisher:
        publisher.declare(SCHEMA)
        received = Received()
        stream = place.stream(spark, "waits", "w", startingOffsets="earliest", minRowsPerTrigger=1_000_000)
        with running(stream, received, place.checkpoint("waits")):
            thread = threading.Thread(target=seal, args=(place, publisher, range(4)), kwargs={"rows": 10})
            thread.start()
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the publisher and its subscriber wait for each other"
        received.check(*place.rows("waits"))


def tasks(df: DataFrame) -> list[int]:
    """Rows of each task that has some."""
    found = df.groupBy(F.spark_partition_id().alias("task")).count().collect()
    return [row["count"] for row in sorted(found, key=lambda row: row["task"])]


def test_tasks_of_a_read(spark: SparkSession, place: Place) -> None:
    """Of a stream and of a batch read alike; without the options there is one for each publisher partition."""
    with place.publisher("tasks", parallelism=2) as publisher:
        seal(place, publisher, range(4))
        by_option = {}
        for name, options in {
            "none": {},
            "least": {"minPartitions": 7},
            "most": {"maxRowsPerPartition": 80},
        }.items():
            seen: list[list[int]] = []

            def callback(df: DataFrame, batch_id: int, seen: list = seen) -> None:
                seen.append(tasks(df))

            stream = place.stream(spark, "tasks", name, startingOffsets="earliest", **options)
            with running(stream, callback, place.checkpoint(f"tasks-{name}"), availableNow=True) as query:
                assert query.awaitTermination(int(PATIENCE))
            assert seen == [tasks(place.read(spark, "tasks", **options))]
            by_option[name] = seen[0]
        assert by_option == {"none": [400, 400], "least": [100] * 8, "most": [80] * 10}
