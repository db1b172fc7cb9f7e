"""``jobpipe pipeline try``: sample rows through a job's transforms, as a user tries them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobpipe.config import job_secrets
from jobpipe.errors import PipelineError
from jobpipe.jobs.foreground import dry_run
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.loading.scaffold import copy_example
from tests.docs import pages
from tests.docs.pages import block
from tests.pipelines.running import write_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

shell = partial(pages.shell, seconds=140.0)  # each starts a JVM, and a test has two


def test_the_page(tmp_path: Path) -> None:
    """It prints what is expected; with other rows it says what differs."""
    copy_example(tmp_path / "orders")
    done = shell(block("docs/pipelines.md", "try"), tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = map(json.loads, done.stdout.splitlines())
    assert row == {"id": 1, "customer": "ada", "email": "", "amount": 12.5}
    (tmp_path / "expected.json").write_text('[{"id": 1, "customer": "ben", "email": "", "amount": 12.5}]')
    again = "jobpipe pipeline try orders/pipeline.yaml publish --input rows.json --expect expected.json"
    done = shell(again, tmp_path)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith(("- ", "+ "))]
    assert [(line[0], json.loads(line[2:])["customer"]) for line in told] == [("+", "ada"), ("-", "ben")]


def test_two_views_and_dead_letters(tmp_path: Path) -> None:
    """Each view has its rows; what a cast cannot take is told on standard error."""
    jobs = {
        "joined": {
            "sources": {
                "left": {"type": "jobpipe", "subscribe": "a"},
                "right": {"type": "jobpipe", "subscribe": "b"},
            },
            "transform": [{"type": "sql", "query": "SELECT left.id, right.name FROM left JOIN right USING (id)"}],
            "sink": {"type": "console"},
        },
        "cast": {
            "source": {"type": "jobpipe", "subscribe": "a"},
            "transform": [{"type": "Cast", "spec": "id:int"}],
            "errors": {"tolerance": "all"},
            "sink": {"type": "jobpipe", "topic": "c"},
        },
    }
    file = write_pipeline(tmp_path, jobs)
    (tmp_path / "left.json").write_text('{"id": 1}\n{"id": 2}\n')
    (tmp_path / "right.json").write_text('[{"id": 2, "name": "two"}]')
    (tmp_path / "texts.json").write_text('{"id": "7"}\n{"id": "seven"}\n')
    done = shell(f"jobpipe pipeline try {file} joined --input left=left.json --input right=right.json", tmp_path)
    assert (done.returncode, done.stdout) == (0, '{"id": 2, "name": "two"}\n'), done.stderr
    done = shell(f"jobpipe pipeline try {file} cast --input texts.json", tmp_path)
    assert (done.returncode, done.stdout) == (0, '{"id": 7}\n'), done.stderr
    (dead,) = [line for line in done.stderr.splitlines() if line.startswith("dead letter: ")]
    assert json.loads(dead.removeprefix("dead letter: "))["row"] == '{"id":"seven"}'
    done = shell(f"jobpipe pipeline try {file} joined --input left.json", tmp_path)
    assert done.returncode == 2
    assert "--input left=FILE, --input right=FILE" in done.stderr


OWN = """
def fail(row):
    raise ValueError(f"negative: {row['id']}")
def leave(frame):
    raise SystemExit(0)
def later(frame):
    from pyspark.sql import functions as sf
    return frame.withColumn("x", sf.udf(lambda value: 1 / 0)("id"))
def with_secret(frame):
    import jobpipe
    from pyspark.sql import functions as sf
    return frame.withColumn("secret", sf.lit(jobpipe.secret("mail")))
