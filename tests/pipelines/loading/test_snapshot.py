"""What an attempt is started with: written and read, and the same pipeline again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from jobpipe.config.reading.located_values import plain
from jobpipe.errors import ConfigError, PipelineError
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.loading.scaffold import copy_example
from jobpipe.pipelines.loading.snapshot import ParentProcess, Snapshot
from jobpipe.pipelines.model.pipeline import Pipeline
from tests.pipelines.conftest import Write, loaded

FLIGHTS = Path(__file__).parents[1] / "flights.yaml"
TEXTS = """
pipeline: {name: own}
jobs:
  own:
    application: own.py
    arguments: ["$${run.lower}", "${run.lower}", "${run.id}", "für ☃"]
"""


def snapshot(pipeline: Pipeline, **given: Any) -> Snapshot:
    values = {
        "file": pipeline.file,
        "folder": pipeline.folder,
        "tree": plain(pipeline.tree),
        "job": next(iter(pipeline.jobs)),
        "run": "r1",
        "attempt": 1,
        "storage": "file:///state/own",
        "stop_seconds": 60.0,
    }
    return Snapshot.model_validate(values | given)


@pytest.fixture
def own(write: Write, tmp_path: Path) -> Pipeline:
    (tmp_path / "own.py").touch()
    return loaded(write(TEXTS))


@pytest.fixture
def flights(write: Write, tmp_path: Path) -> Pipeline:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "own.py").touch()
    return loaded(write(FLIGHTS.read_bytes()), given={"data": "/data/elsewhere"})


@pytest.fixture
def example(tmp_path: Path) -> Pipeline:
    copy_example(tmp_path / "example")
    return load_pipeline(tmp_path / "example" / "pipeline.yaml")


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        (None, None),
        (5, 9),
        (1_600_000_000, 2**62),
        (datetime(2026, 11, 21, tzinfo=UTC), datetime(2026, 11, 22, 1, 2, 3, 456, tzinfo=UTC)),
        (datetime(2026, 11, 21, tzinfo=timezone(timedelta(hours=5, minutes=30))), None),
    ],
)
def test_it_is_read_as_it_was_written(own: Pipeline, tmp_path: Path, lower: Any, upper: Any) -> None:
    parent = ParentProcess(pid=4711, started=1.5e9 + 0.01, ticks=2**40)
    before = snapshot(own, lower=lower, upper=upper, parent=parent, config=tmp_path / "jobpipe.conf")
    before.write(tmp_path / "a" / "own-1.json")
    after = Snapshot.read(tmp_path / "a" / "own-1.json")
    assert after == before
    assert after.values == RunValues("r1", lower, upper)
    assert (type(after.lower), type(after.upper)) == (type(lower), type(upper))


def test_only_its_owner_reads_it(own: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "a" / "own-1.json"
    (tmp_path / "a").mkdir()
    left = tmp_path / "a" / ".own-1.json.0123456789abcdef"  # by a writer that was killed
    left.touch(0o644)
    os.utime(left, (0, 0))
    before = os.umask(0)
    try:
        snapshot(own).write(path)
        snapshot(own).write(tmp_path / "b" / "own-1.json")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o700
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["own-1.json"]


def same(found: Pipeline, expected: Pipeline) -> None:
    assert plain(found.tree) == plain(expected.tree)
    assert (found.file, found.folder, found.spec) == (expected.file, expected.folder, expected.spec)
    assert list(found.jobs) == list(expected.jobs)
    assert _stage(found.launcher) == _stage(expected.launcher)
    for name, job in found.jobs.items():
        other = expected.jobs[name]
        assert (job.spec, job.definition, job.path) == (other.spec, other.definition, other.path)
        assert list(job.sources) == list(other.sources)
        assert list(map(_stage, job.stages)) == list(map(_stage, other.stages))


def _stage(stage: Any) -> tuple[Any, ...]:
    return stage.spec, stage.given, type(stage.plugin), stage.plugin.options, stage.folder, stage.path


def test_the_flights_are_the_same_again(flights: Pipeline, tmp_path: Path) -> None:
    snapshot(flights).write(tmp_path / "s.json")
    same(Snapshot.read(tmp_path / "s.json").pipeline(), flights)


def test_the_example_is_the_same_again(example: Pipeline, tmp_path: Path) -> None:
    snapshot(example).write(tmp_path / "s.json")
    same(Snapshot.read(tmp_path / "s.json").pipeline(), example)


def test_a_single_job_is_the_same_again(write: Write, tmp_path: Path) -> None:
    single = loaded(
        write("pipeline: {name: one}\nsource: {type: rate}\ntransform: [{filter: a > 1}]\nsink: {type: console}")
    )
    snapshot(single).write(tmp_path / "s.json")
    same(Snapshot.read(tmp_path / "s.json").pipeline(), single)


def test_the_values_of_the_run_come_later(own: Pipeline, tmp_path: Path) -> None:
    snapshot(own, lower=datetime(2026, 11, 21, tzinfo=UTC)).write(tmp_path / "s.json")
    read = Snapshot.read(tmp_path / "s.json")
    arguments = read.pipeline().jobs["own"].arguments(read.values)
    assert arguments == ["${run.lower}", "20261121T000000Z", "r1", "für ☃"]


def test_a_file_that_changes_does_not_change_the_attempt(own: Pipeline, tmp_path: Path) -> None:
    snapshot(own).write(tmp_path / "s.json")
    own.file.write_text("pipeline: {name: another}")
    assert Snapshot.read(tmp_path / "s.json").pipeline().name == "own"


def test_a_plug_in_that_is_missing_here_is_told(own: Pipeline) -> None:
    tree = {**plain(own.tree), "jobs": {"own": {"source": {"type": "gone"}, "sink": {"type": "console"}}}}
    with pytest.raises(PipelineError, match="no source of type 'gone'"):
        snapshot(own, tree=tree).pipeline()


@pytest.mark.processes
def test_the_locale_does_not_matter(own: Pipeline, tmp_path: Path) -> None:
    snapshot(own).write(tmp_path / "s.json")
    program = (
        "import sys; from pathlib import Path; from jobpipe.pipelines.loading.snapshot import Snapshot\n"
        "Snapshot.read(Path(sys.argv[1])).write(Path(sys.argv[2]))"
    )
    command = [sys.executable, "-X", "utf8=0", "-c", program, str(tmp_path / "s.json"), str(tmp_path / "t.json")]
    plain_ascii = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(command, env=plain_ascii, check=True, timeout=60)
    assert (tmp_path / "t.json").read_bytes() == (tmp_path / "s.json").read_bytes()


@pytest.mark.parametrize(
    "wrong",
    [b"", b"\xff", b"[]", b"{}", b"{", b'"text"'],
)
def test_another_file_is_none(tmp_path: Path, wrong: bytes) -> None:
    (tmp_path / "s.json").write_bytes(wrong)
    with pytest.raises(ConfigError, match=r"s\.json is not a snapshot of an attempt"):
        Snapshot.read(tmp_path / "s.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [("attempt", 0), ("attempt", 10**9 + 1), ("run", ""), ("stop_seconds", 0), ("more", 1), ("parent", {"pid": 1})],
)
def test_a_wrong_value_is_told(own: Pipeline, tmp_path: Path, key: str, value: Any) -> None:
    text = json.loads(snapshot(own).model_dump_json()) | {key: value}
    (tmp_path / "s.json").write_text(json.dumps(text))
    with pytest.raises(ConfigError, match=key):
        Snapshot.read(tmp_path / "s.json")


def test_none_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a snapshot"):
        Snapshot.read(tmp_path / "missing.json")


def test_a_driver_needs_no_engine_of_schedules(write: Write) -> None:
    """The plug-in that fires a schedule is the server's; it may be missing where the job runs."""
    text = """
    pipeline: {name: shop}
    jobs:
      daily:
        execution: {runtime-mode: BATCH}
        source: {type: jobpipe, subscribe: orders}
        sink: {type: json, path: out}
        schedule: {every: day, engine: {type: TYPE}}
    """
    taken = snapshot(load_pipeline(write(text.replace("TYPE", "external"))))
    assert taken.tree["jobs"]["daily"]["schedule"]["engine"] == {"type": "external"}
    elsewhere = taken.model_copy(update={"tree": json.loads(json.dumps(taken.tree).replace("external", "missing"))})
    schedule = elsewhere.pipeline().jobs["daily"].spec.schedule
    assert schedule is not None
    assert schedule.every == "day"
