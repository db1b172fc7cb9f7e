"""A log made anew after the loss of its spool: ids, offsets, epochs, and who stands where."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from jobpipe.coordinator.data.segment_files import held_part
from jobpipe.errors import DataLoss, RemoteProtocolError, SpoolError
from jobpipe.flows.flow_source import Item, SourceReader
from jobpipe.operations.flow_operations import FollowedPart
from jobpipe.store.catalog.batches import division_of
from jobpipe.store.catalog.position import Position
from jobpipe.store.catalog.recovery import SEVERAL, RecoveryPoint
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.change_feed import ChangeFeedPage
from tests.store.build import TOPIC, look_into, open_log, seal


def point_before(log: TopicLog, batch_id: int, *, query: str = "q", rows: bool = True) -> RecoveryPoint:
    point = log.recovery.before(query, batch_id, rows=rows, end_mark=False)
    assert point is not None
    return RecoveryPoint.from_text(point.to_text())


def lose(home: Path, log: TopicLog, point: RecoveryPoint, *, times: int = 1) -> TopicLog:
    """Delete the spool; return the log made anew from the point, taken over."""
    log.close()
    shutil.rmtree(home / TOPIC)
    for _ in range(times):  # a crash between the two steps repeats the first
        fresh = look_into(home, fsync=False)
        assert fresh.is_new
        fresh.restore(point)
        if times > 1:
            fresh.close()
            fresh = look_into(home, fsync=False)
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
    assert (fresh.log_id, fresh.batches.head(), fresh.batches.tail()) == (before.log, before, before)
    assert fresh.epoch > behind.epoch
    assert fresh.recovery.undecided
    assert (fresh.recovery.resolve(before), fresh.recovery.resolve(behind)) == (before, None)
    last = fresh.batches.last_sealed("q")
    assert last is not None
    assert last.batch_id == 2
    sealed = seal(fresh, 3)
    assert sealed == Position(before.log, fresh.epoch, 4)
    assert not fresh.recovery.undecided
    assert (fresh.recovery.resolve(before), fresh.recovery.resolve(behind), fresh.recovery.resolve(sealed)) == (
        before,
        sealed,
        sealed,
    )
    assert fresh.planner.plan(before).end == sealed
    with pytest.raises(DataLoss, match="start the query again") as caught:  # what was under way cannot go on
        fresh.batches.check(behind)
    assert caught.value.fields["reason"] == "sealed again"
    assert seal(fresh, 4).n == 5


def test_lost_again_before_a_subscription_moves_on(tmp_path: Path) -> None:
    """It had the batch from the first copy of the log, and that counts in the second copy, and in the third."""
    log = open_log(tmp_path)
    before = seal(log, 0)
    point = point_before(log, 1)
    first = seal(log, 1)
    fresh = lose(tmp_path, log, point)
    point = point_before(fresh, 1)
    second = seal(fresh, 1)
    fresh = lose(tmp_path, fresh, point)  # while the batch is sealed again
    assert [fresh.recovery.resolve(each) for each in (before, first, second)] == [before, None, None]
    point = point_before(fresh, 1)
    third = seal(fresh, 1)
    assert [fresh.recovery.resolve(each) for each in (before, first, second, third)] == [before, third, third, third]
    fresh = lose(tmp_path, fresh, point_before(fresh, 2))  # while the next is sealed: all have acknowledged this
    assert fresh.batches.head() == third
    assert [fresh.recovery.resolve(each) for each in (first, second, third)] == [third, third, third]
    fresh = lose(tmp_path, fresh, point_before(fresh, 2, rows=False))
    point = point_before(fresh, 3)
    seal(fresh, 3)
    fresh = lose(tmp_path, fresh, point)
    assert [fresh.recovery.resolve(each) for each in (first, second, third)] == [third, third, third]
    assert fresh.planner.plan(fresh.recovery.resolve(first) or first).end == third
    assert seal(fresh, 3).n == 3


def test_lost_again_after_a_later_batch(tmp_path: Path) -> None:
    """A subscription stands after a batch that was sealed again, and after one that no copy of the log has any more."""
    log = open_log(tmp_path)
    seal(log, 0)
    point = point_before(log, 1)
    first = seal(log, 1)
    fresh = lose(tmp_path, log, point)
    point = point_before(fresh, 1)
    second = seal(fresh, 1)
    fresh = lose(tmp_path, fresh, point)
    fresh = lose(tmp_path, fresh, point_before(fresh, 2))  # Spark goes on: all have read batch 1
    assert [fresh.recovery.resolve(each) for each in (first, second)] == [second, second]
    assert seal(fresh, 2).n == 3
    assert [fresh.recovery.resolve(each) for each in (first, second)] == [second, second]
    assert fresh.planner.plan(second).end.n == 3


def test_an_alias_is_kept_for_each_loss_and_only_so_many(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    given = []
    for _ in range(20):
        point = point_before(log, 0)
        given.append(seal(log, 0))
        log = lose(tmp_path, log, point)
    assert len(point_before(log, 0).end_aliases) == 16
    sealed = seal(log, 0)
    assert [log.recovery.resolve(each) for each in given[-16:]] == [sealed] * 16
    with pytest.raises(DataLoss, match="does not fit"):
        log.batches.check(log.recovery.resolve(given[0]) or sealed)


def test_a_later_batch_proves_that_all_have_read_the_one_under_way(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for batch_id in range(3):
        before = seal(log, batch_id)
    point = point_before(log, 3)
    behind = seal(log, 3)
    fresh = lose(tmp_path, log, point)
    fresh.subscriptions.subscribe("all", required=True)
    sealed = seal(fresh, 4)
    assert sealed == Position(before.log, fresh.epoch, 5)
    assert fresh.batches.tail() == behind
    assert fresh.recovery.resolve(behind) == behind
    assert fresh.planner.plan(behind).end == sealed
    assert [known.acked for known in fresh.subscriptions.all()] == [behind]
    with pytest.raises(DataLoss, match="batches 3 to 3 are missing"):
        fresh.batches.check(before)
    last = fresh.batches.last_sealed("q")
    assert last is not None
    assert (last.batch_id, last.n) == (4, 5)


def test_the_very_first_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    point = point_before(log, 0)
    behind = seal(log, 0)
    fresh = lose(tmp_path, log, point)
    assert fresh.batches.head() == Position(behind.log, 0, 0)
    assert fresh.batches.last_sealed("q") is None
    assert seal(fresh, 0).n == 1
    assert fresh.recovery.resolve(behind) == fresh.batches.head()


def test_another_query_publishes_first(tmp_path: Path) -> None:
    """The checkpoint was lost too. Whoever had the batch under way goes on; nobody takes another batch for it."""
    log = open_log(tmp_path)
    before = seal(log, 0)
    point = point_before(log, 1)
    behind = seal(log, 1)
    fresh = lose(tmp_path, log, point)
    assert seal(fresh, 0, query="other").n == 3
    assert fresh.recovery.resolve(behind) == behind
    assert fresh.planner.plan(behind).end.n == 3
    with pytest.raises(DataLoss, match="batches 1 to 1 are missing"):
        fresh.batches.check(before)
    last = fresh.batches.last_sealed("q")
    assert last is not None
    assert last.batch_id == 1  # replayed, it is not published again


def test_a_batch_that_comes_back_empty_takes_its_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    before = seal(log, 0)
    point = point_before(log, 1)
    behind = seal(log, 1)
    fresh = lose(tmp_path, log, point)
    assert seal(fresh, 1, [[], []]).n == 2
    assert fresh.recovery.resolve(behind) == fresh.batches.head()
    plan = fresh.planner.plan(before)
    assert (plan.end, plan.rows) == (fresh.batches.head(), 0)
    assert seal(fresh, 2, [[], []]).n == 2
    assert seal(fresh, 3).n == 3


def test_nothing_under_way(tmp_path: Path) -> None:
    """A batch without rows takes no offset: there is nothing to wait for."""
    log = open_log(tmp_path)
    head = seal(log, 0)
    for point in (point_before(log, 1, rows=False), replace(log.recovery.point(), end_n=head.n, start_n=head.n)):
        assert point.start_n == point.end_n == 1
    fresh = lose(tmp_path, log, point_before(log, 1, rows=False))
    assert not fresh.recovery.undecided
    assert (fresh.batches.head(), fresh.recovery.resolve(head)) == (head, head)
    assert seal(fresh, 1).n == 2


def test_the_end_mark_is_set_again(tmp_path: Path) -> None:
    """Who passed it stands behind it, who did not comes to it; what follows lies behind it for both."""
    log = open_log(tmp_path)
    before = seal(log, 0)
    mark = NewBatch.end_mark(2)
    point = log.recovery.before(mark.query_id, mark.batch_id, rows=False, end_mark=True)
    assert point is not None
    behind = log.seal(mark, [])
    fresh = lose(tmp_path, log, RecoveryPoint.from_text(point.to_text()))
    assert seal(fresh, 1).n == 3
    resolved = fresh.recovery.resolve(behind)
    assert resolved is not None
    assert resolved.n == 2
    first = fresh.planner.plan(before)
    assert (first.end.n, first.ends) == (2, True)
    assert fresh.planner.plan(resolved).end.n == 3


def test_a_half_read_batch_is_not_read_on(tmp_path: Path) -> None:
    """Its rows may lie in other record batches now; and the new one is never split, so that this stays known."""
    log = open_log(tmp_path)
    before = seal(log, 0)
    point = point_before(log, 1)
    seal(log, 1, [[1, 1, 1], [1]])
    half = log.planner.plan(before, max_rows=2).end
    assert (half.n, half.r) == (1, 2)
    fresh = lose(tmp_path, log, point)
    seal(fresh, 1, [[1, 1, 1], [1]])
    with pytest.raises(DataLoss, match=r"reads the whole batch again") as caught:
        fresh.planner.plan(half)
    assert caught.value.fields["reason"] == "sealed again"
    whole = fresh.planner.plan(before, max_rows=2)
    assert (whole.end.n, whole.end.r, whole.rows) == (2, 0, 4)
    seal(fresh, 2, [[1, 1, 1], [1]])
    assert fresh.planner.plan(whole.end, max_rows=2).end.r == 2


def test_what_the_point_of_an_opened_log_says(tmp_path: Path) -> None:
    """At its start a publisher does not know what was read: the newest batch may have to come again."""
    log = open_log(tmp_path)
    empty = log.recovery.point()
    assert (empty.start_n, empty.end_n, empty.query_id) == (0, 0, "")
    start, end = seal(log, 0), seal(log, 1)
    seal(log, 7, query="another", layout=[[], []])
    point = log.recovery.point()
    assert (point.log, point.start_epoch, point.start_n) == (start.log, start.epoch, start.n)
    assert (point.end_epoch, point.end_n, point.query_id, point.batch_id) == (end.epoch, end.n, "q", 1)
    assert point.queries == (("another", 7),)
    fresh = lose(tmp_path, log, point)
    again = fresh.recovery.point()
    assert again == point  # nothing was sealed since
    last = fresh.batches.last_sealed("another")
    assert last is not None
    assert last.batch_id == 7


def test_a_batch_that_is_sealed_already_needs_no_point(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 3)
    assert log.recovery.before("q", 3, rows=True, end_mark=False) is None


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
        {"start_aliases": [-1]},
        {"end_aliases": ["1"]},
        {"end_aliases": list(range(17))},
        {"end_aliases": 3},
        {"division": 3},
    ],
)
def test_foreign_text_is_no_point(tmp_path: Path, change: dict[str, object]) -> None:
    text = json.loads(point_before(open_log(tmp_path), 0).to_text())
    with pytest.raises(RemoteProtocolError, match=r"recovery point|position"):
        RecoveryPoint.from_text(json.dumps({**text, **change}))
    with pytest.raises(RemoteProtocolError, match="not a recovery point"):
        RecoveryPoint.from_text("[]")


def test_nothing_is_sealed_before_the_batch_that_was_taken_back(tmp_path: Path) -> None:
    """Some subscription has not read it: an end mark, another query, or a later batch would leave it out in silence."""
    log = open_log(tmp_path)
    before = seal(log, 0)
    seal(log, 1)
    log.take_over(log.epoch + 1, "publisher")
    log.take_back("q", 1)
    assert log.batches.head() == before
    for query, batch_id in (("other", 0), ("q", 2)):
        with pytest.raises(SpoolError, match=r"batch 1 of query q, at offset 1, .* must be published again before"):
            seal(log, batch_id, query=query)
    with pytest.raises(SpoolError, match="published again"):
        log.seal(NewBatch.end_mark(2), [])
    log.close()
    again = open_log(tmp_path)  # the publisher was started again in between
    assert again.recovery.undecided
    assert seal(again, 1) == Position(before.log, again.epoch, 2)
    assert seal(again, 2).n == 3


def test_taken_back_twice(tmp_path: Path) -> None:
    """Whoever has the batch from the first time stands after it for good."""
    log = open_log(tmp_path)
    before, given = seal(log, 0), []
    for _ in range(2):
        given.append(seal(log, 1))
        log.take_over(log.epoch + 1, "publisher")
        log.take_back("q", 1)
        assert [log.recovery.resolve(each) for each in (before, *given)] == [before, *([None] * len(given))]
    sealed = seal(log, 1)
    assert [log.recovery.resolve(each) for each in given] == [sealed, sealed]
    given.append(sealed)
    seal(log, 2)
    log.take_over(log.epoch + 1, "publisher")
    log.take_back("q", 2)
    assert [log.recovery.resolve(each) for each in given] == [sealed] * 3


def again(
    home: Path,
    old: Sequence[Sequence[int]],
    new: Sequence[Sequence[int]],
    *,
    said: bool = True,
    partitioner: str = "rr",
    order: int | None = None,
) -> tuple[TopicLog, Position, Position]:
    """Seal batch 3 twice, with a loss in between; return the log, and the places before and after the first time.

    A flow's subscription stands before it. ``said``: the recovery point says how the batch was divided.
    """
    log = open_log(home)
    for batch_id in range(3):
        before = seal(log, batch_id)
    point = point_before(log, 3)
    after = seal(log, 3, old, partitioner=partitioner)
    fresh = lose(home, log, replace(point, division=log.batches.division(3)) if said else point)
    fresh.subscriptions.subscribe("alerts")
    fresh.subscriptions.first_position("alerts", before)
    assert fresh.parts.read("alerts", [(0, after)], partitions=2, skip_removed=False).ranges == ()
    seal(fresh, 3, new, partitioner=partitioner, first_row=order)
    return fresh, before, after


@pytest.mark.parametrize(("partitions", "floor", "loses"), [(2, 3, False), (3, 3, True), (1, 3, True), (3, 4, False)])
@pytest.mark.parametrize("said", [False, True])
def test_a_flow_does_not_mix_two_divisions_of_a_batch(
    tmp_path: Path, partitions: int, floor: int, loses: bool, said: bool
) -> None:
    """Partition 0 has done the batch, partition 1 has not, and then it comes with another number of partitions."""
    fresh, before, after = again(tmp_path, [[2]] * 2, [[2]] * partitions, said=said)
    passed, waits = [(0, after)], [(1, before)]
    if floor == 4:  # all have done it
        grant = fresh.subscriptions.grant("alerts", {})
        fresh.subscriptions.acknowledge("alerts", grant, fresh.batches.at(4))
    assert fresh.parts.read("alerts", [] if floor == 4 else waits, partitions=2, skip_removed=False) is not None
    if loses:
        with pytest.raises(DataLoss, match="other rows in its partitions") as caught:
            fresh.parts.read("alerts", passed, partitions=2, skip_removed=True)
        assert caught.value.fields["reason"] == "divided again"
    else:
        assert fresh.parts.read("alerts", passed, partitions=2, skip_removed=False).ranges == ()


@pytest.mark.parametrize(
    ("known", "old", "new", "partitioner", "order", "loses"),
    [
        (4, [[2]] * 2, [[2]] * 4, "rr", None, True),  # the flow has as many partitions as the batch has now
        (4, [[2]] * 2, [[2]] * 2, "rr", None, False),  # the source had more of them once
        (2, [[1], [3]], [[3], [1]], "rr", None, True),
        (2, [[2], [2]], [[2], [2]], "rr", 7_000_000_000, True),  # other rows
        (2, [[2], [2]], [[2], [2]], "hash(key)", 7_000_000_000, False),  # a hash can only order them in another way
        (2, [[1], [3]], [[3], [1]], "hash(key)", None, True),
        (2, [[2], [2]], [[], []], "rr", None, True),
    ],
)
def test_how_a_batch_was_divided_decides(
    tmp_path: Path,
    known: int,
    old: Sequence[Sequence[int]],
    new: Sequence[Sequence[int]],
    partitioner: str,
    order: int | None,
    loses: bool,
) -> None:
    """Not how many partitions the flow has: that is the most that its source ever had."""
    fresh, before, after = again(tmp_path, old, new, partitioner=partitioner, order=order)
    assert fresh.parts.read("alerts", [(1, before)], partitions=known, skip_removed=False).ranges
    if loses:
        with pytest.raises(DataLoss) as caught:
            fresh.parts.read("alerts", [(0, after)], partitions=known, skip_removed=False)
        assert caught.value.fields["reason"] == "divided again"
    else:
        assert fresh.parts.read("alerts", [(0, after)], partitions=known, skip_removed=False).ranges == ()


def test_an_end_mark_is_divided_in_no_way(tmp_path: Path) -> None:
    """However its point was made: when it was sealed, or when the topic was opened again."""
    log = open_log(tmp_path)
    seal(log, 0, partitioner="hash(id)")
    log.seal(NewBatch.end_mark(2), [])
    point = log.recovery.point()
    assert point.division == division_of(7, "hash(id)", []) == log.batches.division(1)
    fresh = lose(tmp_path, log, replace(point, start_n=1))
    fresh.seal(NewBatch.end_mark(2), [])
    assert not fresh.recovery.divided_again(1, 3)


def test_several_lost_divisions_are_told_from_each_other(tmp_path: Path) -> None:
    """A cursor may stand after any of them."""
    log = open_log(tmp_path)
    before = seal(log, 0)
    point = replace(point_before(log, 1), division="a")
    seal(log, 1)
    fresh = lose(tmp_path, log, point)
    divisions = {
        given: (
            made.division
            if (made := fresh.recovery.before("q", 1, rows=True, end_mark=False, division=given))
            else None
        )
        for given in ("a", "b", "")
    }
    assert divisions == {"a": "a", "b": SEVERAL, "": ""}
    seal(fresh, 1)
    assert fresh.recovery.point().division == SEVERAL
    later = fresh.recovery.before("q", 2, rows=True, end_mark=False, division="b")
    assert later is not None
    assert (later.start_n, later.division) == (before.n + 1, "b")


def test_a_batch_that_is_taken_back_is_remembered_by_its_division(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    seal(log, 1, [[2], [3]])
    division = log.batches.division(1)
    assert log.recovery.point().division == division
    log.take_over(log.epoch + 1, "publisher")
    log.take_back("q", 1)
    assert log.recovery.point().division == division
    seal(log, 1, [[3], [2]])
    assert log.recovery.divided_again(1, 2)


def test_an_older_point_does_not_say_how_a_batch_was_divided(tmp_path: Path) -> None:
    text = json.loads(point_before(open_log(tmp_path), 0).to_text())
    del text["division"]
    assert RecoveryPoint.from_text(json.dumps(text)).division == ""


def cursors_of(found: ChangeFeedPage) -> list[Position]:
    """Return the places of a task's cursor as it reads what was found for its only partition."""
    (part,) = found.ranges
    told = FollowedPart(part.partition, part.start, part.end, part.fetch, tuple(map(held_part, part.held)))
    return [
        item.to
        for item in SourceReader(cast("Any", None), TOPIC, "alerts", 1, 2)._read(told, "")
        if isinstance(item, Item)
    ]


