"""Holds: what they keep from retention, whose they are, when they end, and what is left of them then."""

from __future__ import annotations

import contextlib
import logging
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from jobpipe.errors import ConfigError, DataLoss, HoldNotFound, NotAuthorized
from jobpipe.store.log.spool_folders import read_spool
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.store.subscriptions import holds as module
from jobpipe.store.subscriptions.holds import FORGET_SECONDS, Hold, held_back
from tests.store import crash
from tests.store.build import TOPIC, open_log, read, seal
from tests.store.catalog.test_retention import ALL, fill, follow
from tests.store.children import Child

DAY = 86_400.0


@pytest.fixture
def log(tmp_path: Path) -> TopicLog:
    """A log of six batches, all of them acknowledged."""
    log = open_log(tmp_path)
    grant = follow(log)
    log.subscriptions.acknowledge("s", grant, fill(log, 6)[-1])
    return log


def take(log: TopicLog, n: int, name: str = "nightly.audit", owner: str = "control", max_time: float = DAY) -> Hold:
    return log.holds.take(name, owner, log.batches.at(n), max_time)


def test_retention_keeps_what_is_held_and_takes_it_afterwards(log: TopicLog, tmp_path: Path) -> None:
    take(log, 2)
    take(log, 4, "weekly.report")
    assert log.cleaner.retain(ALL, need=1 << 40).batches == 2
    with contextlib.closing(CatalogReader.open(tmp_path / TOPIC, TOPIC)) as reader:
        assert len(read(reader, log.batches.tail(), log.batches.head(), 0)) == 4
    assert take(log, 3).offset == 3
    assert log.cleaner.retain(ALL).batches == 1
    log.holds.release("nightly.audit", "control")
    assert log.cleaner.retain(ALL).batches == 1
    assert log.holds.release("weekly.report", "control", dry_run=True).offset == 4
    assert log.cleaner.retain(ALL).batches == 0
    take(log, 6, "weekly.report")
    assert log.cleaner.retain(ALL).batches == 2
    assert (log.batches.tail_n(), log.used_bytes()) == (6, 0)


def test_a_hold_is_no_subscription(log: TopicLog) -> None:
    take(log, 0)
    assert [known.name for known in log.subscriptions.all()] == ["s"]
    log.subscriptions.flush()
    assert log.subscriptions.acknowledged_n() == 6
    (line,) = log.status().holds
    assert (line.name, line.owner, line.offset, line.gap) == ("nightly.audit", "control", 0, None)


def test_a_request_that_is_late_or_comes_twice_moves_nothing(log: TopicLog) -> None:
    take(log, 4)
    log.clock.tick(100.0)
    for n in (4, 1):
        again = take(log, n, max_time=2 * DAY)
        assert (again.offset, again.since, again.max_time) == (4, 100.0, 2 * DAY)
        assert again.left == pytest.approx(2 * DAY - 100.0)
    assert log.cleaner.retain(ALL).batches == 4
    assert take(log, 0).offset == 4, "what was removed meanwhile is no matter of a late request"
    assert take(log, 5).since == 0.0


def test_what_is_gone_cannot_be_held(log: TopicLog) -> None:
    log.cleaner.retain(ALL)
    with pytest.raises(DataLoss, match="batches 3 to 5 are missing"):
        take(log, 3)
    assert log.holds.all() == []
    assert take(log, 6).left is None


def test_a_hold_ends_when_it_was_not_moved_in_time(log: TopicLog, caplog: pytest.LogCaptureFixture) -> None:
    take(log, 1)
    take(log, 3, "other")
    log.clock.tick(DAY / 2)
    take(log, 4, "other")
    log.clock.tick(DAY / 2 - 1.0)
    assert log.cleaner.retain(ALL).batches == 1
    log.clock.tick(1.0)
    with caplog.at_level(logging.WARNING):
        assert log.cleaner.retain(ALL).batches == 3, "what the other one keeps stays"
    assert "hold nightly.audit of control was dropped: not moved for its max_time; from offset 1 on" in caplog.text
    other, gap = log.holds.all()
    assert (other.name, other.gap) == ("other", None)
    assert (gap.name, gap.gap, gap.offset, gap.lost, gap.left) == ("nightly.audit", module.EXPIRED, 1, 3, None)
    assert take(log, 1).gap == module.EXPIRED, "at its old place it stays a gap, so that its owner hears of it"
    with pytest.raises(DataLoss):
        take(log, 2)
    assert (take(log, 5).gap, take(log, 5).lost) == (None, 0)


def test_time_counts_from_when_there_is_something_to_read(log: TopicLog) -> None:
    """On a quiet topic a schedule moves its hold nowhere, and nobody waits for it."""
    take(log, 6)
    log.clock.tick(10 * DAY)
    log.cleaner.retain(ALL)
    assert log.holds.get("nightly.audit").gap is None
    seal(log, 6)
    assert log.holds.get("nightly.audit").left == pytest.approx(DAY)
    log.clock.tick(DAY)
    log.cleaner.retain(ALL)
    assert log.holds.get("nightly.audit").gap == module.EXPIRED


