"""What every registry must do for jobs: orders, leases, end records."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from jobpipe_registry.handler import RegisterServerHandler
from jobpipe_registry.job_records import EndRecord, Lease, Order
from jobpipe_registry.nodes import Operation
from jobpipe_registry.registry_errors import (
    BadRecord,
    InvalidName,
    LeaseHeld,
    NotOrdered,
    NotStarted,
    OrderChanged,
    RegistryError,
    Unavailable,
)
from jobpipe_registry.registry_jobs import JobRecords, Jobs
from tests.registry.worlds import DEADLINE, MemoryWorld, World, eventually

JOB = ("flights", "delays")
FIRST, SECOND = Order("r1", 1, "run"), Order("r1", 2, "run")
END = EndRecord("r1", 1, "FAILED", 1.5e9, "SchemaMismatch", "topic flights, offset 7", 3, 500)


def lease(attempt: int = 1, instance: str = "a", application: str = "") -> Lease:
    return Lease("r1", attempt, "host-1", 4711, 1.5e9, instance, application)


class Lost:
    """What is told of a lost lease."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self._told = threading.Event()

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)
        self._told.set()

    def wait(self) -> str:
        assert self._told.wait(DEADLINE), "the loss is not told"
        (reason,) = self.reasons
        return reason


def unexpected(reason: str) -> None:
    raise AssertionError(reason)


def unavailable(*_: object) -> None:
    raise Unavailable("here", "away")


def end_thread(jobs: Any) -> None:
    """Let nobody look after its leases any more."""
    jobs.stop()
    jobs.join(DEADLINE)


def ordered(world: World, order: Order = FIRST) -> tuple[Any, Jobs]:
    """Return a handler, and its jobs, with an order."""
    handler = world.handler()
    handler.jobs.set_order(*JOB, order, handler.jobs.state(*JOB).version)
    return handler, handler.jobs


