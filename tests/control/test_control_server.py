"""The control server with a registry in memory, and attempts that the test acts for."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from jobpipe.control.active_runs import require_no_run_of_server
from jobpipe.control.control_server import ControlServer
from jobpipe.errors import ConfigError, ControlConflict, PipelineError, PipelineNotFound, RunNotFound
from jobpipe.jobs.storage.file_lock import locked
from jobpipe.jobs.supervision.circuit_breaker import CircuitBreaker
from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.pipelines.loading.snapshot import Snapshot
from jobpipe.pipelines.model.job_states import MISCONFIGURED, REPLACED, DesiredState, JobState
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe_registry.host.process_identity import PidScope, start_ticks
from jobpipe_registry.job_records import EndRecord, Lease, Order
from jobpipe_registry.registry_errors import NotOrdered, Unavailable
from tests.control.world import NAME, World, deleted, job_of, states, status, wait
from tests.docs.troubleshooting import on_page
from tests.pipelines.waiting import eventually


def test_a_job_runs_to_its_end(world: World) -> None:
    server = world.server()
    submitted = server.submit(world.submission())
    assert (submitted.created, submitted.version, set(submitted.runs)) == (True, 1, {"report"})
    attempt = world.attempt(1)
    snapshot = Snapshot.read(attempt.snapshot)
    assert (snapshot.run, snapshot.attempt, snapshot.parent) == (submitted.runs["report"], 1, None)
    assert wait(server, JobState.SUBMITTED).attempt == 1
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    worker.end("FINISHED", 0, batches=3, rows=20)
    ended = wait(server, JobState.FINISHED)
    assert (ended.batches, ended.rows, ended.want) == (3, 20, DesiredState.RUN)
    (run,) = server.runs(NAME)
    (view,) = run.attempts
    assert (view.number, view.state, view.exit_code, view.application) == (1, JobState.FINISHED, 0, "app-1")
    assert states(server) == [JobState.SUBMITTED, JobState.RUNNING, JobState.FINISHED]
    assert {event.fields["run"] for event in server.events() if event.what == "state"} == {run.id}
    eventually(lambda: world.jobs.state(NAME, "report").end is None)  # once it was stored
    eventually(lambda: not attempt.snapshot.exists())


def test_a_server_is_started_only_once(world: World) -> None:
    """A second set of its threads would act on the same jobs, and have no end."""
    server = world.server()
    dispatchers = [each for each in threading.enumerate() if each.name == "jobs"]
    assert dispatchers
    with pytest.raises(RuntimeError, match="only once"), server:
        pass
    assert not {each for each in threading.enumerate() if each.name == "jobs"} - set(dispatchers)


def test_a_failure_is_followed_by_another_attempt_up_to_the_last(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    for number in (1, 2, 3):
        world.work(number).end("FAILED", 1, error="Oops", place="stage 1")
    assert wait(server, JobState.FAILED).detail == "Oops (stage 1)"
    (run,) = server.runs(NAME)
    assert [(each.state, each.error) for each in run.attempts] == [(JobState.FAILED, "Oops")] * 3
    assert len(world.cluster.submitted) == 3


def test_waiting_for_the_lease_is_no_run_that_lasted(world: World) -> None:
    """An attempt that ran for `reset-after` counts as the first one: by the time for which it had the lease."""
    offset = [-time.time()]
    server = world.server(clock=lambda: 1.5e9 + offset[0] + time.time())
    server.submit(world.submission(restart={"delay": "20ms", "max-attempts": 2, "reset-after": "1h"}))
    world.work(1).end("FAILED", 1, error="Oops")
    world.attempt(2)
    offset[0] += 7200.0
    worker = world.work(2)
    wait(server, JobState.RUNNING)
    worker.end("FAILED", 1, error="Oops")
    wait(server, JobState.FAILED)


def test_a_restart_policy_holds_for_the_attempt_that_runs(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    again = server.submit(world.submission(restart={"policy": "never"}))
    assert again.unchanged == ("report",)
    worker.end("FAILED", 1, error="Oops")
    wait(server, JobState.FAILED)
    assert len(world.cluster.submitted) == 1


@pytest.mark.parametrize(
    ("code", "state", "detail"),
    [
        (MISCONFIGURED, JobState.FAILED, "its file or configuration is wrong"),
        (REPLACED, JobState.CANCELED, "has taken its place"),
    ],
)
def test_exit_codes_that_end_the_run(world: World, code: int, state: JobState, detail: str) -> None:
    server = world.server()
    server.submit(world.submission())
    world.cluster.ended[f"report-{world.attempt(1).number}"] = code
    assert detail in wait(server, state).detail


@pytest.mark.parametrize(
    ("code", "state", "detail"),
    [
        (MISCONFIGURED, JobState.FAILED, "its file or configuration is wrong"),
        (REPLACED, JobState.CANCELED, "has taken its place"),
    ],
)
def test_exit_codes_that_only_the_attempt_tells(world: World, code: int, state: JobState, detail: str) -> None:
    """V14: the server that started it is gone, and the launcher of the next one does not know the code."""
    server = world.server()
    server.submit(world.submission())
    attempt = world.attempt(1)
    server.close()
    snapshot = Snapshot.read(attempt.snapshot)
    reporter = Reporter(snapshot.report)
    reporter.report(0, 0)
    reporter.end(code)
    world.cluster.ended[f"report-{attempt.number}"] = None
    server = world.server()
    assert detail in wait(server, state).detail
    (run,) = server.runs(NAME)
    assert [each.exit_code for each in run.attempts] == [code]
    assert snapshot.report is not None
    eventually(lambda: list(snapshot.report.parent.iterdir()) == [])


def test_an_exit_code_that_is_reported_after_the_end_record(world: World) -> None:
    """V14: the attempt reports it last, when the server may have stored the end."""
    server = world.server()
    server.submit(world.submission())
    attempt = world.attempt(1)
    reporter = Reporter(Snapshot.read(attempt.snapshot).report)
    reporter.report(0, 0)
    worker = world.work(1)
    worker.handler.jobs.release_lease(NAME, "report", EndRecord(attempt.run, attempt.number, "FINISHED", 1.5e9))
    wait(server, JobState.FINISHED)
    reporter.end(0)
    worker.gone(None)
    eventually(lambda: [each.exit_code for each in server.runs(NAME)[0].attempts] == [0])


def test_one_that_is_killed_is_started_again(world: World) -> None:
    offset = [0.0]
    server = world.server(clock=lambda: time.time() + offset[0])
    server.submit(world.submission())
    world.work(1).gone(-9)
    second = world.attempt(2)
    assert second.number > world.attempt(1).number
    worker = world.work(2)
    wait(server, JobState.RUNNING)
    (run,) = server.runs(NAME)
    assert run.attempts[0].detail == "its process was killed by signal 9, without an end record"
    assert [each.number for each in run.attempts] == [1, 2]
    now = status(server)
    assert (now.attempt, now.detail) == (2, f"restarted after: {run.attempts[0].detail}")
    offset[0] += 60.0
    assert status(server).detail == ""
    worker.end("FINISHED", 0)
    wait(server, JobState.FINISHED)


def test_what_a_program_of_your_own_has_done_is_not_known(world: World) -> None:
    server = world.server()
    server.submit(world.submission({"report": {"application": "own.py"}}))
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    Reporter(Snapshot.read(world.attempt(1).snapshot).report).report(0, 0)
    assert (status(server).batches, status(server).rows) == (None, None)
    worker.end("FINISHED", 0)
    ended = wait(server, JobState.FINISHED)
    assert (ended.batches, ended.rows) == (None, None)


def test_a_file_that_has_not_changed_keeps_its_version(world: World) -> None:
    server = world.server()
    with pytest.raises(PipelineNotFound, match="no pipeline has been submitted yet"):
        server.pipeline(NAME)
    first = server.submit(world.submission())
    assert (first.created, first.changed, first.version) == (True, True, 1)
    again = server.submit(world.submission())
    assert (again.created, again.changed, again.version, again.unchanged) == (False, False, 1, ("report",))
    other = server.submit(world.submission(restart={"policy": "never"}))
    assert (other.changed, other.version) == (True, 2)
    with pytest.raises(PipelineNotFound, match="did you mean"):
        server.pipeline(f"{NAME}s")


def test_attempts_are_numbered_within_their_run(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    world.work(1).end("FINISHED", 0)
    wait(server, JobState.FINISHED)
    server.restart(NAME, "report")
    worker = world.work(2)
    now = wait(server, JobState.RUNNING)
    assert (now.attempt, [each.number for each in server.runs(NAME)[0].attempts]) == (1, [1])
    worker.end("FAILED", 1, error="Oops")
    eventually(lambda: any((each.detail or "").startswith("attempt 1: Oops") for each in server.events()))


def test_what_the_present_attempt_has_done_is_counted(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    now = wait(server, JobState.RUNNING)
    assert (now.batches, now.rows) == (None, None)  # it has not said so far
    Reporter(Snapshot.read(world.attempt(1).snapshot).report).report(2, 15)
    now = status(server)
    assert (now.batches, now.rows) == (2, 15)
    assert [(each.batches, each.rows) for each in server.runs(NAME)[0].attempts] == [(2, 15)]
    worker.end("FAILED", 1, error="Oops", batches=3, rows=20)
    worker = world.work(2)
    wait(server, JobState.RUNNING)
    Reporter(Snapshot.read(world.attempt(2).snapshot).report).report(1, 7)
    assert (status(server).batches, status(server).rows) == (4, 27)


def test_stop_and_resume(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    assert server.stop(NAME).want is DesiredState.STOP
    wait(server, JobState.STOPPING)
    eventually(lambda: world.order() == Order(worker.run, worker.number, "stop"))
    server.stop(NAME)
    worker.end("STOPPED", 0)
    wait(server, JobState.STOPPED)
    assert server.resume(NAME).want is DesiredState.RUN
    again = world.work(2)
    assert again.run != worker.run
    wait(server, JobState.RUNNING)
    server.resume(NAME)
    again.end("FINISHED", 0)
    wait(server, JobState.FINISHED)
    assert len(world.cluster.submitted) == 2


def test_a_stop_that_takes_too_long_ends_it(world: World) -> None:
    server = world.server(stop_seconds=0.2)
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    server.stop(NAME, "report")
    eventually(lambda: world.cluster.canceled)
    worker.handler.shutdown()
    assert "killed during a micro-batch" in wait(server, JobState.CANCELED).detail


@contextmanager
def registry_away() -> Iterator[None]:
    """Neither reads nor changes are answered."""

    def away(*_: object) -> Any:
        raise Unavailable("memory", "it is away")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("state", "set_order", "remove_end", "evict_lease"):
            patch.setattr(CircuitBreaker, name, away)
        yield


def test_a_stop_ends_in_time_without_the_registry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe.jobs.supervision.reconciler.RETRY_SECONDS", 0.02)
    server = world.server(stop_seconds=0.2)
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    with registry_away():
        server.stop(NAME, "report")
        eventually(lambda: world.cluster.canceled)
        assert status(server).state is JobState.STOPPING
    assert world.cluster.asked_to_stop == [f"report-{worker.number}"]
    worker.handler.shutdown()
    wait(server, JobState.CANCELED)


def test_one_that_stopped_without_the_registry_is_no_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its order says still that it should run: the launcher has asked it to stop."""
    monkeypatch.setattr("jobpipe.jobs.supervision.reconciler.RETRY_SECONDS", 0.02)
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    with registry_away():
        server.stop(NAME, "report")
        eventually(lambda: world.cluster.asked_to_stop)
        worker.end("STOPPED", 0)
    wait(server, JobState.STOPPED)
    assert world.cluster.canceled == []