def test_a_flow_goes_on_inside_a_batch_that_was_sealed_again(tmp_path: Path) -> None:
    """Its cursor says of which copy of the batch it is, also after further losses, and where it is acknowledged."""
    layout = [[2, 2, 2], [2, 2, 2]]
    fresh, before, _ = again(tmp_path, layout, layout)

    def rest(log: TopicLog, place: Position) -> list[Position]:
        return cursors_of(log.parts.read("alerts", [(0, place)], partitions=2, skip_removed=False))

    places = rest(fresh, before)
    assert [place.place for place in places] == [(3, 1), (3, 2), (4, 0)]
    assert (rest(fresh, places[0]), rest(fresh, places[1])) == (places[1:], places[2:])
    low = replace(places[0], r=0)  # as the driver acknowledges it
    assert (low == before, fresh.recovery.resolve(low)) == (False, before)
    assert rest(fresh, low) == places
    third = lose(tmp_path, fresh, fresh.recovery.point())
    assert (third.recovery.resolve(low), third.recovery.resolve(places[2])) == (before, None)
    third.subscriptions.subscribe("alerts")
    third.subscriptions.first_position("alerts", before)
    seal(third, 3, layout)
    assert (third.recovery.resolve(low), third.recovery.resolve(places[2])) == (before, third.batches.at(4))
    assert [place.place for place in rest(third, low)] == [(3, 1), (3, 2), (4, 0)]
    with pytest.raises(DataLoss, match=r"`jobpipe topics flows reset alerts`") as caught:
        rest(third, places[0])
    assert caught.value.fields["reason"] == "half done"


