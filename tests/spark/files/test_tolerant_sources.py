"""Sources of files in a job with dead letters: which rows are bad, and that none passes as nulls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.api import ORIGIN, ORIGIN_FIELDS, UNPARSED, Source
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sources.format_sources import CsvSource, JsonSource, ParquetSource, SparkSource

pytestmark = pytest.mark.spark

COLUMNS = "id BIGINT, name STRING"


def loaded(
    spark: SparkSession, kind: type[Source], folder: Path, mode: Mode = Mode.BATCH, **given: Any
) -> DataFrame | None:
    """Return the rows of a source in a job with dead letters, that reads what is in a folder."""
    context = JobContext(
        pipeline="p", job="a", mode=mode, storage=str(folder / "state"), folder=folder, run=RunValues("r1"), attempt=1
    )
    source = kind(kind.parse({"path": "input", "schema": COLUMNS, **given}, folder))
    return source.load_tolerant(spark, context)


def write(folder: Path, text: str | bytes) -> None:
    (folder / "input").mkdir()
    (folder / "input" / "a").write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("schema", [COLUMNS, "id BIGINT, -- x\nname STRING -- y", "struct<id: bigint, name: string>"])
def test_a_schema_in_any_form(spark: SparkSession, tmp_path: Path, schema: str) -> None:
    """Such as one that ends with a comment."""
    write(tmp_path, "1,ada\ntwo,ben\n")
    frame = loaded(spark, CsvSource, tmp_path, schema=schema)
    assert frame is not None
    assert sorted((row.name or "", row[UNPARSED]) for row in frame.collect()) == [("ada", None), ("ben", "two,ben")]


@pytest.mark.parametrize(
    ("format_", "text", "bad"),
    [("CSV", "1,ada\ntwo,ben\n", "two,ben"), ("json", '{"id": 1, "name": "ada"}\n{"id": "two"}\n', '{"id": "two"}')],
)
def test_a_format_by_its_name(spark: SparkSession, tmp_path: Path, format_: str, text: str, bad: str) -> None:
    """`type: spark` with `format: csv` is Spark's csv as well."""
    write(tmp_path, text)
    frame = loaded(spark, SparkSource, tmp_path, format=format_)
    assert frame is not None
    assert sorted(row[UNPARSED] or "" for row in frame.collect()) == ["", bad]


def test_a_format_that_parses_no_texts(spark: SparkSession, tmp_path: Path) -> None:
    assert loaded(spark, ParquetSource, tmp_path) is None


def test_a_schema_in_a_file_that_takes_bad_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Only where the job runs is it read."""
    write(tmp_path, "1,ada\n")
    (tmp_path / "rows.ddl").write_text("id BIGINT, _corrupt_record STRING")
    with pytest.raises(ConfigError, match="to the dead letters"):
        loaded(spark, CsvSource, tmp_path, schema="file:rows.ddl")


def test_an_array_on_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """With one element that is bad all are, each with the text of the line: as docs/dead-letters.md says."""
    line = '[{"id": 1, "name": "ada"}, {"id": "two"}]'
    write(tmp_path, f'{line}\n[{{"id": 3}}, {{"id": 4}}]\n')
    frame = loaded(spark, JsonSource, tmp_path)
    assert frame is not None
    assert sorted((row.id or 0, row[UNPARSED]) for row in frame.collect()) == [
        (0, line),
        (1, line),
        (3, None),
        (4, None),
    ]


def test_a_line_with_zero_bytes(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, b"1,ada\n\x00\x00\x001234\n")
    frame = loaded(spark, CsvSource, tmp_path)
    assert frame is not None
    assert [(row.id, row[UNPARSED]) for row in frame.collect()] == [(1, None), (None, "\0\0\x001234")]


@pytest.mark.parametrize("mode", list(Mode))
def test_where_a_row_comes_from(spark: SparkSession, tmp_path: Path, mode: Mode) -> None:
    """The file, of good and of bad rows: a later stage may find that a row is bad."""
    write(tmp_path, "1,ada\ntwo,ben\n")
    frame = loaded(spark, CsvSource, tmp_path, mode=mode)
    assert frame is not None
    assert frame.schema[ORIGIN].dataType.simpleString() == f"struct<{ORIGIN_FIELDS}>".lower().replace(" ", "")
    if mode is Mode.BATCH:
        origins = [row[ORIGIN].asDict() for row in frame.collect()]
        assert {each.pop("file").replace("file:///", "file:/") for each in origins} == {f"file:{tmp_path}/input/a"}
        assert origins == 2 * [dict.fromkeys(("topic", "offset", "partition", "row_number", "published_ms"))]
