"""What a flow's partitions have beyond its cursors, where batches were removed, or the subscription was made again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from jobpipe.errors import DataLoss
from jobpipe.flows.flow_source import Item, SourceReader
from jobpipe.operations.flow_operations import FollowedPart
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.change_feed import ChangeFeedPage
from tests.store.build import open_log, seal

FLOW = "alerts"


@pytest.fixture
def log(tmp_path: Path) -> TopicLog:
    """Return a log with the flow's subscription, which stands nowhere yet."""
    log = open_log(tmp_path)
    log.subscriptions.subscribe(FLOW)
    log.subscriptions.grant(FLOW, {})
    return log


def acknowledge(log: TopicLog, n: int) -> None:
    log.subscriptions.acknowledge(FLOW, log.subscriptions.get(FLOW).grant, log.batches.at(n))
    log.subscriptions.flush()


def follow(log: TopicLog, *parts: tuple[int, Position], partitions: int = 2, skips: bool = True) -> ChangeFeedPage:
    return log.parts.read(FLOW, parts, partitions=partitions, skip_removed=skips)


def spans(found: ChangeFeedPage) -> list[tuple[int, int, int]]:
    """Return partition, start and end of what was found."""
    return [(each.partition, each.start.n, each.end.n) for each in found.ranges]


def put(log: TopicLog, first: int, stop: int, layout: Sequence[Sequence[int]], partitioner: str = "rr") -> None:
    for number in range(first, stop):
        seal(log, number, layout, partitioner=partitioner)


def drop_before(log: TopicLog, n: int) -> None:
    log.cleaner.drop_oldest(log.batches.before(n)[1] - log.batches.before(log.batches.tail_n())[1])
    assert log.batches.tail_n() == n


def test_more_partitions_that_were_removed_are_heard_of(log: TopicLog) -> None:
    """Else the cursors that the flow knows go to the head, and what new partitions still have is never read."""
    put(log, 0, 3, [[1]] * 2)
    put(log, 3, 8, [[1]] * 4)
    acknowledge(log, 1)
    drop_before(log, 5)
    slow, fast = log.batches.at(1), log.batches.at(2)
    found = follow(log, (0, slow), (1, fast))
    assert (spans(found), found.at_change, found.partitions) == ([(0, 5, 5), (1, 5, 5)], True, 0)
    assert not any(each.has_rows for each in found.ranges)
    there = [each.end for each in found.ranges]
    assert follow(log, *enumerate(there)).ranges == ()
    acknowledge(log, 5)
    found = follow(log, *enumerate(there))
    assert found.partitions == 4
    found = follow(log, *((partition, there[0]) for partition in range(4)), partitions=4)
    assert spans(found) == [(partition, 5, 8) for partition in range(4)]


def test_a_task_moves_its_cursor_over_what_was_removed(log: TopicLog) -> None:
    reader = SourceReader(cast("Any", None), "orders", FLOW, 1, 2, skip_removed=True)
    part = FollowedPart(0, log.batches.at(5), log.batches.at(5), False, ())
    assert list(reader._read(part, "")) == [Item(0, part.end)]


def test_a_change_after_those_that_were_removed_is_waited_for(log: TopicLog) -> None:
    put(log, 0, 3, [[1]] * 2)
    put(log, 3, 8, [[1]] * 2, partitioner="other")
    put(log, 8, 10, [[1]])
    acknowledge(log, 1)
    drop_before(log, 5)
    (there,) = follow(log, (0, log.batches.at(1))).ranges
    acknowledge(log, 5)
    found = follow(log, (0, there.end))
    assert (spans(found), found.at_change) == ([(0, 5, 8)], True)


def test_what_was_removed_is_a_loss_unless_it_may_be(log: TopicLog) -> None:
    put(log, 0, 3, [[1]] * 2)
    put(log, 3, 8, [[1]] * 4)
    acknowledge(log, 1)
    drop_before(log, 5)
    with pytest.raises(DataLoss) as caught:
        follow(log, (0, log.batches.at(1)), skips=False)
    assert caught.value.fields["reason"] == "removed"


def test_all_that_was_there_is_removed(log: TopicLog) -> None:
    put(log, 0, 3, [[1]] * 2)
    acknowledge(log, 1)
    drop_before(log, 3)
    found = follow(log, (0, log.batches.at(1)), (1, log.batches.at(3)))
    assert (spans(found), found.ranges[0].has_rows) == ([(0, 3, 3)], False)


def test_nothing_is_given_before_the_first_acknowledgement(log: TopicLog) -> None:
    """One task does not know the lowest cursor: those of others may lie before a change."""
    put(log, 0, 2, [[1]] * 2)
    put(log, 2, 4, [[1]])
    found = follow(log, (0, log.batches.at(2)))
    assert (found.ranges, found.at_change, found.partitions) == ((), True, 0)
    acknowledge(log, 1)
    assert follow(log, (0, log.batches.at(2))).ranges == ()
    assert spans(follow(log, (1, log.batches.at(1)))) == [(1, 1, 2)]
