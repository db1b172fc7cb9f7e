"""Cutting a planned range: every row in exactly one piece and in order, limits within one record batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobpipe.errors import ConfigError, DataLoss, RemoteProtocolError
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading import range_splitting as cutting
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.store.reading.range_splitting import RangePiece
from tests.store.build import TOPIC, open_log, pieces_of, read, seal
from tests.store.catalog.test_recovery import lose, point_before

PARTITIONS = 3
BATCH = st.lists(  # record batches of each partition, each with its rows
    st.lists(st.sampled_from([1, 1, 2, 5, 20]), max_size=5), min_size=PARTITIONS, max_size=PARTITIONS
)
LOGS = st.lists(st.tuples(BATCH, st.sampled_from([1, 1 << 20])), min_size=1, max_size=6)


def positions(log: TopicLog) -> list[Position]:
    """Every position of the log, found by plans of one record batch each."""
    found = [log.batches.tail()]
    while (plan := log.planner.plan(found[-1], max_rows=1)).end != found[-1]:
        found.append(plan.end)
    return found


def sizes(reader: CatalogReader, start: Position, end: Position, partition: int) -> tuple[int, int]:
    """(rows, record batches) of a partition in a range, as a reader gets them."""
    pieces = pieces_of(reader, start, end, partition)
    return sum(piece.rows for piece in pieces), sum(piece.record_batches for piece in pieces)


def cut(log: TopicLog, start: Position, end: Position, **how: Any) -> list[RangePiece]:
    """Cut a range, step by step."""
    splitter = log.planner.splitter(start, end, **how)
    while (pieces := splitter.step()) is None:
        pass
    return pieces


def check(
    reader: CatalogReader,
    start: Position,
    end: Position,
    pieces: Sequence[RangePiece],
    *,
    wanted: Sequence[int] = range(PARTITIONS),
    max_rows: int | None = None,
    at_least: int = 1,
) -> None:
    """Compare the pieces with what a reader of the whole range gets."""
    assert [piece.start for piece in pieces] == [start, *(piece.end for piece in pieces)][: len(pieces)]
    assert not pieces or pieces[-1].end == end
    for partition in wanted:
        whole = read(reader, start, end, partition)
        assert [row for piece in pieces for row in read(reader, piece.start, piece.end, partition)] == whole
    made = 0
    for piece in pieces:
        found = {k: size for k in wanted if (size := sizes(reader, piece.start, piece.end, k)) != (0, 0)}
        assert piece.partitions == tuple(sorted(found))
        assert found, "a piece without rows"
        assert all(max_rows is None or rows <= max_rows or count == 1 for rows, count in found.values()), found
        made += len(found)
    assert made >= min(at_least, sum(sizes(reader, start, end, k)[1] for k in wanted))


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(layouts=LOGS, data=st.data())
def test_every_row_is_in_one_piece(
    layouts: list[tuple[list[list[int]], int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = open_log(tmp_path_factory.mktemp("cuts"))
    for batch_id, (layout, segment_max_bytes) in enumerate(layouts):
        seal(log, batch_id, layout, segment_max_bytes=segment_max_bytes)
    reader = CatalogReader.open(log.directory, TOPIC)
    places = positions(log)
    start, end = sorted(data.draw(st.tuples(st.sampled_from(places), st.sampled_from(places))), key=lambda p: p.place)
    for _ in range(4):
        how = {
            "wanted": data.draw(st.sampled_from([[0, 1, 2], [1], [0, 2]])),
            "max_rows": data.draw(st.one_of(st.none(), st.integers(1, 60))),
            "at_least": data.draw(st.integers(1, 40)),
        }
        check(reader, start, end, cut(log, start, end, **how), **how)
    reader.close()
    log.close()


@pytest.mark.parametrize("page", [1, 7])
def test_a_page_ends_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    log = open_log(tmp_path)
    for batch_id in range(9):
        seal(log, batch_id, [[batch_id + 1, 2], [3], [1]])
    known = cut(log, log.batches.tail(), log.batches.head(), at_least=10, max_rows=12)
    monkeypatch.setattr(cutting, "_PAGE_SEGMENTS", page)
    assert cut(log, log.batches.tail(), log.batches.head(), at_least=10, max_rows=12) == known
    log.close()


def shape(pieces: Sequence[RangePiece]) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
    return [(piece.end.place, piece.partitions) for piece in pieces]


def test_pieces_are_about_equally_large(tmp_path: Path) -> None:
    """Whole pieces: with three partitions, seven input partitions become nine."""
    log = open_log(tmp_path)
    for batch_id in range(6):
        seal(log, batch_id, [[5, 5], [5, 5], [5, 5]])
    tail, head = log.batches.tail(), log.batches.head()
    assert shape(cut(log, tail, head)) == [((6, 0), (0, 1, 2))]
    assert shape(cut(log, tail, head, at_least=3)) == [((6, 0), (0, 1, 2))]
    assert shape(cut(log, tail, head, at_least=7)) == [(place, (0, 1, 2)) for place in ((2, 0), (4, 0), (6, 0))]
    assert shape(cut(log, tail, head, max_rows=20)) == [(place, (0, 1, 2)) for place in ((2, 0), (4, 0), (6, 0))]
    assert shape(cut(log, tail, head, max_rows=15))[0] == ((1, 3), (0, 1, 2))  # inside a batch, evenly
    assert shape(cut(log, tail, head, wanted=[1], at_least=2)) == [((3, 1), (1,)), ((6, 0), (1,))]
    log.close()


def test_rows_in_one_partition_only(tmp_path: Path) -> None:
    """Empty partitions are no tasks, and do not spoil the shares."""
    log = open_log(tmp_path)
    for batch_id in range(8):
        seal(log, batch_id, [[], [10], []])
    assert shape(cut(log, log.batches.tail(), log.batches.head(), at_least=4)) == [((n, 0), (1,)) for n in (2, 4, 6, 8)]
    log.close()


def test_one_large_record_batch(tmp_path: Path) -> None:
    """What cannot be cut stands alone; the rest still makes as many input partitions as were asked for."""
    log = open_log(tmp_path)
    seal(log, 0, [[1, 1, 1, 1, 5000]])
    assert shape(cut(log, log.batches.tail(), log.batches.head(), at_least=4)) == [
        ((0, 2), (0,)),
        ((0, 3), (0,)),
        ((0, 4), (0,)),
        ((1, 0), (0,)),
    ]
    assert len(cut(log, log.batches.tail(), log.batches.head(), at_least=99)) == 5
    assert [piece.end.place for piece in cut(log, log.batches.tail(), log.batches.head(), max_rows=4)] == [
        (0, 4),
        (1, 0),
    ]
    log.close()


def test_a_batch_sealed_again_is_not_cut_inside(tmp_path: Path) -> None:
    """Case 34: a position inside it would not tell of which copy it is."""
    log = open_log(tmp_path)
    seal(log, 0, [[5] * 4, [5] * 4, []])
    point = point_before(log, 1)
    seal(log, 1, [[5] * 4, [5] * 4, []])
    fresh = lose(tmp_path, log, point)
    for batch_id in (1, 2):
        seal(fresh, batch_id, [[5] * 4, [5] * 4, []])
    pieces = cut(fresh, fresh.batches.tail(), fresh.batches.head(), max_rows=10)
    assert [piece.end.place for piece in pieces] == [(2, 0), (2, 4), (3, 0)]
    pieces = cut(fresh, fresh.batches.tail(), fresh.batches.head(), at_least=99)
    assert [piece.end.place for piece in pieces] == [(2, 0), *((2, r) for r in range(1, 8)), (3, 0)]
    fresh.close()


def test_nothing_to_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert cut(log, log.batches.tail(), log.batches.head(), at_least=5) == []
    end = seal(log, 0, [[3], [], []])
    log.seal(NewBatch.end_mark(3), [])
    assert cut(log, end, log.batches.head(), at_least=5, max_rows=1) == []
    assert cut(log, log.batches.tail(), log.batches.head(), wanted=[2], at_least=5) == []
    assert [piece.end for piece in cut(log, log.batches.tail(), log.batches.head(), at_least=5)] == [log.batches.head()]
    with pytest.raises(RemoteProtocolError):
        cut(log, end, log.batches.tail())
    with pytest.raises(DataLoss):
        cut(log, log.batches.tail(), Position(end.log, end.epoch, 7))
    log.close()


def test_each_step_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the last ones, where all pieces get their positions: 100,000 of them took 1.3 s in one step."""
    monkeypatch.setattr(cutting, "_PAGE_SEGMENTS", 4)
    log = open_log(tmp_path)
    for batch_id in range(10):
        seal(log, batch_id)
    asked: list[int] = []
    real = log.batches.at
    splitter = log.planner.splitter(log.batches.tail(), log.batches.head(), at_least=20)
    monkeypatch.setattr(log.batches, "at", lambda n, r=0: asked.append(n) or real(n, r))
    while True:
        before = len(asked)
        pieces = splitter.step()
        assert len(asked) - before <= 4
        if pieces is not None:
            break
    assert len(pieces) == 20
    assert len(asked) >= 19
    log.close()


