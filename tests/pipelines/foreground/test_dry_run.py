"""Sample rows, and what differs from those that are expected."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, BinaryType, DateType, DoubleType, FloatType, LongType, StructType

from jobpipe.config import job_secrets
from jobpipe.errors import ConfigError, PipelineError
from jobpipe.jobs.foreground import dry_run
from jobpipe.jobs.foreground.dry_run import DryRunResult, differences, read_rows, try_job
from jobpipe.jobs.workloads import spark_session
from jobpipe.pipelines.loading.loader import load_pipeline
from tests.pipelines.conftest import Write, loaded

ROWS = [{"a": 1}, {"a": None, "b": [1.5, {"c": "ä"}]}]
JOBS = """
pipeline: {name: x}
jobs:
  report:
    source: {type: rate}
    sink: {type: console}
  joined:
    sources: {orders: {type: rate}, names: {type: rate}}
    transform: [{type: sql, query: SELECT 1}]
    sink: {type: console}
  own:
    application: own.py
"""


def rows_of(tmp_path: Path, text: str | bytes) -> list[dict[str, Any]]:
    file = tmp_path / "rows.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_rows(file)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}\n{"a": null, "b": [1.5, {"c": "ä"}]}\n',
        '{"a": 1}\r\n\r\n  {"a": null, "b": [1.5, {"c": "\\u00e4"}]}',
        '[{"a": 1}, {"a": null, "b": [1.5, {"c": "ä"}]}]',
        '\n [\n{"a": 1},\n{"a": null, "b": [1.5, {"c": "ä"}]}\n]\n',
    ],
)
def test_rows_are_lines_or_a_list(tmp_path: Path, text: str) -> None:
    assert rows_of(tmp_path, text) == ROWS


@pytest.mark.parametrize("text", ["", "\n", "[]"])
def test_no_rows(tmp_path: Path, text: str) -> None:
    assert rows_of(tmp_path, text) == []


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_lines_end_where_json_says(tmp_path: Path, sign: str) -> None:
    """JSON takes some of the signs as they are at which Python ends a line, too."""
    if sign >= " ":
        assert rows_of(tmp_path, f'{{"a": "x{sign}y"}}\n{{"a": 1}}') == [{"a": f"x{sign}y"}, {"a": 1}]
    else:
        with pytest.raises(ConfigError):
            rows_of(tmp_path, f'{{"a": "x{sign}y"}}')


@pytest.mark.parametrize(
    "text", ["x", "[1]", '[{"a": 1}', '{"a": 1', "1\n2", '"a"', "null", "[[]]", b"\xff", "[" * 10**5]
)
def test_other_files_are_told(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(ConfigError, match=r"rows\.json: expected"):
        rows_of(tmp_path, text)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.json is not there"):
        read_rows(tmp_path / "missing.json")


def test_a_wrong_line_is_told(tmp_path: Path) -> None:
    assert rows_of(tmp_path, '{"a": 1}\n{"a": 2}') == [{"a": 1}, {"a": 2}]
    with pytest.raises(ConfigError, match=r"Expecting ',' delimiter: line 3, column 8"):
        rows_of(tmp_path, '{"a": 1}\n\n{"a": 2')


def test_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "ROWS_MOST", 2)
    assert len(rows_of(tmp_path, "{}\n{}")) == 2
    with pytest.raises(ConfigError, match="at most 2 JSON objects"):
        rows_of(tmp_path, "{}\n{}\n{}")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], []),
        ([{"a": 1}, {"a": 2}], [{"a": 2}, {"a": 1}]),
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}]),
        ([{"a": 1.0}], [{"a": 1}]),
        ([{"a": 1, "b": None}], [{"a": 1}]),
        ([{"a": {"b": None, "c": [2.0]}}], [{"a": {"c": [2]}}]),
        ([{"a": 1}, {"a": 1}], [{"a": 1}, {"a": 1}]),
        ([{"a": "NaN", "b": ["-Infinity"]}], [{"a": float("nan"), "b": [float("-inf")]}]),
    ],
)
def test_the_same(found: list[Any], expected: list[Any]) -> None:
    assert differences(found, expected) == []
    assert differences(expected, found) == []


@pytest.mark.parametrize(
    ("found", "expected", "lines"),
    [
        ([{"a": 1}], [], ['+ {"a": 1}']),
        ([], [{"a": "ä"}], ['- {"a": "ä"}']),
        ([{"a": 1}, {"a": 1}], [{"a": 1}], ['+ {"a": 1}']),
        ([{"a": 2}, {"a": 1}], [{"a": 3}, {"a": 1}], ['+ {"a": 2}', '- {"a": 3}']),
        ([{"a": True}], [{"a": 1}], ['- {"a": 1}', '+ {"a": true}']),
        ([{"a": "1"}], [{"a": 1}], ['+ {"a": "1"}', '- {"a": 1}']),
        ([{"a": [None, 1]}], [{"a": [1]}], ['- {"a": [1]}', '+ {"a": [null, 1]}']),
        ([{"a": float("nan")}], [{"a": float("inf")}], ['- {"a": "Infinity"}', '+ {"a": "NaN"}']),
    ],
)
def test_what_differs(found: list[Any], expected: list[Any], lines: list[str]) -> None:
    assert differences(found, expected) == lines


@pytest.mark.parametrize(
    ("job", "inputs", "said"),
    [
        ("reprot", {None: []}, r"no job 'reprot'; .*report"),
        ("own", {None: []}, "a program of your own"),
        ("report", {}, "give --input FILE, once"),
        ("report", {"orders": []}, "give --input FILE, once"),
        ("joined", {None: []}, "give --input orders=FILE, --input names=FILE"),
        ("joined", {"orders": []}, "give --input orders=FILE, --input names=FILE"),
    ],
)
def test_what_cannot_be_tried(write: Write, tmp_path: Path, job: str, inputs: Any, said: str) -> None:
    (tmp_path / "own.py").touch()
    with pytest.raises(ConfigError, match=said):
        try_job(loaded(write(JOBS)), job, inputs)


FLOW = """
pipeline: {name: x}
jobs:
  halves:
    type: flow
    source: {type: jobpipe, subscribe: numbers}
    function: "halves_of_a_flow:halves"
    publish: halves
    schema: "id BIGINT"
