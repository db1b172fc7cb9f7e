"""What is probably a mistake: sources that are not here, and types that Spark does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.pipelines.file.ddl import unknown_types
from jobpipe.pipelines.loading.lint import inputs_not_here, types_of_no_column
from tests.pipelines.conftest import Write, loaded

JOB = "  {name}: {{source: {{type: csv, path: '{path}', schema: '{schema}'}}, sink: {{type: {sink}}}}}\n"
HEAD = "pipeline: {name: shop}\njobs:\n"
CLUSTER = "pipeline: {name: shop, storage: 's3a://b/s', launcher: {type: spark-rest, url: 'http://m:6066', " + (
    "master: 'spark://m:7077', python: /opt/python}}\njobs:\n"
)


def text(path: str = "in", schema: str = "id BIGINT", sink: str = "console", name: str = "a") -> str:
    return JOB.format(name=name, path=path, schema=schema, sink=sink)


def test_a_path_that_is_not_there(write: Write, tmp_path: Path) -> None:
    pipeline = loaded(write(HEAD + text()))
    (problem,) = inputs_not_here(pipeline)
    assert (problem.line, problem.key, problem.severity) == (3, "jobs.a.source.path", "warning")
    assert problem.what == f"there is nothing at {tmp_path}/in, and the job fails without it"
    (tmp_path / "in").mkdir()
    assert list(inputs_not_here(pipeline)) == []


@pytest.mark.parametrize("path", ["in-*.csv", "s3a://bucket/in", "hdfs:///in", "{a,b}/in"])
def test_what_is_not_known_here(write: Write, path: str) -> None:
    assert list(inputs_not_here(loaded(write(HEAD + text(path))))) == []


def test_of_a_cluster_nothing_is_known(write: Write) -> None:
    assert list(inputs_not_here(loaded(write(CLUSTER + text("/data/in", sink="noop"))))) == []


@pytest.mark.parametrize("path", ["out", "out/day=1"])
def test_a_folder_that_another_job_writes(write: Write, tmp_path: Path, path: str) -> None:
    (tmp_path / "in").mkdir()
    pipeline = loaded(write(HEAD + text(sink="json, path: out") + text(path, name="b")))
    assert list(inputs_not_here(pipeline)) == []


def test_types_that_spark_does_not_have(write: Write, tmp_path: Path) -> None:
    (tmp_path / "columns.ddl").write_text("id BIGINT, at TIMSTAMP")
    given = text(schema="id BIGINT, name STRNG") + text(schema="file:columns.ddl", name="b")
    given += text(schema="file:other.ddl", name="c")
    found = list(types_of_no_column(loaded(write(HEAD + given))))
    assert [(each.line, each.key, each.what, each.remedy) for each in found] == [
        (3, "jobs.a.source.schema", "STRNG is no type that Spark has", "did you mean STRING?"),
        (4, "jobs.b.source.schema", "TIMSTAMP is no type that Spark has", "did you mean TIMESTAMP?"),
    ]


@pytest.mark.parametrize(
    ("columns", "unknown"),
    [
        ("id bigint, d decimal(10, 2) NOT NULL, t timestamp_ntz COMMENT 'a, b STRNG'", []),
        ("id: long, m map<string, array<struct<x: int, `y z`: double>>>", []),
        ("i interval year to month, c char(3) DEFAULT 'x', v variant", []),
        ("m map<strng, array<struct<x: itn>>>", ["strng", "itn"]),
        ("`a` lnog, b foo", ["lnog", "foo"]),
        ('{"type": "struct"}', []),
        ("id", []),
        ("", []),
    ],
)
def test_types_of_columns(columns: str, unknown: list[str]) -> None:
    assert list(unknown_types(columns)) == unknown