def test_restart_is_a_new_run(world: World) -> None:
    server = world.server()
    first = server.submit(world.submission()).runs["report"]
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    server.restart(NAME)
    eventually(lambda: world.order() == Order(first, worker.number, "stop"))
    assert len(world.cluster.submitted) == 1
    worker.end("STOPPED", 0)
    world.work(2)
    wait(server, JobState.RUNNING)
    assert [run.state for run in server.runs(NAME)] == [JobState.RUNNING, JobState.STOPPED]


def test_a_canceled_run_is_not_followed(world: World) -> None:
    server = world.server()
    run = server.submit(world.submission()).runs["report"]
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    server.cancel(run)
    eventually(lambda: world.order() == Order(run, worker.number, "stop"))
    worker.end("STOPPED", 0)
    wait(server, JobState.STOPPED)
    assert server.cancel(run).state is JobState.STOPPED
    with pytest.raises(RunNotFound):
        server.cancel("another")


# -- lost --------------------------------------------------------------------------------------------------------------


def lost(world: World, server: ControlServer) -> None:
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    world.cluster.away.set()
    worker.handler.shutdown()
    assert wait(server, JobState.LOST).detail


@pytest.mark.slow
def test_from_lost_nothing_is_started_but_by_force(world: World) -> None:
    server = world.server()
    lost(world, server)
    for asked in (server.restart, server.resume):
        if asked == server.resume:
            server.stop(NAME)
        with pytest.raises(ControlConflict, match="LOST"):
            asked(NAME)
    assert len(world.cluster.submitted) == 1
    server.restart(NAME, force=True)
    world.work(2)
    wait(server, JobState.RUNNING)
    assert [run.state for run in server.runs(NAME)] == [JobState.RUNNING, JobState.CANCELED]


