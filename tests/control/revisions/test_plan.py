"""What a plan says of a changed file, and that the submission which follows does just that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jobpipe.control.control_server import ControlServer
from jobpipe.control.control_service import Action, JobPlan, Plan, Submission
from jobpipe.errors import ControlConflict, JobpipeError, PipelineError
from jobpipe.pipelines.model.job_states import JobState
from tests.control.revisions.test_checkpoints import READS_FILES, begin_checkpoint
from tests.control.world import NAME, World, deleted, job_of, wait
from tests.docs.troubleshooting import on_page
from tests.pipelines.waiting import eventually

DAILY = {"every": "1 day"}
BATCH = {"execution": {"runtime-mode": "BATCH"}, "sink": {"type": "noop"}}
FROM_TOPIC = {"type": "jobpipe", "subscribe": "rows"}


def planned(plan: Plan, job: str = "report") -> JobPlan:
    (found,) = [each for each in plan.jobs if each.job == job]
    return found


def actions(plan: Plan) -> dict[str, Action]:
    return {each.job: each.action for each in plan.jobs}


def as_planned(server: ControlServer, submission: Submission, **more: Any) -> Plan:
    """Plan, then submit; the submission does what the plan said, and nothing was changed by the plan."""
    before, events = server.pipelines(), server.events()
    plan = server.plan(submission, **more)
    assert [(each.version, each.want) for each in server.pipelines()] == [(each.version, each.want) for each in before]
    assert {event.what for event in server.events()[len(events) :]} <= {"state"}
    base = {each.name: each.version for each in before}.get(plan.pipeline, 0)
    if plan.is_refused:
        with pytest.raises(JobpipeError) as refused:
            server.submit(submission, base=plan.version, born=plan.born, **more)
        said = [*plan.refused, *(each.reasons[0] for each in plan.jobs if each.is_refused)]
        assert refused.value.message == said[0]
        assert [each.version for each in server.pipelines() if each.name == plan.pipeline] == [base][: bool(base)]
        return plan
    submitted = server.submit(submission, base=plan.version, born=plan.born, **more)
    told = actions(plan)
    assert submitted.changed is plan.changed
    assert submitted.version == base + plan.changed
    assert list(submitted.unchanged) == [job for job, action in told.items() if action is Action.UNCHANGED]
    assert list(submitted.removed) == [job for job, action in told.items() if action is Action.STOPPED]
    begun = {job for job, action in told.items() if action in (Action.STARTED, Action.RESTARTED)}
    perhaps = {job for job, action in told.items() if action is Action.NEW_CHECKPOINT}
    assert begun <= submitted.runs.keys() <= begun | perhaps
    return plan


def test_a_first_file_starts_its_jobs(world: World) -> None:
    server = world.server()
    plan = as_planned(
        server, world.submission({"report": job_of(), "daily": {**BATCH, "source": FROM_TOPIC, "schedule": DAILY}})
    )
    assert (plan.version, plan.changed, plan.needs_consent) == (0, True, False)
    assert actions(plan) == {"report": Action.STARTED, "daily": Action.STORED}
    assert planned(plan).reasons == ("new in the file",)


def test_the_same_file_does_nothing(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    plan = as_planned(server, world.submission())
    assert (plan.changed, plan.settings) == (False, ())
    assert plan.jobs == (JobPlan(job="report", action=Action.UNCHANGED),)


def test_a_changed_key_restarts_a_job_that_runs(world: World) -> None:
    """The other one runs on; the reason names the key."""
    server = world.server()
    server.submit(world.submission({"report": job_of(), "other": job_of()}))
    world.work(1)
    wait(server, JobState.RUNNING)
    begin_checkpoint(world, world.submission())
    faster = job_of(trigger={"processing-time": "2s"})
    plan = as_planned(server, world.submission({"report": faster, "other": job_of()}))
    assert actions(plan) == {"report": Action.RESTARTED, "other": Action.UNCHANGED}
    assert planned(plan).reasons == ('jobs.report.trigger: {"processing-time": "2s"} added',)
    assert (planned(plan).from_checkpoint, planned(plan).ends_run, plan.needs_consent) == (True, True, True)


def test_settings_of_the_server_restart_nothing(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    told = {"type": "webhook", "url": "env:ADDRESS"}
    plan = as_planned(server, world.submission(alerts=[told], restart={"delay": "1s"}))
    assert actions(plan) == {"report": Action.UNCHANGED}
    assert [each.partition(":")[0] for each in plan.settings] == [
        "pipeline.restart.delay",
        "pipeline.restart.max-delay",
        "pipeline.restart.max-attempts",
        "pipeline.alerts",
    ]


def test_a_key_that_all_jobs_share_restarts_them(world: World) -> None:
    server = world.server()
    server.submit(world.submission({"report": job_of(), "other": job_of()}))
    for job in ("report", "other"):
        world.work(1, job)
        wait(server, JobState.RUNNING, job)
    plan = as_planned(
        server, world.submission({"report": job_of(), "other": job_of()}, configuration={"spark.ui.enabled": "false"})
    )
    assert set(actions(plan).values()) == {Action.RESTARTED}
    assert planned(plan).reasons == ('pipeline.configuration: {"spark.ui.enabled": "false"} added',)
    assert plan.settings == ()


def test_jobs_that_come_and_go(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    world.work(1)
    wait(server, JobState.RUNNING)
    plan = as_planned(server, world.submission({"rapport": job_of()}))
    assert actions(plan) == {"rapport": Action.STARTED, "report": Action.STOPPED}
    assert planned(plan).ends_run
    assert planned(plan).reasons == ("the file does not have it any more",)


def test_a_job_that_finds_a_checkpoint_of_its_name(world: World) -> None:
    """As when it was removed from the file for a while: it goes on from it."""
    server = world.server()
    begin_checkpoint(world, world.submission())
    plan = as_planned(server, world.submission())
    assert planned(plan).reasons == ("new in the file", "a job of this name has left a checkpoint in the storage")
    assert (planned(plan).action, planned(plan).from_checkpoint) == (Action.STARTED, True)


def test_another_source_needs_a_new_checkpoint(world: World) -> None:
    """The plan says which rows are read again, and with the option it says what happens then."""
    server = world.server()
    sink = {"type": "jobpipe", "topic": "rows"}
    server.submit(world.submission({"report": job_of(sink=sink)}))
    begin_checkpoint(world, world.submission({"report": job_of(sink=sink)}))
    changed = world.submission({"report": {**READS_FILES, "sink": sink}})
    plan = as_planned(server, changed)
    assert (actions(plan), plan.is_refused) == ({"report": Action.NEEDS_NEW_CHECKPOINT}, True)
    needs = planned(plan)
    assert "--new-checkpoint report" in needs.reasons[0]
    assert needs.reasons[1:] == (
        'jobs.report.source.type: "rate" -> "text"',
        'jobs.report.source.path: "input" added',
    )
    path, topic = needs.rows_again
    assert f"text path {world.folder}/input" in path
    assert topic == "topic rows keeps its rows, and gets those once more that job report reads again"
    plan = as_planned(server, changed, new_checkpoint=["report"])
    renewed = planned(plan)
    assert (renewed.action, renewed.from_checkpoint) == (Action.NEW_CHECKPOINT, False)
    assert renewed.rows_again == needs.rows_again


def test_a_folder_of_files_takes_no_new_checkpoint(world: World) -> None:
    """Spark would leave out micro-batches there, so that the job would fail: the plan says what to do."""
    server = world.server()
    files = job_of(sink={"type": "json", "path": "out"})
    server.submit(world.submission({"report": files}))
    begin_checkpoint(world, world.submission({"report": files}))
    (again,) = server.plan(world.submission({"report": files}), new_checkpoint=["report"]).jobs
    assert again.action is Action.NEW_CHECKPOINT
    assert again.rows_again[-1] == (
        f"json path {world.folder}/out: a folder that the job has filled takes no other checkpoint; give the sink "
        "another"
    )


def test_a_stopped_job_takes_the_file_when_it_is_resumed(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    server.stop(NAME)
    worker.end("STOPPED", 0)
    wait(server, JobState.STOPPED)
    plan = as_planned(server, world.submission({"report": job_of(trigger={"processing-time": "2s"})}))
    assert (planned(plan).action, planned(plan).ends_run) == (Action.STORED, False)
    assert "resume" in planned(plan).reasons[-1]


def test_a_job_whose_run_has_ended_is_started(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    worker.end("FINISHED", 0)
    wait(server, JobState.FINISHED)
    begin_checkpoint(world, world.submission())
    (same,) = as_planned(server, world.submission()).jobs
    assert (same.action, same.ends_run) == (Action.UNCHANGED, False)
    assert same.reasons == ("its last run has ended: `jobpipe pipeline resume flights/report` starts it",)
    plan = as_planned(server, world.submission({"report": job_of(trigger={"processing-time": "2s"})}))
    found = planned(plan)
    assert (found.action, found.from_checkpoint, found.ends_run) == (Action.STARTED, True, False)


def test_a_lost_job_is_not_started_twice(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    world.cluster.away.set()
    worker.handler.shutdown()
    wait(server, JobState.LOST)
    plan = as_planned(server, world.submission({"report": job_of(trigger={"processing-time": "2s"})}))
    assert planned(plan).action is Action.RESTARTED
    assert "it is LOST" in planned(plan).reasons[-1]


def test_a_schedule(world: World) -> None:
    """Its next run follows the new file; one that is added ends what runs; times do not become offsets."""
    server = world.server()
    hourly = {**BATCH, "source": FROM_TOPIC}
    server.submit(world.submission({"report": job_of(source=FROM_TOPIC)}))
    world.work(1)
    wait(server, JobState.RUNNING)
    plan = as_planned(server, world.submission({"report": {**hourly, "schedule": DAILY}}))
    assert (planned(plan).action, planned(plan).ends_run) == (Action.STORED, True)
    plan = as_planned(server, world.submission({"report": {**hourly, "schedule": {"every": "2 days"}}}))
    assert planned(plan).action is Action.STORED
    assert planned(plan).reasons[0] == 'jobs.report.schedule.every: "1 day" -> "2 days"'
    offsets = {"every": "1 day", "boundaryType": "OFFSET", "catchup": "latest"}
    plan = as_planned(server, world.submission({"report": {**hourly, "schedule": offsets}}))
    assert planned(plan).action is Action.REFUSED
    assert "boundaryType" in planned(plan).reasons[0]


def test_a_file_that_is_refused_as_a_whole(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    assert not as_planned(server, world.submission()).is_refused
    plan = as_planned(server, world.submission(**{"topic-prefix": "dev."}))
    assert ["topic-prefix is 'dev.'" in each for each in plan.refused] == [True]
    with pytest.raises(PipelineError, match="rates"):
        server.plan(world.submission({"report": job_of(source={"type": "rates"})}))


def test_another_submission_came_in_between(world: World) -> None:
    server = world.server()
    plan = server.plan(world.submission())
    server.submit(world.submission())
    with pytest.raises(ControlConflict, match=r"planned for a new pipeline.*version 1 now"):
        server.submit(world.submission(), base=plan.version)
    changed = world.submission({"report": job_of(trigger={"processing-time": "2s"})})
    plan = server.plan(changed)
    server.submit(world.submission({"report": job_of(), "other": job_of()}))
    with pytest.raises(ControlConflict, match=r"planned for version 1.*version 2 now") as refused:
        server.submit(changed, base=plan.version)
    on_page(refused.value, "ControlConflict: pipeline …: this was planned for")
    assert server.submit(changed, base=2).version == 3


def test_a_pipeline_that_was_deleted_and_submitted_again(world: World) -> None:
    """Its versions begin again: the number alone does not tell it from the one that was planned for."""
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    plan = server.plan(world.submission({"report": job_of(trigger={"processing-time": "2s"})}))
    assert server.submit(world.submission(), base=plan.version, born=plan.born).version == 1
    server.stop(NAME)
    worker.end("STOPPED", 0)  # else it would be waited for until its time to stop is over
    wait(server, JobState.STOPPED)
    eventually(lambda: deleted(server))
    server.submit(world.submission())
    with pytest.raises(ControlConflict, match=r"planned for version 1.*submitted after that one was deleted"):
        server.submit(world.submission(), base=plan.version, born=plan.born)


def test_no_secret_is_shown(world: World) -> None:
    server = world.server()
    before = {"password": "env:OLD", "url": "jdbc:postgresql://host/db", "dbtable": "t"}
    after = {"password": "env:NEW", "url": "jdbc:postgresql://host/db", "dbtable": "t"}
    server.submit(world.submission({"report": job_of(sink={"type": "jdbc", "options": before})}))
    plan = as_planned(server, world.submission({"report": job_of(sink={"type": "jdbc", "options": after})}))
    assert planned(plan).reasons == ("jobs.report.sink.options.password: changed (a secret)",)


def test_arguments_that_are_secrets_are_not_shown(world: World) -> None:
    """An element is one if the element before it says so."""
    (world.folder / "program.py").write_text("")

    def program(*arguments: str) -> Submission:
        return world.submission({"report": {"application": "program.py", "arguments": list(arguments)}})

    server = world.server()
    server.submit(program("--user", "anna", "--password", "hunter1"))
    plan = server.plan(program("--user", "ben", "--password", "hunter2"))
    assert planned(plan).reasons == (
        'jobs.report.arguments[1]: "anna" -> "ben"',
        "jobs.report.arguments[3]: changed (a secret)",
    )
    (longer,) = planned(server.plan(program("--user", "anna", "--password", "hunter1", "--token"))).reasons
    assert longer == 'jobs.report.arguments[4]: "--token" added'
    server.submit(program())
    plan = server.plan(program("--token", "hunter3", "more"))
    assert "hunter" not in str(plan)
    assert any("more" in each for each in planned(plan).reasons)


def test_what_is_said_of_changes_is_bounded(world: World) -> None:
    """By their number, and by the lengths of keys: names of options may be of any length."""
    server = world.server()
    server.submit(world.submission())
    many = {f"spark.{number}.{'x' * 500}": "1" for number in range(30)}
    server.submit(world.submission(configuration={"spark.ui.enabled": "false"}))
    changed = world.submission(configuration={"spark.ui.enabled": "false", **many})
    assert planned(server.plan(changed)).reasons[-1] == "and 10 more keys"
    server.submit(changed)
    told = server.revisions(NAME)[0].settings
    assert (len(told), told[-1]) == (21, "and 10 more keys")
    assert max(map(len, told)) == 200
    assert max(map(len, planned(server.plan(world.submission())).reasons)) < 400


def test_the_history(world: World) -> None:
    """Each version says what it changed, and an earlier one can be submitted again: it is a new one then."""
    server = world.server()
    first = world.submission()
    server.submit(first, by="certificate anna.jobpipe")
    server.submit(first, by="token")
    more: Mapping[str, Any] = {"report": job_of(trigger={"processing-time": "2s"}), "other": job_of()}
    server.submit(world.submission(more, alerts=[{"type": "webhook", "url": "env:ADDRESS"}]), by="token")
    server.submit(world.submission({"other": job_of()}))
    third, second, oldest = server.revisions(NAME)
    assert (oldest.version, oldest.by, oldest.added) == (1, "certificate anna.jobpipe", ("report",))
    assert (second.version, second.by, second.added, second.changed) == (2, "token", ("other",), ("report",))
    assert second.settings == ("pipeline.alerts",)
    assert (third.version, third.by, third.removed) == (3, "", ("report",))
    assert oldest.file == Path(world.folder / "pipeline.yaml")
    assert server.revision(NAME, 1) == first
    assert server.submit(server.revision(NAME, 1)).version == 4
    with pytest.raises(JobpipeError, match="version 9 of pipeline flights is not kept"):
        server.revision(NAME, 9)
