"""A log made anew after the loss of its spool: ids, offsets, epochs, and who stands where."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from jobpipe.errors import DataLoss, RemoteProtocolError
from jobpipe.store import NewBatch, Position, RecoveryPoint, TopicLog, new_write_id
from tests.store.build import TOPIC, open_log, seal


def point_before(log: TopicLog, batch_id: int, *, query: str = "q", rows: bool = True) -> RecoveryPoint:
    batch = NewBatch(query, batch_id, "run", new_write_id(), None, 2, "rr")
    point = log.recovery_point_before(batch, rows=rows)
    assert point is not None
    return RecoveryPoint.from_text(point.to_text())


def lose(home: Path, log: TopicLog, point: RecoveryPoint, *, times: int = 1) -> TopicLog:
    """Delete the spool; return the log made anew from the point, taken over."""
    log.close()
    shutil.rmtree(home / TOPIC)
    for _ in range(times):  # a crash between the two steps repeats the first
        fresh = TopicLog.open(home / TOPIC, TOPIC, fsync=False)
        assert fresh.is_new
        fresh.restore(point)
        if times > 1:
            fresh.close()
            fresh = TopicLog.open(home / TOPIC, TOPIC, fsync=False)
    fresh.take_over(fresh.epoch + 1, "publisher")
    assert not fresh.is_new
    return fresh


@pytest.mark.parametrize("times", [1, 2])
def test_the_batch_under_way_gets_its_old_offset(tmp_path: Path, times: int) -> None:
    """Some have it, some have not: those before it read it, those behind it go on behind it."""
    log = open_log(tmp_path)
    for batch_id in range(3):
        before = seal(log, batch_id)
    point = point_before(log, 3)
    behind = seal(log, 3)
    fresh = lose(tmp_path, log, point, times=times)
    assert (fresh.log_id, fresh.head(), fresh.tail()) == (before.log, before, before)
    assert fresh.epoch > behind.epoch
    assert fresh.waits_for_publisher
    assert (fresh.resolve(before), fresh.resolve(behind)) == (before, None)
    last = fresh.last_sealed("q")
    assert last is not None
    assert last.batch_id == 2
    sealed = seal(fresh, 3)
    assert sealed == Position(before.log, fresh.epoch, 4)
    assert not fresh.waits_for_publisher
    assert (fresh.resolve(before), fresh.resolve(behind), fresh.resolve(sealed)) == (before, sealed, sealed)
    assert fresh.plan(before).end == sealed
    with pytest.raises(DataLoss, match="start the query again") as caught:  # what was under way cannot go on
        fresh.check(behind)
    assert caught.value.fields["reason"] == "sealed again"
    assert seal(fresh, 4).n == 5


def test_a_later_batch_proves_that_all_have_read_the_one_under_way(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for batch_id in range(3):
        before = seal(log, batch_id)
    point = point_before(log, 3)
    behind = seal(log, 3)
    fresh = lose(tmp_path, log, point)
    fresh.subscribe("all", required=True)
    sealed = seal(fresh, 4)
    assert sealed == Position(before.log, fresh.epoch, 5)
    assert fresh.tail() == behind
    assert fresh.resolve(behind) == behind
    assert fresh.plan(behind).end == sealed
    assert [known.acked for known in fresh.subscriptions()] == [behind]
    with pytest.raises(DataLoss, match="batches 3 to 3 are missing"):
        fresh.check(before)
    last = fresh.last_sealed("q")
    assert last is not None
    assert (last.batch_id, last.n) == (4, 5)


def test_the_very_first_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    point = point_before(log, 0)
    behind = seal(log, 0)
    fresh = lose(tmp_path, log, point)
    assert fresh.head() == Position(behind.log, 0, 0)
    assert fresh.last_sealed("q") is None
    assert seal(fresh, 0).n == 1
    assert fresh.resolve(behind) == fresh.head()


def test_another_query_publishes_first(tmp_path: Path) -> None:
    """The checkpoint was lost too. Whoever had the batch under way goes on; nobody takes another batch for it."""
    log = open_log(tmp_path)
    before = seal(log, 0)
    point = point_before(log, 1)
    behind = seal(log, 1)
    fresh = lose(tmp_path, log, point)
    assert seal(fresh, 0, query="other").n == 3
    assert fresh.resolve(behind) == behind
    assert fresh.plan(behind).end.n == 3
    with pytest.raises(DataLoss, match="batches 1 to 1 are missing"):
        fresh.check(before)
    last = fresh.last_sealed("q")
    assert last is not None
    assert last.batch_id == 1  # replayed, it is not published again


def test_a_batch_that_comes_back_empty_takes_its_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    before = seal(log, 0)
    point = point_before(log, 1)
    behind = seal(log, 1)
    fresh = lose(tmp_path, log, point)
    assert seal(fresh, 1, [[], []]).n == 2
    assert fresh.resolve(behind) == fresh.head()
    plan = fresh.plan(before)
    assert (plan.end, plan.rows) == (fresh.head(), 0)
    assert seal(fresh, 2, [[], []]).n == 2
    assert seal(fresh, 3).n == 3


def test_nothing_under_way(tmp_path: Path) -> None:
    """A batch without rows takes no offset: there is nothing to wait for."""
    log = open_log(tmp_path)
    head = seal(log, 0)
    for point in (point_before(log, 1, rows=False), replace(log.recovery_point(), end_n=head.n, start_n=head.n)):
        assert point.start_n == point.end_n == 1
    fresh = lose(tmp_path, log, point_before(log, 1, rows=False))
    assert not fresh.waits_for_publisher
    assert (fresh.head(), fresh.resolve(head)) == (head, head)
    assert seal(fresh, 1).n == 2


def test_the_end_mark_is_set_again(tmp_path: Path) -> None:
    """Who passed it stands behind it, who did not comes to it; what follows lies behind it for both."""
    log = open_log(tmp_path)
    before = seal(log, 0)
    mark = NewBatch.end_mark(2)
    point = log.recovery_point_before(mark, rows=False)
    assert point is not None
    behind = log.seal(mark, [])
    fresh = lose(tmp_path, log, RecoveryPoint.from_text(point.to_text()))
    assert seal(fresh, 1).n == 3
    resolved = fresh.resolve(behind)
    assert resolved is not None
    assert resolved.n == 2
    first = fresh.plan(before)
    assert (first.end.n, first.ends) == (2, True)
    assert fresh.plan(resolved).end.n == 3


def test_a_half_read_batch_is_not_read_on(tmp_path: Path) -> None:
    """Its rows may lie in other record batches now; and the new one is never split, so that this stays known."""
    log = open_log(tmp_path)
    before = seal(log, 0)
    point = point_before(log, 1)
    seal(log, 1, [[1, 1, 1], [1]])
    half = log.plan(before, max_rows=2).end
    assert (half.n, half.r) == (1, 2)
    fresh = lose(tmp_path, log, point)
    seal(fresh, 1, [[1, 1, 1], [1]])
    with pytest.raises(DataLoss, match=r"reads the whole batch anew") as caught:
        fresh.plan(half)
    assert caught.value.fields["reason"] == "sealed again"
    whole = fresh.plan(before, max_rows=2)
    assert (whole.end.n, whole.end.r, whole.rows) == (2, 0, 4)
    seal(fresh, 2, [[1, 1, 1], [1]])
    assert fresh.plan(whole.end, max_rows=2).end.r == 2


def test_what_the_point_of_an_opened_log_says(tmp_path: Path) -> None:
    """At its start a publisher does not know what was read: the newest batch may have to come again."""
    log = open_log(tmp_path)
    empty = log.recovery_point()
    assert (empty.start_n, empty.end_n, empty.query_id) == (0, 0, "")
    start, end = seal(log, 0), seal(log, 1)
    seal(log, 7, query="another", layout=[[], []])
    point = log.recovery_point()
    assert (point.log, point.start_epoch, point.start_n) == (start.log, start.epoch, start.n)
    assert (point.end_epoch, point.end_n, point.query_id, point.batch_id) == (end.epoch, end.n, "q", 1)
    assert point.queries == (("another", 7),)
    fresh = lose(tmp_path, log, point)
    again = fresh.recovery_point()
    assert again == point  # nothing was sealed since
    last = fresh.last_sealed("another")
    assert last is not None
    assert last.batch_id == 7


def test_a_batch_that_is_sealed_already_needs_no_point(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 3)
    batch = NewBatch("q", 3, "run", new_write_id(), None, 2, "rr")
    assert log.recovery_point_before(batch, rows=True) is None


@pytest.mark.parametrize(
    "change",
    [
        {"end_n": 9},
        {"start_n": -1},
        {"log": "x"},
        {"batch_id": "1"},
        {"queries": [["q"]]},
        {"query_id": 7},
        {"more": 1},
    ],
)
def test_foreign_text_is_no_point(tmp_path: Path, change: dict[str, object]) -> None:
    text = json.loads(point_before(open_log(tmp_path), 0).to_text())
    with pytest.raises(RemoteProtocolError, match=r"recovery point|position"):
        RecoveryPoint.from_text(json.dumps({**text, **change}))
    with pytest.raises(RemoteProtocolError, match="not a recovery point"):
        RecoveryPoint.from_text("[]")
