"""The topic of a job's dead letters: how long it keeps them, and whether it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobpipe.config import load
from jobpipe.pipelines.context import JobContext
from jobpipe.pipelines.dead_letters import DeadLetters, dead_letters_for
from jobpipe.pipelines.graph import subscribers_of
from jobpipe.pipelines.parameters import RunValues
from tests.pipelines.conftest import Write, loaded

READER = """
  b: {source: {type: jobpipe, subscribe: bad}, sink: {type: console}}"""


def letters_of(path: Path) -> DeadLetters | None:
    """Return what takes the micro-batches of job a apart."""
    pipeline = loaded(path)
    job = pipeline.jobs["a"]
    context = JobContext(
        pipeline=pipeline.name,
        job=job.name,
        mode=job.mode,
        storage="",
        folder=pipeline.folder,
        run=RunValues("r1"),
        subscribers=subscribers_of(pipeline, job),
    )
    return dead_letters_for(pipeline, job, context)


@pytest.mark.parametrize(
    ("more", "reader", "seconds"),
    [
        ("", "", 7 * 86400.0),
        ("", READER, 600.0),
        (", retention: 90d", "", 90 * 86400.0),
        (", retention: 1h", READER, 3600.0),
    ],
)
def test_how_long_letters_are_kept(write: Write, more: str, reader: str, seconds: float) -> None:
    """A week if no job of the file reads them: a user must have the time to look."""
    letters = letters_of(
        write(f"""
pipeline: {{name: x}}
jobs:
  a:
    source: {{type: rate}}
    sink: {{type: jobpipe, topic: t}}
    errors: {{tolerance: all, dead-letters: bad{more}}}{reader}
""")
    )
    assert letters is not None
    given = letters.arguments()
    assert given["required_subscribers"] == (("x.b",) if reader else ())
    overrides = {name: value for name, value in given.items() if name == "retention_time"}
    assert load(overrides=overrides, environ={}).retention_time == seconds


def test_a_job_without_tolerance_has_none(write: Write) -> None:
    path = write("pipeline: {name: x}\njobs: {a: {source: {type: rate}, sink: {type: console}}}\n")
    assert letters_of(path) is None


class Sink:
    """Keeps how it was closed."""

    closed: bool | None = None

    def close(self, *, final: bool) -> None:
        self.closed = final


@pytest.mark.parametrize(
    ("job", "final"),
    [
        ("sink: {type: jobpipe, topic: t}", False),
        ("sink: {type: jobpipe, topic: t, final: true}", True),
        ("sinks: [{type: jobpipe, topic: t, final: true}, {type: jobpipe, topic: u}]", False),
        ("sink: {type: json, path: out, at-least-once: true}", True),
        ("sink: {type: json, path: out}, execution.runtime-mode: BATCH", True),
        ("sink: {type: json, path: out}, execution.runtime-mode: BATCH, schedule: {every: day}", False),
        ("sink: {type: jobpipe, topic: t, final: true}, schedule: {every: day, mode: available-now}", False),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_whether_the_topic_ends(write: Write, job: str, final: bool, ended: bool) -> None:
    """As the job's own topics do; never while further runs follow: their letters would not be read."""
    source = "{type: json, path: 'in/${run.id}', schema: id INT}"
    path = write(f"pipeline: {{name: x}}\njobs: {{a: {{source: {source}, {job}, errors: {{tolerance: all}}}}}}\n")
    if "every: day}" in job:
        path.write_text(path.read_text().replace("run.id", "run.lower"))
    letters: Any = letters_of(path)
    sink = letters._sink = Sink()
    letters.close(ended=ended)
    assert sink.closed is (final and ended)
