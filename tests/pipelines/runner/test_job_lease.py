"""The lease of an attempt: taken, waited for, lost, let go."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psutil
import pytest

from jobpipe.errors import RegistryUnavailable
from jobpipe.jobs.runner import job_lease
from jobpipe.jobs.runner.job_lease import JobLease, LeaseLost
from jobpipe_registry.host.process_identity import PidScope, start_ticks
from jobpipe_registry.job_records import EndRecord, Lease, Order
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree
from jobpipe_registry.registry_errors import Unavailable
from jobpipe_registry.registry_jobs import Jobs
from tests.pipelines.waiting import DEADLINE, eventually

JOB = ("flights", "report")
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
END = EndRecord("r1", 1, "FINISHED", 1.5e9, batches=3, rows=500)


class Told:
    """A callback that remembers."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self._called = threading.Event()

    def __call__(self, *arguments: Any) -> None:
        self.calls.append(arguments)
        self._called.set()

    def wait(self) -> Any:
        assert self._called.wait(DEADLINE), "it was not told"
        return self.calls[0]


class World:
    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.handlers: list[MemoryRegisterServerHandler] = []
        self.jobs = self.session().jobs
        self.replaced, self.stop = Told(), Told()
        self.stopped = threading.Event()
        self.pool = ThreadPoolExecutor()

    def session(self) -> MemoryRegisterServerHandler:
        handler = MemoryRegisterServerHandler(self.tree)
        handler.start({"topic.storage": "/test/topics", "connect.timeout": "5"})
        self.handlers.append(handler)
        return handler

    def order(self, attempt: int, want: str = "run", run: str = "r1") -> None:
        self.jobs.set_order(*JOB, Order(run, attempt, want), self.jobs.state(*JOB).version)

    def job_lease(self, attempt: int = 1, run: str = "r1", jobs: Jobs | None = None) -> JobLease:
        jobs = self.session().jobs if jobs is None else jobs
        return JobLease(jobs, *JOB, run, attempt, on_replaced=self.replaced, on_stop=self.stop)

    def acquire(self, job_lease: JobLease, seconds: float = DEADLINE) -> bool:
        return job_lease.acquire(seconds, self.stopped.is_set)

    def taking(self, job_lease: JobLease) -> Future[bool]:
        return self.pool.submit(self.acquire, job_lease)

    @property
    def lease(self) -> Lease | None:
        return self.jobs.state(*JOB).lease

    def close(self) -> None:
        self.stopped.set()
        self.pool.shutdown()
        for handler in self.handlers:
            handler.shutdown()


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.close()


def test_the_attempt_that_was_ordered_takes_it(world: World) -> None:
    world.order(1)
    held = world.job_lease()
    assert world.acquire(held)
    assert world.lease == held.lease
    assert (held.lease.run, held.lease.attempt, held.lease.pid) == ("r1", 1, os.getpid())
    assert held.lease.place == PidScope.here()
    assert (world.replaced.calls, world.stop.calls) == ([], [])


@pytest.mark.parametrize(("run", "attempt"), [("r1", 2), ("r2", 1)])
def test_another_attempt_was_ordered(world: World, run: str, attempt: int) -> None:
    world.order(attempt, run=run)
    with pytest.raises(LeaseLost, match=f"attempt {attempt} of run {run} may"):
        world.acquire(world.job_lease())
    assert world.lease is None


def test_nothing_was_ordered(world: World) -> None:
    with pytest.raises(LeaseLost, match="no order"):
        world.acquire(world.job_lease())


def test_a_live_holder_is_waited_for(world: World) -> None:
    world.order(1)
    first, second = world.job_lease(1), world.job_lease(2)
    assert world.acquire(first)
    world.order(2)
    assert "attempt 2 of run r1" in world.replaced.wait()[0]
    taking = world.taking(second)
    time.sleep(0.2)  # nothing happens: there is no event to wait for
    assert not taking.done()
    assert world.lease == first.lease
    world.handlers[1].shutdown()  # the first one's session ends
    assert taking.result(DEADLINE)
    assert world.lease == second.lease


def test_an_attempt_that_is_not_wanted_any_more_while_it_waits(world: World) -> None:
    world.order(1)
    assert world.acquire(world.job_lease(1))
    world.order(2)
    taking = world.taking(world.job_lease(2))
    world.order(3)
    with pytest.raises(LeaseLost, match="attempt 3 of run r1 may"):
        taking.result(DEADLINE)


def ended_process() -> tuple[int, float, int]:
    """Return the number, start and ticks of a process that has ended."""
    with subprocess.Popen(SLEEP) as process:
        found = process.pid, psutil.Process(process.pid).create_time(), start_ticks(process.pid)
        process.kill()
    return found


@pytest.mark.processes
def test_a_dead_process_has_no_lease(world: World) -> None:
    world.order(1)
    pid, started, ticks = ended_process()
    here = PidScope.here()
    dead = Lease("r1", 1, here.host, pid, started, "dead", "", here.boot, here.pid_namespace, ticks)
    world.session().jobs.take_lease(*JOB, dead, lambda why: None)
    world.order(2)
    held = world.job_lease(2)
    assert world.acquire(held)
    assert world.lease == held.lease


@pytest.mark.processes
def test_of_another_host_nobody_can_say_that_it_is_dead(world: World) -> None:
    world.order(1)
    pid, started, ticks = ended_process()
    there = replace(PidScope.here(), host="elsewhere")
    other = Lease("r1", 1, there.host, pid, started, "other", "", there.boot, there.pid_namespace, ticks)
    session = world.session()
    session.jobs.take_lease(*JOB, other, lambda why: None)
    world.order(2)
    taking = world.taking(world.job_lease(2))
    time.sleep(0.2)  # nothing happens
    assert world.lease == other
    session.shutdown()
    assert taking.result(DEADLINE)


