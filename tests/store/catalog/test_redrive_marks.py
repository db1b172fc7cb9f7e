"""Marks of rows that were published again: one transaction with the rows, and no row twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jobpipe.errors import AlreadyRedriven, Fenced, SchemaMismatch, SpoolError
from jobpipe.store.catalog import redrive_marks
from jobpipe.store.catalog.batches import APPENDERS, NewestSeal
from jobpipe.store.catalog.redrive_marks import SourceRow
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import CHANGED, TopicLog
from tests.docs.troubleshooting import on_page
from tests.store.build import SCHEMA, look_into, open_log, rows, seal, written
from tests.store.catalog.test_recovery import lose

QUERY = f"{APPENDERS}x"
BYTES = SCHEMA.serialize().to_pybytes()


def marks(*found: tuple[int, int]) -> tuple[SourceRow, ...]:
    """Return rows of partition 1 by offset and number."""
    return tuple(SourceRow(offset, 1000 + offset, 1, number) for offset, number in found)


def append(
    log: TopicLog, number: int, marked: tuple[SourceRow, ...] = (), *, query: str = QUERY, **changes: object
) -> int:
    """Append a batch of one row; return the offset after it."""
    write_id, segments = written(log, [(0, rows(0, number, 1))])
    batch = NewBatch(query, number, f"run-{write_id}", write_id, None, 2, "rr")
    return log.append(batch, segments, (BYTES, None), marks=marked).n


def marked(log: TopicLog) -> list[tuple[int, int]]:
    found = log.redriven.marked(marks(*((offset, number) for offset in range(10) for number in range(10))))
    return [(each.offset, each.number) for each in found]


def test_marks_come_with_their_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    assert append(log, 0, marks((4, 0), (4, 2), (5, 1))) == 2
    assert append(log, 1, marks((4, 3))) == 3
    assert marked(log) == [(4, 0), (4, 2), (4, 3), (5, 1)]
    log.close()
    again = look_into(tmp_path)
    assert marked(again) == [(4, 0), (4, 2), (4, 3), (5, 1)]


def test_a_row_is_published_again_once(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    append(log, 0, marks((4, 2), (4, 3)))
    with pytest.raises(AlreadyRedriven, match=r"2 of 3 rows .* that of offset 4, partition 1, row 3") as refused:
        append(log, 1, marks((3, 0), (4, 3), (4, 2)))
    assert refused.value.fields["marked"] == 2
    assert (log.batches.next_n(), marked(log)) == (2, [(4, 2), (4, 3)])  # nothing of it, not even what was free
    assert append(log, 1, marks((3, 0), (4, 1), (4, 4))) == 3


@pytest.mark.parametrize("change", [{"offset": 5}, {"published_ms": 7}, {"partition": 0}, {"number": 3}])
def test_what_is_another_row(tmp_path: Path, change: dict[str, int]) -> None:
    """Also where a log was made again under the same name: then the time is another one."""
    log = open_log(tmp_path)
    seal(log, 0)
    (row,) = marks((4, 2))
    append(log, 0, (row,))
    with pytest.raises(AlreadyRedriven):
        append(log, 1, (row,))
    other = replace(row, **change)
    assert log.redriven.marked([row, other]) == (row,)
    assert append(log, 1, (other,)) == 3


def test_a_call_that_is_repeated_publishes_once(tmp_path: Path) -> None:
    """Its answer was lost: the same write id again, or the same batch id of another attempt."""
    log = open_log(tmp_path)
    seal(log, 0)
    write_id, segments = written(log, [(0, rows(0, 7, 1))])
    batch = NewBatch(f"{APPENDERS}x", 3, "run", write_id, None, 2, "rr")
    assert log.append(batch, segments, (BYTES, None), marks=marks((1, 1))).n == 2
    assert log.append(batch, segments, (BYTES, None), marks=marks((1, 1))).n == 2
    assert append(log, 3, marks((1, 1)), query=f"{APPENDERS}x") == 2
    assert log.batches.next_n() == 2


def test_old_marks_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    append(log, 0, marks((4, 0)))
    log.clock.tick(redrive_marks.MARKS_KEPT - 1)
    append(log, 1, marks((5, 0)))
    assert marked(log) == [(4, 0), (5, 0)]
    log.clock.tick(2)
    append(log, 2, marks((6, 0)))
    assert marked(log) == [(5, 0), (6, 0)]


def test_too_many_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog is bounded; marks of a transaction that failed do not count."""
    monkeypatch.setattr(redrive_marks, "MARKS_OF_TOPIC", 3)
    log = open_log(tmp_path)
    seal(log, 0)
    append(log, 0, marks((4, 0), (4, 1)))
    for _ in range(3):
        with pytest.raises(AlreadyRedriven):
            append(log, 1, marks((4, 0)))
    with pytest.raises(SpoolError) as refused:
        append(log, 1, marks((4, 2), (4, 3)))
    on_page(refused.value, "SpoolError: topic '…': … rows were published again in the last … days")
    assert append(log, 1, marks((4, 2))) == 3