def test_one_that_was_lost_before_it_ran_does_not_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a worker still."""
    monkeypatch.setattr("jobpipe.jobs.supervision.reconciler.POLL_SECONDS", 0.05)
    server = world.server()
    server.submit(world.submission())
    world.attempt(1)
    wait(server, JobState.SUBMITTED)
    world.cluster.away.set()
    wait(server, JobState.LOST)
    world.cluster.away.clear()
    wait(server, JobState.SUBMITTED)
    assert states(server) == [JobState.SUBMITTED, JobState.LOST, JobState.SUBMITTED]


@pytest.mark.slow
def test_lost_ends_when_the_launcher_answers(world: World) -> None:
    server = world.server()
    lost(world, server)
    world.cluster.ended[f"report-{world.attempt(1).number}"] = None
    world.cluster.away.clear()
    world.attempt(2)


@pytest.mark.slow
def test_lost_and_found(world: World) -> None:
    server = world.server()
    lost(world, server)
    worker = world.work(1)  # its session is back
    wait(server, JobState.RUNNING)
    worker.end("FINISHED", 0)
    wait(server, JobState.FINISHED)
    assert len(world.cluster.submitted) == 1


# -- servers that end --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_server_goes_on(world: World) -> None:
    first = world.server()
    jobs = {name: job_of() for name in ("runs", "ends", "dies", "waits")}
    first.submit(world.submission(jobs))
    runs, ends, dies = (world.work(1, job) for job in ("runs", "ends", "dies"))
    for job in ("runs", "ends", "dies"):
        wait(first, JobState.RUNNING, job)
    wait(first, JobState.SUBMITTED, "waits")
    first.close()
    ends.end("FINISHED", 0, rows=7)
    dies.gone(-9)
    second = world.server()
    assert wait(second, JobState.FINISHED, "ends").rows == 7
    world.work(2, "dies")
    wait(second, JobState.RUNNING, "dies")
    assert wait(second, JobState.RUNNING, "runs").known_at > time.time() - 60
    assert wait(second, JobState.SUBMITTED, "waits").attempt == 1
    assert sorted(each.job for each in world.cluster.submitted) == ["dies", "dies", "ends", "runs", "waits"]
    runs.end("STOPPED", 0)
    world.attempt(2, "runs")
    assert second.runs(NAME, "runs")[0].attempts[0].detail == "stopped by something other than jobpipe"


def test_a_stop_goes_on_with_the_next_server(world: World) -> None:
    first = world.server()
    first.submit(world.submission())
    worker = world.work(1)
    wait(first, JobState.RUNNING)
    first.stop(NAME)
    eventually(lambda: world.order() == Order(worker.run, worker.number, "stop"))
    first.close()
    worker.end("STOPPED", 0)
    second = world.server()
    wait(second, JobState.STOPPED)
    assert len(world.cluster.submitted) == 1


def forget_the_id(world: World) -> None:
    """Let the store be as if the server had been killed before the launcher's answer was in it."""
    with sqlite3.connect(world.config.home / "server" / "server.db") as connection:
        connection.execute("UPDATE attempts SET launched = NULL, holder = NULL")
    connection.close()


