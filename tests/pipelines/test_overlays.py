"""Files that are laid over a pipeline's file: what they replace and remove, however a key is written."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe.pipelines.file.located_values import plain
from jobpipe.pipelines.file.problems import ProblemList
from jobpipe.pipelines.file.yaml_reader import read_files
from jobpipe.pipelines.loading.loader import load_pipeline
from tests.pipelines.conftest import Write, loaded, problems

BASE = """
pipeline: {name: x, storage: /x}
jobs:
  publish: {source: {type: rate, options: {a.b: 1}}, sink: {type: jobpipe, topic: t, retention.time: 1h}}
"""


def laid(write: Write, base: str, over: str) -> Any:
    report = ProblemList()
    tree = read_files(write(base), [write(over, "over.yaml")], report)
    assert report.problems == []
    assert tree is not None
    return plain(tree)


@pytest.mark.parametrize(
    ("base", "over", "expected"),
    [
        ("{spark: {a.b: 1}}", "{spark.a.b: null}", {"spark": {}}),
        ("{spark: {a.b: 1}}", "{spark.a.b: 2}", {"spark": {"a.b": 2}}),
        ("{spark.a.b: 1}", "{spark: {a.b: 2}}", {"spark.a.b": 2}),
        ("{spark.a: {b: 1}}", "{spark: {a.b: null}}", {"spark.a": {}}),
        ("{spark.a.b: 1, spark.c: 2}", "{spark: {a: null}}", {"spark.c": 2}),
        ("{spark.a: 1}", "{spark: {b: {d: 2}}}", {"spark.a": 1, "spark": {"b": {"d": 2}}}),
        ("1", "{a: 2}", {"a": 2}),
        ("{a: 1}", "2", 2),
        ("{a: 1}", "{}", {"a": 1}),
        ("[1, 2]", "[null]", [None]),
        ("1", "{}", {}),
    ],
)
def test_dotted_and_nested_are_one(write: Write, base: str, over: str, expected: Any) -> None:
    assert laid(write, f"configuration: {base}", f"configuration: {over}") == {"configuration": expected}


def test_an_option_that_the_file_has_in_another_form(write: Write) -> None:
    over = write("jobs.publish: {source.options.a: {b: 2}, sink.retention: {time: 2h}}\n", "over.yaml")
    (job,) = loaded(write(BASE), overlays=[over]).jobs.values()
    assert job.sources[None].plugin.options.options == {"a.b": "2"}
    assert job.sinks[0].given["retention.time"] == "2h"


def test_removing_a_job_that_is_not_there_is_an_error(write: Write) -> None:
    over = write("jobs.publishh: null\njobs.publsh.trigger: null\n", "over.yaml")
    found = problems(write(BASE), overlays=[over])
    assert [(problem.line, problem.key, problem.remedy, problem.severity) for problem in found] == [
        (1, "jobs.publishh", "did you mean publish?", "error"),
        (2, "jobs.publsh.trigger", "did you mean publish?", "error"),
    ]


def test_null_in_a_job_that_is_added(write: Write) -> None:
    """It removes nothing, and is as if it were not there."""
    over = write("jobs.more: {source: {type: rate}, sink: {type: console}, trigger: null}\n", "over.yaml")
    pipeline = load_pipeline(write(BASE), overlays=[over])
    assert list(pipeline.jobs) == ["publish", "more"]
    assert [(warning.key, warning.severity) for warning in pipeline.warnings] == [("jobs.more.trigger", "warning")]


def test_removing_a_key_that_is_not_there_is_a_warning(write: Write) -> None:
    """One file may be laid over several: not each has what it removes."""
    over = write("pipeline:\n  alerts: null\n  storge: null\n  restart: {max-attempts: null}\n", "over.yaml")
    found = load_pipeline(write(BASE), overlays=[over]).warnings
    assert [(problem.line, problem.key, problem.remedy) for problem in found] == [
        (2, "pipeline.alerts", "leave it out"),
        (3, "pipeline.storge", "did you mean storage?"),
        (4, "pipeline.restart.max-attempts", "leave it out"),
    ]
