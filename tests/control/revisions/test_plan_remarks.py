"""What a plan says besides: rows that are read again or missing, checkpoints to be made, jobs that are LOST."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe.control.control_server import ControlServer
from jobpipe.control.control_service import Action, JobPlan, Submission
from jobpipe.errors import ConfigError
from jobpipe.pipelines.model.job_states import JobState
from tests.control.revisions.test_checkpoints import READS_FILES, begin_checkpoint
from tests.control.revisions.test_plan import BATCH, FROM_TOPIC, as_planned, planned
from tests.control.world import NAME, World, job_of, wait
from tests.pipelines.waiting import eventually

FASTER = {"trigger": {"processing-time": "2s"}}
FILES = {"source": READS_FILES["source"]}
FLOW = {"type": "flow", "source": FROM_TOPIC, "function": "functions:one", "publish": "out", "schema": "a int"}


def stopped(world: World, submission: Submission) -> ControlServer:
    """Return a server with a job that has run, and was stopped."""
    server = world.server()
    server.submit(submission)
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    server.stop(NAME)
    worker.end("STOPPED", 0)
    wait(server, JobState.STOPPED)
    return server


def of_report(world: World, **more: Any) -> Submission:
    return world.submission({"report": job_of(**more)})


def test_a_job_that_keeps_no_checkpoint_any_more(world: World) -> None:
    """It reads all again; one that kept none begins one, or goes on from one that it left."""
    server = world.server()
    sink = {"sink": {"type": "json", "path": "out"}}  # the remark on such folders is about checkpoints
    streaming, batch = of_report(world, **FILES), of_report(world, **FILES, **{**BATCH, **sink})
    server.submit(streaming)
    checkpoint = begin_checkpoint(world, streaming)
    assert planned(server.plan(of_report(world, **FILES, **FASTER))).rows_again == ()
    plan = as_planned(server, batch)
    assert "keeps no checkpoint any more" in planned(plan).reasons[-1]
    assert planned(plan).rows_again == (
        f"it reads again what is there of text path {world.folder}/input, from where a new query begins",
    )
    plan = server.plan(streaming)
    assert "goes on from a checkpoint that it left earlier" in planned(plan).reasons[-1]
    assert planned(plan).rows_again == ()
    checkpoint.rename(checkpoint.with_name("away"))
    plan = as_planned(server, streaming)
    assert "begins one" in planned(plan).reasons[-1]
    assert len(planned(plan).rows_again) == 1


@pytest.mark.parametrize("job", [{**BATCH, "source": FROM_TOPIC}, FLOW, {"application": "functions.py"}])
def test_a_job_without_a_checkpoint_cannot_begin_without_it(world: World, job: dict[str, Any]) -> None:
    (world.folder / "functions.py").write_text("one = None\n")
    server = world.server()
    as_planned(server, world.submission({"report": job, "other": job_of()}), new_checkpoint=["other"])
    plan = server.plan(world.submission({"report": job, "other": job_of()}), new_checkpoint=["report"])
    assert [each.partition(":")[0] for each in plan.refused] == ["--new-checkpoint report"]
    with pytest.raises(ConfigError, match="have no checkpoint; leave the option out"):
        server.submit(world.submission({"report": job, "other": job_of()}), new_checkpoint=["report"])


def test_a_new_checkpoint_that_is_still_to_be_made(world: World) -> None:
    """The job is stopped: the plan says so of the same file and of another one, until the job is as it ran."""
    server = stopped(world, of_report(world))
    begin_checkpoint(world, of_report(world))
    assert as_planned(server, of_report(world)).jobs == (JobPlan(job="report", action=Action.UNCHANGED),)
    server.submit(of_report(world, **FILES), new_checkpoint=["report"])
    same = planned(as_planned(server, of_report(world, **FILES)))
    assert same.action is Action.UNCHANGED
    assert same.reasons == ("its next run begins without its checkpoint, as an earlier submission asked for",)
    assert len(same.rows_again) == 1
    other = planned(as_planned(server, of_report(world, **FASTER)))
    assert other.action is Action.NEW_CHECKPOINT
    assert "the new checkpoint that an earlier submission asked for is still to be made" in other.reasons
    assert len(other.rows_again) == 1
    back = planned(as_planned(server, of_report(world)))
    assert back.action is Action.STORED
    assert "the new checkpoint that an earlier submission asked for is not made" in back.reasons
    assert planned(as_planned(server, of_report(world))).reasons == ()


def test_a_job_that_comes_back(world: World) -> None:
    """Its subscription was dropped with it: rows may be missing."""
    report = of_report(world, source=FROM_TOPIC)
    server = stopped(world, report)
    begin_checkpoint(world, report)
    server.submit(world.submission({"other": job_of()}))
    eventually(lambda: "removed" in {event.what for event in server.events()})
    reasons = "; ".join(planned(as_planned(server, report)).reasons)
    assert "subscription of topic rows was dropped meanwhile, rows that were removed since are missing" in reasons


@pytest.mark.parametrize(("source", "topics"), [(FROM_TOPIC, ["rows"]), ({"type": "rate"}, [])])
def test_what_drops_subscriptions_needs_consent(world: World, source: dict[str, Any], topics: list[str]) -> None:
    """Also if the job does not run: when it goes, or reads another topic."""
    server = stopped(world, of_report(world, source=source))
    assert not server.plan(of_report(world, source=source, **FASTER)).needs_consent
    plan = server.plan(of_report(world, source={**FROM_TOPIC, "subscribe": "others"}))
    assert plan.needs_consent is bool(topics)
    told = [each for each in planned(plan).reasons if "dropped" in each]
    assert told == [f"its subscription of topic {topic} is dropped" for topic in topics]
    plan = as_planned(server, world.submission({"other": job_of()}))
    assert (planned(plan).action, planned(plan).ends_run) == (Action.STOPPED, False)
    assert planned(plan).drops_subscriptions is plan.needs_consent is bool(topics)


def test_lost_jobs(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    assert planned(server.plan(world.submission())).reasons == ()
    world.cluster.away.set()
    worker.handler.shutdown()
    wait(server, JobState.LOST)
    (reason,) = planned(server.plan(world.submission())).reasons
    assert "`jobpipe pipeline restart flights/report --force`" in reason
    assert "it is LOST" in planned(server.plan(world.submission({"other": job_of()}))).reasons[-1]
