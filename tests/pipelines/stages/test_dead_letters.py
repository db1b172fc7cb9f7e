"""The topic of a job's dead letters: how long it keeps them, and whether it ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.config import load
from jobpipe.jobs.runner.job_lease import LeaseLost
from jobpipe.pipelines.dead_letters import dead_letter_split, letter_ledger
from jobpipe.pipelines.dead_letters.dead_letter_split import DeadLetters, dead_letters_for
from jobpipe.pipelines.dead_letters.letter_ledger import LetterLedger, note_of_run
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.model.graph import subscribers_of
from jobpipe.pipelines.plugins.job_context import JobContext
from tests.pipelines.conftest import Write, loaded

NO_SPARK: Any = None  # local files need none
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
        ("sink: {type: json, path: out}, execution: {runtime-mode: BATCH}", True),
        ("sink: {type: json, path: out}, execution: {runtime-mode: BATCH}, schedule: {every: day}", False),
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


@pytest.mark.parametrize("mode", list(Mode))
def test_notes_of_runs_that_failed_are_removed(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """V10: at the start of the next run, if there are too many; not its own, nor those of a stream's micro-batches."""
    pipeline = loaded(
        write("""
pipeline: {name: x}
source: {type: rate}
sink: {type: noop, at-least-once: true}
errors: {tolerance: all, dead-letters: bad}
""")
    )
    (job,) = pipeline.jobs.values()
    before = LetterLedger(NO_SPARK, str(tmp_path / "state"))
    for name in (note_of_run("r1"), note_of_run("r2"), "7"):
        before.note(name, "1:5")
    asked: list[int] = []
    context = JobContext(
        pipeline="x",
        job="x",
        mode=mode,
        storage=str(tmp_path / "state"),
        folder=tmp_path,
        run=RunValues("r2"),
        check=lambda: asked.append(1),
    )
    monkeypatch.setattr(letter_ledger, "MOST_OF_RUNS", 0)
    monkeypatch.setattr(dead_letter_split, "JobPipeSink", lambda **_: None)
    letters = dead_letters_for(pipeline, job, context)
    assert letters is not None
    empty = SimpleNamespace(columns=["id"], schema=None)
    empty.sparkSession = SimpleNamespace(createDataFrame=lambda *_: empty)
    empty.drop = lambda *_: empty
    letters.open(empty)  # type: ignore[arg-type]
    kept = {"7", note_of_run("r2")} if mode is Mode.BATCH else {"7"}
    assert {path.name for path in (tmp_path / "state" / "dead-letters").iterdir()} == kept
    assert asked == [1]


def test_a_run_that_is_made_again_finds_its_note(tmp_path: Path) -> None:
    """After other runs of the job."""
    LetterLedger(NO_SPARK, str(tmp_path)).note(note_of_run("r1"), "1:5")
    LetterLedger(NO_SPARK, str(tmp_path)).forget_other_runs(note_of_run("r2"), lambda: None)
    assert LetterLedger(NO_SPARK, str(tmp_path)).of(note_of_run("r1")) == "1:5"


def test_an_attempt_that_was_replaced_removes_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """V10: those that it read may be of the run that has taken its place."""
    monkeypatch.setattr(letter_ledger, "MOST_OF_RUNS", 0)
    before = LetterLedger(NO_SPARK, str(tmp_path))
    before.note(note_of_run("r1"), "1:5")

    def replaced() -> None:
        raise LeaseLost("attempt 2 has begun")

    with pytest.raises(LeaseLost):
        LetterLedger(NO_SPARK, str(tmp_path)).forget_other_runs(note_of_run("r2"), replaced)
    again = LetterLedger(NO_SPARK, str(tmp_path))
    assert again.of(note_of_run("r1")) == "1:5"
    again.forget_other_runs(note_of_run("r1"), replaced)  # there are none
    again.forget_other_runs(note_of_run("r2"), lambda: None)
    assert LetterLedger(NO_SPARK, str(tmp_path)).of(note_of_run("r1")) is None
