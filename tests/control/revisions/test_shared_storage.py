"""Two pipelines that keep their checkpoints in one place: `submit` says so, and refuses what cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobpipe.control.control_service import Submission
from jobpipe.errors import PipelineError
from jobpipe.pipelines.file.problems import Problem
from tests.control.world import World, job_of


def pipeline(world: World, name: str, storage: str | None, *jobs: str, **more: Any) -> Submission:
    section = {} if storage is None else {"storage": storage}
    return world.submission({job: job_of(**more) for job in jobs}, name=name, **section)


def about_storage(problems: Any) -> list[Problem]:
    return [each for each in problems if each.key == "pipeline.storage"]


@pytest.mark.parametrize(
    "other", ["state", "state/", "./a/../state", "link", "file:{folder}/state", "FILE://{folder}/state"]
)
def test_a_folder_that_another_pipeline_has(world: World, tmp_path: Path, other: str) -> None:
    server = world.server()
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "state")
    storage = other.format(folder=tmp_path)
    assert server.submit(pipeline(world, "first", "state", "a", "b")).warnings == ()
    (warning,) = server.submit(pipeline(world, "second", storage, "c")).warnings
    assert (warning.severity, warning.key) == ("warning", "pipeline.storage")
    assert warning.what == f"pipeline first already keeps its checkpoints in {tmp_path}/state (jobs a, b)"
    assert warning.remedy == "give pipeline second another `storage`"
    with pytest.raises(PipelineError) as caught:
        server.submit(pipeline(world, "third", storage, "b", "d"))
    assert f"pipeline first already keeps its checkpoints in {tmp_path}/state (jobs a, b): b of both" in str(
        caught.value
    )
    assert [each.name for each in server.pipelines()] == ["first", "second"]
    assert server.submit(pipeline(world, "third", "state-3", "b", "d")).warnings == ()


def test_a_pipeline_may_be_submitted_again(world: World) -> None:
    server = world.server()
    for jobs in (("a",), ("a", "b")):
        assert server.submit(pipeline(world, "first", "state", *jobs)).warnings == ()


def test_of_another_file_system_it_only_warns(world: World) -> None:
    """Where a URI leads is for Hadoop's configuration to say."""
    server = world.server()
    server.submit(pipeline(world, "first", "s3a://shop/state", "a"))
    assert server.submit(pipeline(world, "second", "s3a://shop/State", "a")).warnings == ()
    (warning,) = server.submit(pipeline(world, "third", "S3A://Shop/state/", "a", "b")).warnings
    assert warning.what == (
        "pipeline first already keeps its checkpoints in s3a://shop/state (jobs a): a of both would have one "
        "checkpoint, which an attempt refuses"
    )


def test_the_usual_folder_of_another_pipeline(world: World) -> None:
    server = world.server()
    server.submit(pipeline(world, "first", None, "a"))
    usual = str(world.config.home / "pipelines" / "first")
    (warning,) = server.submit(pipeline(world, "second", usual, "b")).warnings
    assert "pipeline first already" in warning.what


def test_a_flow_has_no_checkpoint(world: World) -> None:
    server = world.server()
    flow = {"type": "flow", "function": "m:f", "source": {"type": "jobpipe", "subscribe": "rows"}}
    submission = world.submission({"a": flow}, name="first", storage="state")
    server.submit(submission)
    (warning,) = server.submit(pipeline(world, "second", "state", "a", "b")).warnings
    assert warning.severity == "warning"
    server.submit(pipeline(world, "third", "state-3", "b"))
    with pytest.raises(PipelineError, match="b of both"):
        server.submit(pipeline(world, "third", "state", "b"))
