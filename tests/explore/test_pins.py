"""Explorers find what was once wrong: each mend is undone, and the explorer that pins it must see that.

Else a pin may look where nothing can be found. With the mend, the same cases hold.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from jobpipe.coordinator.coordinator import Coordinator
from jobpipe.coordinator.topic.log_thread import LogThread
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.coordinator.topic.topic_leases import TopicLeases
from jobpipe.coordinator.topic.topic_state import TopicState
from jobpipe.net.links.async_link import Link
from jobpipe.operations.reader_operations import LeaseRequest, lease_name
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.catalog_tables import check_format
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.spool.spool_files import rewrite_file
from jobpipe_registry.tree.last_call_wins import LastCallWins
from tests.explore.cancelling import cancel
from tests.explore.failing import fail
from tests.explore.interleaving.interleave import Explorer, Spec
from tests.explore.interleaving.interleave_registry import explore_pair
from tests.explore.worlds.world_stage import Violation

CASES = 500  # tried of a pin, until one does not hold
Runs = Iterator[str | None]
"""Of each case, what does not hold."""


# -- where to look -----------------------------------------------------------------------------------------------------


def cancelled(operation: str, acks: str, placement: str, policy: str = "soon", first: int = 1) -> Runs:
    """An operation that is cancelled at some steps."""
    for step in range(first, len(cancel.jobs_of(cancel.Case(operation, acks, placement, 0, "late"))) + 1):
        try:
            cancel.run_case(cancel.Case(operation, acks, placement, step, policy))
        except Violation as error:
            yield str(error)
        else:
            yield None


def failed(operation: str, call: str) -> Runs:
    """An operation in which calls of one name fail."""
    plain = fail.Case(operation, "stored", "driver", 0, "error", 0)
    made = fail.calls_of(plain)
    for case in fail.faults(plain):
        if made[case.call - 1].name == call:
            try:
                fail.run_case(case)
            except Violation as error:
                yield str(error)
            else:
                yield None


def switched(spec: str) -> Runs:
    """Two coordinators, with a switch about the one where a fault was found."""
    with Explorer() as explorer:
        for _, outcome in explorer.near(Spec.parse(spec), 0):
            yield "; ".join(outcome.faults) or None


def overtaken(first: str, last: str) -> Runs:
    """Two calls of a registry handler, the first under way when the last one comes."""
    yield str(explore_pair(first, last)) if explore_pair(first, last) else None


# -- what was mended, undone -------------------------------------------------------------------------------------------


def reopen_without_a_lock(self: Database, topic: str, log_id: str) -> None:
    rewrite_file(self._log_file())
    self.close()
    fresh = self._connect(self.path)
    try:
        fresh._prepare_to_write(fsync=self._fsync, shared=self._shared)
        check_format(fresh, topic)
        fresh.epoch = self.epoch
        with fresh.write():
            fresh.execute("UPDATE meta SET uptime = uptime")
    except BaseException as error:
        fresh.close()
        self._broken = str(error)
        raise
    self._connection, self._file, self._broken = fresh._connection, fresh._file, None


async def drop_in_the_request(self: Coordinator, topic: ServedTopic, *, withdraw: bool = True) -> None:
    if self.topics.pop(topic.topic, None) is topic:
        await self._dropped(topic, withdraw=withdraw)


async def is_read_or_fails(self: Coordinator, topic: ServedTopic) -> bool:
    return not await topic.lagging()


seal, run = TopicLog.seal, LogThread.run


def seal_what_may_be_gone(self: TopicLog, batch: Any, segments: Any, *, writing: Any = None, **how: Any) -> Any:
    return seal(self, batch, segments)


async def tell_whoever_waits(self: LogThread, work: Any, then: Any = None, **how: Any) -> Any:
    result = await run(self, work, **how)
    if then is not None:
        then(result)
    return result


async def take_without_an_owner(self: TopicLeases, link: Link, asked: LeaseRequest) -> None:
    name = lease_name(asked.secret)
    known = self._known.get(name) or self._add(name, link)
    hold = self._topic.store.leases.hold
    try:
        await self._topic.run(hold, name, asked.first, asked.last, asked.seconds)
    except BaseException:
        if not known.stored:
            self._forget(name, known)
        raise
    known.stored, known.link, known.ends = True, link, time.monotonic() + asked.seconds


async def drop_beside_registering(self: Coordinator, topic: ServedTopic, *, withdraw: bool) -> None:
    await topic.close(5.0)
    if withdraw:
        await self._registration.withdraw(topic.topic, topic.asked.parallelism)


Undone = tuple[tuple[type, str, Any], ...]
DROP_BESIDE: Undone = (
    (Coordinator, "_dropped", drop_beside_registering),
    (TopicState, "require_served", lambda self: None),
)


@dataclass(frozen=True)
class Pin:
    """A finding: where it shows, and what is undone to see it."""

    runs: Callable[[], Runs]
    undone: Undone


PINS = {
    "R1 driver": Pin(lambda: switched("driver/seal/seal/1/old@26"), ((Database, "reopen", reopen_without_a_lock),)),
    "R1 shared": Pin(lambda: switched("shared/ack/seal/1/old@21"), ((Database, "reopen", reopen_without_a_lock),)),
    "R6 hand-over": Pin(
        lambda: cancelled("handover", "stored", "driver"), ((Coordinator, "_drop", drop_in_the_request),)
    ),
    "R6 fence": Pin(lambda: cancelled("fence", "stored", "driver"), ((Coordinator, "_drop", drop_in_the_request),)),
    "R7": Pin(lambda: failed("live after a close", "BEGIN"), ((Coordinator, "_is_read", is_read_or_fails),)),
    "R9": Pin(lambda: cancelled("seal late", "all", "host", "hung"), ((TopicLog, "seal", seal_what_may_be_gone),)),
    "R10": Pin(lambda: cancelled("seal inline", "stored", "driver"), ((LogThread, "run", tell_whoever_waits),)),
    "R11": Pin(lambda: overtaken("claim", "release"), ((LastCallWins, "is_newest", lambda self, *which: True),)),
    "T1": Pin(
        lambda: cancelled("lease twice at once", "stored", "driver"), ((TopicLeases, "take", take_without_an_owner),)
    ),
    "T5 take back": Pin(lambda: cancelled("take back and hand over", "stored", "host", "soon", 5), DROP_BESIDE),
}


@pytest.mark.parametrize("pin", PINS.values(), ids=PINS)
def test_a_mend_that_is_undone_is_found(monkeypatch: pytest.MonkeyPatch, pin: Pin) -> None:
    monkeypatch.setattr(cancel, "_jobs", {})
    monkeypatch.setattr(fail, "_made", {})
    for owner, name, value in pin.undone:
        monkeypatch.setattr(owner, name, value)
    found = next((wrong for wrong in itertools.islice(pin.runs(), CASES) if wrong is not None), None)
    assert found is not None, "the pin looks where nothing is found: choose other cases"


@pytest.mark.parametrize("pin", PINS.values(), ids=PINS)
def test_with_the_mend_the_same_cases_hold(pin: Pin) -> None:
    """As many as are needed to find it: a later case is no other kind."""
    assert [wrong for wrong in itertools.islice(pin.runs(), 4) if wrong is not None] == []
