"""What is wrong with a source is told at ``load()`` or at the start of the query, once, in words that help."""

from __future__ import annotations

import contextlib
import re
import time

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.kit import Place, Received, run_to_end, running, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SOME = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})


@pytest.fixture(scope="module", autouse=True)
def some_topics(place: Place) -> None:
    """Topics with rows in them: ``some``; ``other`` has another schema."""
    with place.publisher("some") as publisher:
        publisher.seal("q", 0, [SOME])
    with place.publisher("other") as publisher:
        publisher.seal("q", 0, [pa.table({"id": ["1"], "extra": [1.5]})])


def fails(error: type[Exception], of_ours: str, *phrases: str) -> contextlib.AbstractContextManager[list[str]]:
    """Expect one error of ours, seen through Spark's wrapping, that says all this; give its text after the block."""

    @contextlib.contextmanager
    def check():  # type: ignore[no-untyped-def]
        told: list[str] = []
        with pytest.raises(error) as caught:
            yield told
        text = str(caught.value)
        told.append(text)
        names = set(re.findall(r"jobpipe\.errors\.(\w+):", text))
        assert names == {of_ours}, text
        traceback, _, message = text.partition(f"jobpipe.errors.{of_ours}:")
        assert "Traceback" not in message, text  # ours is the last word, and not far from the first
        assert traceback.count("\n  File ") <= 4, text
        for phrase in phrases:
            assert phrase in text, f"{phrase!r} is not in: {text}"

    return check()  # type: ignore[no-any-return]


def start(df: DataFrame, place: Place, name: str) -> None:
    """Start a query and wait for its error."""
    with running(df, Received(), place.checkpoint(f"error-{name}")) as query:
        query.awaitTermination(60)


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (
            {"maxRowPerTrigger": "5"},
            ["1 wrong option\n", "maxrowpertrigger = 5 is unknown; did you mean maxRowsPerTrigger?"],
        ),
        ({"startingOffset": "earliest"}, ["did you mean startingOffsets?"]),
        ({"zzz": "1"}, ["zzz = 1 is unknown; `jobpipe config explain` lists what is possible"]),
        ({"topic": "some"}, ["topic = some is unknown; did you mean subscribe?"]),
        ({"readTimeout": "5s"}, ["readtimeout = 5s is unknown; did you mean jobpipe.read.timeout?"]),
        ({"maxRowsPerTrigger": "0"}, ["maxRowsPerTrigger = 0", "a whole number of at least 1"]),
        (
            {"maxRowsPerTrigger": "many", "startingOffsets": "oldest"},
            ["2 wrong options", "earliest, latest, committed"],
        ),
        ({"includeMetadata": "yes"}, ["includeMetadata = yes", "true or false"]),
        ({"discoveryTimeout": "soon"}, ["discoveryTimeout = soon"]),
        ({"config": "/nowhere/jobpipe.yaml"}, ["/nowhere/jobpipe.yaml"]),
        (
            {"jobpipe.spool.max_byte": "1"},
            ["jobpipe.spool.max_byte = 1 is unknown; did you mean jobpipe.spool.max_bytes?"],
        ),
        ({"name": "a b/c"}, ["name = a b/c", "letters, digits"]),
        ({"subscribe": " , "}, ["subscribe = ' , '", "topic,topic"]),
        ({"subscribe": "ok,not ok"}, ["subscribe = ok,not ok", "'not ok' is not one"]),
    ],
)
def test_wrong_options(spark: SparkSession, place: Place, options: dict[str, str], phrases: list[str]) -> None:
    """All of them at once, each with option, value and what was expected; for streams and batches alike."""
    with fails(AnalysisException, "ConfigError", "format('jobpipe')", *(phrases[:1] if "name" in options else phrases)):
        place.read(spark, options.get("subscribe", "some"), **{k: v for k, v in options.items() if k != "subscribe"})


def test_a_stream_needs_a_name(spark: SparkSession, place: Place) -> None:
    """Told when the query starts: before, Spark does not say whether a source is to be a stream."""
    stream = spark.readStream.format("jobpipe").options(**place.settings).option("subscribe", "some").load()
    with fails(PySparkException, "ConfigError", "option 'name' is missing", ".option('name', 'billing')"):
        start(stream, place, "nameless")


def test_no_topic_at_all(spark: SparkSession, place: Place) -> None:
    """``subscribe`` missing."""
    with fails(AnalysisException, "ConfigError", "subscribe: expected", "topic,topic"):
        spark.read.format("jobpipe").options(**place.settings).load()