def test_a_stop_is_heard(world: World) -> None:
    world.order(1)
    held = world.job_lease()
    assert world.acquire(held)
    world.order(1, "stop")
    world.stop.wait()
    assert world.replaced.calls == []
    held.release(END, DEADLINE)
    assert (world.lease, world.jobs.state(*JOB).end) == (None, END)


def test_a_stop_of_another_attempt_is_none(world: World) -> None:
    world.order(1)
    assert world.acquire(world.job_lease())
    world.order(2, "stop")
    world.replaced.wait()
    assert world.stop.calls == []


def test_a_stop_while_it_waits(world: World) -> None:
    world.order(1)
    assert world.acquire(world.job_lease(1))
    world.order(2)
    taking = world.taking(world.job_lease(2))
    world.order(2, "stop")
    world.stop.wait()
    world.stopped.set()
    assert taking.result(DEADLINE) is False


def test_it_is_told_once_that_it_was_replaced(world: World) -> None:
    world.order(1)
    session = world.session()
    held = world.job_lease(jobs=session.jobs)
    assert world.acquire(held)
    world.order(2)
    world.replaced.wait()
    world.tree.expire(session)  # now the thread that looks after leases hears of it, too
    eventually(lambda: world.lease is None and JOB not in session.jobs._held)
    session.shutdown()  # and has told
    assert len(world.replaced.calls) == 1


def test_a_session_that_expires_is_no_loss(world: World) -> None:
    world.order(1)
    session = world.session()
    held = world.job_lease(jobs=session.jobs)
    assert world.acquire(held)
    world.tree.expire(session)
    eventually(lambda: world.lease == held.lease)
    assert world.replaced.calls == []
    held.release(END, DEADLINE)
    assert world.jobs.state(*JOB).end == END


def test_release_leaves_the_end_record(world: World) -> None:
    world.order(1)
    held = world.job_lease()
    assert world.acquire(held)
    held.release(END, DEADLINE)
    assert (world.lease, world.jobs.state(*JOB).end) == (None, END)
    world.order(2)
    assert world.acquire(world.job_lease(2))
    assert world.replaced.calls == []  # what is ordered after the end does not concern it


def test_release_after_it_was_replaced(world: World) -> None:
    world.order(1)
    held = world.job_lease()
    assert world.acquire(held)
    world.jobs.evict_lease(*JOB, held.lease.instance)
    world.order(2)
    world.session().jobs.take_lease(*JOB, world.job_lease(2).lease, lambda why: None)
    world.replaced.wait()
    with contextlib.suppress(LeaseLost):  # unless its thread has heard of it, and has nothing to let go
        held.release(END, DEADLINE)
    assert world.jobs.state(*JOB).end is None


class Away:
    """Jobs of which one method does not answer."""

    def __init__(self, jobs: Jobs, method: str) -> None:
        self._jobs = jobs
        self._method = method
        self.calls = 0
        self.answers = 10**9
        self.asked: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return self._called if name == self._method else getattr(self._jobs, name)

    def _called(self, *arguments: Any) -> Any:
        self.calls += 1
        assert self.calls < 100, "it is asked without a pause"
        self.asked()
        if self.calls < self.answers:
            raise Unavailable("memory", "it is away")
        return getattr(self._jobs, self._method)(*arguments)


class Clock(threading.Event):
    """News and the time: who waits for news that are not there puts the clock forward instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if not self.is_set():
            self.now += timeout
        return self.is_set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(job_lease, "time", made)
    return made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_lease, "RETRY_SECONDS", 0.02)


@pytest.mark.usefixtures("quick")
def test_the_registry_comes_back(world: World) -> None:
    world.order(1)
    jobs = Away(world.session().jobs, "take_lease")
    jobs.answers = 5
    held = world.job_lease(jobs=jobs)  # type: ignore[arg-type]
    assert world.acquire(held)
    jobs._method, jobs.calls = "release_lease", 0
    held.release(END, DEADLINE)
    assert (jobs.calls, world.jobs.state(*JOB).end) == (5, END)


def test_the_patience_has_an_end(world: World, clock: Clock) -> None:
    world.order(1)
    jobs = Away(world.session().jobs, "take_lease")
    held = world.job_lease(jobs=jobs)  # type: ignore[arg-type]
    held._wake = clock
    with pytest.raises(RegistryUnavailable, match="it is away"):
        world.acquire(held, 3.5)
    assert clock.now == 4.0
    assert 5 <= jobs.calls < 20  # now and each second; and when the watch told how things are
    assert all(watch.ended for watch in world.handlers[1]._watches)


@pytest.mark.usefixtures("quick")
def test_a_stop_ends_the_patience(world: World) -> None:
    world.order(1)
    jobs = Away(world.session().jobs, "take_lease")
    jobs.asked = world.stopped.set
    assert not world.acquire(world.job_lease(jobs=jobs))  # type: ignore[arg-type]


def test_letting_go_is_tried_now_and_then(world: World, clock: Clock) -> None:
    """Also when there was news before."""
    world.order(1)
    jobs = Away(world.session().jobs, "release_lease")
    held = world.job_lease(jobs=jobs)  # type: ignore[arg-type]
    held._wake = clock
    assert world.acquire(held)
    world.order(1, "stop")
    world.stop.wait()
    with pytest.raises(RegistryUnavailable, match="it is away"):
        held.release(END, 3.5)
    assert 5 <= jobs.calls < 20