"""


def test_the_columns_of_a_flow_are_read_in_a_session(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[str] = []

    @contextmanager
    def session(*_: object) -> Iterator[None]:
        sessions.append("open")
        yield
        sessions.append("closed")

    def columns(text: str) -> StructType:
        assert (text, sessions) == ("id BIGINT", ["open"])  # Spark raises without
        return StructType().add("id", LongType())

    monkeypatch.setattr(dry_run, "_session", session)
    monkeypatch.setattr(job_secrets, "_given", None)
    monkeypatch.setattr(StructType, "fromDDL", columns)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "halves_of_a_flow.py").write_text(
        "import pyarrow.compute as pc\n"
        "def halves(batch, context):\n"
        "    return batch.filter(pc.greater(batch['id'], 1))\n"
    )
    pipeline = load_pipeline(write(FLOW))
    assert try_job(pipeline, "halves", {None: [{"id": 1}, {"id": 2}]}) == DryRunResult([{"id": 2}], [])
    assert sessions == ["open", "closed"]


def test_a_session_is_classic_whatever_the_environment_says(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q8: the variables of Spark Connect, and of a notebook's driver, are not those of this session."""
    given = {"SPARK_REMOTE": "sc://host", "SPARK_CONNECT_MODE_ENABLED": "1", "PYSPARK_DRIVER_PYTHON": "jupyter"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen: list[set[str]] = []

    def begun(keys: object) -> None:
        seen.append(given.keys() & os.environ.keys())
        raise ConfigError("no session")

    monkeypatch.setattr(spark_session, "prepare_jvm", begun)
    pipeline = loaded(write(JOBS.replace("  own:\n    application: own.py\n", "")))
    with pytest.raises(ConfigError, match="no session"):
        try_job(pipeline, "report", {None: []})
    assert seen == [set()]


def test_rows_of_a_flow_are_json(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q10: NaN and infinities are texts, as in the rows of a query; so are bytes, and days before the year 1."""
    monkeypatch.setattr(job_secrets, "_given", None)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_values", raising=False)
    (tmp_path / "odd_values.py").write_text(
        "import pyarrow as pa\n"
        "def work(batch, context):\n"
        "    far = pa.array([-800_000], pa.int32()).cast(pa.date32())\n"
        "    low = pa.array([[float('-inf')]], pa.list_(pa.float32()))\n"
        "    return pa.RecordBatch.from_pydict({'x': [float('nan')], 'low': low, 'raw': [b'a'], 'far': far})\n"
    )
    low, columns = ArrayType(FloatType()), StructType().add("x", DoubleType())
    columns = columns.add("low", low).add("raw", BinaryType()).add("far", DateType())
    monkeypatch.setattr(dry_run, "_columns", lambda *_: columns)
    text = FLOW.replace("halves_of_a_flow:halves", "odd_values:work").replace("halves:", "f:")
    (found,) = try_job(load_pipeline(write(text)), "f", {None: [{"id": 1}]}).rows
    assert found == {"x": "NaN", "low": ["-Infinity"], "raw": "YQ==", "far": "-0221-09-04"}


@pytest.mark.parametrize(
    ("body", "rows", "error", "said"),
    [
        ("raise ValueError('negative')", [{"id": 1}], PipelineError, r"jobs\.f: the flow's .*: ValueError: negative"),
        ("return jobpipe.secret('mail')", [{"id": 1}], PipelineError, "the environment has no HUNTER"),
        ("return None", [{"id": 1}, {"id": "x"}], ConfigError, "rows of --input have no common columns: .*'x'"),
    ],
)
def test_a_flow_that_fails_is_told(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, rows: Any, error: Any, said: str
) -> None:
    monkeypatch.setattr(job_secrets, "_given", None)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flow_that_fails", raising=False)
    monkeypatch.delenv("HUNTER", raising=False)
    (tmp_path / "flow_that_fails.py").write_text(f"import jobpipe\ndef work(batch, context):\n    {body}\n")
    text = """
pipeline: {name: x}
jobs:
  f:
    type: flow
    source: {type: jobpipe, subscribe: numbers}
    function: "flow_that_fails:work"
    secrets: {mail: "env:HUNTER"}
"""
    with pytest.raises(error, match=said):
        try_job(load_pipeline(write(text)), "f", {None: rows})