def test_a_range_removed_meanwhile_is_data_loss(tmp_path: Path) -> None:
    """Case 54: a page of nothing must not pass for a range without rows."""
    log = open_log(tmp_path)
    for batch_id in range(4):
        seal(log, batch_id)
    splitter = log.planner.splitter(log.batches.tail(), log.batches.head(), at_least=4)
    assert splitter.step() is None
    log.cleaner.drop_oldest(1 << 40)
    assert splitter.step() is None  # counted; now it begins to cut
    assert splitter.step() is None
    with pytest.raises(DataLoss) as caught:
        splitter.step()
    assert caught.value.fields["reason"] == "removed"
    log.close()


def test_too_many_pieces_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MOST_INPUT_PARTITIONS", 10)
    log = open_log(tmp_path)
    for batch_id in range(6):
        seal(log, batch_id, [[1], [1]])
    assert len(cut(log, log.batches.tail(), log.planner.plan(log.batches.tail(), max_rows=10).end, max_rows=1)) == 5
    with pytest.raises(ConfigError, match=r"more than 10 input partitions\. Raise maxRowsPerPartition"):
        cut(log, log.batches.tail(), log.batches.head(), max_rows=1)
    log.close()


def test_what_lies_ahead(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for batch_id in range(3):
        seal(log, batch_id, [[5, 5], [5, 5]])
    tail, head = log.batches.tail(), log.batches.head()
    inside = log.planner.plan(log.planner.plan(tail, max_rows=20).end, max_rows=10).end
    whole = log.planner.ahead(tail)
    assert (whole.rows, whole.bytes, whole.end, whole.final) == (60, log.used_bytes(), head, False)
    assert (log.planner.ahead(inside).rows, log.planner.ahead(tail, inside).rows, log.planner.ahead(head).rows) == (
        30,
        30,
        0,
    )
    assert log.planner.ahead(tail, inside).final
    log.seal(NewBatch.end_mark(2), [])
    assert log.planner.ahead(head).final
    assert (log.planner.ahead(head).rows, log.planner.ahead(head).end.n) == (0, 4)
    log.close()


@pytest.mark.slow
def test_a_hundred_thousand_batches_are_cut_in_seconds(tmp_path: Path) -> None:
    """Only what is cut is decoded, and a page of the catalog is in memory: the walk costs about 10 us a segment."""
    log = open_log(tmp_path)
    seal(log, 0, [[5, 5], [5], [5]])
    with log._db.write():  # 100,000 seals would take minutes
        log._db.execute("CREATE TEMP TABLE s(k INTEGER PRIMARY KEY)")
        log._db.execute_many("INSERT INTO s VALUES (?)", [(k,) for k in range(1, 100_001)])
        log._db.execute(
            "INSERT INTO segments SELECT k, partition, ordinal, file, offset, length, rows, record_batches, idx, data, "
            "host FROM s, segments WHERE n = 0"
        )
        log._db.execute(
            "INSERT INTO batches SELECT k, epoch, 'x', k, run_id, NULL, rows, bytes, cum_rows * (k + 1), "
            "cum_bytes * (k + 1), sealed_ms, sealed_up, 0 FROM s, batches WHERE n = 0"
        )
        log._db.execute("UPDATE meta SET next_n = 100001, total_rows = total_rows * 100001")
    began = time.process_time()
    pieces = cut(log, log.batches.tail(), log.batches.head(), at_least=300)
    seconds = time.process_time() - began
    assert len(pieces) == 100
    assert seconds < 20.0, f"{seconds:.1f} s of CPU"
    print(f"{seconds:.2f} s for 300,003 segments in two passes")
    log.close()