@pytest.mark.processes
def test_an_attempt_without_an_id_is_known_by_its_lease(world: World) -> None:
    first = world.server()
    first.submit(world.submission())
    attempt = world.attempt(1)
    first.close()
    forget_the_id(world)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        place, key = PidScope.here(), (NAME, "report")
        lease = Lease(
            run=attempt.run,
            attempt=attempt.number,
            host=place.host,
            pid=process.pid,
            started=psutil.Process(process.pid).create_time(),
            instance="i",
            boot=place.boot,
            pid_namespace=place.pid_namespace,
            ticks=start_ticks(process.pid),
        )
        world.session().jobs.take_lease(*key, lease, lambda why: None)
        second = world.server(stop_seconds=0.2)
        wait(second, JobState.RUNNING)
        second.stop(NAME)
        eventually(lambda: world.order() == Order(attempt.run, attempt.number + 1, "stop"))
        assert status(second).state is JobState.STOPPING
    finally:
        process.kill()
        process.wait()
    wait(second, JobState.CANCELED)  # the lease is that of a dead process
    assert len(world.cluster.submitted) == 1


def test_an_attempt_without_id_and_lease_never_begins(world: World) -> None:
    first = world.server()
    first.submit(world.submission())
    attempt = world.attempt(1)
    first.close()
    forget_the_id(world)
    second = world.server()
    after = world.attempt(2)
    assert after.number == attempt.number + 2
    with pytest.raises(NotOrdered):
        world.work(1)
    world.work(2)
    wait(second, JobState.RUNNING)
    (run,) = second.runs(NAME)
    assert [each.state for each in run.attempts] == [JobState.CANCELED, JobState.RUNNING]


