"""Sources of files in a job with dead letters: which rows are bad, and that none passes as nulls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobpipe.pipelines.context import JobContext
from jobpipe.pipelines.parameters import RunValues
from jobpipe.pipelines.plugins import UNPARSED, Source
from jobpipe.pipelines.sources.formats import CsvSource
from jobpipe.pipelines.spec import Mode

pytestmark = pytest.mark.spark

COLUMNS = "id BIGINT, name STRING"


def loaded(spark: SparkSession, kind: type[Source], folder: Path, **given: Any) -> DataFrame | None:
    """Return the rows of a source in a job with dead letters, that reads what is in a folder."""
    context = JobContext(
        pipeline="p", job="a", mode=Mode.BATCH, storage="", folder=folder, run=RunValues("r1"), attempt=1
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
