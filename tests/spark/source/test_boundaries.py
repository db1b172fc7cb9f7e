"""Where a read begins and ends, by Spark itself; tests/bus/subscribing has the many cases, without Java."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import jobpipe
from jobpipe.errors import WaitTimeout
from jobpipe.publishing.topic_publisher import Publisher
from tests.spark.kit import PATIENCE, Place, Received, run_to_end, running, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def numbers(table: pa.Table) -> list[int]:
    """Return the numbers of all rows, in order."""
    return sorted(table["number"].to_pylist())


def streamed(received: Received) -> list[int]:
    """Return what a query has received."""
    return sorted(n for table in received.batches.values() for n in numbers(table))


def stands(publisher: Publisher, name: str) -> tuple[int, int]:
    """Return what ``jobpipe topics lag`` shows of a subscription: position, and lag in batches."""
    line = next(line for line in publisher.status()["subscriptions"] if line["name"] == name)
    return line["position"], line["lag"]["batches"]


def ended(df: DataFrame, received: Received, place: Place, checkpoint: str) -> None:
    """Run a query until it is at its end."""
    with running(df, received, place.checkpoint(checkpoint)) as query:
        jobpipe.await_end(query, timeout=PATIENCE)
        assert not query.isActive


@pytest.fixture(scope="module")
def times(place: Place, spark: SparkSession) -> Any:
    """Seal six batches into topic ``timed``, no two of one millisecond; give the publish times, and the publisher."""
    with place.publisher("timed", parallelism=2) as publisher:
        for batch_id in range(6):
            place.seal(publisher, [batch_id], partitions=2)
            now = time.time()
            until(lambda now=now: time.time() >= now + 0.002, "the next millisecond")
        rows = (
            place.read(spark, "timed", includeMetadata=True).select("_jobpipe.offset", "_jobpipe.published").toArrow()
        )
        found = dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        yield [round(found[n].timestamp() * 1000) for n in range(6)], publisher


def test_a_range_by_stream_and_by_batch_read(spark: SparkSession, place: Place, times: Any) -> None:
    """By offsets, times and bounds: ``spark.read`` and a stream that ``await_end`` stops get the same rows."""
    at, publisher = times
    wanted = sorted(2 * list(range(20, 50)))  # batches 2, 3 and 4, of two partitions
    for number, options in enumerate(
        (
            {"startingOffsets": '{"timed": 2}', "endingOffsets": '{"timed": 5}'},
            {"startingTimestamp": at[2], "endingTimestamp": at[5]},
            {"boundaryType": "OFFSET", "lowerBound": 2, "upperBound": 5},
            {"boundaryType": "TIME", "lowerBound": at[1] + 1, "upperBound": json.dumps({"timed": at[5]})},
        )
    ):
        read = place.read(spark, "timed", **options)
        assert numbers(read.toArrow()) == wanted
        assert numbers(read.toArrow()) == wanted  # each action is a read of its own
        received = Received()
        ended(place.stream(spark, "timed", f"range{number}", **options), received, place, f"range{number}")
        assert streamed(received) == wanted
        assert stands(publisher, f"range{number}") == (5, 1)  # its last batch is acknowledged, and no other


def test_a_range_by_time_in_which_nothing_was_published(spark: SparkSession, place: Place, times: Any) -> None:
    """After the newest batch, as between two; with the strategy that runs of jobs have."""
    at, _ = times
    later = {"boundaryType": "TIME", "lowerBound": at[5] + 1, "upperBound": at[5] + 2}
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert numbers(place.read(spark, "timed", **later, **latest).toArrow()) == []
    between = {"boundaryType": "TIME", "lowerBound": at[1] + 1, "upperBound": at[2]}
    assert numbers(place.read(spark, "timed", **between, **latest).toArrow()) == []


def test_a_range_waits_until_its_end_has_come(spark: SparkSession, place: Place) -> None:
    """Rows that are published while it is planned belong to it."""
    with place.publisher("coming") as publisher:
        place.seal(publisher, [0])
        begin = int(time.time() * 1000) - 60_000
        upper = int(time.time() * 1000) + 3000
        late = threading.Timer(1.5, lambda: place.seal(publisher, [1]))
        late.start()
        read = place.read(spark, "coming", boundaryType="TIME", lowerBound=begin, upperBound=upper)
        assert numbers(read.toArrow()) == list(range(20))
        late.join()


def test_a_bounded_stream_waits_for_its_end(spark: SparkSession, place: Place) -> None:
    """One that is not there yet; not a row behind it; and a new end goes on from the checkpoint."""
    with place.publisher("bounded") as publisher:
        place.seal(publisher, range(2))
        received = Received()
        stream = place.stream(spark, "bounded", "b", startingOffsets="earliest", endingOffsets='{"bounded": 4}')
        with running(stream, received, place.checkpoint("bounded")) as query:
            until(lambda: received.rows == 20, "what is there")
            with pytest.raises(WaitTimeout):
                jobpipe.await_end(query, timeout=0.5)
            place.seal(publisher, range(2, 6))
            jobpipe.await_end(query, timeout=PATIENCE)
        assert (streamed(received), stands(publisher, "b")) == (list(range(40)), (4, 2))
        options = {"endingTimestamp": int(time.time() * 1000) + 200, "startingOffsets": '{"bounded": 0}'}
        ended(place.stream(spark, "bounded", "b", **options), received, place, "bounded")  # the checkpoint wins
        assert (streamed(received), stands(publisher, "b")) == (list(range(60)), (6, 0))
        ended(place.stream(spark, "bounded", "b", endingOffsets='{"bounded": 1}'), received, place, "bounded")
        assert (streamed(received), stands(publisher, "b")) == (list(range(60)), (6, 0))
        run_to_end(
            place.stream(spark, "bounded", "now", startingOffsets="earliest", endingOffsets='{"bounded": 9}'),
            again := Received(),
            place.checkpoint("bounded-now"),
        )
        assert (streamed(again), stands(publisher, "now")) == (list(range(60)), (6, 0))


def test_offsets_of_each_topic(spark: SparkSession, place: Place) -> None:
    """By JSON, with Kafka's -2 and -1; a restart from the checkpoint takes no notice of it."""
    with place.publisher("json-a") as one, place.publisher("json-b") as two, place.publisher("json-c") as three:
        for publisher in (one, two, three):
            place.seal(publisher, range(3))
        received, topics = Received(), "json-a,json-b,json-c"
        for begin in ({"json-a": -2, "json-b": -1, "json-c": 2}, {"json-a": 0, "json-b": 0, "json-c": 0}):
            stream = place.stream(spark, topics, "j", startingOffsets=json.dumps(begin), includeMetadata=True)
            run_to_end(stream.select("number", "_jobpipe.topic"), received, place.checkpoint("json"))
        table = pa.concat_tables(table for _, table in sorted(received.batches.items()))
        read = {topic: numbers(table.filter(pa.compute.field("topic") == topic)) for topic in topics.split(",")}
        assert read == {"json-a": list(range(30)), "json-b": [], "json-c": list(range(20, 30))}


def test_a_time_that_nothing_was_published_since(spark: SparkSession, place: Place, times: Any) -> None:
    """The query fails and says so, unless it is to begin with what comes next."""
    at, publisher = times
    far = {"startingTimestamp": "2096-01-01T00:00:00Z"}
    failing = place.stream(spark, "timed", "unmatched", **far)
    with (
        running(failing, Received(), place.checkpoint("unmatched")) as query,
        pytest.raises(StreamingQueryException, match="'timed': nothing was published at 2096-01-01T00:00:00") as caught,
    ):
        query.awaitTermination(int(PATIENCE))
    assert f"({at[5]} ms)" in str(caught.value)
    received = Received()
    stream = place.stream(spark, "timed", "next", **far, startingOffsetsByTimestampStrategy="latest")
    with running(stream, received, place.checkpoint("next")) as query:
        until(lambda: stands(publisher, "next")[0] == 6 if _has(publisher, "next") else False, "the first position")
        place.seal(publisher, [6])
        until(lambda: received.rows, "the batch that came next")
        query.stop()
    assert streamed(received) == sorted(2 * list(range(60, 70)))


def _has(publisher: Publisher, name: str) -> bool:
    return any(line["name"] == name and line["position"] is not None for line in publisher.status()["subscriptions"])
