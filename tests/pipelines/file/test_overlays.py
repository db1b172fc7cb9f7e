"""Files that are laid over a pipeline's file: what they replace and remove."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe.config.reading.located_values import plain
from jobpipe.pipelines.file.overlays import read_files
from jobpipe.pipelines.file.problems import ProblemList
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
        ("{spark.a.b: 1, spark.c: 2}", "{spark.a.b: null}", {"spark.c": 2}),
        ("{spark.a.b: 1}", "{spark.a.b: 2, spark.a.c: 3}", {"spark.a.b": 2, "spark.a.c": 3}),
        ("{a: {b: 1, c: 2}}", "{a: {b: null, d: {e: 3}}}", {"a": {"c": 2, "d": {"e": 3}}}),
        ("{a: {b: 1}}", "{a: null}", {}),
        ("{a: {b: 1}}", "{a: [2]}", {"a": [2]}),
        ("1", "{a: 2}", {"a": 2}),
        ("{a: 1}", "2", 2),
        ("{a: 1}", "{}", {"a": 1}),
        ("[1, 2]", "[null]", [None]),
        ("1", "{}", {}),
    ],
)
def test_sections_are_merged_and_all_else_replaced(write: Write, base: str, over: str, expected: Any) -> None:
    assert laid(write, f"configuration: {base}", f"configuration: {over}") == {"configuration": expected}


def test_an_option_whose_name_has_a_dot(write: Write) -> None:
    over = write("jobs: {publish: {source: {options: {a.b: 2}}, sink: {retention.time: 2h}}}\n", "over.yaml")
    (job,) = loaded(write(BASE), overlays=[over]).jobs.values()
    assert job.sources[None].plugin.options.options == {"a.b": "2"}
    assert job.sinks[0].given["retention.time"] == "2h"


def test_a_dotted_key_removes_nothing(write: Write) -> None:
    """It would stay what it is, so that is an error; the nested one removes it."""
    base = BASE.replace("storage: /x", "restart: {delay: 1s}")
    over = write("pipeline: {restart: {delay: null}}\n", "over.yaml")
    assert loaded(write(base), overlays=[over]).spec.restart.delay == 5.0
    over = write(
        "pipeline:\n  restart.delay: null\n  restart.policy: null\njobs.publish.source.options.a.b: null\n", "over.yaml"
    )
    assert [(problem.line, problem.remedy, problem.severity) for problem in problems(write(base), overlays=[over])] == [
        (2, "write pipeline: {restart: {delay: null}}", "error"),
        (3, "did you mean restart?", "warning"),
        (4, "write jobs: {publish: {source: {options: {a.b: null}}}}", "error"),
    ]


def test_null_below_a_section_that_is_not_there(write: Write) -> None:
    over = write("jobs: {publish: {trigger: {source: null}}}\n", "over.yaml")
    (warning,) = load_pipeline(write(BASE), overlays=[over]).warnings
    assert (warning.key, warning.severity) == ("jobs.publish.trigger.source", "warning")


def test_removing_a_job_that_is_not_there_is_an_error(write: Write) -> None:
    over = write("jobs:\n  publishh: null\n  publsh: {trigger: null}\n", "over.yaml")
    found = problems(write(BASE), overlays=[over])
    assert [(problem.line, problem.key, problem.remedy, problem.severity) for problem in found] == [
        (2, "jobs.publishh", "did you mean publish?", "error"),
        (3, "jobs.publsh.trigger", "did you mean publish?", "error"),
    ]


def test_null_in_a_job_that_is_added(write: Write) -> None:
    """It removes nothing, and is as if it were not there."""
    over = write("jobs: {more: {source: {type: rate}, sink: {type: console}, trigger: null}}\n", "over.yaml")
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
