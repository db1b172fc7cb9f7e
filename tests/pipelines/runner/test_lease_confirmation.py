"""The lease of an attempt, confirmed before the attempt puts its mark beside the checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jobpipe.errors import RegistryUnavailable
from jobpipe.jobs.runner.job_lease import JobLease, LeaseLost
from jobpipe_registry.job_records import Order
from jobpipe_registry.registry_errors import Unavailable
from jobpipe_registry.registry_jobs import Jobs
from tests.registry.worlds import DEADLINE, MemoryWorld

JOB = ("shop", "copy")


class Attempt:
    """The lease of attempt 1, which was ordered."""

    def __init__(self, world: MemoryWorld) -> None:
        self.handler = world.handler()
        self.jobs: Jobs = self.handler.jobs
        self.lost: list[str] = []
        self.order(1)
        self.job_lease = JobLease(self.jobs, *JOB, "run-1", 1, on_replaced=self.lost.append, on_stop=lambda: None)

    def order(self, number: int) -> None:
        self.jobs.set_order(*JOB, Order("run-1", number, "run"), self.jobs.state(*JOB).version)


@pytest.fixture
def world() -> Iterator[MemoryWorld]:
    made = MemoryWorld("/test/topics")
    yield made
    made.close()


@pytest.fixture
def attempt(world: MemoryWorld) -> Attempt:
    made = Attempt(world)
    assert made.job_lease.acquire(5.0, lambda: False)
    return made


def test_confirmed(attempt: Attempt) -> None:
    before = attempt.jobs.state(*JOB)
    assert attempt.job_lease.confirm(5.0, lambda: False)
    assert attempt.jobs.state(*JOB) == before


def test_taken_again_after_the_session(world: MemoryWorld, attempt: Attempt) -> None:
    world.expire(attempt.handler)
    assert attempt.job_lease.confirm(5.0, lambda: False)
    assert attempt.jobs.state(*JOB).lease == attempt.job_lease.lease


def test_another_attempt_was_ordered(attempt: Attempt) -> None:
    attempt.order(2)
    with pytest.raises(LeaseLost, match="attempt 2 of run run-1"):
        attempt.job_lease.confirm(5.0, lambda: False)


def test_another_process_has_the_lease(world: MemoryWorld, attempt: Attempt) -> None:
    """Of the same attempt, started twice: it is not waited for, and not evicted."""
    jobs: Any = attempt.jobs
    jobs.stop()  # it looks after the lease no more
    jobs.join(DEADLINE)
    other = world.handler().jobs
    other.evict_lease(*JOB, attempt.job_lease.lease.instance)
    twin = JobLease(other, *JOB, "run-1", 1, on_replaced=lambda _: None, on_stop=lambda: None)
    assert twin.acquire(5.0, lambda: False)
    with pytest.raises(LeaseLost):
        attempt.job_lease.confirm(5.0, lambda: False)
    assert other.state(*JOB).lease == twin.lease


class TestTheRegistryIsAway:
    @pytest.fixture
    def away(self, attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
        """Set while it is."""
        event, acquire = threading.Event(), attempt.jobs.take_lease

        def take_lease(*given: Any) -> None:
            if event.is_set():
                raise Unavailable("localhost", "no answer")
            acquire(*given)

        monkeypatch.setattr(attempt.jobs, "take_lease", take_lease)
        event.set()
        return event

    def test_it_is_waited_for(self, attempt: Attempt, away: threading.Event) -> None:
        asked: list[bool] = []

        def stopped() -> bool:
            asked.append(True)
            if len(asked) > 1:
                away.clear()
            return False

        assert attempt.job_lease.confirm(60.0, stopped)
        assert len(asked) == 2

    def test_for_so_long(self, attempt: Attempt, away: threading.Event) -> None:
        with pytest.raises(RegistryUnavailable):
            attempt.job_lease.confirm(0.0, lambda: False)

    def test_a_stop_ends_the_waiting(self, attempt: Attempt, away: threading.Event) -> None:
        answers = iter((False, True))
        assert not attempt.job_lease.confirm(60.0, lambda: next(answers))