class TestOrders:
    def test_an_order_is_seen_by_others(self, world: World) -> None:
        a, b = world.handler().jobs, world.handler().jobs
        assert a.state(*JOB) == JobRecords(None, None, None, -1)
        assert a.set_order(*JOB, FIRST, -1) == 0
        assert a.set_order("flights", "audit", SECOND, -1) == 0
        assert a.set_order("another", "one", SECOND, -1) == 0
        assert b.state(*JOB) == JobRecords(FIRST, None, None, 0)
        assert b.names() == [("another", "one"), ("flights", "audit"), JOB]

    def test_it_outlives_its_writer(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        a.jobs.set_order(*JOB, FIRST, -1)
        a.shutdown()
        assert b.jobs.state(*JOB).order == FIRST
        assert not world.is_ephemeral(f"{world.namespace}.jobs/flights/delays")

    @pytest.mark.parametrize("version", [-1, 1, 7])
    def test_only_what_was_read_is_replaced(self, world: World, version: int) -> None:
        _, jobs = ordered(world)
        with pytest.raises(OrderChanged, match="flights/delays"):
            jobs.set_order(*JOB, SECOND, version)
        assert jobs.state(*JOB) == JobRecords(FIRST, None, None, 0)
        assert jobs.set_order(*JOB, SECOND, 0) == 1
        assert jobs.state(*JOB).order == SECOND

    def test_of_two_one_wins(self, world: World) -> None:
        handlers = [world.handler() for _ in range(4)]
        gate = threading.Barrier(4)

        def change(number: int) -> int:
            won = 0
            for version in range(-1, 9):
                gate.wait(DEADLINE)
                try:
                    handlers[number].jobs.set_order(*JOB, Order(f"r{number}", 1, "run"), version)
                    won += 1
                except OrderChanged:
                    pass
            return won

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(change, range(4))) == 10

    def test_a_job_is_removed_with_its_end(self, world: World) -> None:
        handler, jobs = ordered(world)
        jobs.take_lease(*JOB, lease(), unexpected)
        version = jobs.state(*JOB).version
        with pytest.raises(LeaseHeld):
            world.handler().jobs.remove_order(*JOB, version)
        jobs.release_lease(*JOB, END)
        with pytest.raises(OrderChanged):
            jobs.remove_order(*JOB, version)
        jobs.remove_order(*JOB, jobs.state(*JOB).version)
        assert (jobs.names(), jobs.state(*JOB)) == ([], JobRecords(None, None, None, -1))
        jobs.set_order(*JOB, FIRST, -1)
        assert jobs.state(*JOB).end is None
        assert handler.topics() == []

    @pytest.mark.parametrize("name", ["", ".", "a.b", "a/b", "-a", "a" * 41, "ä", "a b", 7])
    def test_bad_names_are_refused(self, world: World, name: Any) -> None:
        jobs = world.handler().jobs
        for pair in ((name, "job"), ("pipeline", name)):
            calls: list[Any] = [
                lambda pair=pair: jobs.state(*pair),
                lambda pair=pair: jobs.watch(*pair, unexpected),
                lambda pair=pair: jobs.set_order(*pair, FIRST, -1),
                lambda pair=pair: jobs.remove_order(*pair, 0),
                lambda pair=pair: jobs.take_lease(*pair, lease(), unexpected),
                lambda pair=pair: jobs.evict_lease(*pair, "a"),
                lambda pair=pair: jobs.remove_end(*pair, END),
            ]
            for call in calls:
                with pytest.raises(InvalidName):
                    call()
        assert jobs.names() == []

    def test_rubbish_passes_for_missing(self, world: World) -> None:
        a, b = world.handler().jobs, world.handler().jobs
        path = f"{world.namespace}.jobs/flights"
        world.put(f"{path}/-rubbish", b"")
        world.put(f"{path}/delays", b'{"version":1,"run":"r1","attempt":"one","want":"run"}')
        world.put(f"{path}/delays/lease", lease().to_bytes())  # persistent: nobody holds it
        world.put(f"{path}/delays/end", b"\xff")
        version = b.state(*JOB).version
        assert b.state(*JOB) == JobRecords(None, None, None, version)
        assert b.names() == [JOB]
        b.set_order(*JOB, FIRST, version)
        a.take_lease(*JOB, lease(instance="b"), unexpected)
        assert world.is_ephemeral(f"{path}/delays/lease")
        a.release_lease(*JOB, END)
        assert b.state(*JOB).end == END

    def test_methods_need_a_started_handler(self, world: World) -> None:
        with pytest.raises(NotStarted):
            _ = world.handler(start=False).jobs


