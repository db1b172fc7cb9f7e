"""Jobs under supervision: attempts that are ordered, started, heard of, stopped, and started again."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobpipe.errors import ConfigError
from jobpipe.jobs.foreground import foreground_jobs
from jobpipe.jobs.foreground.foreground_jobs import ForegroundJobs, JobView, RunContext
from jobpipe.jobs.supervision import circuit_breaker, observations, probes, reconciler, restart_policy, transitions
from jobpipe.jobs.supervision.restart_policy import RestartPolicy
from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.pipelines.loading.snapshot import ParentProcess, Snapshot
from jobpipe.pipelines.model.job_states import MISCONFIGURED, JobState
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.pipelines.plugins.api import Attempt, Launcher, LaunchState, LaunchStatus, PluginOptions
from jobpipe_registry.job_records import EndRecord, Lease, Order
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree
from jobpipe_registry.registry_errors import Unavailable
from jobpipe_registry.registry_jobs import Jobs
from tests.pipelines.conftest import Write, loaded
from tests.pipelines.waiting import DEADLINE, eventually

JOB = ("flights", "report")
FILE = """
pipeline:
  name: flights
  restart: {delay: 20ms, max-delay: 50ms, max-attempts: 3}
jobs:
  report:
    source: {type: rate}
    sink: {type: console}
"""
KILLED = -9


class Fake(Launcher):
    """Attempts that the test ends; ``heeds`` is how many times it must be told to cancel one."""

    type = "fake"

    def __init__(self) -> None:
        super().__init__(PluginOptions())
        self.submitted: queue.Queue[Attempt] = queue.Queue()
        self.fails: list[Exception] = []
        self.heeds = 1
        self.canceled: list[str] = []
        self.asked: list[str] = []
        self._ended: dict[str, int | None] = {}

    def submit(self, attempt: Attempt) -> str:
        if self.fails:
            raise self.fails.pop(0)
        self.submitted.put(attempt)
        return str(attempt.number)

    def status(self, launched: str) -> LaunchStatus:
        if launched in self._ended:
            return LaunchStatus(LaunchState.ENDED, self._ended[launched])
        return LaunchStatus(LaunchState.RUNNING)

    def ask_to_stop(self, launched: str) -> None:
        self.asked.append(launched)

    def cancel(self, launched: str) -> None:
        self.canceled.append(launched)
        if len(self.canceled) >= self.heeds:
            self._ended.setdefault(launched, KILLED)

    def end(self, number: int, code: int | None) -> None:
        self._ended[str(number)] = code


class Away:
    """Jobs of a registry that does not answer while ``away`` is set."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self.away = threading.Event()
        self.asked = threading.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._jobs, name)

        def answered(*arguments: Any) -> Any:
            if self.away.is_set() and name != "watch":
                self.asked.release()
                raise Unavailable("memory", "it is away")
            return call(*arguments)

        return answered


class SupervisedJob:
    """The job of a run in the foreground."""

    def __init__(self, context: RunContext) -> None:
        self.jobs = ForegroundJobs(context)
        self.start, self.kill, self.join = self.jobs.start, self.jobs.kill, self.jobs.join
        self.stop = self.jobs.stop
        self.close = lambda: self.jobs.__exit__(None, None, None)

    @property
    def view(self) -> JobView:
        return self.jobs.view("report")

    @property
    def ended(self) -> bool:
        return self.jobs.ended("report")

    def block(self, why: str | None) -> None:
        self.jobs.block("report", why)