def test_a_run_that_another_one_has_replaced_is_not_started_again(world: World) -> None:
    server = world.server()
    server.submit(world.submission(restart={"delay": "1s", "max-attempts": None}))
    worker = world.work(1)
    worker.end("FAILED", 1)
    wait(server, JobState.RESTARTING)
    jobs = world.jobs
    number = jobs.state(NAME, "report").order.attempt + 1
    jobs.set_order(NAME, "report", Order("foreground", number, "run"), jobs.state(NAME, "report").version)
    assert "another run" in wait(server, JobState.CANCELED).detail
    assert len(world.cluster.submitted) == 1
    server.resume(NAME)
    assert world.attempt(2).number == number + 1


def test_a_pipeline_of_the_server_is_not_run_in_the_foreground_too(world: World) -> None:
    """The jobs live on when the server is killed, so its store says it, and not whether it runs."""
    require_no_run_of_server(world.config.home, NAME)
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    server.close()
    with pytest.raises(ControlConflict) as told:
        require_no_run_of_server(world.config.home, NAME)
    on_page(told.value, "ControlConflict: pipeline … is run by the control server")
    require_no_run_of_server(world.config.home, "another")
    worker.end("FINISHED", 0)
    wait(world.server(), JobState.FINISHED)
    require_no_run_of_server(world.config.home, NAME)


def test_a_pipeline_in_the_foreground_is_not_run_by_the_server_too(world: World) -> None:
    server = world.server()
    with locked(PipelinePaths.of(world.config.home, NAME).lock, f"pipeline {NAME}", "stop it first", NAME):
        with pytest.raises(ControlConflict) as told:
            server.submit(world.submission())
        on_page(told.value, "ControlConflict: pipeline … is run in the foreground")
    server.submit(world.submission())
    world.attempt(1)


def test_a_job_with_routes(world: World) -> None:
    server = world.server()
    job = job_of(
        source={"type": "jobpipe", "subscribePattern": "raw[.].*"},
        sink={"type": "jobpipe", "topic": "others"},
        route=[{"source-table": "raw.orders", "sink-table": "orders"}],
    )
    server.submit(world.submission({"report": job}))
    world.work(1)
    wait(server, JobState.RUNNING)
    assert status(server).publishes == ("others", "orders")


def test_the_store_is_private(world: World) -> None:
    world.server()
    folder = world.config.home / "server"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


# -- changed files -----------------------------------------------------------------------------------------------------


def test_only_what_changed_is_restarted(world: World) -> None:
    server = world.server()
    jobs = {name: job_of() for name in ("same", "changes", "goes")}
    server.submit(world.submission(jobs))
    workers = {job: world.work(1, job) for job in jobs}
    for job in jobs:
        wait(server, JobState.RUNNING, job)
    changed = {"same": job_of(), "changes": job_of(trigger={"available-now": True}), "comes": job_of()}
    again = server.submit(world.submission(changed))
    assert (again.created, again.version, again.unchanged, again.removed) == (False, 2, ("same",), ("goes",))
    assert set(again.runs) == {"changes", "comes"}
    for job in ("changes", "goes"):
        worker = workers[job]
        eventually(lambda job=job, worker=worker: world.order(job) == Order(worker.run, worker.number, "stop"))
        worker.end("STOPPED", 0)
    second = world.work(2, "changes")
    assert second.run == again.runs["changes"]
    assert Snapshot.read(world.attempt(2, "changes").snapshot).tree["jobs"]["changes"]["trigger"]
    world.attempt(1, "comes")
    eventually(lambda: {job.name for job in server.pipeline(NAME).jobs} == {"same", "changes", "comes"})
    assert status(server, "same").state is JobState.RUNNING
    assert [each.job for each in world.cluster.submitted].count("same") == 1
    eventually(lambda: world.order("goes") is None)