class TestLeases:
    def test_an_attempt_that_is_not_ordered_has_none(self, world: World) -> None:
        jobs = world.handler().jobs
        with pytest.raises(NotOrdered, match="there is no order"):
            jobs.take_lease(*JOB, lease(), unexpected)
        jobs.set_order(*JOB, SECOND, -1)
        for wrong in (lease(1), lease(3), replace(lease(2), run="r2")):
            with pytest.raises(NotOrdered, match="attempt 2 of run r1 may"):
                jobs.take_lease(*JOB, wrong, unexpected)
        jobs.take_lease(*JOB, lease(2), unexpected)
        assert jobs.state(*JOB).lease == lease(2)

    def test_one_instance_at_a_time(self, world: World) -> None:
        _, a = ordered(world)
        b = world.handler().jobs
        a.take_lease(*JOB, lease(), unexpected)
        with pytest.raises(LeaseHeld, match="attempt 1 of run r1, process 4711 on host-1") as caught:
            b.take_lease(*JOB, lease(instance="b"), unexpected)
        assert caught.value.lease == lease()
        a.take_lease(*JOB, lease(application="app-1"), unexpected)
        assert b.state(*JOB).lease == lease(application="app-1")
        a.release_lease(*JOB)
        a.release_lease(*JOB)
        b.take_lease(*JOB, lease(instance="b"), unexpected)
        a.release_lease(*JOB)
        assert a.state(*JOB).lease == lease(instance="b")

    def test_one_that_could_not_be_let_go_is_not_taken_again(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R11: its thread made it again until the session ended; now it removes it, with the end that was asked."""
        _, a = ordered(world)
        a.take_lease(*JOB, lease(), unexpected)
        tree: Any = a
        end_thread(tree)
        with monkeypatch.context() as patch:
            patch.setattr(tree, "_remove", unavailable)
            with pytest.raises(Unavailable):
                a.release_lease(*JOB, END)
        assert a.state(*JOB).lease == lease()
        tree._repair([])
        assert a.state(*JOB) == JobRecords(FIRST, None, END, a.state(*JOB).version)
        a.release_lease(*JOB, END)
        a.take_lease(*JOB, lease(), unexpected)
        assert a.state(*JOB).lease == lease()

    def test_many_at_once(self, world: World) -> None:
        handlers = [world.handler() for _ in range(5)]
        handlers[0].jobs.set_order(*JOB, FIRST, -1)
        gate = threading.Barrier(5)

        def take(number: int) -> int:
            gate.wait(DEADLINE)
            try:
                handlers[number].jobs.take_lease(*JOB, lease(instance=f"i{number}"), unexpected)
            except LeaseHeld:
                return 0
            return 1

        with ThreadPoolExecutor(5) as pool:
            assert sum(pool.map(take, range(5))) == 1

    def test_it_goes_with_its_handler(self, world: World) -> None:
        a, b = ordered(world)[0], world.handler()
        a.jobs.take_lease(*JOB, lease(), unexpected)
        assert world.is_ephemeral(f"{world.namespace}.jobs/flights/delays/lease")
        a.shutdown()
        assert b.jobs.state(*JOB) == replace(b.jobs.state(*JOB), lease=None, end=None, order=FIRST)

    def test_a_lost_session_is_no_lost_lease(self, world: World) -> None:
        a, b = ordered(world)[0], world.handler()
        a.jobs.take_lease(*JOB, lease(), unexpected)
        for _ in range(2):
            world.expire(a)
            eventually(lambda: b.jobs.state(*JOB).lease == lease())
        world.delete(f"{world.namespace}.jobs/flights/delays/lease")
        eventually(lambda: b.jobs.state(*JOB).lease == lease())

    def test_after_a_lost_session_another_attempt_may_have_been_ordered(self, world: World) -> None:
        """Then this one must end; it has no lease, and leaves no end record."""
        (a, jobs), b, lost = ordered(world), world.handler().jobs, Lost()
        jobs.take_lease(*JOB, lease(), lost)
        b.set_order(*JOB, SECOND, b.state(*JOB).version)
        world.expire(a)
        assert "attempt 2 of run r1 may" in lost.wait()
        jobs.release_lease(*JOB, END)
        assert (b.state(*JOB).lease, b.state(*JOB).end) == (None, None)

    def test_another_instance_may_have_taken_it(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jobpipe_registry.tree.tree_jobs._KEEP_SECONDS", 0.1)
        (_, jobs), b, lost = ordered(world), world.handler().jobs, Lost()
        jobs.take_lease(*JOB, lease(), lost)
        with jobs._exclusive():  # type: ignore[attr-defined]  # its thread cannot be quicker
            b.evict_lease(*JOB, "a")
            b.take_lease(*JOB, lease(instance="b"), unexpected)
        assert "process 4711 on host-1" in lost.wait()
        assert b.state(*JOB).lease == lease(instance="b")

    def test_only_the_dead_is_evicted(self, world: World) -> None:
        a, b = ordered(world)[1], world.handler().jobs
        a.take_lease(*JOB, lease(), unexpected)
        b.evict_lease(*JOB, "another")
        assert b.state(*JOB).lease == lease()

    def test_a_decision_about_another_state_does_not_count(self, world: World) -> None:
        """Whoever read that nobody runs, and orders another attempt, has to see that one runs by now."""
        jobs, server = ordered(world)[1], world.handler().jobs
        seen = server.state(*JOB)
        jobs.take_lease(*JOB, lease(), unexpected)
        with pytest.raises(OrderChanged):
            server.set_order(*JOB, SECOND, seen.version)
        seen = server.state(*JOB)
        jobs.release_lease(*JOB, END)
        with pytest.raises(OrderChanged):
            server.set_order(*JOB, SECOND, seen.version)


class TestEnds:
    def test_the_end_comes_with_the_release(self, world: World) -> None:
        jobs, server, seen = ordered(world)[1], world.handler().jobs, States()
        jobs.take_lease(*JOB, lease(), unexpected)
        server.watch(*JOB, seen)
        seen.wait(lambda state: state.lease == lease())
        jobs.release_lease(*JOB, END)
        seen.wait(lambda state: state.end == END)
        assert all((state.lease is None) == (state.end is not None) for state in seen.states)

    def test_the_next_end_replaces_it(self, world: World) -> None:
        jobs, server = ordered(world)[1], world.handler().jobs
        jobs.take_lease(*JOB, lease(), unexpected)
        jobs.release_lease(*JOB, END)
        server.set_order(*JOB, SECOND, server.state(*JOB).version)
        jobs.take_lease(*JOB, lease(2), unexpected)
        assert server.state(*JOB).end == END
        later = EndRecord("r1", 2, "FINISHED", 1.6e9)
        jobs.release_lease(*JOB, later)
        server.remove_end(*JOB, END)
        assert server.state(*JOB).end == later
        server.remove_end(*JOB, later)
        server.remove_end(*JOB, later)
        assert server.state(*JOB).end is None

    def test_it_is_left_although_the_session_was_lost(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        (a, jobs), server = ordered(world), world.handler().jobs
        jobs.take_lease(*JOB, lease(), unexpected)
        end_thread(jobs)  # nobody takes the lease again
        world.expire(a)
        eventually(lambda: server.state(*JOB).lease is None)
        jobs.release_lease(*JOB, END)
        assert server.state(*JOB).end == END

    def test_one_that_was_cut_off_leaves_none(self, world: World) -> None:
        (a, jobs), server = ordered(world), world.handler().jobs
        jobs.take_lease(*JOB, lease(), unexpected)
        end_thread(jobs)
        world.expire(a)
        eventually(lambda: server.state(*JOB).lease is None)
        server.set_order(*JOB, SECOND, server.state(*JOB).version)
        server.take_lease(*JOB, lease(2, "b"), unexpected)
        with pytest.raises(NotOrdered):
            jobs.release_lease(*JOB, END)
        assert (server.state(*JOB).lease, server.state(*JOB).end) == (lease(2, "b"), None)


class States:
    """A watch's callback that remembers and can be waited for."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.states: list[JobRecords] = []

    def __call__(self, state: JobRecords) -> None:
        with self._condition:
            self.states.append(state)
            self._condition.notify_all()

    def wait(self, true: Any) -> None:
        with self._condition:
            assert self._condition.wait_for(lambda: self.states and true(self.states[-1]), DEADLINE), self.states


def test_a_watch_tells_each_change(world: World) -> None:
    """Also of a job that is not there yet, and of one that is removed."""
    jobs, seen = world.handler().jobs, States()
    watch = world.handler().jobs.watch(*JOB, seen)
    seen.wait(lambda state: state == JobRecords(None, None, None, -1))
    version = jobs.set_order(*JOB, FIRST, -1)
    seen.wait(lambda state: state.order == FIRST)
    jobs.set_order(*JOB, replace(FIRST, want="stop"), version)
    seen.wait(lambda state: state.order.want == "stop")
    jobs.take_lease(*JOB, lease(), unexpected)
    seen.wait(lambda state: state.lease == lease())
    jobs.release_lease(*JOB, END)
    seen.wait(lambda state: state.lease is None and state.end == END)
    jobs.remove_order(*JOB, jobs.state(*JOB).version)
    seen.wait(lambda state: state == JobRecords(None, None, None, -1))
    watch.close()
    count = len(seen.states)
    jobs.set_order(*JOB, FIRST, -1)
    assert len(seen.states) == count


@pytest.mark.parametrize("how", ["asked", "heard"])
def test_a_state_is_of_one_moment(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """An attempt that ended because it was told to is never seen beside the order from before."""
    world = MemoryWorld("/test/topics")
    reading, other = world.handler(), ordered(world)[1]
    other.take_lease(*JOB, lease(), unexpected)
    stop, end = replace(FIRST, want="stop"), replace(END, state="STOPPED")
    nodes = reading.memory_nodes()
    get, reads = nodes.get, list[str]()

    def get_and_go_on(path: str, notify: Any = None) -> Any:
        found = get(path, notify)
        reads.append(path)
        if len(reads) == 1:  # the order: now it is another, and is obeyed
            other.set_order(*JOB, stop, other.state(*JOB).version)
            other.release_lease(*JOB, end)
        return found

    monkeypatch.setattr(nodes, "get", get_and_go_on)
    monkeypatch.setattr(nodes, "get_all", lambda paths: [get_and_go_on(path) for path in paths])
    seen = States()
    if how == "asked":
        seen(reading.jobs.state(*JOB))
    else:
        reading.jobs.watch(*JOB, seen)
        seen.wait(lambda state: state.end == end)
    assert {(state.order, state.lease, state.end) for state in seen.states} == {(stop, None, end)}
    world.close()


def test_a_lost_answer_does_not_leave_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that was reported as not taken must go; an order that was written counts as written."""
    monkeypatch.setattr("jobpipe_registry.tree.tree_jobs._KEEP_SECONDS", 0.1)
    world = MemoryWorld("/test/topics")
    handler, other = world.handler(), world.handler().jobs
    nodes = handler.memory_nodes()
    commit, fail = nodes.commit, threading.Event()

    def commit_and_fail(operations: Sequence[Operation]) -> None:
        commit(operations)
        if fail.is_set():
            fail.clear()
            raise Unavailable("memory", "the answer was lost")

    monkeypatch.setattr(nodes, "commit", commit_and_fail)
    fail.set()
    with pytest.raises(Unavailable):
        handler.jobs.set_order(*JOB, FIRST, -1)
    assert handler.jobs.set_order(*JOB, FIRST, -1) == 0
    handler.jobs.set_order("flights", "audit", FIRST, -1)
    handler.jobs.take_lease("flights", "audit", lease(), unexpected)  # the thread runs
    fail.set()
    with pytest.raises(Unavailable):
        handler.jobs.take_lease(*JOB, lease(), unexpected)
    eventually(lambda: other.state(*JOB).lease is None)
    handler.jobs.take_lease(*JOB, lease(), unexpected)
    fail.set()
    with pytest.raises(Unavailable):
        handler.jobs.release_lease(*JOB, END)
    assert (other.state(*JOB).lease, other.state(*JOB).end) == (None, END)
    handler.jobs.release_lease(*JOB, END)
    assert other.state(*JOB).end == END
    world.close()


def test_a_registry_of_ones_own_may_have_none() -> None:
    class Own(RegisterServerHandler):
        pass

    Own.__abstractmethods__ = frozenset()
    with pytest.raises(RegistryError, match="Own keeps no jobs: pipelines need a registry that has"):
        _ = Own().jobs  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Order("", 1, "run"), "run"),
        (lambda: Order("r", 0, "run"), "attempt"),
        (lambda: Order("r", True, "run"), "attempt"),
        (lambda: Order("r", 1, "pause"), "want"),
        (lambda: replace(lease(), pid=0), "pid"),
        (lambda: replace(lease(), started=float("nan")), "started"),
        (lambda: replace(lease(), instance="a\n"), "instance"),
        (lambda: replace(lease(), boot="b" * 65), "boot"),
        (lambda: replace(END, state="LOST"), "state"),
        (lambda: replace(END, at=float("inf")), "at"),
        (lambda: replace(END, at=-1), "at"),
        (lambda: replace(END, error="e" * 129), "error"),
        (lambda: replace(END, place="\x1b[2J"), "place"),
        (lambda: replace(END, rows=-1), "rows"),
    ],
)
def test_records_obey_their_rules(make: Any, field: str) -> None:
    with pytest.raises(BadRecord) as caught:
        make()
    assert caught.value.field == field


def test_records_fit_their_nodes() -> None:
    """At their longest, of characters that JSON writes as six."""
    wide = "\u20ac"
    for record in (
        Order(wide * 128, 10**9, "stop"),
        replace(lease(), run=wide * 128, instance=wide * 128, application="a" * 255, host="h" * 255),
        replace(END, run=wide * 128, error=wide * 128, place=wide * 300),
    ):
        assert type(record).from_bytes(record.to_bytes()) == record
