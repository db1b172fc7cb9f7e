"""A changed `storage`: a job goes on from the checkpoint that it had, or someone has said that it need not."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.control.control_server import ControlServer
from jobpipe.control.control_service import Action, Submission
from jobpipe.errors import ConfigError, ControlConflict
from jobpipe.jobs.definition_cache import DefinitionCache
from jobpipe.pipelines.model.job_states import JobState
from tests.control.revisions.test_checkpoints import begin_checkpoint
from tests.control.revisions.test_plan import as_planned, planned
from tests.control.world import NAME, World, job_of, wait
from tests.docs.troubleshooting import on_page


def refusal(server: ControlServer, submission: Submission) -> ControlConflict:
    """Submit what the plan says to need a new checkpoint; return the error, which is the plan's first reason."""
    plan = as_planned(server, submission)
    assert planned(plan).action is Action.NEEDS_NEW_CHECKPOINT
    with pytest.raises(ControlConflict) as refused:
        server.submit(submission)
    assert refused.value.message == planned(plan).reasons[0]
    return refused.value


def test_a_storage_that_moved_without_its_checkpoints(world: World) -> None:
    """It would begin without its checkpoint, and without a word: that is refused, until it is there or given up."""
    server = world.server()
    server.submit(world.submission())
    world.work(1)
    wait(server, JobState.RUNNING)
    checkpoint = begin_checkpoint(world, world.submission())
    moved = world.submission(storage=str(world.folder / "elsewhere"))
    on_page(
        refusal(server, moved), "ControlConflict: the storage has changed: the checkpoint of job … is in …, and there"
    )
    assert planned(server.plan(moved, new_checkpoint=["report"])).action is Action.NEW_CHECKPOINT
    (world.folder / "elsewhere").mkdir()
    checkpoint.rename(world.folder / "elsewhere" / "report")
    assert planned(as_planned(server, moved)).action is Action.RESTARTED


def test_back_to_a_storage_with_an_older_checkpoint(world: World) -> None:
    """As a rollback does: the job would read again what it has read with the other one."""
    server = world.server()
    one, two = world.submission(storage="one"), world.submission(storage="two")
    server.submit(one)
    world.work(1)  # which does not end, so that no other run moves a checkpoint away
    wait(server, JobState.RUNNING)
    begin_checkpoint(world, one)
    server.submit(two, new_checkpoint=["report"])
    assert not server.plan(one).is_refused  # it has not begun with the other one
    newer = begin_checkpoint(world, two)
    on_page(refusal(server, server.revision(NAME, 1)), "ControlConflict: the storage has changed: job … has read on")
    assert planned(server.plan(one, new_checkpoint=["report"])).action is Action.NEW_CHECKPOINT
    newer.rename(newer.with_name("copied"))
    assert not as_planned(server, one).is_refused


@pytest.mark.parametrize("same", ["./a/../state", "link", "file:{folder}/state"])
def test_the_same_storage_written_otherwise(world: World, tmp_path: Path, same: str) -> None:
    server = world.server()
    before = world.submission(storage="state")
    server.submit(before)
    begin_checkpoint(world, before)
    (tmp_path / "link").symlink_to(tmp_path / "state")
    assert not as_planned(server, world.submission(storage=same.format(folder=tmp_path))).is_refused
    refusal(server, world.submission(storage="other"))


@pytest.mark.parametrize("now", ["s3a://bucket/other", "here"])
def test_from_a_storage_that_cannot_be_seen(world: World, now: str) -> None:
    """The server has to be told to forget it; a new place on its host can also begin again."""
    server = world.server()
    server.submit(world.submission(storage="s3a://bucket/state"))
    assert not as_planned(server, world.submission(storage="S3A://Bucket/state/")).is_refused
    refused = refusal(server, world.submission(storage=now))
    on_page(refused, "ControlConflict: the storage has changed: the checkpoint of job … was in")
    assert ("--new-checkpoint report" in refused.message) is (now == "here")
    if now == "here":
        assert not server.plan(world.submission(storage=now), new_checkpoint=["report"]).is_refused


def test_to_a_storage_that_cannot_be_seen(world: World) -> None:
    """What has to go is the old folder."""
    server = world.server()
    server.submit(world.submission())
    assert not server.plan(world.submission(storage="s3a://bucket/state")).is_refused
    checkpoint = begin_checkpoint(world, world.submission())
    refused = refusal(server, world.submission(storage="s3a://bucket/state"))
    on_page(refused, "ControlConflict: the storage has changed: the checkpoint of job … is in …, and the server")
    assert f"move file://{checkpoint} somewhere else" in refused.message
    checkpoint.rename(checkpoint.with_name("moved"))
    assert not as_planned(server, world.submission(storage="s3a://bucket/state")).is_refused


def test_it_is_seen_also_if_the_file_before_cannot_be_loaded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a plug-in is gone; its text says where the storage was."""
    server = world.server()
    server.submit(world.submission())
    begin_checkpoint(world, world.submission())

    def gone(*_args: object) -> None:
        raise ConfigError("there is no plug-in of that type")

    monkeypatch.setattr(DefinitionCache, "get", gone)
    changed = job_of(trigger={"processing-time": "2s"})
    assert not server.plan(world.submission({"report": changed})).is_refused
    plan = server.plan(world.submission({"report": changed}, storage="elsewhere"))
    assert planned(plan).action is Action.NEEDS_NEW_CHECKPOINT
    assert planned(plan).reasons[1].startswith("which keys changed is not known")