"""
FAIL = {"type": "python", "row-function": "own_of_a_try:fail", "schema": "id BIGINT"}
CAST = {"type": "Cast", "spec": "id:int"}


def job_of(*transforms: object, schema: str = "id STRING", **more: object) -> dict[str, object]:
    return {
        "source": {"type": "csv", "path": "input", "schema": schema},
        "transform": list(transforms),
        "sink": {"type": "jobpipe", "topic": "out"},
        **more,
    }


@pytest.fixture
def tried(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what tries a job on rows, in the session of the tests."""

    @contextmanager
    def session(*_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(dry_run, "_session", session)
    monkeypatch.setattr(job_secrets, "_given", None)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_of_a_try", raising=False)
    (tmp_path / "own_of_a_try.py").write_text(OWN)

    def tried(job: object, *rows: dict[str, object], view: str | None = None) -> dry_run.DryRunResult:
        return dry_run.try_job(load_pipeline(write_pipeline(tmp_path, {"a": job})), "a", {view: list(rows)})

    return tried


@pytest.mark.parametrize(
    ("job", "key", "what"),
    [
        (job_of(schema="id BIGINT"), "source", "[CANNOT_PARSE_JSON_FIELD] Cannot parse the field name 'id'"),
        (job_of(schema="id BIGIN"), "source", '[UNSUPPORTED_DATATYPE] Unsupported data type "BIGIN"'),
        (job_of({"type": "sql", "filter": "idd > 0"}), "transform[0]", "[UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        (job_of({"type": "sql", "projection": "id FORM x y"}), "transform[0]", "[PARSE_SYNTAX_ERROR] Syntax error"),
        (job_of({"type": "sql", "filter": "id = 'x'"}, CAST), "transform[1]", "[CAST_INVALID_INPUT] The value 'x'"),
        (job_of({"type": "python", "function": "own_of_a_try:leave"}), "transform[0]", "SystemExit: 0 (File "),
        (job_of({"type": "python", "function": "own_of_a_try:later"}), "transform[0]", "ZeroDivisionError: division"),
        (job_of(CAST, schema="id BIGINT", errors={"tolerance": "all"}), "source", "[CANNOT_PARSE_JSON_FIELD]"),
        (
            job_of({"type": "sql", "filter": "idd > 0"}, CAST, errors={"tolerance": "all"}),
            "",
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION]",
        ),
    ],
)
def test_a_stage_that_fails_is_told(tried: Any, job: object, key: str, what: str) -> None:
    """With its key, in one line."""
    with pytest.raises(PipelineError) as told:
        tried(job, {"id": "x"})
    (problem,) = told.value.fields["problems"]
    assert problem["key"] == ("jobs.a." + key).rstrip(".")
    assert problem["what"].startswith(what)
    assert "\n" not in problem["what"]
    assert problem["line"] is not None


ID = {"projection": "id"}
TWICE = {"projection": "\\*, upper(id) AS id"}
OTHER = {"projection": "id AS n"}
BOTH = {"projection": "id, id AS n"}
LISTED = {"projection": "array(id) AS list"}
UPSERT = {"type": "jdbc-upsert", "url": "jdbc:sqlite:x.db", "table": "t", "keys": "id"}
TOPIC = {"type": "jobpipe", "topic": "out"}


@pytest.mark.parametrize(
    ("good", "bad", "sink", "what"),
    [
        (ID, TWICE, TOPIC, "two columns"),
        (ID, TWICE, {"type": "json", "path": "x"}, "[COLUMN_ALREADY_EXISTS]"),
        (ID, TWICE, UPSERT, "columns names id, and the rows have the columns id, id"),
        (ID, {"projection": "make_interval(1) AS span"}, TOPIC, ".out': Spark has no Arrow form"),
        (ID, LISTED, {"type": "csv", "path": "x"}, "[UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE]"),
        (ID, LISTED, {"type": "text", "path": "x"}, "[UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE]"),
        (ID, BOTH, {"type": "text", "path": "x"}, "Text data source supports only a single column"),
        (ID, OTHER, {**TOPIC, "partition-by": "id"}, ".out': partition_by names id"),
        (ID, OTHER, {**TOPIC, "schema": "id STRING"}, ".out': the declared columns are id; the rows have n"),
        (BOTH, OTHER, {"type": "parquet", "path": "x", "partition-by": "id"}, ""),
        (ID, OTHER, UPSERT, "keys names id, and the rows have the columns n"),
        (BOTH, OTHER, {**UPSERT, "keys": "n", "order-by": "id"}, "order-by names id, and the rows have the columns n"),
    ],
)
def test_columns_that_the_sink_refuses(tried: Any, good: object, bad: object, sink: object, what: str) -> None:
    """Q11: what `run` refuses because of the columns `try` refuses too, with the sink's key."""
    assert tried(job_of(good, sink=sink), {"id": "x"}).rows[0]["id"] == "x"
    with pytest.raises(PipelineError) as told:
        tried(job_of(bad, sink=sink), {"id": "x"})
    (problem,) = told.value.fields["problems"]
    assert problem["key"] == "jobs.a.sink"
    assert what in problem["what"]
    assert "\n" not in problem["what"]


def test_columns_that_the_sink_of_good_rows_refuses(tried: Any) -> None:
    """Q11: with dead letters."""
    job = job_of(CAST, sink={**TOPIC, "partition-by": "id"}, errors={"tolerance": "all"})
    assert tried(job, {"id": "7"}).rows == [{"id": 7}]
    with pytest.raises(PipelineError, match=r"jobs\.a\.sink: topic '\w+\.out': partition_by names id"):
        tried({**job, "transform": [CAST, OTHER]}, {"id": "7"})


def test_rows_as_spark_tells_them(tried: Any) -> None:
    """Also none, and nulls."""
    same = {"type": "sql", "filter": "true"}
    assert tried(job_of(same, schema="id BIGINT, at TIMESTAMP")).rows == []
    assert tried(job_of(same, schema="id BIGINT, name STRING"), {"id": 1}, {"name": "ä\n"}).rows == [
        {"id": 1, "name": None},
        {"id": None, "name": "ä\n"},
    ]
    at = "2026-01-02T03:04:05.000006Z"
    assert tried(job_of(same, schema="at TIMESTAMP"), {"at": at}).rows == [{"at": at}]


def test_secrets_are_given(tried: Any, tmp_path: Path) -> None:
    (tmp_path / "mail.key").touch(0o600)
    (tmp_path / "mail.key").write_text("canary")
    job = job_of({"type": "python", "function": "own_of_a_try:with_secret"}, secrets={"mail": "file:mail.key"})
    assert tried(job, {"id": "7"}).rows == [{"id": "7", "secret": "canary"}]


def test_a_failure_as_a_user_sees_it(tmp_path: Path) -> None:
    """Exit code 2, a line with the place, and no trace of Python's or Java's."""
    file = write_pipeline(tmp_path, {"a": job_of({"type": "sql", "filter": "id = 'x'"}, FAIL)})
    (tmp_path / "own_of_a_try.py").write_text(OWN)
    (tmp_path / "rows.json").write_text('{"id": "x"}')
    done = shell(f"jobpipe pipeline try {file} a --input rows.json", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    what = f'jobs.a.transform[1]: ValueError: negative: x (File "{tmp_path}/own_of_a_try.py", line 3, in fail)'
    assert done.stderr.endswith(f"{what}\n")
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr
    assert "QueryContextLogger" not in done.stderr


def test_a_query_over_the_source_by_its_name(tried: Any) -> None:
    """With dead letters, too."""
    sources = {"orders": {"type": "csv", "path": "input", "schema": "id STRING"}}
    query = {"type": "sql", "query": "SELECT id FROM orders WHERE id <> '1'"}
    job = {**job_of(query, CAST, errors={"tolerance": "all"}), "sources": sources}
    del job["source"]
    found = tried(job, {"id": "1"}, {"id": "2"}, {"id": "x"}, view="orders")
    assert found.rows == [{"id": 2}]
    assert [letter["row"] for letter in found.dead] == ['{"id":"x"}']


def test_names_that_the_source_does_not_have(tried: Any) -> None:
    """They are left out, and that is told."""
    job = job_of(schema="id STRING, name STRING")
    assert tried(job, {"id": "1"}).unknown == ()
    found = tried(job, {"id": "1", "nmae": "ada"})
    assert found.rows == [{"id": "1", "name": None}]
    assert found.unknown == ("'nmae' in the rows is left out: the columns of the source are id, name",)
