"""``writeStream.format("jobpipe")`` and ``write.format("jobpipe")``: options, partitions, waits, shared topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

import jobpipe
from jobpipe.admin import Admin
from jobpipe.coordinator.topic_liveness import WatchedParent
from jobpipe.errors import LinkError, TopicNotFound
from jobpipe.publishing.coordinator_launcher import parent_of
from jobpipe.publishing.serving.shared_coordinator import attach_for, end_shared
from jobpipe.spark.session.launch_settings import SUBMIT
from jobpipe.testing import NumberedRows
from tests.docs.troubleshooting import on_page
from tests.spark.kit import Place, file_stream, until, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def save(place: Place, df: DataFrame, topic: str, mode: str = "append", **options: Any) -> None:
    """Publish rows as one batch."""
    given = {"topic": topic, **{name: str(value) for name, value in options.items()}}
    df.write.format("jobpipe").options(**place.settings).options(**given).mode(mode).save()


def start(place: Place, df: DataFrame, topic: str, checkpoint: str = "", **options: Any) -> StreamingQuery:
    """Publish a stream."""
    given = {"topic": topic, **{name: str(value) for name, value in options.items()}}
    writer = df.writeStream.format("jobpipe").options(**place.settings).options(**given)
    return writer.option("checkpointLocation", str(place.checkpoint(checkpoint or f"w-{topic}"))).start()


def kill_coordinator(place: Place) -> None:
    """Kill the coordinator of the namespace's writers."""
    process = attach_for(jvm())(place.config()).process
    process.kill()
    process.wait(30)


def jvm() -> WatchedParent:
    """Return the JVM of the session."""
    (found,) = [
        each for each in psutil.Process().children(recursive=True) if each.name() == "java" and SUBMIT in each.cmdline()
    ]
    return parent_of(found)


def sealing(place: Place, query: StreamingQuery, condition: Callable[[], object], what: str) -> None:
    """Wait for something of a query that publishes; fail as soon as it fails."""

    def holds() -> object:
        if not query.isActive:
            raise AssertionError(f"{what}: the query has ended: {query.exception()}")
        try:
            return condition()
        except (LinkError, TopicNotFound):  # not yet
            return False

    until(holds, what)


def files(spark: SparkSession, place: Place, topic: str, count: int) -> DataFrame:
    """Return a stream of so many micro-batches of 20 rows each."""
    folder = place.folder / f"files-{topic}"
    write_files(folder, NumberedRows(topic, partitions=2, rows=10), range(count))
    return file_stream(spark, folder)


def ids(spark: SparkSession, place: Place, topic: str) -> Counter[int]:
    """Return how often each id was published."""
    return Counter(row.id for row in place.read(spark, topic).select("id").collect())


@pytest.mark.core
def test_batches_are_appended_and_those_of_a_series_once(spark: SparkSession, place: Place) -> None:
    """A job that is run again writes its batches again; with a series they are recognised."""
    for _ in range(2):
        save(place, spark.range(0, 3), "a-table")
    for _ in range(2):
        save(place, spark.range(10, 13), "a-table", series="nightly", batch_id=7)
    save(place, spark.range(20, 23), "a-table", series="nightly", batchId=8)
    with pytest.raises(PySparkException, match="CheckpointTooOld"):
        save(place, spark.range(10, 13), "a-table", series="nightly", batch_id=7)
    expected = Counter([*range(3), *range(3), *range(10, 13), *range(20, 23)])
    assert ids(spark, place, "a-table") == expected


def test_a_final_batch_ends_the_topic(spark: SparkSession, place: Place) -> None:
    """A stream up to the end mark ends by itself; a batch after it opens the topic again."""
    save(place, spark.range(3), "ending", required_subscribers="reader", final=True)
    assert place.status("ending")["ended"]
    assert not place.status("ending")["publishing"]
    save(place, spark.range(3, 5), "ending", required_subscribers="reader")
    assert place.status("ending")["publishing"]
    assert ids(spark, place, "ending") == Counter(range(5))


