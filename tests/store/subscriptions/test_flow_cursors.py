"""The cursors of flow jobs: claimed by one task at a time, moved with what is published, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.errors import Fenced, FlowNotFound, JobpipeError, SpoolError
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.flow_commits import PartOutcome, SegmentPart
from jobpipe.store.log.flow_cursors import FORGET_SECONDS, Cursor, FlowKey
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from tests.store.build import SCHEMA, open_log, rows, written

LOG = "00112233445566aa"
KEY = FlowKey("alerts", "orders", LOG)


def at(n: int, r: int = 0, epoch: int = 1) -> Position:
    return Position(LOG, epoch, n, r)


def part(log: TopicLog, cursor: Cursor, to: Position, count: int = 3, *, inline: bool = True) -> SegmentPart:
    """Return a part of ``count`` rows."""
    batches = [(0, rows(0, to.n * 100, count))] if count else []
    write_id, segments = written(log, batches, inline=inline) if count else ("00" * 8, [])
    schema_id = log.schemas.add(SCHEMA.serialize().to_pybytes(), None)
    batch = NewBatch("", -1, KEY.flow, write_id, schema_id, 2, "rr")
    return SegmentPart(KEY, cursor.partition, cursor.claim, cursor.position, to, batch, segments)


def sealed(outcome: PartOutcome | JobpipeError) -> PartOutcome:
    assert isinstance(outcome, PartOutcome), outcome
    return outcome


@pytest.fixture
def log(tmp_path: Path) -> TopicLog:
    return open_log(tmp_path)


def test_begin_makes_what_is_missing_and_moves_nothing(log: TopicLog) -> None:
    assert log.cursors.all(KEY) == []
    assert log.cursors.begin(KEY, at(3), 2) == [Cursor(0, 0, at(3)), Cursor(1, 0, at(3))]
    assert [cursor.position for cursor in log.cursors.begin(KEY, at(9), 3)] == [at(3), at(3), at(9)]


def test_a_part_is_published_once(log: TopicLog) -> None:
    log.cursors.begin(KEY, at(0), 1)
    (mine,) = log.cursors.claim(KEY, [0])
    once = part(log, mine, at(2))
    outcomes = log.seal_parts([once], writing=())
    assert sealed(outcomes[0]) == PartOutcome(Cursor(0, 1, at(2)), 3)
    head = log.batches.head()
    again = log.seal_parts([once], writing=())  # its answer was lost on the way
    assert sealed(again[0]) == PartOutcome(Cursor(0, 1, at(2)), 0)
    assert log.batches.head() == head


def test_a_part_that_does_not_follow_is_not_published(log: TopicLog) -> None:
    log.cursors.begin(KEY, at(0), 1)
    (mine,) = log.cursors.claim(KEY, [0])
    ahead = SegmentPart(KEY, 0, 1, at(5), at(6), part(log, mine, at(6)).batch, part(log, mine, at(6)).segments)
    assert sealed(log.seal_parts([ahead], writing=())[0]) == PartOutcome(mine, 0)
    assert log.batches.next_n() == 0


def test_many_parts_in_one_call_follow_each_other(log: TopicLog) -> None:
    log.cursors.begin(KEY, at(0), 2)
    first, second = log.cursors.claim(KEY, [0, 1])
    parts = [part(log, first, at(1)), part(log, Cursor(0, 1, at(1)), at(1, 4)), part(log, second, at(7), 0)]
    outcomes = [sealed(outcome) for outcome in log.seal_parts(parts, writing=())]
    assert [outcome.cursor.position for outcome in outcomes] == [at(1), at(1, 4), at(7)]
    assert [outcome.rows for outcome in outcomes] == [3, 3, 0]
    assert log.batches.next_n() == 2  # what has no rows takes no offset


def test_an_older_task_is_refused_and_the_others_are_not(log: TopicLog) -> None:
    log.cursors.begin(KEY, at(0), 2)
    old, other = log.cursors.claim(KEY, [0, 1])
    (new,) = log.cursors.claim(KEY, [0])
    outcomes = log.seal_parts([part(log, old, at(1)), part(log, other, at(1)), part(log, new, at(1))], writing=())
    assert isinstance(outcomes[0], Fenced)
    assert [sealed(outcome).rows for outcome in outcomes[1:]] == [3, 3]
    assert log.batches.next_n() == 2


def test_files_of_a_call_that_is_not_known_are_written_again(log: TopicLog) -> None:
    log.cursors.begin(KEY, at(0), 1)
    (mine,) = log.cursors.claim(KEY, [0])
    large = part(log, mine, at(1), inline=False)
    (refused,) = log.seal_parts([large], writing=())
    assert isinstance(refused, SpoolError)
    assert refused.fields["again"]
    (taken,) = log.seal_parts([large], writing={large.batch.write_id})
    assert sealed(taken).rows == 3
    (repeated,) = log.seal_parts([large], writing=())  # its answer was lost on the way
    assert sealed(repeated) == PartOutcome(Cursor(0, 1, at(1)), 0)
    log.cursors.claim(KEY, [0])
    (late,) = log.seal_parts([large], writing=())
    assert isinstance(late, Fenced)


def test_a_reset_ends_what_runs(log: TopicLog) -> None:
    log.cursors.begin(KEY, at(0), 1)
    (mine,) = log.cursors.claim(KEY, [0])
    assert log.cursors.reset("alerts", dry_run=True) == [KEY]
    assert log.cursors.reset("alerts") == [KEY]
    (refused,) = log.seal_parts([part(log, mine, at(1))], writing=())
    assert isinstance(refused, FlowNotFound)
    with pytest.raises(FlowNotFound, match="partition 0 of topic 'orders'"):
        log.cursors.claim(KEY, [0])


def test_a_fenced_coordinator_moves_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.cursors.begin(KEY, at(0), 1)
    (mine,) = log.cursors.claim(KEY, [0])
    late = part(log, mine, at(1))
    successor = open_log(tmp_path)
    with pytest.raises(Fenced):
        log.seal_parts([late], writing=())
    assert successor.cursors.all(KEY) == [mine]
    assert successor.batches.next_n() == 0


def test_cursors_outlive_the_coordinator(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.cursors.begin(KEY, at(0), 1)
    (mine,) = log.cursors.claim(KEY, [0])
    log.seal_parts([part(log, mine, at(4, 2))], writing=())
    log.close()
    assert open_log(tmp_path).cursors.all(KEY) == [Cursor(0, 1, at(4, 2))]


def test_cursors_of_an_older_log_go_in_the_end(log: TopicLog) -> None:
    log.cursors.begin(KEY, at(0), 1)
    newer = FlowKey(KEY.flow, KEY.topic, "ff" * 8)
    log.cursors.begin(newer, Position(newer.log, 0, 0), 1)
    assert log.cursors.all(KEY)
    log.clock.tick(FORGET_SECONDS + 1.0)
    log.cursors.begin(newer, Position(newer.log, 0, 0), 1)
    assert not log.cursors.all(KEY)


def test_cursors_of_a_subscription_that_is_gone_go_in_the_end(log: TopicLog) -> None:
    """Those that a task had stay for a while: dropping a subscription is no reset."""
    own = [FlowKey(flow, "orders", log.log_id) for flow in ("held", "never", "moved")]
    for key in own:
        log.cursors.begin(key, log.batches.at(0), 2)
        log.subscriptions.subscribe(key.flow)
    log.cursors.claim(own[2], [1])
    log.cursors.begin(KEY, at(0), 1)  # of another topic's log, whose subscriptions are elsewhere
    names = {key.flow for key in own}
    assert log.cursors.forget("orders", log.log_id) == names
    for flow in ("never", "moved"):
        log.subscriptions.drop(flow)
    assert log.cursors.forget("orders", log.log_id) == names - {"never"}
    assert [len(log.cursors.all(key)) for key in own] == [2, 0, 2]
    log.clock.tick(FORGET_SECONDS + 1.0)
    assert log.cursors.forget("orders", log.log_id) == {"held"}
    assert log.cursors.all(KEY)


def test_status_shows_them(log: TopicLog) -> None:
    log.cursors.begin(KEY, at(0), 2)
    (line,) = log.status().flows
    assert (line.flow, line.topic, line.log) == ("alerts", "orders", LOG)
    assert [cursor.n for cursor in line.cursors] == [0, 0]