@pytest.mark.slow
def test_a_full_batch_of_marks_takes_milliseconds(tmp_path: Path) -> None:
    """They are stored in the log's thread, for which the publisher waits."""
    log = open_log(tmp_path)
    seal(log, 0)
    took = []
    for number in range(5):
        rows = marks(*((number, row) for row in range(redrive_marks.MARKS)))
        began = time.process_time()
        append(log, number, rows)
        took.append(time.process_time() - began)
    assert min(took) < 0.1


def _other_schema(log: TopicLog) -> None:
    log.schemas.add(SCHEMA.append(SCHEMA.field(0).with_name("more")).serialize().to_pybytes(), None)


def _other_partitions(log: TopicLog) -> None:
    seal(log, 1, ((1,), (1,), (1,)))


@pytest.mark.parametrize("change", [_other_schema, _other_partitions])
def test_who_appends_decides_no_shape(tmp_path: Path, change: Callable[[TopicLog], None]) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    append(log, 0, marks((1, 0)))
    change(log)
    head = log.batches.next_n()
    with pytest.raises(SchemaMismatch) as refused:
        append(log, 1, marks((2, 0)))
    assert refused.value.fields["reason"] == CHANGED
    assert (log.batches.next_n(), marked(log)) == (head, [(1, 0)])


def test_an_appended_batch_begins_no_shape(tmp_path: Path) -> None:
    """A plan, and so a micro-batch, goes on across it."""
    log = open_log(tmp_path)
    seal(log, 0)
    append(log, 0, marks((1, 0)))
    seal(log, 1)
    shape = log.batches.shape(2)
    assert shape is not None
    assert (shape.first_n, shape.next_n) == (0, None)


def test_the_publisher_counts_its_own_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    append(log, 7)
    last = log.batches.last_sealed("q")
    assert last is not None
    assert last.batch_id == 0
    assert seal(log, 1, run="run 2").n == 3


def test_a_fenced_log_is_not_appended_to(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    append(log, 0, marks((1, 0)))
    other = open_log(tmp_path)
    with pytest.raises(Fenced):
        append(log, 1, marks((2, 0)))
    assert marked(other) == [(1, 0)]


def test_a_log_made_again_waits_for_its_publisher(tmp_path: Path) -> None:
    """The batch that it was sealing is told by its first one; after another's it would count as sealed, and be lost."""
    log = open_log(tmp_path)
    seal(log, 0)
    point = log.recovery.before("q", 1, rows=True, end_mark=False)
    assert point is not None
    seal(log, 1)
    fresh = lose(tmp_path, log, point)
    fresh.schemas.add(BYTES, None)
    with pytest.raises(SpoolError) as refused:
        append(fresh, 0, marks((1, 0)))
    on_page(refused.value, "SpoolError: topic '…': its spool was lost, and the batch")
    assert fresh.recovery.undecided is not None
    assert seal(fresh, 1).n == 2
    assert append(fresh, 0, marks((1, 0))) == 3


def test_recovery_points_leave_out_who_appends(tmp_path: Path) -> None:
    """A point has room for four queries: those that are there again after the loss of the spool."""
    log = open_log(tmp_path)
    for number in range(6):
        seal(log, number, query="publisher")
        append(log, number, query=f"{APPENDERS}{number}")
        append(log, number, query=f"{APPENDERS}job:{number}")
    point = log.recovery.before("another", 0, rows=True, end_mark=False)
    assert point is not None
    assert point.queries == (("publisher", 5),)
    point = log.recovery.point()  # whose newest batch nobody repeats
    assert (point.query_id, point.batch_id, point.queries) == ("", -1, (("publisher", 5),))


def test_who_appends_is_not_the_newest_query(tmp_path: Path) -> None:
    """A new checkpoint is judged by the publishers before it."""
    log = open_log(tmp_path)
    seal(log, 0, query="publisher")
    append(log, 0)
    assert log.batches.newest_query() == NewestSeal("publisher", 0, 1)
