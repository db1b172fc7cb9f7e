"""No batch is sealed that a subscriber cannot read, whatever is in its values, and by whichever way it is published."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import jobpipe
from jobpipe.errors import JobpipeError, SchemaMismatch
from jobpipe.pipelines.dead_letters.dead_letter_split import DeadLetters
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.api import ORIGIN, REASON, UNPARSED
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sources.encodings import NO_UTF8
from jobpipe.pipelines.sources.format_sources import TextSource
from tests.docs.troubleshooting import on_page
from tests.spark.files.file_jobs import FileJob
from tests.spark.kit import PATIENCE, Place, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BAD = "CAST(X'4BF66C6E' AS STRING)"  # Köln in Latin-1
WHERE = {
    "a column": "{} AS c",
    "an array": "array('a', {}) AS c",
    "a struct": "named_struct('x', 1, 'y', {}) AS c",
    "a value of a map": "map('a', {}) AS c",
    "a key of a map": "map({}, 1) AS c",
    "deep": "array(map('a', array(named_struct('x', {})))) AS c",
}
UNREADABLE = r"^topic '[\w-]+'(, task \d+)?, row \d+: column 'c' is malformed.*UTF8.*a text must be UTF-8"


def rows(spark: SparkSession, value: str) -> DataFrame:
    """Return 40 rows of two tasks, of which the eleventh has the value, the others a good one."""
    expression = f"CASE WHEN id = 10 THEN {value} ELSE 'Kiel' END"
    return spark.range(0, 40, 1, 2).select("id", sf.expr(WHERE["a column"].format(expression)))


def read(place: Place, topic: str) -> list[dict[str, Any]]:
    """Return what a subscriber without Spark reads, to the topic's end."""
    with jobpipe.subscribe(topic, name=f"r-{uuid.uuid4()}", starting="earliest", config=place.config()) as batches:
        return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("where", list(WHERE))
@pytest.mark.parametrize("path", ["collect", "tasks"])
def test_the_sink_refuses_it(spark: SparkSession, place: Place, topic: str, path: str, where: str) -> None:
    """And publishes the batch once its values are mended."""
    bad, good = (spark.range(1).select(sf.expr(WHERE[where].format(value))) for value in (BAD, "'Köln'"))
    sink = place.sink(topic, **{"jobpipe.write_path": path})
    try:
        with pytest.raises(Exception, match=r"column 'c' is malformed.*UTF8.*a text must be UTF-8") as caught:
            sink.publish(bad, 1, series="s")
        if isinstance(caught.value, JobpipeError):
            on_page(caught.value, "SchemaMismatch: topic '…', row …: column '…' is malformed")
        sink.publish(good, 1, series="s")
    finally:
        sink.close(final=True)
    (row,) = read(place, topic)
    assert "Köln" in str(row)


@pytest.mark.parametrize("options", [{"partition_by": "c"}, {"partitioner": "round-robin"}, {}])
def test_whatever_divides_the_rows(spark: SparkSession, place: Place, topic: str, options: dict[str, str]) -> None:
    sink = place.sink(topic, parallelism=3, **options, **{"jobpipe.write_path": "collect"})
    try:
        with pytest.raises(SchemaMismatch, match=UNREADABLE):
            sink.publish(rows(spark, BAD), 1, series="s")
        sink.publish(rows(spark, "'Köln'"), 1, series="s")
    finally:
        sink.close(final=True)
    assert sorted(row["id"] for row in read(place, topic)) == [*range(40)]


@pytest.mark.core
def test_the_row_is_told(spark: SparkSession, place: Place, topic: str) -> None:
    """Its number counts all rows of the task."""
    sink = place.sink(topic, **{"jobpipe.write_path": "collect"})
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    try:
        with pytest.raises(SchemaMismatch, match=f"topic '{topic}', row 10: column 'c'"):
            sink.publish(rows(spark, BAD).coalesce(1), 1, series="s")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        sink.close()


def test_a_query_with_the_sink(spark: SparkSession, place: Place, topic: str, tmp_path: Path) -> None:
    """It fails, and goes on from its checkpoint once the row is mended: nothing is sealed, and nothing lost."""
    job = FileJob(spark, tmp_path)
    job.write("a", b"Kiel\nK\xf6ln\n")
    lines = spark.readStream.text(str(tmp_path / "in"))
    sink = place.sink(topic)
    with pytest.raises(StreamingQueryException, match="column 'value' is malformed"):
        run_to_end(lines, sink, tmp_path / "state")
    run_to_end(lines.select(sf.make_valid_utf8("value").alias("value")), sink, tmp_path / "state")
    sink.close(final=True)
    assert sorted(row["value"] for row in read(place, topic)) == ["Kiel", "K\ufffdln"]