def test_a_wrong_file_is_told_of_and_changes_nothing(world: World) -> None:
    server = world.server()
    with pytest.raises(PipelineError, match="there is no source of type"):
        server.submit(world.submission({"report": job_of(source={"type": "nothing"})}))
    assert server.pipelines() == ()
    with pytest.raises(PipelineNotFound):
        server.pipeline(NAME)


# -- what else there is ------------------------------------------------------------------------------------------------


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let topics be looked at often, and what is seen twice have lasted."""
    monkeypatch.setattr("jobpipe.control.topic_monitor.POLL_SECONDS", 0.02)
    monkeypatch.setattr("jobpipe.jobs.monitor.hysteresis.BLOCKED_SECONDS", 0.03)
    monkeypatch.setattr("jobpipe.jobs.monitor.hysteresis.FREE_SECONDS", 0.03)


PUBLISHES = {"report": job_of(sink={"type": "jobpipe", "topic": "flights"})}
READS = {"report": job_of(source={"type": "jobpipe", "subscribe": "flights"})}


@pytest.mark.usefixtures("quick_looks")
def test_a_job_without_room_is_blocked(world: World) -> None:
    server = world.server()
    server.submit(world.submission(PUBLISHES))
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    world.topics.waiting["flights"] = "subscription slow"
    assert wait(server, JobState.BLOCKED).detail == "topic flights has no room: subscription slow"
    world.topics.waiting.clear()
    wait(server, JobState.RUNNING)
    worker.end("FINISHED", 0)
    wait(server, JobState.FINISHED)
    assert len(world.cluster.submitted) == 1


@pytest.mark.usefixtures("quick_looks")
def test_a_blocked_job_is_blocked_for_the_next_server_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until that has seen that there is room: nothing has happened, so there is no event."""
    first = world.server()
    first.submit(world.submission(PUBLISHES))
    world.work(1)
    wait(first, JobState.RUNNING)
    world.topics.waiting["flights"] = "subscription slow"
    detail = wait(first, JobState.BLOCKED).detail
    first.close()
    monkeypatch.setattr("jobpipe.jobs.monitor.hysteresis.BLOCKED_SECONDS", 3600.0)
    asked = world.topics.asked
    second = world.server()
    known = second._dispatcher.known_at
    eventually(lambda: world.topics.asked > asked + 2 and known((NAME, "report")) is not None)
    assert (status(second).state, status(second).detail) == (JobState.BLOCKED, detail)
    assert states(second) == [JobState.SUBMITTED, JobState.RUNNING, JobState.BLOCKED]
    world.topics.waiting.clear()
    wait(second, JobState.RUNNING)


@pytest.mark.usefixtures("quick_looks")
def test_a_lag_that_lasts_is_told_once_over_all_servers(world: World) -> None:
    alert = {"type": "webhook", "url": "env:URL", "on": ["LAGGING"], "lag-rows": 10, "lag-time": "1ms"}
    first = world.server()
    first.submit(world.submission(READS, alerts=[alert]))
    world.work(1)
    wait(first, JobState.RUNNING)

    def told(server: ControlServer) -> list[str]:
        return [event.what for event in server.events() if event.what in ("lagging", "caught up")]

    world.topics.lags["flights"] = {f"{NAME}.report": 10, "other.report": 5000}
    eventually(lambda: told(first) == ["lagging"])
    (event,) = [event for event in first.events() if event.what == "lagging"]
    assert (event.job, event.detail) == ("report", "it has lagged by 10 rows or more for 0 s, now 10")
    first.close()
    asked = world.topics.asked
    second = world.server()
    eventually(lambda: world.topics.asked > asked + 5)
    assert told(second) == ["lagging"]
    world.topics.lags["flights"] = {f"{NAME}.report": 9}
    eventually(lambda: told(second) == ["lagging", "caught up"])


