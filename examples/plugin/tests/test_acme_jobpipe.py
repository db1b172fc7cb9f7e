"""The plug-ins as a job uses them; the options are parsed as those of a pipeline's file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from acme_jobpipe.slug import Slug
from acme_jobpipe.sqlite import SqliteSink
from pyspark.sql import SparkSession

from jobpipe.errors import ConfigError
from jobpipe.pipelines.plugins.api import JobContext, Mode, RunValues


@pytest.fixture
def job(tmp_path: Path) -> JobContext:
    return JobContext(
        pipeline="articles", job="slugs", mode=Mode.BATCH, storage="state", folder=tmp_path, run=RunValues("r1")
    )


def slug(job: JobContext, **options: str) -> Slug:
    return Slug(Slug.parse(options, job.folder))


def sqlite(job: JobContext, **options: str) -> SqliteSink:
    return SqliteSink(SqliteSink.parse(options, job.folder))


def test_slug(spark: SparkSession, job: JobContext) -> None:
    texts = ["Crème  brûlée!", "Cre\u0300me", "IN 10 Minutes", "Ελλάδα", "?", None]
    frame = spark.createDataFrame([(text,) for text in texts], "`the.title` string")
    rows = slug(job, field="the.title", target="url", separator="_").apply(frame, job).collect()
    assert [row.url for row in rows] == ["creme_brulee", "creme", "in_10_minutes", "", "", None]
    with pytest.raises(ConfigError, match=r"no column title; there are the\.title"):
        slug(job, field="title").apply(frame, job)


def test_sqlite(spark: SparkSession, job: JobContext) -> None:
    """A batch that is given twice is there once; names may be odd."""
    frame = spark.createDataFrame([(1, 'a"b'), (2, None)], 'id int, `the "name".x` string')
    sink = sqlite(job, path="new/rows.db", table='my "rows"')
    sink.open(frame, job)
    for batch_id in (0, 0, 1, 1):
        sink.write(frame, batch_id, job)
    sink.close(ended=True)
    with closing(sqlite3.connect(job.folder / "new" / "rows.db")) as database:
        rows = database.execute('SELECT * FROM "my ""rows"""').fetchall()
    assert sorted(rows) == [(1, 'a"b'), (1, 'a"b'), (2, None), (2, None)]


def test_what_sqlite_refuses(job: JobContext) -> None:
    found = sqlite(job, path="s3://bucket/rows.db", table="sqlite_master").check(Mode.STREAMING)
    assert [complaint.key for complaint in found] == ["path", "table"]