class World:
    """A supervised job, its registry, and the attempts that act in it."""

    def __init__(self, write: Write, home: Path) -> None:
        self.tree = MemoryTree()
        self.handlers: list[MemoryRegisterServerHandler] = []
        self.jobs = Away(self.session().jobs)
        self.launcher = Fake()
        pipeline = loaded(write(FILE))
        self.places = PipelinePaths.of(home, "flights")
        self.context = RunContext(
            pipeline=replace(pipeline, launcher=replace(pipeline.launcher, plugin=self.launcher)),
            names=["report"],
            home=home,
            jobs=self.jobs,  # type: ignore[arg-type]
            config=None,
            stop_seconds=DEADLINE,
            parent=ParentProcess(pid=4711, started=1.5e9, ticks=1),
            environment={"MORE": "given"},
        )
        self.job: SupervisedJob | None = None

    def session(self) -> MemoryRegisterServerHandler:
        handler = MemoryRegisterServerHandler(self.tree)
        handler.start({"topic.storage": "/test/topics", "connect.timeout": "5"})
        self.handlers.append(handler)
        return handler

    def start(self, **context: Any) -> SupervisedJob:
        self.context = replace(self.context, **context)
        self.job = SupervisedJob(self.context)
        self.job.start()
        return self.job

    def attempt(self) -> Attempt:
        return self.launcher.submitted.get(timeout=DEADLINE)

    @property
    def order(self) -> Order | None:
        return self.jobs._jobs.state(*JOB).order

    def run(self, number: int, run: str = "r1") -> MemoryRegisterServerHandler:
        """Take the lease as that attempt."""
        handler = self.session()
        handler.jobs.take_lease(*JOB, Lease(run, number, "host", 4711, 1.5e9, f"{run}-{number}"), lambda why: None)
        return handler

    def leave(self, handler: MemoryRegisterServerHandler, number: int, state: str, code: int, **more: Any) -> None:
        """Leave an end record, and end."""
        handler.jobs.release_lease(*JOB, EndRecord("r1", number, state, 1.5e9, **more))
        self.launcher.end(number, code)

    def wait(self, state: JobState) -> JobView:
        assert self.job is not None
        eventually(lambda: self.job.view.state is state)
        return self.job.view

    def end(self) -> JobView:
        assert self.job is not None
        assert self.job.join(DEADLINE)
        return self.job.view

    def close(self) -> None:
        self.jobs.away.clear()
        if self.job is not None:
            self.job.kill()
            for handler in self.handlers[1:]:
                handler.shutdown()
            assert self.job.join(DEADLINE)
            self.job.close()
        for handler in self.handlers:
            handler.shutdown()


