"""Where a job's rows were when it failed: out of what Spark says, without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException

from jobpipe.errors import DataLoss
from jobpipe.jobs.workloads.error_location import _ranges, at_sink, at_stage, file_in, stage_of, stage_place
from jobpipe.jobs.workloads.workload import failure
from jobpipe.spark.termination.query_job import with_remedy
from tests.pipelines.conftest import Write, loaded


class TheirConfigError(Exception):
    """Of a user's code."""


LOG = "0123456789abcdef"


def offsets(**positions: tuple[int, int]) -> str:
    """Return Spark's text of the offsets of a jobpipe source and of a source of files."""
    source = {topic: {"log": LOG, "epoch": 1, "n": n, "r": r} for topic, (n, r) in positions.items()}
    return f'[{json.dumps(source)}, {{"logOffset": 3}}, -]'


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        (offsets(t=(3, 0)), offsets(t=(5, 0)), "topic t, offsets 3 to 4"),
        (offsets(t=(3, 0)), offsets(t=(4, 0)), "topic t, offset 3"),
        (offsets(t=(3, 1)), offsets(t=(3, 7)), "topic t, offset 3"),
        (offsets(t=(3, 0)), offsets(t=(3, 0)), ""),
        ("[-]", offsets(t=(2, 0), u=(0, 4)), "topic t, up to offset 1; topic u, up to offset 0"),
        ('[{"logOffset": 2}]', '[{"logOffset": 3}]', ""),
        ("no offsets", '{"t": 1}', ""),
    ],
)
def test_of_a_micro_batch(start: str, end: str, told: str) -> None:
    assert _ranges(start, end) == told


def test_of_many_topics() -> None:
    """An end record has room for 300 characters."""
    start, end = (offsets(**{f"t{number}": (at, 0) for number in range(9)}) for at in (1, 2))
    assert _ranges(start, end).endswith("topic t4, offset 1; and 4 more topics")


def test_of_a_file() -> None:
    text = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a%20b/c.csv. SQLSTATE: KD001"
    assert file_in(text) == "file file:///a%20b/c.csv"
    assert file_in("[USER_RAISED_EXCEPTION] file file:/a%20b/c.csv: a row cannot") == "file file:///a%20b/c.csv"
    assert file_in("[CAST_INVALID_INPUT] The value 'file a.csv' cannot be cast") == ""


def test_what_failed_says_where() -> None:
    assert failure("ValueError: no voice", place="topic t, offset 3").place == "topic t, offset 3"
    assert failure(RuntimeError("x\nEncountered error while reading file file:///a.csv.")).place == "file file:///a.csv"
    assert failure(DataLoss("gone", topic="t", offset=4)).place == "topic t, offset 4"


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (DataLoss("gone"), "DataLoss"),
        (ValueError("x"), "ValueError"),
        (AnalysisException("x"), "AnalysisException"),
        (TheirConfigError("x"), f"{__name__}.TheirConfigError"),
        ("DataLoss: gone", "DataLoss"),
        ("pyspark.errors.exceptions.captured.AnalysisException: x", "AnalysisException"),
        ("acme.config.ConfigError: x", "acme.config.ConfigError"),
        ("[CAST_INVALID_INPUT] x", "StreamingQueryException"),
    ],
)
def test_how_an_error_is_called(error: BaseException | str, named: str) -> None:
    """One of other code is no error of ours, whatever its name: it does not end a job for good."""
    assert failure(error).error == named


def test_a_host_that_was_too_busy_is_told() -> None:
    """Spark gives a Python worker ten seconds to connect back."""
    assert with_remedy("OSError: no space left") == "OSError: no space left"
    told = "Python worker failed to connect back: the host was too busy to start Python"
    assert (
        with_remedy("org.apache.spark.SparkException: Python worker failed to connect back.")
        .partition(": ")[2]
        .startswith(told)
    )
    assert failure(RuntimeError("Python worker failed to connect back.")).message.endswith("start the job again")


FILE = """
pipeline: {name: shop, parameters: {column: id}}
jobs:
  report:
    source: {type: rate}
    transform:
      - {type: sql, query: "SELECT custmer FROM input"}
      - {type: sql, query: "SELECT ${var.column} FROM input"}
    sink: {type: console}
"""


def test_an_error_of_a_stage_says_which(write: Write) -> None:
    pipeline = loaded(write(FILE))
    first, second = pipeline.jobs["report"].transforms
    with pytest.raises(AnalysisException) as told, at_stage(pipeline, second), at_stage(pipeline, first):
        raise AnalysisException("custmer cannot be resolved")
    name = pipeline.file.name
    assert failure(told.value).place == f"{name}:7 jobs.report.transform[0]"
    assert failure(DataLoss("gone", topic="t")).place == "topic t"
    assert stage_place(pipeline, second) == f"{name} jobs.report.transform[1]"  # the file has a parameter there
    relative = replace(pipeline, file=Path("elsewhere") / name)  # as a run in another folder has named it
    assert stage_place(relative, first) == f"{name}:7 jobs.report.transform[0]"
    pipeline.file.write_text("jobs: {}")
    assert stage_place(pipeline, first) == f"{name} jobs.report.transform[0]"


def test_a_stage_of_a_file_of_one_job(write: Write) -> None:
    pipeline = loaded(write("pipeline: {name: shop}\nsource: {type: rate}\nsink: {type: console}\n"))
    (sink,) = pipeline.jobs["shop"].sinks
    assert stage_place(pipeline, sink) == f"{pipeline.file.name}:3 sink"


@pytest.mark.parametrize(
    ("error", "is_certain"),
    [
        (OSError("disk full"), True),
        (DataLoss("gone"), True),
        (AnalysisException("no such column"), True),
        (Py4JError("an error in Java"), False),
    ],
)
def test_an_error_where_a_sink_writes(write: Write, error: Exception, is_certain: bool) -> None:
    """Spark computes the rows there: an error of that is not the sink's, nor is one that the sink makes of it."""
    pipeline = loaded(write(FILE))
    (sink,) = pipeline.jobs["report"].sinks
    with pytest.raises(type(error)), at_sink(pipeline, sink):
        raise error
    assert stage_of(error) == (f"{pipeline.file.name}:9 jobs.report.sink" if is_certain else "")
    again = RuntimeError("not written")
    again.__context__ = error
    with pytest.raises(RuntimeError), at_sink(pipeline, sink):
        raise again from None
    assert bool(stage_of(again)) == is_certain