def test_delete_drops_subscriptions_as_soon_as_it_can(world: World) -> None:
    first = world.server()
    source = {"type": "jobpipe", "subscribe": "other"}
    first.submit(world.submission({"report": job_of(source=source)}))
    worker = world.work(1)
    wait(first, JobState.RUNNING)
    with pytest.raises(ControlConflict, match="is RUNNING"):
        first.delete(NAME)
    first.stop(NAME)
    eventually(lambda: world.order() == Order(worker.run, worker.number, "stop"))
    worker.end("STOPPED", 0)
    wait(first, JobState.STOPPED)
    eventually(lambda: deleted(first))
    assert first.pipelines() == ()
    eventually(lambda: world.order() is None)
    first.close()
    assert world.topics.dropped == []  # the topic is away
    world.topics.served.add("other")
    world.server()
    eventually(lambda: world.topics.dropped == [("other", f"{NAME}.report")])


def test_events_are_waited_for(world: World) -> None:
    server = world.server()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(server.events(0, wait=30.0)))
    waiting.start()
    server.submit(world.submission())
    waiting.join(30.0)
    assert found[0].what == "submitted"
    newest = server.events()[-1].id
    assert server.events(10**15, wait=0.05) == ()
    assert all(event.id > newest for event in server.events(newest))