def test_the_format_refuses_it(spark: SparkSession, place: Place, topic: str) -> None:
    """``df.write.format("jobpipe")``."""

    def write(frame: DataFrame, **more: str) -> None:
        frame.write.format("jobpipe").options(**place.settings, topic=topic, **more).mode("append").save()

    with pytest.raises(Exception, match=r"column 'c' is malformed.*UTF8.*a text must be UTF-8"):
        write(rows(spark, BAD), final="true")
    write(rows(spark, "'Köln'"), final="true")
    assert sorted(row["id"] for row in read(place, topic)) == [*range(40)]


def test_the_format_of_a_stream_refuses_it(spark: SparkSession, place: Place, topic: str, tmp_path: Path) -> None:
    FileJob(spark, tmp_path).write("a", b"K\xf6ln\n")
    lines = spark.readStream.text(str(tmp_path / "in"))

    def run(frame: DataFrame) -> None:
        writer = frame.writeStream.format("jobpipe").trigger(availableNow=True)
        options = {**place.settings, "topic": topic, "checkpointLocation": str(tmp_path / "state")}
        query = writer.options(**options).start()
        try:
            query.awaitTermination(PATIENCE)
        finally:
            query.stop()

    with pytest.raises(StreamingQueryException, match="column 'value' is malformed"):
        run(lines)
    run(lines.select(sf.make_valid_utf8("value").alias("value")))
    assert [row.value for row in place.read(spark, topic).collect()] == ["K\ufffdln"]


# -- lines of text files -----------------------------------------------------------------------------------------------


def context(folder: Path, mode: Mode = Mode.BATCH) -> JobContext:
    state, run = str(folder / "state"), RunValues("r1")
    return JobContext(pipeline="p", job="a", mode=mode, storage=state, folder=folder, run=run)


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_a_line_that_is_no_utf8_fails_the_job(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """The file is named; others are read."""
    job = FileJob(spark, tmp_path, {"type": "text", "path": "in"}, {"type": "text", "path": "out"}, mode=mode)
    file = job.write("a", b"Kiel\nK\xf6ln\n")
    with pytest.raises(Exception, match=r"file file:.*/in/a: a line cannot be read: .*UTF-8.*encoding"):
        job.run()
    file.write_bytes("Kiel\nKöln €\n\n".encode())
    job.run()
    lines = spark.read.text(str(tmp_path / "out")).collect()
    assert sorted(row.value for row in lines) == ["", "Kiel", "Köln €"]


def test_or_is_a_dead_letter(spark: SparkSession, place: Place, tmp_path: Path, topic: str) -> None:
    """Its text comes as well as it goes; the other lines are written."""
    FileJob(spark, tmp_path).write("a", b"Kiel\nK\xf6ln\nhalf of \xc3\nK\xc3\xb6ln\n")
    job = context(tmp_path)
    frame = TextSource(TextSource.parse({"path": "in"}, tmp_path)).load_tolerant(spark, job)
    assert frame is not None
    assert set(frame.columns) == {"value", ORIGIN, UNPARSED, REASON}
    letters, found = DeadLetters(job, topic, "text", [], None), []
    with pytest.MonkeyPatch.context() as patch:
        arguments = {**letters.arguments(), **place.settings}
        patch.setattr(letters, "arguments", lambda: arguments)
        letters._final = True
        letters.open(frame)
        letters.handle(frame, 0, lambda good, _: found.extend(row.value for row in good.collect()))
        letters.close(ended=True)
    assert sorted(found) == ["Kiel", "Köln"]
    told = sorted((row["row"], row["error_class"], row["error_message"]) for row in read(place, topic))
    assert told == [("K\ufffdln", "MALFORMED_RECORD", NO_UTF8), ("half of \ufffd", "MALFORMED_RECORD", NO_UTF8)]
    assert {Path(row["file"]).name for row in read(place, topic)} == {"a"}


def test_a_dead_letter_of_a_row_with_such_a_text(spark: SparkSession, tmp_path: Path) -> None:
    """A function raises for it: what is published of it can be read."""
    from pyspark.sql.types import StringType, StructType

    from jobpipe.pipelines.transforms.python_udf import RowCalls, with_dead

    columns = StructType().add("c", StringType())
    calls = RowCalls(refuse, {}, columns, tolerant=True)
    (row,) = spark.range(1).select(sf.expr(f"{BAD} AS c")).mapInArrow(calls, with_dead(columns)).collect()
    dead = next(value for value in row.asDict().values() if value is not None)
    assert "ln" in dead["row"]
    dead["row"].encode()


def refuse(row: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(row)
