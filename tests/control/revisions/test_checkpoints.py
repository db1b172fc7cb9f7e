"""Which changed files the server takes over checkpoints that are there, and what --new-checkpoint does."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.control.control_service import Submission
from jobpipe.errors import ConfigError, ControlConflict, PipelineNotFound
from jobpipe.pipelines.checkpoints.checkpoint_owner import owner_of
from jobpipe.pipelines.checkpoints.checkpoint_storage import claim
from jobpipe.pipelines.file.file_paths import local_folder
from jobpipe.pipelines.loading.loader import load_tree
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe_registry.job_records import Order
from tests.control.world import NAME, FakePlugins, World, job_of, wait
from tests.pipelines.waiting import eventually


def begin_checkpoint(world: World, submission: Submission) -> Path:
    """Note a checkpoint as an attempt does, and let a micro-batch have begun; return its folder."""
    pipeline = load_tree(
        submission.tree, file=submission.file, folder=submission.folder, plugins=FakePlugins(world.cluster)
    )
    storage = PipelinePaths.of(world.config.home, NAME).storage(pipeline, "report")
    claim(storage, owner_of(world.config.namespace, NAME, pipeline.jobs["report"]))
    folder = local_folder(storage)
    assert folder is not None
    (folder / "offsets").mkdir()
    (folder / "offsets" / "0").write_text("0")
    return folder


READS_FILES = job_of(source={"type": "text", "path": "input"})


def test_other_sources_need_a_new_checkpoint(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    checkpoint = begin_checkpoint(world, world.submission())
    with pytest.raises(ControlConflict, match="--new-checkpoint report"):
        server.submit(world.submission({"report": READS_FILES}))
    with pytest.raises(PipelineNotFound, match="rapport"):
        server.submit(world.submission({"report": READS_FILES}), new_checkpoint=["rapport"])
    assert server.pipeline(NAME).version == 1
    run = server.submit(world.submission({"report": READS_FILES}), new_checkpoint=["report"]).runs["report"]
    eventually(lambda: world.order() == Order(worker.run, worker.number, "stop"))
    assert checkpoint.exists()  # while it runs
    worker.end("STOPPED", 0)
    world.attempt(2)
    assert not checkpoint.exists()
    assert (checkpoint.with_name(f"report.before-{run}") / "offsets" / "0").read_text() == "0"
    server.submit(world.submission({"report": READS_FILES}))


def test_a_new_checkpoint_that_is_not_needed_any_more(world: World) -> None:
    """The file is as it was before the job began again: its checkpoint fits, and stays."""
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    checkpoint = begin_checkpoint(world, world.submission())
    server.submit(world.submission({"report": READS_FILES}), new_checkpoint=["report"])
    server.submit(world.submission({"report": READS_FILES}))  # still asked for
    server.submit(world.submission())
    eventually(lambda: world.order() == Order(worker.run, worker.number, "stop"))
    worker.end("STOPPED", 0)
    world.attempt(2)
    assert (checkpoint / "offsets" / "0").exists()


def test_a_checkpoint_elsewhere_is_no_affair_of_the_server(world: World) -> None:
    """It cannot move one away, and sees no note: it says so at once, and the attempt compares."""
    server = world.server()
    storage = {"storage": "s3a://bucket/state"}
    server.submit(world.submission(**storage))
    with pytest.raises(ConfigError, match=r"s3a://.*/report is not a folder of this host.*without the option"):
        server.submit(world.submission({"report": READS_FILES}, **storage), new_checkpoint=["report"])
    assert server.pipeline(NAME).version == 1
    server.submit(world.submission({"report": READS_FILES}, **storage))


def test_before_the_first_micro_batch_a_source_may_change(world: World) -> None:
    """So may that of a job that keeps no checkpoint, and of one whose note was deleted, as the error says."""
    server = world.server()
    server.submit(world.submission())
    checkpoint = begin_checkpoint(world, world.submission())
    with pytest.raises(ControlConflict, match="among its sources is now text path"):
        server.submit(world.submission({"report": READS_FILES}))
    (checkpoint / "offsets" / "0").unlink()
    server.submit(world.submission({"report": READS_FILES}))
    (checkpoint / "offsets" / "0").write_text("0")
    other = job_of(source={"type": "text", "path": "other"})
    with pytest.raises(ControlConflict, match="among its sources"):
        server.submit(world.submission({"report": other}))
    batch = {"execution": {"runtime-mode": "BATCH"}, "sink": {"type": "noop"}}
    server.submit(world.submission({"report": {**other, **batch}}))
    (checkpoint / "owner.json").unlink()
    server.submit(world.submission({"report": other}))