def test_a_topic_that_does_not_come(spark: SparkSession, place: Place) -> None:
    """The wait ends with the topic's name and the time; a publisher without a schema is told apart."""
    began = time.monotonic()
    with fails(AnalysisException, "TopicNotFound", "topic 'missing'", "start the publisher"):
        place.read(spark, "missing", discoveryTimeout="2s")
    assert 2 <= time.monotonic() - began < 20
    with (
        place.publisher("quiet"),
        fails(AnalysisException, "TopicNotFound", "'quiet'", "knows no schema yet", "within 2 s"),
    ):
        place.stream(spark, "quiet", "q", discoveryTimeout="2s")


def test_topics_of_different_schemas(spark: SparkSession, place: Place) -> None:
    """They cannot be one stream; the columns that differ are named."""
    with fails(
        AnalysisException,
        "SchemaMismatch",
        "'other' and 'some' have different schemas",
        "id:",
        "name:",
        "extra:",
        "mergeSchema",
    ):
        place.read(spark, "some,other")


@pytest.mark.parametrize(
    ("ddl", "phrases"),
    [
        ("id string, name string", ["id: published as bigint, asked for as string"]),
        ("id bigint not null", ["id: published as bigint, asked for as bigint not null"]),
        ("ID bigint, name string", ["ID: asked for as bigint, not published, but 'id' is: the case of letters counts"]),
        ("id int, more int", ["id: published as bigint, asked for as int"]),
    ],
)
def test_a_schema_by_hand_that_is_wrong(spark: SparkSession, place: Place, ddl: str, phrases: list[str]) -> None:
    """Told when the query starts, by column; in a task it would crash Java."""
    options = {**place.settings, "subscribe": "some", "name": "by-hand", "startingOffsets": "earliest"}
    stream = spark.readStream.format("jobpipe").schema(ddl).options(**options)
    with fails(PySparkException, "SchemaMismatch", "topic 'some', offset 0", "Leave .schema() out", *phrases):
        start(stream.load(), place, f"schema-{len(ddl)}")
    with fails(PySparkException, "SchemaMismatch", "topic 'some', offset 0", "Leave .schema() out", *phrases):
        spark.read.format("jobpipe").schema(ddl).options(**options).load().count()


def test_a_schema_by_hand_that_is_right(spark: SparkSession, place: Place) -> None:
    """Columns that are not asked for are left out, those that are not published null, and numbers wider."""
    options = {**place.settings, "subscribe": "some"}
    read = spark.read.format("jobpipe").schema("more array<int>, id decimal(20,1)").options(**options).load()
    assert read.filter("more is null").selectExpr("cast(id as string) as id").collect() == [
        ("1.0",),
        ("2.0",),
        ("3.0",),
    ]


def test_a_self_join_of_one_load(spark: SparkSession, place: Place) -> None:
    """The error names both remedies, and both work."""
    stream = place.stream(spark, "some", "self", startingOffsets="earliest")
    said = ("NameTaken", "uses one load() more than once", "with a name of its own each", "join inside foreachBatch")
    with fails(StreamingQueryException, *said):
        start(stream.alias("x").join(stream.alias("y"), "id"), place, "self-join")
    with fails(StreamingQueryException, *said):  # with this trigger Spark would leave the other reader alone, for good
        run_to_end(stream.alias("x").join(stream.alias("y"), "id"), Received(), place.checkpoint("self-now"))
    alone = Received()
    run_to_end(stream, alone, place.checkpoint("self-alone"))
    assert alone.rows == 3
    twice = [place.stream(spark, "some", name, startingOffsets="earliest") for name in ("self-1", "self-2")]
    joined = Received()
    run_to_end(twice[0].alias("x").join(twice[1].alias("y"), "id").select("id"), joined, place.checkpoint("self-2"))
    inside: list[int] = []

    def callback(df: DataFrame, batch_id: int) -> None:
        kept = df.persist()
        inside.append(kept.alias("x").join(kept.alias("y"), "id").count())
        kept.unpersist()

    run_to_end(place.stream(spark, "some", "self-3", startingOffsets="earliest"), callback, place.checkpoint("self-3"))
    assert joined.rows == sum(inside) == 3


def test_two_live_queries_with_one_name(spark: SparkSession, place: Place) -> None:
    """The second fails and names the first, which goes on; when the first has ended its name is free at once."""
    stream = place.stream(spark, "some", "shared", startingOffsets="earliest")
    first = Received()
    with running(stream, first, place.checkpoint("name-1")) as query:
        until(lambda: first.rows == 3, "the first query's rows")
        with fails(StreamingQueryException, "NameTaken", "'shared' is held by a live subscriber", "pid "):
            start(stream, place, "name-2")
        time.sleep(1.0)
        assert query.isActive
    third = Received()
    with running(stream, third, place.checkpoint("name-1")) as query, place.publisher("some") as publisher:
        publisher.seal("q", 1, [SOME])
        until(lambda: third.rows == 3, "the rows of the same checkpoint's next run")
