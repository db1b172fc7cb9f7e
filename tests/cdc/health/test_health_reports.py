"""What a capture tells of its database: how late it is, which topics hear it, and that a failure harms nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jobpipe.cdc import capture_health
from jobpipe.cdc.capture_health import Freshness, SourceReports, source_report
from jobpipe.errors import LinkBroken
from jobpipe.operations.messages.source_messages import MAX_TABLES, SourceReport, SourceStatus
from tests.bus.kit import until

HOUR = 3600.0
PATIENCE = 20.0


def report(position: str = "0/1", **given: object) -> SourceReport:
    known: dict[str, object] = {"behind_bytes": 0, "behind_seconds": 0.0, "retained_bytes": 0, "safe_bytes": None}
    return source_report(position=position, **{**known, "tables": {}, **given})  # type: ignore[arg-type]


def test_how_late_it_is() -> None:
    """Since the newest published commit, or since nothing waited; a transaction that only came does not count."""
    fresh = Freshness()
    assert fresh.seconds(waits=True) is None
    assert fresh.seconds(waits=False) == 0.0
    now = time.time()
    fresh.take(round((now - HOUR) * 1000))
    assert fresh.seconds(waits=True) is None
    fresh.publish()
    assert fresh.seconds(waits=True) == pytest.approx(HOUR, abs=60)
    assert fresh.seconds(waits=False) == 0.0
    fresh.catch_up(now - 600)
    assert fresh.seconds(waits=True) == pytest.approx(600, abs=60)
    fresh.take(round((now - HOUR) * 1000))  # of an older one, which is sent once more
    fresh.publish()
    assert fresh.seconds(waits=True) == pytest.approx(600, abs=60)


def test_a_clock_that_is_ahead_makes_no_lag_below_zero() -> None:
    fresh = Freshness()
    fresh.take(round((time.time() + HOUR) * 1000))
    fresh.publish()
    assert fresh.seconds(waits=True) == 0.0


def test_a_report_is_within_bounds() -> None:
    """Whatever a database says; tables that are read most are named, and the others counted."""
    tables = {f"t{number}": (number, -1.0 if number % 2 else 1e300) for number in range(MAX_TABLES + 3)}
    tables["x" * 900 + "\n\ud800"] = (10**30, float("nan"))
    made = report(
        "p" * 900, behind_bytes=-5, behind_seconds=1e300, retained_bytes=2**80, safe_bytes=-(2**40), tables=tables
    )
    assert SourceReport.from_json(made.to_json()) == made
    assert (made.behind_bytes, made.safe_bytes, made.retained_bytes) == (0, 0, 2**63 - 1)
    assert (len(made.tables), made.more_tables) == (MAX_TABLES, 4)
    assert made.tables[0].estimate is None
    assert report("a\x1bb").position == "a?b"
    small = report(behind_seconds=None, retained_bytes=None)
    assert small.to_json() == {"position": "0/1", "behind_bytes": 0}


def test_lag_grows_with_the_age_of_what_was_told() -> None:
    known = SourceStatus(position="0/1", behind_bytes=0, behind_seconds=2.0, age=30.0)
    assert known.lag_seconds == 32.0
    assert SourceStatus(position="0/1", behind_bytes=0, age=30.0).lag_seconds is None


class Topic:
    """The writer of a topic, which may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.told: list[SourceReport] = []
        self.tries = 0
        self.error = error

    def tell_source(self, report: SourceReport, seconds: float) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.told.append(report)


class Source:
    """A capture; ``now`` is what it would tell."""

    def __init__(self, **topics: Topic) -> None:
        self.topics = topics
        self.now: SourceReport | None = report()
        self.looks = 0
        self.left = threading.Event()

    def look(self) -> SourceReport | None:
        self.looks += 1
        return self.now

    @contextmanager
    def reported(self) -> Iterator[None]:
        reports = SourceReports("shop", self.look, lambda: dict(self.topics), self.left.set)
        try:
            yield
        finally:
            reports.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_health, "REPORT_SECONDS", 0.005)


def test_topics_are_told_what_changes() -> None:
    """And the same again after a while, so that they know that it still holds."""
    topic = Topic()
    source = Source(orders=topic)
    with source.reported():
        until(lambda: topic.told, PATIENCE, "the first report")
        looks = source.looks
        until(lambda: source.looks > looks + 5, PATIENCE, "more looks")
        assert len(topic.told) == 1
        source.now = report("0/2")
        until(lambda: len(topic.told) == 2, PATIENCE, "the change")
        late = source.topics["late"] = Topic()
        until(lambda: late.told, PATIENCE, "the topic that came later")
        source.now = None
        looks = source.looks
        until(lambda: source.looks > looks + 2, PATIENCE, "looks without a session")
    assert [each.position for each in topic.told] == ["0/1", "0/2"]
    assert source.left.wait(PATIENCE)


def test_it_is_told_again_before_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_health, "AGAIN_SECONDS", 0.02)
    topic = Topic()
    with Source(orders=topic).reported():
        until(lambda: len(topic.told) > 2, PATIENCE, "the same again")


@pytest.mark.parametrize("error", [LinkBroken("cut"), ZeroDivisionError("a bug")])
def test_a_failure_to_tell_ends_nothing(error: Exception) -> None:
    failing = Topic(error)
    source = Source(failing=failing)
    with source.reported():
        until(lambda: failing.tries > 2, PATIENCE, "more tries")
        failing.error = None
        until(lambda: failing.told, PATIENCE, "the report")


def test_a_topic_that_fails_keeps_nothing_from_the_others() -> None:
    good = Topic()
    with Source(bad=Topic(LinkBroken("cut")), good=good).reported():
        until(lambda: good.told, PATIENCE, "the report")