@pytest.fixture
def world(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for module in (reconciler, transitions):
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(reconciler, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(circuit_breaker, "AWAY_SECONDS", 0.0)
    monkeypatch.setattr(foreground_jobs, "new_run_id", lambda now: "r1")
    for module in (reconciler, probes):
        monkeypatch.setattr(module, "make_launcher", lambda pipeline, run: pipeline.launcher.plugin)
    found = World(write, tmp_path / "home")
    yield found
    found.close()


def test_a_job_that_finishes(world: World) -> None:
    job = world.start()
    attempt = world.attempt()
    assert (attempt.pipeline, attempt.job, attempt.run, attempt.number) == ("flights", "report", "r1", 1)
    assert attempt.environment == {"MORE": "given"}
    assert attempt.log == world.places.log("report") == job.view.log
    assert world.order == Order("r1", 1, "run")
    snapshot = Snapshot.read(attempt.snapshot)
    assert (snapshot.job, snapshot.run, snapshot.attempt) == ("report", "r1", 1)
    assert (snapshot.parent, snapshot.stop_seconds) == (world.context.parent, DEADLINE)
    assert snapshot.storage == world.places.storage(world.context.pipeline, "report")
    view = world.wait(JobState.SUBMITTED)
    assert (view.attempt, view.attempts, view.detail) == (1, 1, "")

    handler = world.run(1)
    world.wait(JobState.RUNNING)
    assert not job.ended
    world.leave(handler, 1, "FINISHED", 0, batches=3, rows=500)
    view = world.end()
    assert (view.state, view.detail, view.batches, view.rows) == (JobState.FINISHED, "", 3, 500)
    assert not attempt.snapshot.exists()
    assert world.launcher.canceled == []
    assert view.seconds == job.view.seconds > 0.0


def test_a_job_that_was_not_started_has_not_ended(world: World) -> None:
    job = SupervisedJob(world.context)
    assert not job.ended
    assert (job.view.state, job.view.seconds, job.view.attempt) == (JobState.SUBMITTED, 0.0, 0)
    job.join(0.0)


def test_after_failures_come_attempts_with_rising_numbers(world: World) -> None:
    world.start()
    for number in (1, 2):
        attempt = world.attempt()
        assert attempt.number == number
        assert world.order == Order("r1", number, "run")
        assert Snapshot.read(attempt.snapshot).attempt == number
        handler = world.run(number)
        view = world.wait(JobState.RUNNING)
        assert view.detail == ("" if number == 1 else "restarted after: OSError (topic a)")
        world.leave(handler, number, "FAILED", 1, error="OSError", place="topic a", batches=2, rows=10)
    assert world.attempt().number == 3
    assert world.jobs._jobs.state(*JOB).end is None  # it was read, and removed
    world.leave(world.run(3), 3, "FAILED", 1, error="OSError", place="topic a", batches=2, rows=10)
    view = world.end()
    assert (view.state, view.detail) == (JobState.FAILED, "OSError (topic a)")
    assert (view.attempt, view.attempts, view.batches, view.rows) == (3, 3, 6, 30)
    assert list(world.places.snapshot("report", 1).parent.iterdir()) == []


def test_a_job_is_starting_until_it_has_reported_that_its_work_begins(world: World) -> None:
    job = world.start()
    attempt = world.attempt()
    handler = world.run(1)
    assert world.wait(JobState.RUNNING).starting
    Reporter(Snapshot.read(attempt.snapshot).report).start()
    eventually(lambda: not job.view.starting)
    assert job.view.state is JobState.RUNNING
    world.leave(handler, 1, "FINISHED", 0)
    assert not world.end().starting


def test_why_a_job_was_restarted_is_said_for_a_minute() -> None:
    assert restart_policy.restart_note("OSError", 59.0) == "restarted after: OSError"
    assert restart_policy.restart_note("OSError", 60.0) == ""
    assert restart_policy.restart_note("", 1.0) == ""


def test_between_two_attempts_it_says_what_comes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart_policy, "_spread", lambda: 1.0)
    spec = world.context.pipeline.spec
    restart = spec.restart.model_copy(update={"delay": 300.0, "max_delay": 300.0})
    pipeline = replace(world.context.pipeline, spec=spec.model_copy(update={"restart": restart}))
    job = world.start(pipeline=pipeline)
    world.attempt()
    world.leave(world.run(1), 1, "FAILED", 1, error="OSError")
    view = world.wait(JobState.RESTARTING)
    assert view.detail == "attempt 1: OSError; the next attempt in 300 s"
    job.stop()
    assert world.end().state is JobState.STOPPED


def test_a_final_error_ends_it_at_once(world: World) -> None:
    world.start()
    world.attempt()
    world.leave(world.run(1), 1, "FAILED", 1, error="SchemaMismatch", place="stage 2")
    view = world.end()
    assert (view.state, view.detail, view.attempts) == (JobState.FAILED, "SchemaMismatch (stage 2)", 1)


def test_numbers_go_on_after_other_runs(world: World) -> None:
    world.jobs.set_order(*JOB, Order("r0", 41, "run"), -1)
    world.start()
    assert world.attempt().number == 42
    assert world.job.view.attempts == 1


def test_it_takes_the_job_from_a_run_that_is_under_way(world: World) -> None:
    """Of a server, or of another host: that one hears of the order and ends; until then ours waits for the lease."""
    world.jobs.set_order(*JOB, Order("r0", 4, "run"), -1)
    other = world.session()
    other.jobs.take_lease(*JOB, Lease("r0", 4, "host", 4711, 1.5e9, "a"), lambda why: None)
    job = world.start()
    assert world.attempt().number == 5
    assert world.order == Order("r1", 5, "run")
    eventually(lambda: "to release the lease" in job.view.detail)
    other.jobs.release_lease(*JOB, EndRecord("r0", 4, "CANCELED", 1.5e9))
    world.leave(world.run(5), 5, "FINISHED", 0)
    assert world.end().state is JobState.FINISHED


def test_the_end_record_of_another_run_says_nothing_of_ours(world: World) -> None:
    world.jobs.set_order(*JOB, Order("r0", 1, "run"), -1)
    handler = world.session()
    handler.jobs.take_lease(*JOB, Lease("r0", 1, "host", 4711, 1.5e9, "a"), lambda why: None)
    handler.jobs.release_lease(*JOB, EndRecord("r0", 1, "FINISHED", 1.5e9, batches=7))
    world.start()
    assert world.attempt().number == 2
    eventually(lambda: world.jobs._jobs.state(*JOB).end is None)
    world.launcher.end(2, 1)
    assert world.attempt().number == 4  # 3 was ordered so that attempt 2 cannot begin any more


def test_replaced_by_another_run(world: World) -> None:
    world.start()
    world.attempt()
    world.launcher.end(1, 75)
    view = world.end()
    assert (view.state, view.detail) == (JobState.CANCELED, "another run of this pipeline has taken its place")


def test_a_run_that_was_replaced_between_two_attempts_makes_no_more(world: World) -> None:
    """Else it would take the job away from the newer run."""
    world.start()
    world.attempt()
    state = world.jobs._jobs.state(*JOB)
    world.jobs.set_order(*JOB, Order("r2", 2, "run"), state.version)
    world.launcher.end(1, KILLED)  # it died just then
    view = world.end()
    assert (view.state, view.detail) == (JobState.CANCELED, "another run of this pipeline has taken its place")
    assert world.order == Order("r2", 2, "run")


@pytest.mark.parametrize(
    ("code", "how"),
    [(KILLED, "was killed by signal 9"), (1, "ended with code 1"), (0, "ended with code 0"), (None, "ended")],
)
def test_without_an_end_record_it_is_started_again(world: World, code: int | None, how: str) -> None:
    spec = world.context.pipeline.spec
    restart = spec.restart.model_copy(update={"max_attempts": 2})
    world.start(pipeline=replace(world.context.pipeline, spec=spec.model_copy(update={"restart": restart})))
    assert world.attempt().number == 1
    world.launcher.end(1, code)
    assert world.attempt().number == 3
    handler = world.run(3)
    assert world.wait(JobState.RUNNING).detail == f"restarted after: its process {how}, without an end record"
    handler.shutdown()
    world.launcher.end(3, code)
    view = world.end()
    assert (view.state, view.detail) == (JobState.FAILED, f"its process {how}, without an end record")


def test_a_wrong_configuration_is_not_tried_again(world: World) -> None:
    world.start()
    world.attempt()
    world.launcher.end(1, MISCONFIGURED)
    view = world.end()
    assert (view.state, view.attempts) == (JobState.FAILED, 1)
    assert "its file or configuration is wrong" in view.detail


def test_a_stop_that_nobody_ordered_is_a_failure(world: World) -> None:
    """As by the system, which is short of memory."""
    world.start()
    world.attempt()
    world.leave(world.run(1), 1, "STOPPED", 0)
    assert world.attempt().number == 2


def test_a_stop_that_another_program_ordered(world: World) -> None:
    world.start()
    world.attempt()
    handler = world.run(1)
    jobs = world.session().jobs
    jobs.set_order(*JOB, Order("r1", 1, "stop"), jobs.state(*JOB).version)
    world.leave(handler, 1, "STOPPED", 0)
    assert (world.end().state, world.launcher.submitted.empty()) == (JobState.STOPPED, True)


def test_a_stop_changes_the_order(world: World) -> None:
    job = world.start()
    world.attempt()
    handler = world.run(1)
    world.wait(JobState.RUNNING)
    job.stop()
    job.stop()
    world.wait(JobState.STOPPING)
    eventually(lambda: world.order == Order("r1", 1, "stop"))
    world.leave(handler, 1, "STOPPED", 0, batches=4)
    view = world.end()
    assert (view.state, view.batches, world.launcher.canceled) == (JobState.STOPPED, 4, [])


def test_a_stop_that_finds_it_finished(world: World) -> None:
    job = world.start()
    world.attempt()
    handler = world.run(1)
    job.stop()
    world.leave(handler, 1, "FINISHED", 0)
    assert world.end().state is JobState.FINISHED


def test_a_stop_before_it_has_the_lease(world: World) -> None:
    job = world.start()
    world.attempt()
    job.stop()
    eventually(lambda: world.order == Order("r1", 1, "stop"))
    world.launcher.end(1, 0)
    assert world.end().state is JobState.STOPPED


def test_a_stop_before_it_was_started(world: World) -> None:
    job = SupervisedJob(world.context)
    world.job = job
    job.stop()
    job.start()
    assert (world.end().state, world.order) == (JobState.STOPPED, None)
    assert job.view.attempts == 0


def test_a_failure_after_a_stop_is_not_repeated(world: World) -> None:
    job = world.start()
    world.attempt()
    handler = world.run(1)
    job.stop()
    world.leave(handler, 1, "FAILED", 1, error="OSError")
    view = world.end()
    assert (view.state, view.attempts) == (JobState.FAILED, 1)


def test_a_stop_that_is_not_heeded(world: World) -> None:
    job = world.start(stop_seconds=0.05)
    world.attempt()
    handler = world.run(1)
    job.stop()
    eventually(lambda: world.launcher.canceled)
    handler.shutdown()
    view = world.end()
    assert (view.state, set(world.launcher.canceled)) == (JobState.CANCELED, {"1"})
    assert "repeated" in view.detail


def test_a_failure_by_which_a_canceled_one_ends_is_none(world: World) -> None:
    job = world.start(stop_seconds=0.05)
    world.attempt()
    handler = world.run(1)
    job.stop()
    eventually(lambda: world.launcher.canceled)
    handler.jobs.release_lease(*JOB, EndRecord("r1", 1, "FAILED", time.time(), error="Py4JError"))
    view = world.end()
    assert view.state is JobState.CANCELED
    assert "repeated" in view.detail


def test_a_process_that_lives_on_after_its_end_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a thread of the user's that is not a daemon."""
    monkeypatch.setattr(reconciler, "LEAVE_SECONDS", 0.05)
    world.start()
    world.attempt()
    world.run(1).jobs.release_lease(*JOB, EndRecord("r1", 1, "FINISHED", 1.5e9))
    assert (world.end().state, world.launcher.canceled) == (JobState.FINISHED, ["1"])


def test_what_an_attempt_reports(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counts while it runs; at its end why it failed, in the error's own words."""
    job = world.start()
    reporter = Reporter(Snapshot.read(world.attempt().snapshot).report)
    handler = world.run(1)
    reporter.report(2, 20)
    eventually(lambda: (job.view.batches, job.view.rows) == (2, 20))
    reporter.report(3, 30, "ValueError: no amount")
    world.leave(handler, 1, "FAILED", 1, error="ValueError", place="stage 2", batches=3, rows=30)
    world.attempt()
    reporter = Reporter(world.places.report("report", 2))
    handler = world.run(2)
    reporter.report(1, 5)
    eventually(lambda: (job.view.batches, job.view.rows) == (4, 35))
    reporter.report(1, 5, "SchemaMismatch: no column b")
    world.leave(handler, 2, "FAILED", 1, error="SchemaMismatch", place="stage 2", batches=1, rows=5)
    view = world.end()
    assert (view.detail, view.cause) == ("SchemaMismatch: no column b (stage 2)", "SchemaMismatch: no column b")
    assert (view.batches, view.rows) == (4, 35)
    assert list(world.places.report("report", 2).parent.iterdir()) == []


def test_what_a_killed_attempt_has_reported_counts(world: World) -> None:
    job = world.start()
    world.attempt()
    Reporter(world.places.report("report", 1)).report(2, 20)
    world.launcher.end(1, KILLED)
    world.attempt()
    assert (job.view.batches, job.view.rows) == (2, 20)


def test_the_wait_for_the_lease_is_no_running(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that fail at once are counted, however long the registry or another attempt kept them waiting."""
    ran: list[float] = []
    monkeypatch.setattr(RestartPolicy, "delay", lambda self, error, seconds: ran.append(seconds))
    world.start()
    world.attempt()
    world.wait(JobState.SUBMITTED)
    world.launcher.end(1, 1)
    assert (world.end().state, ran) == (JobState.FAILED, [0.0])


def test_kill_does_not_wait(world: World) -> None:
    job = world.start()
    world.attempt()
    handler = world.run(1)
    job.kill()
    eventually(lambda: world.launcher.canceled)
    handler.shutdown()
    assert (world.end().state, set(world.launcher.canceled)) == (JobState.CANCELED, {"1"})


def test_a_process_that_cannot_be_killed_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is asked now and then, not all the time."""
    monkeypatch.setattr(reconciler, "POLL_SECONDS", 0.2)
    world.launcher.heeds = 10**9
    job = world.start()
    world.attempt()
    job.kill()
    eventually(lambda: world.launcher.canceled)
    job.join(0.5)
    assert len(world.launcher.canceled) < 20
    world.launcher.heeds = 1
    assert world.end().state is JobState.CANCELED


def test_a_stop_of_an_attempt_that_another_run_replaces(world: World) -> None:
    job = world.start()
    world.attempt()
    state = world.jobs._jobs.state(*JOB)
    world.jobs.set_order(*JOB, Order("r2", 2, "run"), state.version)
    job.stop()
    world.wait(JobState.STOPPING)
    world.launcher.end(1, 75)
    assert world.end().state is JobState.CANCELED
    assert world.order == Order("r2", 2, "run")


def test_the_registry_is_away_at_the_order(world: World) -> None:
    world.jobs.away.set()
    job = world.start()
    for _ in range(3):
        assert world.jobs.asked.acquire(timeout=DEADLINE)
    assert (job.view.state, job.view.attempt) == (JobState.SUBMITTED, 0)
    assert "it is away" in job.view.detail
    world.jobs.away.clear()
    assert world.attempt().number == 1
    assert eventually(lambda: not job.view.detail)


def test_a_stop_while_the_registry_is_away(world: World) -> None:
    world.jobs.away.set()
    job = world.start()
    assert world.jobs.asked.acquire(timeout=DEADLINE)
    job.stop()
    view = world.end()
    assert (view.state, view.attempt) == (JobState.STOPPED, 0)


def test_the_registry_is_away_at_the_stop(world: World) -> None:
    """The launcher asks for it, once: the micro-batch ends all the same. The order is changed as soon as possible."""
    job = world.start()
    world.attempt()
    handler = world.run(1)
    world.wait(JobState.RUNNING)
    world.jobs.away.set()
    job.stop()
    for _ in range(3):
        assert world.jobs.asked.acquire(timeout=DEADLINE)
    eventually(lambda: world.launcher.asked)
    world.jobs.away.clear()
    eventually(lambda: world.order == Order("r1", 1, "stop"))
    world.leave(handler, 1, "STOPPED", 0)
    assert (world.end().state, world.launcher.asked, world.launcher.canceled) == (JobState.STOPPED, ["1"], [])


def test_the_registry_is_away_at_the_end(world: World) -> None:
    world.start()
    world.attempt()
    handler = world.run(1)
    world.jobs.away.set()
    world.leave(handler, 1, "FINISHED", 0, rows=5)
    for _ in range(3):
        assert world.jobs.asked.acquire(timeout=DEADLINE)
    world.jobs.away.clear()
    view = world.end()
    assert (view.state, view.rows) == (JobState.FINISHED, 5)


def test_a_launcher_that_cannot_start_it_now(world: World) -> None:
    world.launcher.fails = [OSError("no more processes")]
    world.start()
    assert world.attempt().number == 3
    assert [each.name for each in world.places.snapshot("report", 1).parent.iterdir()] == ["report-3.json"]


def test_a_launcher_that_never_will(world: World) -> None:
    world.launcher.fails = [ConfigError("launcher fake is broken")]
    world.start()
    view = world.end()
    assert (view.state, view.detail, view.attempts) == (
        JobState.FAILED,
        "it cannot be started: launcher fake is broken",
        1,
    )


def test_a_launcher_with_a_bug(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.launcher.fails = [ZeroDivisionError("a bug") for _ in range(3)]
    world.start()
    view = world.end()
    assert (view.state, view.detail) == (JobState.FAILED, "it cannot be started: a bug")
    assert "a bug" in caplog.text
    assert list(world.places.snapshot("report", 1).parent.iterdir()) == []


def test_a_run_that_is_replaced_waits_for_no_newer_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two attempts another run has ordered, and has the lease: a stream may have it for ever."""
    monkeypatch.setattr(restart_policy, "_spread", lambda: 100.0)  # two seconds: time for another run to come
    world.start()
    world.attempt()
    jobs = world.session().jobs
    world.leave(world.run(1), 1, "FAILED", 1, error="OSError")
    world.wait(JobState.RESTARTING)
    jobs.set_order(*JOB, Order("r2", 2, "run"), jobs.state(*JOB).version)
    world.session().jobs.take_lease(*JOB, Lease("r2", 2, "host", 4711, 1.5e9, "b"), lambda why: None)
    assert world.end().state is JobState.CANCELED


def test_a_kill_while_it_is_submitted_waits_for_the_launcher(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it has started would run on without supervision."""
    monkeypatch.setattr(foreground_jobs, "GIVE_UP_SECONDS", 0.0)
    submit, busy, go = world.launcher.submit, threading.Event(), threading.Event()

    def slow(attempt: Attempt) -> str:
        busy.set()
        assert go.wait(DEADLINE)
        return submit(attempt)

    world.launcher.submit = slow  # type: ignore[method-assign]
    job = world.start()
    assert busy.wait(DEADLINE)
    job.stop()
    job.kill()
    assert not job.join(0.2)
    go.set()
    assert (world.end().state, set(world.launcher.canceled)) == (JobState.CANCELED, {"1"})


def test_a_kill_after_its_end_record_ends_its_process_soon(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "LEAVE_SECONDS", 10**6)
    monkeypatch.setattr(reconciler, "SHORT_LEAVE_SECONDS", 0.0)
    job = world.start()
    world.attempt()
    world.run(1).jobs.release_lease(*JOB, EndRecord("r1", 1, "FINISHED", 1.5e9))
    world.wait(JobState.FINISHED)
    assert not job.ended
    job.kill()
    assert (world.end().state, world.launcher.canceled) == (JobState.FINISHED, ["1"])


def test_a_third_signal_makes_no_failure_of_what_was_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observations, "SKEW_SECONDS", 0.0)
    world.launcher.heeds = 10**9
    job = world.start()
    world.attempt()
    handler = world.run(1)
    world.wait(JobState.RUNNING)
    job.kill()
    eventually(lambda: world.launcher.canceled)
    world.jobs.away.set()
    handler.jobs.release_lease(*JOB, EndRecord("r1", 1, "FAILED", time.time(), error="Py4JError"))
    job.kill()
    world.launcher.end(1, 1)
    world.jobs.away.clear()
    assert world.end().state is JobState.CANCELED


def test_a_registry_that_stays_away_keeps_no_stopped_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one signal too, and of a run that took too long: nobody may be there to send another one."""
    monkeypatch.setattr(foreground_jobs, "GIVE_UP_SECONDS", 0.1)
    job = world.start(stop_seconds=0.1)
    world.attempt()
    world.run(1)
    world.wait(JobState.RUNNING)
    world.jobs.away.set()
    world.launcher.end(1, 0)
    eventually(lambda: "it is away" in job.view.detail)
    job.stop()
    view = world.end()
    assert view.state is JobState.LOST
    assert view.detail.startswith("unknown whether it has exited: registry memory is not available")


def test_files_that_cannot_be_removed_do_not_keep_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.start()
    world.attempt()
    world.places.report("report", 1).mkdir()
    world.leave(world.run(1), 1, "FINISHED", 0)
    assert world.end().state is JobState.FINISHED
    assert "cannot be removed" in caplog.text


def test_a_launcher_that_would_end_the_program(world: World) -> None:
    world.launcher.fails = [SystemExit(3) for _ in range(3)]  # type: ignore[list-item]
    world.start()
    view = world.end()
    assert (view.state, view.attempts) == (JobState.FAILED, 3)


def test_what_an_error_says_is_said_of_its_failure_alone(world: World) -> None:
    """Not where a job waits, nor of a stop: alerts take it out of the detail by the cause."""
    job = world.start()
    reporter = Reporter(Snapshot.read(world.attempt().snapshot).report)
    handler = world.run(1)
    world.wait(JobState.RUNNING)
    reporter.report(1, 5, "ValueError: amount 17 of Mrs. Smith")
    world.leave(handler, 1, "FAILED", 1, error="ValueError")
    world.attempt()
    handler = world.run(2)
    view = world.wait(JobState.RUNNING)
    assert (view.detail, view.cause) == (
        "restarted after: ValueError: amount 17 of Mrs. Smith",
        "ValueError: amount 17 of Mrs. Smith",
    )
    job.stop()
    world.leave(handler, 2, "STOPPED", 0)
    view = world.end()
    assert (view.state, view.detail, view.cause) == (JobState.STOPPED, "", "")


def test_a_topic_without_room(world: World) -> None:
    job = world.start()
    world.attempt()
    job.block("topic flights has no room")
    assert job.view.state is JobState.SUBMITTED  # it does not run yet
    handler = world.run(1)
    assert world.wait(JobState.BLOCKED).detail == "topic flights has no room"
    job.block(None)
    assert world.wait(JobState.RUNNING).detail == ""
    job.block("topic flights has no room")
    world.wait(JobState.BLOCKED)
    world.leave(handler, 1, "FINISHED", 0)
    assert world.end().state is JobState.FINISHED
    job.block("topic flights has no room")
    job.block(None)
    assert job.view.state is JobState.FINISHED


def test_no_state_follows_that_may_not(world: World, caplog: pytest.LogCaptureFixture) -> None:
    job = world.start()
    world.attempt()
    world.launcher.end(1, KILLED)
    world.attempt()
    job.block("no room")
    handler = world.run(3)
    world.wait(JobState.BLOCKED)
    job.stop()
    world.wait(JobState.STOPPING)
    world.leave(handler, 3, "STOPPED", 0)
    world.end()
    assert "does not follow" not in caplog.text
