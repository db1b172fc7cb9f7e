"""A bad option as a user of Spark meets it: told once, in the words of the definition, before any task runs."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from jobpipe.config import masked_repr
from tests.config.values.bad_options import BAD, TOGETHER, Bad, Together, beside
from tests.spark.kit import Place, Received

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DDL = "id bigint, name string"
ONE_OF_EACH = [(option, values[0]) for option, values in BAD.items()]
IDS = [option for option, _ in ONE_OF_EACH]
# What only the log, or the kind of read, can tell: (options, a phrase). The topic has two batches.
IN_THE_LOG = [
    ({"startingOffsets": '{"some": 5}'}, "topic 'some'"),
    ({"startingTimestamp": "4000000000000"}, "topic 'some': nothing was published"),
    ({"boundaryType": "OFFSET", "lowerBound": "2", "upperBound": '{"some": 1}'}, "before the start"),
    ({"startingTimestamp": "5", "assign": '{"some": [7]}'}, "parallel-7"),
]


@pytest.fixture(scope="module", autouse=True)
def some_topic(place: Place) -> None:
    """``some``, with two batches."""
    with place.publisher("some") as publisher:
        for batch_id in (0, 1):
            publisher.seal("q", batch_id, [pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})])


@contextlib.contextmanager
def told(spark: SparkSession, kind: type[Exception], *phrases: str) -> Iterator[str]:
    """Expect one error of ours that says all this, and no job of Spark; gives the group that jobs are to be in."""
    group = uuid.uuid4().hex
    spark.sparkContext.setJobGroup(group, "what fails")
    with pytest.raises(kind) as caught:
        yield group
    text = str(caught.value)  # what a user sees
    assert text.count("jobpipe.errors.") == 1, text
    assert "Traceback" not in text.partition("jobpipe.errors.")[2], text
    for phrase in phrases:
        assert phrase in text, f"{phrase!r} is not in: {text}"
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup(group)


def start(spark: SparkSession, place: Place, options: dict[str, str]) -> None:
    """Start a stream whose schema is given, so that ``load()`` asks nothing; wait for its error."""
    reader = spark.readStream.format("jobpipe").schema(DDL).options(**place.settings)
    stream = reader.options(**{"name": "bad", **options}).load()
    checkpoint = place.checkpoint(uuid.uuid4().hex)
    query = stream.writeStream.foreachBatch(Received()).option("checkpointLocation", str(checkpoint)).start()
    try:
        query.awaitTermination(60)
    finally:
        query.stop()
        assert not spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId))


def line(option: str, bad: Bad) -> str:
    """Return what the message has to say of an option, up to what is expected."""
    return f"  option: {option} = {masked_repr(bad.value)}: expected "


def rounds() -> list[dict[str, Bad]]:
    """Return a bad value of every option, by option, in as few sets as there have to be: each start takes seconds."""
    found: list[dict[str, Bad]] = []
    for option, bad in ONE_OF_EACH:
        mine = {**beside(option, bad), option: bad.value}
        fits = (
            these for these in found if all(given(these)[0].get(key, value) == value for key, value in mine.items())
        )
        these = next(fits, None)
        if these is None:
            found.append(these := {})
        these[option] = bad
    return found


def given(these: dict[str, Bad]) -> tuple[dict[str, str], list[str]]:
    """Return the options of one round, and what the error has to say."""
    options: dict[str, str] = {}
    for option, bad in these.items():
        options |= {**beside(option, bad), option: bad.value}
    phrases = [line(option, bad) for option, bad in these.items()]
    return options, ["format('jobpipe'): ", *phrases, *(bad.phrase for bad in these.values())]


@pytest.mark.parametrize(("option", "bad"), ONE_OF_EACH, ids=IDS)
def test_at_load(spark: SparkSession, place: Place, option: str, bad: Bad) -> None:
    """Without a schema by hand."""
    options = {**place.settings, **beside(option, bad), option: bad.value}
    with told(spark, AnalysisException, f"format('jobpipe'): 1 wrong option\n{line(option, bad)}", bad.phrase):
        spark.read.format("jobpipe").options(**options).load()


@pytest.mark.parametrize("these", rounds(), ids=lambda these: ", ".join(these))
def test_where_the_schema_is_given(spark: SparkSession, place: Place, these: dict[str, Bad]) -> None:
    """Spark asks nothing at ``load()`` then: told at the start of a stream, and when a batch read is planned."""
    options, phrases = given(these)
    with told(spark, PySparkException, *phrases):
        start(spark, place, options)
    read = spark.read.format("jobpipe").schema(DDL).options(**place.settings).options(**options).load()
    with told(spark, PySparkException, *phrases):
        read.count()


@pytest.mark.core
@pytest.mark.parametrize("together", TOGETHER[-1:], ids=lambda together: together.why)
def test_all_problems_at_once(spark: SparkSession, place: Place, together: Together) -> None:
    """However many they are."""
    lines = [f"option: {option} = {together.options[option]}: expected " for option in together.problems]
    phrases = [f"{len(lines)} wrong options", *lines, *together.problems.values()]
    with told(spark, AnalysisException, *phrases):
        spark.readStream.format("jobpipe").options(**place.settings).options(**together.options).load()


@pytest.mark.parametrize(("options", "phrase"), IN_THE_LOG, ids=[json.dumps(options) for options, _ in IN_THE_LOG])
def test_what_only_the_log_can_tell(spark: SparkSession, place: Place, options: dict[str, str], phrase: str) -> None:
    """Told when the query starts, or the batch read is planned; in no task."""
    options = {**({} if "assign" in options else {"subscribe": "some"}), **options}
    with told(spark, PySparkException, phrase):
        start(spark, place, options)
    read = spark.read.format("jobpipe").schema(DDL).options(**place.settings).options(**options).load()
    with told(spark, PySparkException, phrase):
        read.count()
