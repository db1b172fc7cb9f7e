"""Files in another encoding than Spark takes them for: no value is changed without a word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobpipe.jobs.workloads.error_location import reason_of
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.api import ORIGIN, REASON, UNPARSED
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sources.encodings import NO_UTF8
from jobpipe.pipelines.sources.format_sources import SparkSource
from tests.spark.files.file_jobs import FileJob

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SCHEMA = "id BIGINT, city STRING"
ROW = {
    "csv": "{},{}\n",
    "json": '{{"id": {}, "city": "{}"}}\n',
    "xml": "<row><id>{}</id><city>{}</city></row>\n",
}
TEXTS = {
    "Latin-1": "Köln".encode("latin-1"),
    "cp1252": "5 €".encode("cp1252"),
    "half a character": "Köln ä".encode()[:-1],
    "the last byte": b"K\xc3",
}
REASONS = {"json": "Malformed records", "xml": "Invalid UTF-8|multi-byte"}  # Spark's own words


def file_of(kind: str, *cities: bytes) -> bytes:
    """Return a file with rows 1, 2, and so on."""
    rows = b"".join(
        ROW[kind].format(number, "CITY").encode().replace(b"CITY", city) for number, city in enumerate(cities, 1)
    )
    return b"<rows>\n" + rows + b"</rows>" if kind == "xml" else rows


def source(kind: str, **options: Any) -> dict[str, Any]:
    """Return the section of a source."""
    more = {"rowTag": "row"} if kind == "xml" else {}
    return {"type": kind, "path": "in", "schema": SCHEMA, "options": {**more, **options}}


@pytest.mark.parametrize(
    ("text", "mode"), [*((text, "STREAMING") for text in TEXTS), ("Latin-1", "BATCH"), ("the last byte", "BATCH")]
)
@pytest.mark.parametrize("kind", list(ROW))
def test_the_job_fails_with_the_file(spark: SparkSession, tmp_path: Path, kind: str, text: str, mode: str) -> None:
    job = FileJob(spark, tmp_path, source(kind), mode=mode)
    file = job.write("a", file_of(kind, b"Bonn", TEXTS[text]))
    with pytest.raises(Exception, match=r"file file:.*/in/a") as caught:
        job.run()
    if kind == "csv":
        assert re.search(r"/in/a: a row cannot be read: its bytes are no UTF-8.*ISO-8859-1", str(caught.value))
    else:
        assert re.search(REASONS[kind], reason_of(caught.value))
    file.write_bytes(file_of(kind, b"Bonn", "Köln €".encode()))
    job.run()
    assert job.ids() == [1, 2]


@pytest.mark.parametrize("options", [{}, {"multiLine": True}], ids=["by its lines", "by Spark's reader"])
def test_a_filter_hides_no_row(spark: SparkSession, tmp_path: Path, options: dict[str, Any]) -> None:
    FileJob(spark, tmp_path).write("a", file_of("csv", b"Bonn", TEXTS["Latin-1"], b"Kiel"))
    run = RunValues("r1")
    job = JobContext(pipeline="p", job="a", mode=Mode.BATCH, storage=str(tmp_path), folder=tmp_path, run=run)
    given = {"path": "in", "schema": SCHEMA, "format": "csv", "options": options}
    frame = SparkSource(SparkSource.parse(given, tmp_path)).load(spark, job)
    with pytest.raises(Exception, match="a row cannot be read"):
        frame.where("city = 'Bonn' or id > 2").collect()


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_the_row_is_a_dead_letter(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Of xml the whole file is in question."""
    FileJob(spark, tmp_path).write("a", file_of(kind, b"Bonn", TEXTS["Latin-1"], "Köln".encode()))
    state, run = str(tmp_path / "state"), RunValues("r1")
    job = JobContext(pipeline="p", job="a", mode=Mode.BATCH, storage=state, folder=tmp_path, run=run)
    given = {"path": "in", "schema": SCHEMA, "format": kind.upper()}
    frame = SparkSource(SparkSource.parse(given, tmp_path)).load_tolerant(spark, job)
    assert frame is not None
    rows = frame.collect()
    assert sorted((row.id, row.city) for row in rows if row[UNPARSED] is None) == [(1, "Bonn"), (3, "Köln")]
    (dead,) = [row for row in rows if row[UNPARSED] is not None]
    assert "\ufffd" in dead[UNPARSED]
    assert dead[ORIGIN].file.endswith("/in/a")
    if kind == "csv":
        assert (dead[UNPARSED], dead[REASON]) == ("2,K\ufffdln", NO_UTF8)


@pytest.mark.parametrize(("encoding", "text"), [("ISO-8859-1", "Köln"), ("UTF-8", "K\ufffdln")])
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_both_remedies(spark: SparkSession, tmp_path: Path, kind: str, encoding: str, text: str) -> None:
    job = FileJob(spark, tmp_path, source(kind, encoding=encoding, **({"lineSep": "\n"} if kind == "json" else {})))
    job.write("a", file_of(kind, text.encode(encoding)))
    job.run()
    (row,) = spark.read.json(str(tmp_path / "out")).collect()
    assert row.city == text


def test_xml_says_its_encoding_itself(spark: SparkSession, tmp_path: Path) -> None:
    job = FileJob(spark, tmp_path, source("xml"))
    job.write("a", b'<?xml version="1.0" encoding="ISO-8859-1"?>\n' + file_of("xml", TEXTS["Latin-1"]))
    job.run()
    (row,) = spark.read.json(str(tmp_path / "out")).collect()
    assert row.city == "Köln"


def test_a_header_alone(spark: SparkSession, tmp_path: Path) -> None:
    """It disagrees with the schema."""
    given = {"type": "csv", "path": "in", "schema": "id BIGINT, `straße` STRING", "options": {"header": True}}
    job = FileJob(spark, tmp_path, given)
    file = job.write("a", "id,straße\n1,Am Markt\n".encode("latin-1"))
    with pytest.raises(Exception, match=r"/in/a"):
        job.run()
    file.write_text("id,straße\n1,Am Markt\n")
    job.run()
    assert job.ids() == [1]
