"""Whatever stands anywhere in a file: it is right, or it is told; never a crash, and never dropped in silence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobpipe.errors import PipelineError
from jobpipe.pipelines.loading.loader import load_pipeline
from tests.pipelines.conftest import Write
from tests.pipelines.file.test_good_files import FLIGHTS

ROOT = Path(__file__).parents[3]
SEVERAL = """
pipeline: {name: x}
jobs:
  a:
    sources: {o: {type: rate}, r: {type: rate}}
    transform: [{type: sql, query: SELECT 1}]
    sinks: [{type: jobpipe, topic: t}, {type: json, path: y, at-least-once: true}]
    route: [{source-table: a, sink-table: b}]
  f: {type: flow, source: {type: jobpipe, assign: {t: [1]}}, function: 'a:b'}
"""
FILES = (FLIGHTS.read_text().replace(" on:", ' "on":'), (ROOT / "examples/pipeline/pipeline.yaml").read_text(), SEVERAL)
ODD = (
    *("null", "[]", "{}", "x", "7", "-1", "true", "1.5", ".inf", "99999999999999999999", "[1]", "[[]]"),
    *("{a: b}", "{1: 2}", '{"a.b": c, a: {b: d}}', '"a.b"', '""', r'"\u0000"'),
    *('"${var.x}"', '"${run.lower}"', '"${"', '"$${a}"'),
)
TRIALS = 120

Path_ = tuple[str | int, ...]


def places(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Yield every place of a tree."""
    yield at
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*at, key))


def put(value: Any, at: Path_, other: str) -> Any:
    """Return the tree with another value at one place."""
    if not at:
        return other
    copy = value.copy()
    copy[at[0]] = put(value[at[0]], at[1:], other)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("text", FILES, ids=["flights", "example", "several"])
def test_odd_values(text: str, write: Write) -> None:
    tree = yaml.safe_load(text)
    every = [(at, odd) for at in places(tree) for odd in ODD]
    for at, odd in random.Random(1).sample(every, TRIALS):
        path = write(yaml.safe_dump(put(tree, at, "@odd@"), sort_keys=False).replace("'@odd@'", odd))
        try:
            load_pipeline(path)
        except PipelineError as error:
            problems = error.fields["problems"]
            assert any(problem["severity"] == "error" for problem in problems), (at, odd)


@pytest.mark.parametrize("key", ["source", "sink", "transform", "trigger", "schedule", "errors", "execution"])
def test_null_is_as_if_it_were_not_there(key: str, write: Write) -> None:
    """What a job must have is missing then."""
    path = write(f"pipeline: {{name: x}}\njobs: {{a: {{source: {{type: rate}}, sink: {{type: console}}, {key}: }}}}\n")
    if key not in ("source", "sink"):
        assert load_pipeline(path).warnings == ()
        return
    path.write_text(path.read_text().replace(f"{key}: {{type: {'rate' if key == 'source' else 'console'}}}, ", ""))
    with pytest.raises(PipelineError, match=f"jobs.a.{key}: it is missing; give {key}:"):
        load_pipeline(path)