def test_what_only_serves_drops_no_hold(log: TopicLog) -> None:
    take(log, 1)
    log.clock.tick(2 * DAY)
    assert log.cleaner.retain(replace(ALL, expire_holds=False)).batches == 1
    assert log.holds.get("nightly.audit").gap is None


def test_drop_oldest_passes_over_holds_and_reports_them(log: TopicLog) -> None:
    """A publisher that never waits for a subscription does not wait for a schedule; nor does its spool outgrow it."""
    take(log, 1)
    take(log, 5, "other")
    log.leases.hold("read", 4, 5, 60.0)
    log.cleaner.drop_oldest(1 << 40)
    assert log.batches.tail_n() == 4
    assert [(hold.name, hold.gap, hold.lost) for hold in log.holds.all()] == [
        ("other", None, 0),
        ("nightly.audit", module.DROPPED, 3),
    ]


def test_owners(log: TopicLog) -> None:
    take(log, 2)
    for work in (lambda: take(log, 3, owner="mallory"), lambda: log.holds.release("nightly.audit", "mallory")):
        with pytest.raises(NotAuthorized, match=r"'nightly\.audit' belongs to control, not to mallory"):
            work()
    assert log.holds.all()[0].offset == 2
    moved = log.holds.take("nightly.audit", "admin", log.batches.at(3), DAY, others=True)
    assert (moved.owner, moved.offset) == ("admin", 3)
    log.holds.release("nightly.audit", "control", others=True)
    with pytest.raises(HoldNotFound, match=r"no hold 'nightly\.audit'"):
        log.holds.release("nightly.audit", "admin")


def test_they_are_bounded(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OWN_HOLDS", 2)
    monkeypatch.setattr(module, "MAX_HOLDS", 3)
    for name in ("a", "b"):
        take(log, 1, name)
    with pytest.raises(ConfigError, match="2 holds of control, and accepts no new one"):
        take(log, 1, "c")
    take(log, 1, "c", owner="other")
    with pytest.raises(ConfigError, match="3 holds of all"):
        take(log, 1, "d", owner="third")
    take(log, 2, "a")
    log.clock.tick(DAY)
    log.cleaner.retain(ALL)
    for name in ("d", "e"):
        take(log, 6, name)
    seal(log, 6)
    log.clock.tick(DAY)
    log.cleaner.retain(ALL)
    assert [hold.name for hold in log.holds.all()] == ["a", "d", "e"], "as many gaps are told, the newest"
    log.clock.tick(FORGET_SECONDS)
    log.cleaner.retain(ALL)
    assert log.holds.all() == []


def test_a_gap_counts_for_nobody(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OWN_HOLDS", 1)
    take(log, 1, "a")
    log.clock.tick(DAY)
    log.cleaner.retain(replace(ALL, time=1e9, bytes=1 << 40))
    take(log, 2, "b")
    with pytest.raises(ConfigError, match="1 holds of control"):
        take(log, 2, "a")


def test_they_outlive_the_coordinator(log: TopicLog, tmp_path: Path) -> None:
    take(log, 2)
    log.clock.tick(50.0)
    log.close()
    again = open_log(tmp_path)
    assert again.holds.get("nightly.audit").since == 50.0
    again.holds.clip(60.0)
    assert again.holds.get("nightly.audit").left == 10.0
    assert again.cleaner.retain(ALL).batches == 2
    again.close()
    assert read_spool(tmp_path / TOPIC, TOPIC).held == {"nightly.audit": 4}


def test_who_keeps_most(log: TopicLog) -> None:
    take(log, 2)
    take(log, 1, "other")
    assert held_back(log.holds.all(), 2) == log.holds.get("other")
    assert held_back(log.holds.all(), 1) is None
    assert held_back([], 6) is None


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("failpoint", ["before-commit", "after-commit"])
@pytest.mark.parametrize("what", ["take", "move", "release", "expire", "overtake", "require"])
def test_a_kill_leaves_it_done_or_not(tmp_path: Path, what: str, failpoint: str) -> None:
    """Between the statements and the commit, and right after it; what is held then is there."""
    child = Child(crash.hold, tmp_path, what, failpoint)
    assert child.finish() == ["ready"]
    assert child.code == -signal.SIGKILL
    log = open_log(tmp_path)
    found, done = {hold.name: hold for hold in log.holds.all()}, failpoint == "after-commit"
    stands = found["h"].offset if "h" in found else None
    expected = {"take": (None, 2), "move": (2, 4), "release": (2, None)}.get(what, (2, 2))
    assert stands == expected[done]
    assert (stands is not None and found["h"].gap is not None) == (done and what in ("expire", "overtake"))
    assert log.required.names() == ({"late"} if done and what == "require" else set())
    assert [known.name for known in log.subscriptions.all() if known.required] == sorted(log.required.names())
    tail = log.batches.tail_n()
    assert tail == (0 if what in ("take", "move", "release", "require") or not done else 6 if what == "expire" else 3)
    log.close()
