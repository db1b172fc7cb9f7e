"""The ledger of streams: tasks that count what they read, in every way that Spark runs them, and one that errs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from jobpipe.operations.messages.ledger_messages import HopLedger
from jobpipe.spark.source.data_source import JobPipeDataSource
from jobpipe.spark.source.partition_reader import RangePartition, read_range
from jobpipe.spark.source.stream_reader import JobPipeStreamReader
from jobpipe.subscribing.fetching.count_report import counted
from tests.harness import ledgers
from tests.spark.kit import Place, Received, forget_commit, run_to_end, running, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def account(place: Place, topic: str, name: str) -> HopLedger:
    """Return the ledger of one subscription."""
    return ledgers.account(place.config(), topic, name)


def proven(place: Place, topic: str, name: str, rows: int) -> None:
    """Wait until so many rows were acknowledged; each was counted."""
    until(lambda: account(place, topic, name).counts.committed >= rows, f"{rows} rows acknowledged")
    counts = account(place, topic, name).counts
    assert (counts.committed, counts.read, counts.unproven, counts.differences) == (rows, rows, 0, 0)


@pytest.mark.parametrize(
    "options",
    [{}, {"minPartitions": 7}, {"maxRowsPerTrigger": 33}, {"maxRowsPerTrigger": 50, "maxRowsPerPartition": 4}],
    ids=lambda given: "-".join(given) or "plain",
)
def test_what_tasks_count_is_what_was_published(spark: SparkSession, place: Place, options: dict[str, Any]) -> None:
    """In one micro-batch and in many, in whole batches and in parts of them, read twice, and run again."""
    topic = f"counted-{'-'.join(options).lower() or 'plain'}"
    rows, journal = place.rows(topic, partitions=3, rows=40)
    received = Received()

    def twice(df: DataFrame, batch_id: int) -> None:
        df.isEmpty()  # reads a part, or nothing
        df.count()
        received(df, batch_id)

    with place.publisher(topic, parallelism=3) as publisher:
        checkpoint = place.checkpoint(topic)
        place.seal(publisher, [0])
        stream = place.stream(spark, topic, "billing", startingOffsets="earliest", **options)
        for batch_ids in ([], [1, 2, 3]):
            place.seal(publisher, batch_ids)
            run_to_end(stream, twice, checkpoint)
            proven(place, topic, "billing", journal.rows)
        forget_commit(checkpoint, max(received.batches))
        place.seal(publisher, [4, 5])
        run_to_end(stream, twice, checkpoint)
        assert received.replayed
        received.check(rows, journal)
        proven(place, topic, "billing", journal.rows)


def test_what_is_read_ahead_is_counted(spark: SparkSession, place: Place) -> None:
    """Slots that are bound late, some without a row."""
    topic = "counted-ahead"
    rows, journal = place.rows(topic, partitions=2, rows=20)
    received = Received()
    with place.publisher(topic, parallelism=2) as publisher:
        place.seal(publisher, range(2))
        stream = place.stream(spark, topic, "billing", startingOffsets="earliest", readAhead=True)
        with running(stream, received, place.checkpoint(topic)):
            for batch_id in range(2, 6):
                place.seal(publisher, [batch_id])
                until(lambda: received.rows >= journal.rows, "read")
            proven(place, topic, "billing", journal.rows)
    received.check(rows, journal)


def reads_wrongly(more: int) -> type[JobPipeDataSource]:
    """Return a source whose tasks lose the first record batch of partition 1, or give it twice."""

    def erring(batches: Iterator[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            for _ in range(1 if partition != 1 or number else 1 + more):
                yield batch

    class Erring(JobPipeStreamReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            assert isinstance(partition, RangePartition)
            batches = erring(read_range(partition.wanted, self._schema, self._options), partition.wanted.partition)
            return counted(batches, partition.wanted, self._options.config)

    class Source(JobPipeDataSource):
        @classmethod
        def name(cls) -> str:
            return f"erring{more + 1}"

        def streamReader(self, schema: StructType) -> JobPipeStreamReader:
            return Erring(self._settings, schema)

    return Source


@pytest.mark.parametrize("more", [-1, 1], ids=["lost", "doubled"])
def test_a_task_that_errs_is_found(spark: SparkSession, place: Place, more: int) -> None:
    """Within the time in which a count may be late: the range, the partition, the rows."""
    topic = f"erring-{more + 1}"
    source = reads_wrongly(more)
    spark.dataSource.register(source)
    with place.publisher(topic, parallelism=2) as publisher:
        _, journal = place.rows(topic, partitions=2, rows=20)
        place.seal(publisher, [0, 1])
        given = {"subscribe": topic, "name": "billing", "startingOffsets": "earliest", **place.settings}
        stream = spark.readStream.format(source.name()).options(**given).load()
        received = Received()
        run_to_end(stream, received, place.checkpoint(topic))
        until(lambda: account(place, topic, "billing").differences, "a difference", timeout=60.0)
        (found,) = account(place, topic, "billing").differences
        assert (found.first, found.end, found.partitions, found.reason) == (0, 2, (1,), "counted")
        assert (found.published, found.read) == (journal.rows, received.rows)
        assert (received.rows - journal.rows) * more > 0


def test_a_query_that_does_not_read_is_found(spark: SparkSession, place: Place, seen: list[int]) -> None:
    """It has committed rows that it never looked at."""
    topic = "unread"
    with place.publisher(topic, parallelism=2) as publisher:
        _, journal = place.rows(topic, partitions=2, rows=20)
        place.seal(publisher, [0])
        stream = place.stream(spark, topic, "idle", startingOffsets="earliest")
        run_to_end(stream, lambda _, batch_id: seen.append(batch_id), place.checkpoint(topic))
        assert seen
        until(lambda: account(place, topic, "idle").differences, "a difference", timeout=60.0)
        (found,) = account(place, topic, "idle").differences
        assert (found.first, found.end, found.published, found.read, found.reason) == (0, 1, journal.rows, 0, "unread")


@pytest.fixture
def seen() -> list[int]:
    """The micro-batches that a callback was called with."""
    return []