def test_a_flow_inside_a_batch_that_was_lost_is_told(tmp_path: Path) -> None:
    fresh, before, _ = again(tmp_path, [[2, 2, 2], [2, 2, 2]], [[2, 2, 2], [2, 2, 2]])
    for number in (4, 5):
        with pytest.raises(DataLoss, match=r"`jobpipe topics flows reset alerts`") as caught:
            fresh.parts.read("alerts", [(0, replace(before, r=1))], partitions=2, skip_removed=True)
        assert caught.value.fields["reason"] == "half done"
        seal(fresh, number)


def test_a_cursor_inside_is_known_when_a_later_batch_is_taken_back(tmp_path: Path) -> None:
    """The log then remembers only the later one."""
    fresh, before, _ = again(tmp_path, [[2, 2], [2, 2]], [[2, 2], [2, 2]])
    inside = cursors_of(fresh.parts.read("alerts", [(0, before)], partitions=2, skip_removed=False))[0]
    seal(fresh, 4)
    fresh.take_over(fresh.epoch + 1, "publisher")
    fresh.take_back("q", 4)
    assert fresh.recovery.resolve(replace(inside, r=0)) == before
    found = fresh.parts.read("alerts", [(0, inside)], partitions=2, skip_removed=False)
    assert [place.place for place in cursors_of(found)] == [(4, 0)]
