"""A job stays under supervision, whatever fails in a step: store, registry, launcher, or this process."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from jobpipe.errors import ConfigError, LauncherUnavailable, StoreError
from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.circuit_breaker import CircuitBreaker
from jobpipe.pipelines.model.job_states import DesiredState, JobState
from jobpipe_registry.job_records import EndRecord, Lease, Order
from jobpipe_registry.registry_errors import Unavailable
from tests.control.world import NAME, World, job_of, states, status, wait
from tests.pipelines.waiting import eventually


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe.jobs.supervision.dispatcher.FAILED_SECONDS", 0.05)


class Once:
    """Lets the next call of a method fail that a condition is true for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, error: Exception) -> None:
        self.is_it = lambda arguments, named: True
        self.failed = False
        self.armed = False
        call = getattr(kind, name)

        def failing(thing: Any, *arguments: Any, **named: Any) -> Any:
            if self.armed and not self.failed and self.is_it(arguments, named):
                self.failed = True
                raise error
            return call(thing, *arguments, **named)

        monkeypatch.setattr(kind, name, failing)


FULL = StoreError("the disk is full")


def test_a_strange_error_of_a_launcher_is_a_failed_attempt(world: World) -> None:
    server = world.server()
    world.cluster.fails = [KeyError("no such queue")]
    server.submit(world.submission())
    world.work(1)
    wait(server, JobState.RUNNING)
    (run,) = server.runs(NAME)
    assert (run.attempts[0].state, run.attempts[0].error) == (JobState.FAILED, "KeyError")


def test_a_store_that_fails_after_the_launch_is_as_a_server_that_was_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Once(monkeypatch, Store, "change_attempt", FULL)
    fault.is_it = lambda _, named: "launched" in named
    fault.armed = True
    server = world.server()
    server.submit(world.submission())
    world.work(2)  # the first one is kept from beginning
    wait(server, JobState.RUNNING)
    (run,) = server.runs(NAME)
    assert [each.state for each in run.attempts] == [JobState.CANCELED, JobState.RUNNING]


def test_a_first_read_that_fails_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.server()
    first.submit(world.submission())
    worker = world.work(1)
    wait(first, JobState.RUNNING)
    first.close()
    worker.end("FINISHED", 0)
    fault = Once(monkeypatch, Store, "open_attempt", StoreError("the database is locked"))
    fault.armed = True
    wait(world.server(), JobState.FINISHED)
    assert fault.failed


def test_a_stop_is_carried_out_though_it_was_not_read_at_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Once(monkeypatch, Store, "open_attempt", FULL)
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    store = Store(world.config.home / "server" / "server.db", lambda: 0.0)
    with contextlib.closing(store):
        fault.is_it = lambda *_: store.jobs(NAME)[0].want is DesiredState.STOP
        fault.armed = True
        server.stop(NAME)
        eventually(lambda: fault.failed)
    eventually(lambda: world.order() == Order(worker.run, worker.number, "stop"))
    worker.end("STOPPED", 0)
    wait(server, JobState.STOPPED)


def test_an_old_end_record_that_cannot_be_removed_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, old = world.session(), Order("foreground", 1, "run")
    handler.jobs.set_order(NAME, "report", old, handler.jobs.state(NAME, "report").version)
    handler.jobs.take_lease(NAME, "report", Lease("foreground", 1, "elsewhere", 1, 1.5e9, "i"), lambda why: None)
    handler.jobs.release_lease(NAME, "report", EndRecord("foreground", 1, "FAILED", 1.5e9))
    fault = Once(monkeypatch, CircuitBreaker, "remove_end", Unavailable("memory", "it is away"))
    fault.armed = True
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    assert fault.failed
    worker.end("FINISHED", 0)
    wait(server, JobState.FINISHED)
    assert states(server) == [JobState.SUBMITTED, JobState.RUNNING, JobState.FINISHED]


def test_a_stopped_pipeline_starts_no_job_that_is_added(world: World) -> None:
    server = world.server()
    server.submit(world.submission())
    server.stop(NAME)
    submitted = server.submit(world.submission({"report": job_of(), "added": job_of()}))
    assert submitted.runs == {}
    assert status(server, "added").want is DesiredState.STOP
    server.resume(NAME)
    world.attempt(1, "added")


def test_a_stop_while_a_checkpoint_cannot_be_moved_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    server = world.server()
    asked = threading.Event()

    def stopped_meanwhile(storage: str, run: str) -> str | None:
        server.stop(NAME)
        asked.set()
        raise ConfigError("it cannot be moved", key="storage")

    monkeypatch.setattr("jobpipe.jobs.supervision.reconciler.clear_storage", stopped_meanwhile)
    server.submit(world.submission(), new_checkpoint=["report"])
    eventually(asked.is_set)
    wait(server, JobState.STOPPED)
    assert status(server).want is DesiredState.STOP
    assert world.cluster.submitted == []


# -- launchers ---------------------------------------------------------------------------------------------------------


def test_a_master_that_is_away_makes_no_failed_attempt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe.jobs.supervision.transitions.RETRY_SECONDS", 0.02)
    server = world.server()
    world.cluster.fails = [LauncherUnavailable("the master does not answer") for _ in range(5)]
    server.submit(world.submission())  # three attempts are the most
    assert "does not answer" in wait(server, JobState.RESTARTING).detail
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    (run,) = server.runs(NAME)
    assert [(each.state, each.error) for each in run.attempts[:-1]] == [(JobState.CANCELED, "LauncherUnavailable")] * 5
    store = Store(world.config.home / "server" / "server.db", lambda: 0.0)
    with contextlib.closing(store):
        stored = store.run(run.id)
    assert stored is not None
    assert (stored.failures, stored.delay) == (0, pytest.approx(0.32))
    worker.end("FINISHED", 0)
    wait(server, JobState.FINISHED)


# -- this process ------------------------------------------------------------------------------------------------------


def test_threads_that_cannot_be_started_are_started_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, []

    def starts(thread: threading.Thread) -> None:
        if thread.name.startswith("jobs-") and thread.name.endswith("-5") and len(refused) < 3:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    server = world.server()
    server.submit(world.submission())
    world.work(1).end("FINISHED", 0)
    wait(server, JobState.FINISHED)
    assert len(refused) == 3
    eventually(lambda: len([each for each in threading.enumerate() if each.name == "jobs-new-0"]) == 1)