def test_the_log_is_escaped(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    log = world.attempt(1).log
    log.parent.mkdir(parents=True)
    log.with_name("report.log.1").write_bytes(b"first\n")
    log.write_bytes(b"a\x1b[31mred\xff\nlast\r\n")
    assert server.log(NAME, "report") == ("first", "a\\x1b[31mred�", "last")
    assert server.log(NAME, "report", lines=1) == ("last",)
    for lines in (0, 10_001):
        with pytest.raises(ConfigError, match="lines"):
            server.log(NAME, "report", lines=lines)
    with pytest.raises(PipelineNotFound, match="report"):
        server.log(NAME, "rapport")


def test_a_slow_launcher_delays_no_other(world: World) -> None:
    server = world.server()
    server.submit(world.submission({"slow": job_of(), "quick": job_of()}))
    slow, quick = world.work(1, "slow"), world.work(1, "quick")
    wait(server, JobState.RUNNING, "slow")
    world.cluster.slow.add("slow")
    world.cluster.gate.clear()
    slow.end("FINISHED", 0)
    wait(server, JobState.RUNNING, "quick")
    quick.end("FINISHED", 0)
    wait(server, JobState.FINISHED, "quick")
    assert status(server, "slow").state is JobState.RUNNING
    world.cluster.gate.set()
    wait(server, JobState.FINISHED, "slow")


def test_what_cannot_be_started_is_tried_again(world: World) -> None:
    server = world.server()
    world.cluster.fails = [OSError("no memory")]
    server.submit(world.submission())
    world.work(1)
    wait(server, JobState.RUNNING)
    (run,) = server.runs(NAME)
    first = run.attempts[0]
    assert (first.state, first.error) == (JobState.FAILED, "OSError")


def test_a_job_that_needs_bounds_is_not_begun_without(world: World) -> None:
    server = world.server()
    batch = job_of(
        execution={"runtime-mode": "BATCH"},
        source={"type": "text", "path": "in/${run.upper}"},
        sink={"type": "json", "path": "out/${run.lower}"},
        schedule={"crontab": "0 2 * * *"},
    )
    submitted = server.submit(world.submission({"report": batch, "every": job_of()}))
    assert submitted.warnings == ()
    assert server.restart(NAME, "every").name == NAME
    assert server.restart(NAME).name == server.resume(NAME).name == NAME  # a scheduled job is not meant
    with pytest.raises(
        ControlConflict, match=r"the runs of job flights\.report are made by its schedule: `jobpipe runs"
    ):
        server.restart(NAME, "report")
    assert server.resume(NAME, "report").name == NAME
    assert server.runs(NAME, "report") == ()
    server.stop(NAME, "report")
    plain = {key: value for key, value in batch.items() if key != "schedule"}
    server.submit(world.submission({"report": plain, "every": job_of()}))
    with pytest.raises(ControlConflict, match="this run has no bounds"):
        server.restart(NAME, "report")
    resumed = server.resume(NAME, "report")  # it was stopped, and may be run over ranges again
    assert [each.want for each in resumed.jobs if each.name == "report"] == [DesiredState.RUN]
    for begin in (server.restart, server.resume):
        with pytest.raises(
            ControlConflict,
            match=r"job report cannot run: its .* names \$\{run.(lower|upper)\}, and this run has no bounds",
        ):
            begin(NAME, "report")
    assert server.runs(NAME, "report") == ()


def test_a_run_over_a_range_is_made_once(world: World) -> None:
    """As another scheduler asks for it, again and again."""
    server = world.server()
    batch = job_of(
        execution={"runtime-mode": "BATCH"},
        source={"type": "text", "path": "in/${run.lower}"},
        sink={"type": "json", "path": "out"},
    )
    file = {"report": batch, "copy": {**batch, "schedule": {"every": "day"}, "sink": {"type": "json", "path": "o"}}}
    assert server.submit(world.submission(file)).runs == {}
    assert status(server).detail.startswith("it runs over a range: jobpipe runs start flights/report --lower LOWER")
    server.stop(NAME, "report")
    bounds = ("2026-11-21T01:00:00+01:00", "2026-11-22")
    with pytest.raises(ControlConflict, match="is stopped; `jobpipe pipeline resume` lets it run"):
        server.start_run(NAME, "report", *bounds)
    server.stop(NAME)
    assert server.resume(NAME).name == NAME
    with pytest.raises(ControlConflict, match=r"job report cannot run: its .* and this run has no bounds"):
        server.resume(NAME, "report")
    run = server.start_run(NAME, "report", *bounds)
    assert (run.lower, run.upper) == ("2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z")
    assert server.start_run(NAME, "report", run.lower, run.upper).id == run.id
    with pytest.raises(ControlConflict, match="has not ended"):
        server.start_run(NAME, "report", "1", "2")
    snapshot = Snapshot.read(world.attempt(1).snapshot)
    assert snapshot.values.text("lower", "") == "20261121T000000Z"
    world.work(1).end("FAILED", 1, error="DataLoss")
    wait(server, JobState.FAILED)
    again = server.start_run(NAME, "report", *bounds)
    assert (again.id, again.state) == (run.id, JobState.SUBMITTED)
    world.work(2).end("FINISHED", 0)
    wait(server, JobState.FINISHED)
    assert (server.start_run(NAME, "report", *bounds).state, len(server.runs(NAME))) == (JobState.FINISHED, 1)
    assert server.run_over(NAME, "report", *bounds) == server.run(run.id)
    with pytest.raises(RunNotFound, match="from 1 to 2"):
        server.run_over(NAME, "report", "1", "2")
    assert server.start_run(NAME, "report", "1", "2").id != run.id
    assert server.run_over(NAME, "report", "1", "2").lower == "1"
    assert Snapshot.read(world.attempt(3).snapshot).lower == 1
    with pytest.raises(ControlConflict, match="are made by its schedule"):
        server.start_run(NAME, "copy", "1", "2")
    world.work(3).end("FINISHED", 0)
    wait(server, JobState.FINISHED)
    server.stop(NAME)
    eventually(lambda: deleted(server))
    server.submit(world.submission(file))
    assert server.start_run(NAME, "report", *bounds).id != run.id  # topics would take its rows for those they have
    for wrong in (("2", "1"), ("1", "2026-11-22"), ("x", "2")):
        with pytest.raises(ConfigError, match=r"--lower|--upper"):
            server.start_run(NAME, "report", *wrong)


def test_a_lost_run_over_a_range_is_given_up(world: World) -> None:
    server = world.server(lost_seconds=0.0)
    batch = job_of(
        execution={"runtime-mode": "BATCH"},
        source={"type": "text", "path": "in/${run.lower}"},
        sink={"type": "json", "path": "out"},
    )
    server.submit(world.submission({"report": batch}))
    with pytest.raises(ConfigError, match="has not come yet"):
        server.start_run(NAME, "report", "2026-11-21", "2998-01-01")
    run = server.start_run(NAME, "report", "1", "2")
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    world.cluster.away.set()
    worker.handler.shutdown()
    wait(server, JobState.LOST)
    for refused in (lambda: server.restart(NAME, "report"), lambda: server.start_run(NAME, "report", "2", "3")):
        with pytest.raises(ControlConflict, match=r"LOST|this run has no bounds"):
            refused()
    world.cluster.ended[f"report-{worker.number}"] = None
    server.restart(NAME, force=True)
    eventually(lambda: server.run(run.id).state is not JobState.LOST)
    assert len(server.runs(NAME)) == 1
