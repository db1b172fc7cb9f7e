"""What lasts: a topic without room, a lag."""

from __future__ import annotations

import pytest

from jobpipe.jobs.monitor.hysteresis import (
    BLOCKED_SECONDS,
    FREE_SECONDS,
    BlockedDetector,
    LagDetector,
    Threshold,
    lags_of,
)
from jobpipe.jobs.monitor.topic_poller import SubscriptionView, TopicView
from tests.pipelines.monitor.test_topic_poller import Clock

FULL = "the spool is full (9 bytes); subscription 'slow' is slowest, 3 batches behind"
THRESHOLD = Threshold(100, 60.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Looks:
    """One topic, published by job `j`, looked at every two seconds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.detector: BlockedDetector[str] = BlockedDetector(clock)
        self.rows = 0

    def __call__(self, waiting: str | None, seconds: float = 0.0, *, rows: int = 0) -> dict[str, str | None]:
        """Look until so many seconds have passed; in each look there are so many rows more."""
        until = self.clock.now + seconds
        while True:
            self.rows += rows
            found = self.detector.update([TopicView("t", "live", self.rows, waiting=waiting)], {"t": "j"})
            if self.clock.now >= until:
                return found
            self.clock.now += 2.0


def test_a_wait_that_lasts_blocks_until_none_was_seen_for_a_while(clock: Clock) -> None:
    looks = Looks(clock)
    assert looks(FULL, BLOCKED_SECONDS - 2.0) == {}
    assert looks(FULL, 2.0) == {"j": f"topic t has no room: {FULL}"}
    assert looks(None, FREE_SECONDS - 2.0) == {"j": f"topic t has no room: {FULL}"}
    assert looks(None, 2.0) == {"j": None}


def test_a_wait_in_each_micro_batch_blocks_nothing(clock: Clock) -> None:
    """Each look may see one; rows come all the same."""
    looks = Looks(clock)
    assert looks(None, FREE_SECONDS) == {"j": None}
    assert looks("acks=all: report", 10 * BLOCKED_SECONDS, rows=5) == {"j": None}


def test_one_that_is_blocked_stays_so_while_rows_come_one_by_one(clock: Clock) -> None:
    looks = Looks(clock)
    looks(FULL, BLOCKED_SECONDS)
    assert looks(None) == {"j": f"topic t has no room: {FULL}"}
    assert looks(FULL, BLOCKED_SECONDS, rows=1) == {"j": f"topic t has no room: {FULL}"}


def test_an_acknowledgement_that_does_not_come_is_no_full_topic(clock: Clock) -> None:
    found = Looks(clock)("acks=all: report", BLOCKED_SECONDS)
    assert found == {"j": "topic t waits until report has acknowledged a micro-batch"}


def test_of_two_topics_one_is_enough(clock: Clock) -> None:
    detector: BlockedDetector[str] = BlockedDetector(clock)
    views = [TopicView("a", "live"), TopicView("b", "live", waiting="why")]
    publishing = {"a": "j", "b": "j"}
    assert detector.update(views, publishing) == {}
    clock.now += FREE_SECONDS
    assert detector.update(views, publishing) == {}  # of b it is not known yet
    clock.now += BLOCKED_SECONDS
    assert detector.update(views, publishing) == {"j": "topic b has no room: why"}
    assert detector.update(views, {"a": "j"}) == {"j": None}


def changes(lags: LagDetector[str], clock: Clock, rows: int | None, seconds: float = 0.0) -> list[bool]:
    """Look now, and after so many seconds; return what was told."""
    found = []
    for wait in (0.0, seconds) if seconds else (0.0,):
        clock.now += wait
        found += lags.update({} if rows is None else {"j": rows}, {"j": [THRESHOLD]})
    return [change.lags for change in found]


def test_a_lag_is_told_once_and_again_after_the_job_has_caught_up(clock: Clock) -> None:
    lags: LagDetector[str] = LagDetector(clock=clock)
    assert changes(lags, clock, 100, 59.0) == []
    assert changes(lags, clock, 99) == []  # a break
    assert changes(lags, clock, 100, 59.0) == []
    assert changes(lags, clock, 5000, 1.0) == [True]
    assert changes(lags, clock, 5000, 1000.0) == []
    assert changes(lags, clock, 0, 59.0) == []
    assert changes(lags, clock, 100) == []
    assert changes(lags, clock, 0, 60.0) == [False]
    assert changes(lags, clock, 100, 60.0) == [True]


def test_a_lag_that_is_not_known_is_none(clock: Clock) -> None:
    lags: LagDetector[str] = LagDetector(clock=clock)
    assert changes(lags, clock, 100, 50.0) == []
    assert changes(lags, clock, None) == []
    assert changes(lags, clock, 100, 50.0) == []


def test_what_was_told_before_is_not_told_again(clock: Clock) -> None:
    lags = LagDetector([("j", THRESHOLD), ("gone", THRESHOLD)], clock)
    assert changes(lags, clock, 100, 60.0) == []
    assert changes(lags, clock, 0, 60.0) == [False]


def test_whose_lag_it_is() -> None:
    lines = tuple(SubscriptionView(name, "connected", 1, rows, 0) for name, rows in (("p.j.a", 3), ("p.j.b", 4)))
    views = [TopicView("t", "live", subscriptions=lines), TopicView("u", "away", subscriptions=lines)]
    assert lags_of(views, {(topic, f"p.j.{view}"): "j" for topic in "tu" for view in "ab"}) == {"j": 7}
    assert lags_of(views, {("t", "p.j.b"): "j", ("u", "p.j.a"): "k"}) == {"j": 4}
