"""``readAhead`` with Spark: it ends, it is switched on and off, and what does not go with it is told."""

from __future__ import annotations

import json
import threading

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import jobpipe
from tests.spark.kit import PATIENCE, Place, Received, running, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_await_end(spark: SparkSession, place: Place) -> None:
    """Rows that come while tasks wait, then the end mark: all is read once and acknowledged, and the query ends."""
    received = Received()
    with place.publisher("ahead-end", parallelism=2) as publisher:
        rows, journal = place.rows("ahead-end", partitions=2, rows=5)
        place.seal(publisher, [0])
        stream = place.stream(spark, "ahead-end", "e", startingOffsets="earliest", readAhead=True, includeMetadata=True)
        stream = stream.drop("_jobpipe")
        with running(stream, received, place.checkpoint("ahead-end")) as query:
            for batch_id in (1, 2, 3):
                until(lambda n=batch_id: len(received.batches) > n, "a batch, with rows or without")
                place.seal(publisher, [batch_id])
            until(lambda: received.rows >= journal.rows, "all rows")
            publisher.close(final=True)
            jobpipe.await_end(query, timeout=PATIENCE)
    received.check(rows, journal)


def ends_in_slot(query: StreamingQuery, topic: str) -> bool:
    """Tell whether the last micro-batch was planned with ``readAhead``."""
    progress = query.lastProgress
    return progress is not None and "slot" in json.loads(progress["sources"][0]["endOffset"])[topic]


@pytest.mark.parametrize("turns", [pytest.param(2, marks=pytest.mark.core), 4])
def test_switched_on_and_off(spark: SparkSession, place: Place, turns: int) -> None:
    """One checkpoint, by turns, and stops at any moment; each batch comes once, or again as it was."""
    received, topic = Received(), f"ahead-turns-{turns}"
    with place.publisher(topic, parallelism=2) as publisher:
        rows, journal = place.rows(topic, partitions=2, rows=5)
        for turn in range(turns):
            place.seal(publisher, [turn * 2])
            options = {"startingOffsets": "earliest", "readAhead": turn % 2 == 0}
            stream = place.stream(spark, topic, "t", **options)
            with running(stream, received, place.checkpoint(topic)) as query:
                until(lambda: received.rows >= journal.rows or query.exception(), "what is there")
                place.seal(publisher, [turn * 2 + 1])
            assert query.exception() is None
        stream = place.stream(spark, topic, "t", readAhead=True)
        with running(stream, received, place.checkpoint(topic)) as query:
            until(lambda: received.rows >= journal.rows or query.exception(), "the rest")
            # The first batch may be one planned in the turn before, without readAhead: Spark repeats it as it was.
            until(lambda: ends_in_slot(query, topic) or query.exception(), "a batch planned with readAhead")
            assert query.exception() is None
    received.check(rows, journal)


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_triggers_that_end(spark: SparkSession, place: Place, trigger: str) -> None:
    """Refused with the reason."""
    with place.publisher(f"ahead-{trigger}") as publisher:
        place.seal(publisher, [0])
        stream = place.stream(spark, f"ahead-{trigger}", "n", startingOffsets="earliest", readAhead=True)
        never = threading.Event()
        with (
            pytest.raises(StreamingQueryException, match=f"cannot be combined with the trigger {trigger}"),
            running(stream, lambda _df, _id: never.set(), place.checkpoint(trigger), **{trigger: True}) as query,
        ):
            query.awaitTermination(int(PATIENCE))
        assert not never.is_set()
