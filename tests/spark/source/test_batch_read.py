"""``spark.read``: what lies in the topics when the read is planned; and the metadata column of both readers."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobpipe.testing import Checker
from tests.spark.kit import Place, Received, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

METADATA = ["topic", "offset", "partition", "parallelism", "publisher", "published", "row"]


def test_counts_of_one_and_of_several_topics(spark: SparkSession, place: Place) -> None:
    """All rows of all topics, as often as one likes; a read leaves no subscription behind."""
    publishers = []
    for topic, parallelism in (("a", 1), ("b", 3), ("c", 2)):
        with place.publisher(topic, parallelism=parallelism) as publisher:
            place.seal(publisher, range(4), partitions=parallelism, rows=25)
            publishers.append(publisher)
            assert place.read(spark, topic).count() == 100 * parallelism
            assert place.read(spark, topic, startingOffsets=json.dumps({topic: 4})).count() == 0
    read = place.read(spark, "c,a, b", includeMetadata=True)
    counts = {row["topic"]: row["count"] for row in read.groupBy("_jobpipe.topic").count().collect()}
    assert counts == {"a": 100, "b": 300, "c": 200}
    for topic, count in counts.items():
        table = read.where(F.col("_jobpipe.topic") == topic).orderBy("_jobpipe.offset", "_jobpipe.row").toArrow()
        assert table.num_rows == count
        checker = Checker(*place.rows(topic))
        checker.take(table)
        checker.check()
    assert read.select("number").distinct().count() == 100  # only some columns asked for
    with place.publisher("a") as publisher:
        assert publisher.status()["subscriptions"] == []


def test_an_empty_topic(spark: SparkSession, place: Place) -> None:
    """A topic that only declared its schema reads as no rows, of these types."""
    sink = place.sink("nothing", schema="id bigint, at timestamp")
    read = place.read(spark, "nothing")
    assert read.dtypes == [("id", "bigint"), ("at", "timestamp")]
    assert read.count() == 0
    sink.close()


def test_what_a_subscription_has_not_acknowledged(spark: SparkSession, place: Place) -> None:
    """``startingOffsets=committed`` with a name reads what that subscription has before it; it acknowledges none."""
    with place.publisher("rest") as publisher:
        place.seal(publisher, range(2))
        received = Received()
        run_to_end(
            place.stream(spark, "rest", "reader", startingOffsets="earliest"), received, place.checkpoint("rest")
        )
        place.seal(publisher, [2])
        for _ in range(2):
            rest = place.read(spark, "rest", name="reader", startingOffsets="committed")
            assert sorted(row.number for row in rest.collect()) == list(range(20, 30))


@pytest.mark.core
def test_metadata_rebuilds_the_order(spark: SparkSession, place: Place) -> None:
    """Both readers tell where each row lies, by which the publisher's order can be had back."""
    with place.publisher("meta", parallelism=2, name="the meta job") as publisher:
        place.seal(publisher, range(3), partitions=2, rows=7)
    read = place.read(spark, "meta", includeMetadata=True)
    assert read.schema["_jobpipe"].dataType.names == METADATA  # type: ignore[attr-defined]
    rows = read.select("*", "_jobpipe.*").drop("_jobpipe").toArrow().to_pylist()
    assert len(rows) == 42
    previous = None
    for row in rows:
        assert (row["topic"], row["parallelism"], row["publisher"]) == ("meta", 2, "the meta job")
        assert row["number"] == row["offset"] * 7 + row["row"]
        assert previous is None or row["published"] >= previous or row["offset"] == 0
        previous = row["published"]
    streamed = Received()
    stream = place.stream(spark, "meta", "m", startingOffsets="earliest", includeMetadata=True)
    run_to_end(stream.select("*", "_jobpipe.*").drop("_jobpipe"), streamed, place.checkpoint("meta"))
    assert streamed.batches[0].to_pylist() == rows
    only = place.read(spark, "meta", includeMetadata=True).select("_jobpipe.row", "_jobpipe.offset").distinct()
    assert only.count() == 21
