"""Jobs whose drivers run on a cluster: it does not answer, or knows nothing of them; lease and end record decide."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from jobpipe.errors import LauncherUnavailable, NotAuthorized
from jobpipe.jobs.foreground import foreground_jobs
from jobpipe.jobs.supervision import reconciler, transitions
from jobpipe.pipelines.loading.snapshot import Snapshot
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.plugins.api import Attempt, LaunchState, LaunchStatus
from jobpipe_registry.job_records import EndRecord, Lease, Order
from jobpipe_registry.registry_errors import NotOrdered
from tests.pipelines.foreground.test_foreground_jobs import JOB, Fake, World, world
from tests.pipelines.waiting import DEADLINE, eventually

__all__ = ["world"]


class Cluster(Fake):
    """Attempts of a cluster, which may not answer."""

    cluster = True

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.asked = 0

    def status(self, launched: str) -> LaunchStatus:
        self.asked += 1
        if self.away:
            return LaunchStatus(LaunchState.UNKNOWN, None, "the master is away")
        return super().status(launched)

    def cancel(self, launched: str) -> None:
        if self.away:
            self.canceled.append(launched)
            raise LauncherUnavailable("the master is away")
        super().cancel(launched)


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.pipelines.foreground.test_foreground_jobs.Fake", Cluster)
    monkeypatch.setattr(transitions, "RETRY_MOST_SECONDS", 0.04)
    monkeypatch.setattr(reconciler, "LEAVE_SECONDS", 0.2)


def launcher(world: World) -> Cluster:
    assert isinstance(world.launcher, Cluster)
    return world.launcher


def away(*, perhaps_started: bool = False) -> LauncherUnavailable:
    return LauncherUnavailable("the master is away", perhaps_started=perhaps_started)


# -- submitting --------------------------------------------------------------------------------------------------------


def test_of_this_host_a_driver_elsewhere_gets_nothing(world: World, tmp_path: Path) -> None:
    world.start(config=tmp_path / "jobpipe.yaml")
    snapshot = Snapshot.read(world.attempt().snapshot)
    assert (snapshot.parent, snapshot.config) == (None, None)


def test_a_master_that_is_away_is_no_failed_attempt(world: World) -> None:
    """None was started, which counts as no failure; and whatever the master has started all the same cannot begin."""
    world.launcher.fails = [away() for _ in range(5)]  # restart.max-attempts is 3
    job = world.start()
    assert eventually(lambda: "the master is away; trying again" in job.view.detail)
    number = world.attempt().number
    with pytest.raises(NotOrdered):
        world.session().jobs.take_lease(*JOB, Lease("r1", 1, "host", 4711, 1.5e9, "a"), lambda why: None)
    world.leave(world.run(number), number, "FINISHED", 0)
    assert world.end().state is JobState.FINISHED


def test_a_driver_whose_start_was_not_confirmed_is_known_by_its_lease(world: World) -> None:
    """It was started, and the answer was lost."""
    started = world.session()

    def submitted_in_silence(attempt: Attempt) -> str:
        started.jobs.take_lease(*JOB, Lease("r1", 1, "host", 4711, 1.5e9, "a"), lambda why: None)
        raise away(perhaps_started=True)

    world.launcher.submit = submitted_in_silence  # type: ignore[method-assign]
    world.start()
    world.wait(JobState.RUNNING)
    started.jobs.release_lease(*JOB, EndRecord("r1", 1, "FINISHED", 1.5e9, rows=3))
    view = world.end()
    assert (view.state, view.rows, view.attempts) == (JobState.FINISHED, 3, 1)


def test_a_stop_while_the_master_is_away(world: World) -> None:
    """What was perhaps started is told."""
    world.launcher.fails = [away(perhaps_started=True) for _ in range(10_000)]
    job = world.start()
    eventually(lambda: len(world.launcher.fails) < 9_998)
    job.stop()
    view = world.end()
    assert view.state is JobState.STOPPED
    assert world.order == Order("r1", view.attempt + 1, "stop")  # no attempt can begin any more


def test_a_stop_while_the_registry_is_away_as_well(world: World) -> None:
    """No other attempt could be ordered in the place of the one that was perhaps started: that one is told."""
    jobs = world.jobs

    def lost(attempt: Attempt) -> str:
        jobs.away.set()
        raise away(perhaps_started=True)

    world.launcher.submit = lost  # type: ignore[method-assign]
    job = world.start()
    assert jobs.asked.acquire(timeout=DEADLINE)
    job.stop()
    jobs.away.clear()
    view = world.end()
    assert (view.state, view.attempt) == (JobState.STOPPED, 1)
    assert world.order == Order("r1", 2, "stop")


def test_a_token_that_is_refused_is_final(world: World) -> None:
    world.launcher.fails = [NotAuthorized("the master refuses the token")]
    world.start()
    view = world.end()
    assert (view.state, view.attempts) == (JobState.FAILED, 1)
    assert "refuses the token" in view.detail


# -- running -----------------------------------------------------------------------------------------------------------


def test_with_the_lease_it_runs_whatever_the_master_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreground_jobs, "LOST_SECONDS", 0.1)
    world.start()
    world.attempt()
    handler = world.run(1)
    world.wait(JobState.RUNNING)
    launcher(world).away = True
    asked = launcher(world).asked
    eventually(lambda: launcher(world).asked > asked + 20)  # for longer than LOST_SECONDS
    assert world.job.view.state is JobState.RUNNING
    world.leave(handler, 1, "FINISHED", 0, rows=7)
    view = world.end()
    assert (view.state, view.rows) == (JobState.FINISHED, 7)
    assert world.launcher.canceled == []


def test_without_a_lease_it_is_lost_and_not_started_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreground_jobs, "LOST_SECONDS", 0.1)
    world.start()
    world.attempt()
    handler = world.run(1)
    world.wait(JobState.RUNNING)
    launcher(world).away = True
    handler.shutdown()
    assert world.wait(JobState.LOST).detail == "the master is away, and it has no lease; it may still run"
    assert world.launcher.submitted.empty()
    again = world.run(1)  # it was cut off from the registry
    world.wait(JobState.RUNNING)
    again.shutdown()
    world.wait(JobState.LOST)
    launcher(world).away = False
    world.launcher.end(1, None)  # the master is there again, and knows
    assert world.attempt().number == 3


def test_a_driver_that_does_not_end_after_its_record(world: World) -> None:
    world.start()
    world.attempt()
    handler = world.run(1)
    world.wait(JobState.RUNNING)
    handler.jobs.release_lease(*JOB, EndRecord("r1", 1, "FINISHED", 1.5e9))
    assert (world.end().state, world.launcher.canceled) == (JobState.FINISHED, ["1"])


def test_where_the_log_is(world: World) -> None:
    spec = world.context.pipeline.spec
    restart = spec.restart.model_copy(update={"policy": "never"})
    status = world.launcher.status

    def with_detail(launched: str) -> LaunchStatus:
        found = status(launched)
        return LaunchStatus(found.state, found.exit_code, "its log is on worker w1")

    world.launcher.status = with_detail  # type: ignore[method-assign]
    world.start(pipeline=replace(world.context.pipeline, spec=spec.model_copy(update={"restart": restart})))
    world.attempt()
    eventually(lambda: world.job.view.detail == "its log is on worker w1")
    world.launcher.end(1, None)
    view = world.end()
    assert view.detail == "its process ended, without an end record; its log is on worker w1"


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_a_stop_reaches_the_driver_while_the_master_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "LEAVE_SECONDS", 1.0)
    job = world.start()
    world.attempt()
    handler = world.run(1)
    world.wait(JobState.RUNNING)
    launcher(world).away = True
    job.stop()
    eventually(lambda: world.order == Order("r1", 1, "stop"))
    world.leave(handler, 1, "STOPPED", 0)
    world.wait(JobState.STOPPED)
    assert world.launcher.canceled == []  # it has time to leave
    assert world.end().state is JobState.STOPPED


def test_canceled_while_nobody_can_say_whether_it_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreground_jobs, "GIVE_UP_SECONDS", 0.5)
    job = world.start()
    world.attempt()
    world.run(1)
    world.wait(JobState.RUNNING)
    launcher(world).away = True
    job.stop()
    eventually(lambda: world.order == Order("r1", 1, "stop"))
    job.kill()
    view = world.end()
    assert view.state is JobState.LOST
    assert view.detail == "unknown whether it has exited: the master is away"
    assert set(world.launcher.canceled) == {"1"}


def test_a_driver_that_tells_of_its_canceled_spark(world: World) -> None:
    world.launcher.heeds = 10**9
    job = world.start()
    world.attempt()
    handler = world.run(1)
    world.wait(JobState.RUNNING)
    job.kill()
    eventually(lambda: world.launcher.canceled)
    handler.jobs.release_lease(*JOB, EndRecord("r1", 1, "FAILED", time.time(), error="Py4JNetworkError"))
    world.launcher.end(1, 1)
    view = world.end()
    assert (view.state, "repeated" in view.detail) == (JobState.CANCELED, True)


def test_a_master_that_knows_nothing_of_it_keeps_no_stopped_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was started again. Without a lease nothing says that the driver lives."""
    for name in ("LOST_SECONDS", "GIVE_UP_SECONDS"):
        monkeypatch.setattr(foreground_jobs, name, 0.1)
    job = world.start(stop_seconds=0.1)
    world.attempt()
    launcher(world).away = True
    world.wait(JobState.LOST)
    job.stop()
    view = world.end()
    assert view.state is JobState.LOST
    assert view.detail.startswith("unknown whether it has exited: the master is away")


def test_a_driver_that_no_cancel_ends_keeps_no_killed_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pod on a node that is gone: its phase stays Running."""
    monkeypatch.setattr(foreground_jobs, "GIVE_UP_SECONDS", 0.1)
    world.launcher.heeds = 10**9
    job = world.start()
    world.attempt()
    world.run(1)
    world.wait(JobState.RUNNING)
    job.kill()
    view = world.end()
    assert (view.state, view.detail) == (JobState.LOST, "unknown whether it has exited: it does not end")
    world.launcher.heeds = 1