def test_a_topic_is_closed_by_name(
    spark: SparkSession, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``jobpipe.close``, and by ``jobpipe.run`` at the end of a query; its next use opens it again."""
    for name, value in place.environ().items():
        monkeypatch.setenv(name, value)
    save(place, spark.range(3), "by-name", required_subscribers="reader")
    assert jobpipe.close("by-name", final=True)
    assert place.status("by-name")["ended"]
    assert not place.status("by-name")["publishing"]
    assert not jobpipe.close("by-name")
    stream = files(spark, place, "by-name", 1).select("number")
    writer = stream.selectExpr("number AS id").writeStream.format("jobpipe").options(**place.settings)
    options = {"topic": "by-name", "required_subscribers": "reader", "checkpointLocation": str(tmp_path / "ck")}
    query = writer.options(**options).trigger(availableNow=True).start()
    assert jobpipe.run(query, final=True) == 0
    status = place.status("by-name")
    assert (status["ended"], status["publishing"], status["head"]) == (True, False, 4)


def test_a_query_without_rows_ends_its_topic(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last run has published all, and died before the end mark: nothing of ours runs in this one."""
    for name, value in place.environ().items():
        monkeypatch.setenv(name, value)
    stream = files(spark, place, "late-end", 1)
    for run in range(2):
        options = {"topic": "late-end", "required_subscribers": "reader", "parallelism": "2"}
        writer = stream.writeStream.format("jobpipe").options(**place.settings, **options)
        query = (
            writer.option("checkpointLocation", str(place.checkpoint("late-end"))).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(60)
        if run == 0:
            end_shared(place.config())
    assert jobpipe.run(query, final=True) == 0
    with place.publisher("late-end", parallelism=2, required_subscribers="reader") as publisher:
        status = publisher.status()
    assert (status["ended"], status["head"]) == (True, 2)


def test_an_end_mark_needs_no_living_coordinator(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened again with the settings that it had, and is closed then, for good."""
    for name, value in place.environ().items():
        monkeypatch.setenv(name, value)
    save(place, spark.range(3), "dead-end", required_subscribers="reader", parallelism=2)
    kill_coordinator(place)
    assert jobpipe.close("dead-end", final=True)
    with place.publisher("dead-end", parallelism=2, required_subscribers="reader") as publisher:
        status = publisher.status()
    assert (status["ended"], status["head"], status["required"]) == (True, 2, ["reader"])


def test_a_sink_replaces_a_writer(spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.environ().items():
        monkeypatch.setenv(name, value)
    save(place, spark.range(3), "replaced")
    sink = place.sink("replaced", replace=True)
    sink(spark.range(3, 5), 0)
    assert ids(spark, place, "replaced") == Counter(range(5))
    sink.close()


def test_partitions_are_those_that_a_sink_chooses(spark: SparkSession, place: Place) -> None:
    """By hash of several types; fixed and round-robin; and by a function that is imported."""
    rows = spark.range(0, 200, 1, 3).withColumn("key", F.concat(F.lit("k"), F.col("id") % 17))
    rows = rows.withColumn("at", F.timestamp_seconds("id")).withColumn("price", F.expr("CAST(id AS DECIMAL(12, 2))"))
    ways: dict[str, dict[str, Any]] = {
        "hash": {"partition_by": ["key", "at", "price"]},
        "fixed": {"partitioner": "fixed"},
        "round-robin": {"partitioner": "round-robin"},
    }
    for way, given in ways.items():
        sink = place.sink(f"by-sink-{way}", parallelism=4, write_path="tasks", **given)
        sink.publish(rows, 0, series="x")
        texts = {name: ",".join(value) if isinstance(value, list) else value for name, value in given.items()}
        save(place, rows, f"by-format-{way}", parallelism=4, series="x", batch_id=0, **texts)
        found = []
        for topic in (f"by-sink-{way}", f"by-format-{way}"):
            read = place.read(spark, topic, includeMetadata=True).select("id", "_jobpipe.partition")
            found.append({row.id: row.partition for row in read.collect()})
        assert found[0] == found[1], way
        assert len(set(found[0].values())) == (3 if way == "fixed" else 4)
        sink.close()
    save(place, rows, "by-function", parallelism=4, partitioner="tests.spark.kit:by_id")
    read = place.read(spark, "by-function", includeMetadata=True).select("id", "_jobpipe.partition")
    assert all(row.partition == row.id % 4 for row in read.collect())


def test_a_declared_schema_is_what_is_published(spark: SparkSession, place: Place) -> None:
    """Rows are cast to it; those that do not fit are refused."""
    declared = spark.createDataFrame([], "id bigint, note string").schema.json()
    save(place, spark.range(3).selectExpr("CAST(id AS INT) AS id", "'x' AS note"), "declared", schema=declared)
    assert [kind for _, kind in place.read(spark, "declared").dtypes] == ["bigint", "string"]
    with pytest.raises(PySparkException, match="the declared columns are id, note; the rows have id"):
        save(place, spark.range(3), "declared", schema=declared)
    with pytest.raises(PySparkException, match=r"the JSON that StructType\.json"):
        save(place, spark.range(3), "declared", schema='{"type": "struct", "fields": [{"name": 3}]}')


def test_wrong_options_are_told_all_at_once(spark: SparkSession, place: Place) -> None:
    """Nothing is published, and no topic taken over."""
    wrong = {"topik": "x", "replace": "true", "acks": "some", "write_path": "collect", "series": "s", "path": "orders"}
    with pytest.raises(PySparkException) as caught:
        save(place, spark.range(3), "wrong-options", partitioner="os:no_such", schema="id bigint", **wrong)
    text = str(caught.value)
    for name in (*wrong, "partitioner", "schema"):
        assert f"option: {name}" in text, text
    assert "did you mean topic?" in text
    with pytest.raises(PySparkException, match="the topic's name"):
        spark.range(3).write.format("jobpipe").options(**place.settings).mode("append").save()
    with pytest.raises(PySparkException, match=r"mode\('overwrite'\)") as caught:
        save(place, spark.range(3), "wrong-options", mode="overwrite")
    on_page(str(caught.value), "ConfigError: topic '…': mode(")
    query = start(place, spark.readStream.format("rate").load(), "wrong-options", series="s", final="true")
    with pytest.raises(StreamingQueryException, match="it for batch writes only"):
        query.awaitTermination(60)
    assert not (place.folder / "spool" / "wrong-options").exists()


def test_what_cannot_be_published_is_told_before_any_task(spark: SparkSession, place: Place) -> None:
    """Types that cannot pass, columns that are not there, and types whose hash only Spark can compute."""
    with pytest.raises(PySparkException, match=r"UnsupportedType: .*i \(interval year\)"):
        save(place, spark.range(3).selectExpr("id", "INTERVAL '1' YEAR AS i"), "unfit")
    with pytest.raises(PySparkException, match="partition_by names nobody"):
        save(place, spark.range(3), "unfit", partition_by="nobody", parallelism=2)
    with pytest.raises(PySparkException, match="whose hash only Spark can compute"):
        save(place, spark.range(3).selectExpr("array(id) AS a"), "unfit", partition_by="a", parallelism=2)


@pytest.mark.core
def test_a_query_waits_for_room_and_can_be_stopped(spark: SparkSession, place: Place) -> None:
    """The tasks wait, which a stop ends; with room the query goes on where it was."""
    limits = {"spool.max_bytes": "1MiB", "acks.timeout": "5min", "retention.ack_grace": "0s", "retention.time": "0s"}
    limits |= {"segment.compression": "none", "segment.max_bytes": "256KiB"}
    padded = files(spark, place, "room", 8).withColumn("pad", F.repeat(F.lit("x"), 20_000))
    required = {"required_subscribers": "reader"}
    query = start(place, padded, "room", **limits, **required)
    sealing(place, query, lambda: place.status("room")["waiting"], "a full spool")
    sealed = place.status("room")["head"]
    assert 0 < sealed < 8
    query.stop()  # does not wait for room, which nobody makes
    assert query.exception() is None
    with Admin(place.config()) as admin:
        admin.require("room", "reader", required=False)
        admin.drop("room", "reader")
    # The other subscription begins with what is there by then.
    until(lambda: place.status("room")["tail"] == sealed, "room is made")
    again = start(place, padded, "room", **limits, **required | {"required_subscribers": "other"})
    try:
        sealing(place, again, lambda: place.status("room")["head"] > sealed, "the batch that waited")
    finally:
        again.stop()


def test_two_queries_of_one_application_publish_one_topic(spark: SparkSession, place: Place) -> None:
    """Each batch is one of either; neither takes the other's files."""
    columns = ["number", "payload", "digest", "partition"]
    queries = [
        start(
            place,
            files(spark, place, f"both-{n}", 6).withColumn("query", F.lit(n)).select("query", *columns),
            "both",
            f"both-{n}",
        )
        for n in range(2)
    ]
    try:
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    found = Counter(
        (row.query, row.number)
        for row in place.read(spark, "both").select("query", "number", "partition").distinct().collect()
    )
    assert place.read(spark, "both").count() == 2 * 6 * 20
    assert len(found) == 2 * 6 * 10
    assert place.status("both")["head"] == 12


def test_other_settings_open_the_topic_again(spark: SparkSession, place: Place) -> None:
    """A query that is started with other settings in the same application has them."""
    save(place, spark.range(3), "settled", parallelism=2)
    assert place.status("settled")["parallelism"] == 2
    save(place, spark.range(3), "settled", parallelism=3, required_subscribers="a,b")
    status = place.status("settled")
    assert (status["parallelism"], status["required"]) == (3, ["a", "b"])


def test_a_coordinator_that_dies_is_started_again(spark: SparkSession, place: Place) -> None:
    """The query goes on, and what was published is served again."""
    stream = files(spark, place, "killed", 2)
    query = start(place, stream, "killed")
    try:
        query.processAllAvailable()
        kill_coordinator(place)
        write_files(place.folder / "files-killed", NumberedRows("killed", partitions=2, rows=10), range(2, 5))
        query.processAllAvailable()
        assert query.exception() is None
    finally:
        query.stop()
    assert place.status("killed")["head"] == 5
    assert place.read(spark, "killed").count() == 100


def test_a_sink_and_a_query_do_not_share_a_topic(spark: SparkSession, place: Place) -> None:
    """The later one is told whose the topic is."""
    sink = place.sink("shared", parallelism=1)
    with pytest.raises(PySparkException, match="TopicOwned: topic 'shared' already has a publisher"):
        save(place, spark.range(3), "shared")
    sink.close()
    save(place, spark.range(3), "shared")
    assert ids(spark, place, "shared") == Counter(range(3))


def test_complete_mode_publishes_each_result(spark: SparkSession, place: Place) -> None:
    """As Spark's sink for Kafka does."""
    counted = files(spark, place, "complete", 2).groupBy("partition").count()
    writer = counted.writeStream.outputMode("complete").format("jobpipe").options(**place.settings)
    query = writer.options(topic="complete", checkpointLocation=str(place.checkpoint("w-complete"))).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert place.status("complete")["head"] == 2
    counts = Counter(row["count"] for row in place.read(spark, "complete").collect())
    assert counts == {10: 2, 20: 2}
