"""Views and rates of topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from jobpipe.jobs.monitor.topic_poller import AWAY_SECONDS, TopicPoller
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.catalog_status import CatalogStatus, StoredLag, SubscriptionLine
from tests.statuses import subscription_status, topic_status


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Answers:
    """Stands in for Admin: what the topics answer; None: nothing."""

    def __init__(self, **answers: TopicStatus | None) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def statuses(self, topics: Sequence[str], timeout: float) -> dict[str, TopicStatus]:
        self.asked += topics
        return {topic: answer for topic in topics if (answer := self.answers[topic]) is not None}


def status(rows: int, *, lag: int = 0, ended: bool = False, reconnects: int = 0) -> TopicStatus:
    line = subscription_status(batches=lag, rows=lag * 10, reconnects=reconnects)
    return topic_status(rows=rows, bytes=rows * 100, ended=ended, subscriptions=(line,))


def catalog(rows: int, *, ended: bool) -> CatalogStatus:
    """What is left of a topic that its subscription has read."""
    at = Position("0" * 16, 1, 1)
    line = SubscriptionLine("s", at, None, False, 1, None, 0.0, 0, StoredLag(0, 0, 0, 0.0), (), 0.0)
    return CatalogStatus(at, at, 0, 0, 0, rows, rows * 100, ended, (line,))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_topic_comes_lives_and_ends(clock: Clock) -> None:
    admin = Answers(t=None)
    watcher = TopicPoller(admin, ["t"], clock)
    watcher.poll()
    assert watcher.views[0].state == "waiting"

    admin.answers["t"] = status(0)
    watcher.poll()
    clock.now += 5
    admin.answers["t"] = status(1000, lag=2)
    watcher.poll()
    view = watcher.views[0]
    assert (view.state, view.rows, view.rows_per_second, view.bytes_per_second) == ("live", 1000, 200.0, 20_000.0)
    assert (view.subscriptions[0].lag_batches, view.subscriptions[0].lag_rows) == (2, 20)

    admin.answers["t"] = None
    watcher.poll()
    assert watcher.views[0] == view

    clock.now += AWAY_SECONDS + 0.1
    watcher.poll()
    assert watcher.views[0] == replace(view, state="away", rows_per_second=0.0, bytes_per_second=0.0)
    admin.answers["t"] = status(1000, lag=2)
    watcher.poll()
    assert watcher.views[0].state == "live"

    admin.answers["t"] = status(1000, ended=True)
    watcher.poll()
    assert watcher.views[0].state == "ended"
    count = len(admin.asked)
    watcher.poll()
    assert len(admin.asked) == count


def test_an_ended_topic_with_a_lag_is_still_live(clock: Clock) -> None:
    watcher = TopicPoller(Answers(t=status(10, lag=1, ended=True)), ["t"], clock)
    watcher.poll()
    assert watcher.views[0].state == "live"


def test_rates_forget_what_is_long_ago(clock: Clock) -> None:
    admin = Answers(t=status(0))
    watcher = TopicPoller(admin, ["t"], clock)
    for rows in (0, 1000, *([1000] * 30)):
        admin.answers["t"] = status(rows)
        watcher.poll()
        clock.now += 1
    assert watcher.views[0].rows_per_second == 0.0


def test_the_end_is_read_from_the_catalog_and_rated_over_the_time_with_rows(clock: Clock) -> None:
    admin = Answers(t=status(0))
    watcher = TopicPoller(admin, ["t"], clock)
    for rows in (0, 0, 0, 500, 1000, 1000, 1000):
        admin.answers["t"] = status(rows, lag=1, reconnects=3)
        watcher.poll()
        clock.now += 1
    watcher.end(lambda topic: catalog(1000, ended=True))
    view = watcher.views[0]
    assert (view.state, view.rows, view.rows_per_second) == ("ended", 1000, 500.0)
    assert (view.subscriptions[0].lag_rows, view.subscriptions[0].reconnects) == (0, 3)


def test_a_topic_without_a_catalog_keeps_its_last_view_and_one_without_an_end_has_not_ended(clock: Clock) -> None:
    admin = Answers(served=status(5, lag=1), stopped=status(5, lag=1))
    watcher = TopicPoller(admin, ["served", "stopped"], clock)
    watcher.poll()
    watcher.end(lambda topic: None if topic == "served" else catalog(7, ended=False))
    served, stopped = watcher.views
    assert (served.state, served.rows, served.subscriptions[0].lag_rows) == ("live", 5, 10)
    assert (stopped.state, stopped.rows, stopped.subscriptions[0].lag_rows) == ("live", 7, 0)
