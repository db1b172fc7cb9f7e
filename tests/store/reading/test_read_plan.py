"""Positions, plans and pieces: any walk over any log reads every row once, in order."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobpipe.errors import DataLoss, RemoteProtocolError, SegmentCorrupt
from jobpipe.store.catalog.position import Position, prefix
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading import catalog_reader as reading
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.store.reading.read_plan import ReadPlan
from tests.store.build import FIRST, TOPIC, decode, open_log, piece_bytes, pieces_of, read, seal

LAYOUTS = st.lists(  # batches of partitions of record batches
    st.tuples(
        st.integers(1, 4).flatmap(
            lambda count: st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=count, max_size=count)
        ),
        st.booleans(),  # inline
        st.sampled_from([1, 1 << 20]),  # segment_max_bytes: one segment a record batch, or one a partition
        st.integers(0, 9),  # 0: an end mark follows
    ),
    max_size=6,
)


def build(log: TopicLog, layouts: list[tuple[list[list[int]], bool, int, int]]) -> None:
    for batch_id, (layout, inline, segment_max_bytes, end) in enumerate(layouts):
        seal(log, batch_id, layout, inline=inline, segment_max_bytes=segment_max_bytes)
        if end == 0:
            log.seal(NewBatch.end_mark(len(layout)), [])


def expected(layouts: list[tuple[list[list[int]], bool, int, int]], partition: int) -> list[int]:
    return [
        FIRST + batch_id * 1_000_000 + row
        for batch_id, (layout, *_) in enumerate(layouts)
        if partition < len(layout)
        for row in range(sum(layout[partition]))
    ]


def walk(log: TopicLog, **limits: int | None) -> list[ReadPlan]:
    plans, start = [], log.batches.tail()
    while (plan := log.planner.plan(start, **limits)).end != start:
        plans.append(plan)
        start = plan.end
    assert start == log.batches.head()
    return plans


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    layouts=LAYOUTS,
    max_rows=st.one_of(st.none(), st.integers(1, 40)),
    max_bytes=st.one_of(st.none(), st.integers(1, 8_000)),
    page=st.integers(1, 5),
)
def test_a_walk_reads_all_rows_once_in_order(
    layouts: list, max_rows: int | None, max_bytes: int | None, page: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = open_log(tmp_path_factory.mktemp("walk"))
    build(log, layouts)
    reader = CatalogReader.open(log.directory, TOPIC)
    found: list[list[int]] = [[] for _ in range(4)]
    for plan in walk(log, max_rows=max_rows, max_bytes=max_bytes):
        log.batches.check(plan.end)
        got = [[row for _, row in read(reader, plan.start, plan.end, p, limit=page)] for p in range(4)]
        assert plan.rows == sum(len(rows) for rows in got)
        assert all(not rows for rows in got[plan.partitions :])
        for partition, rows in enumerate(got):
            found[partition] += rows
        over = (max_rows is not None and plan.rows > max_rows) or (max_bytes is not None and plan.bytes > max_bytes)
        if over:  # then nothing smaller exists
            pieces = [piece for p in range(4) for piece in pieces_of(reader, plan.start, plan.end, p)]
            assert sum(piece.record_batches for piece in pieces) == 1
        if plan.start.r or plan.end.r:
            assert plan.end.place <= (plan.start.n + 1, 0) or plan.end.r == 0
        assert log.planner.describe(plan.start, plan.end) == [plan]
        shapes = {
            (piece.partitions, piece.schema_id)
            for p in range(4)
            for piece in pieces_of(reader, plan.start, plan.end, p)
        }
        assert shapes <= {(plan.partitions, plan.schema_id)}
    assert found == [expected(layouts, partition) for partition in range(4)]
    status = log.status()
    assert status.rows == sum(len(rows) for rows in found)
    assert (
        status.bytes
        == log.used_bytes()
        == sum(plan.bytes for plan in log.planner.describe(log.batches.tail(), log.batches.head()))
    )
    reader.close()
    log.close()


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layouts=LAYOUTS.filter(bool), data=st.data())
def test_skip_works_at_any_value(layouts: list, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = open_log(tmp_path_factory.mktemp("skip"))
    build(log, layouts)
    ends = [log.batches.tail(), *(plan.end for plan in walk(log, max_rows=data.draw(st.integers(1, 20))))]
    first = data.draw(st.integers(0, len(ends) - 1))
    start, end = ends[first], data.draw(st.sampled_from(ends[first:]))
    partition = data.draw(st.integers(0, 3))
    reader = CatalogReader.open(log.directory, TOPIC)
    whole = pieces_of(reader, start, end, partition)
    batches = [(piece.n, batch["row"].to_pylist()) for piece in whole for batch in decode(piece).to_batches()]
    assert len(batches) == sum(piece.record_batches for piece in whole)
    for skip in range(len(batches) + 2):
        expect = [(n, row) for n, rows in batches[skip:] for row in rows]
        span, passed = data.draw(st.sampled_from([(4096, 1000), (1, 1), (2, 3), (3, 2)]))  # how far one call goes
        with mock.patch.object(reading, "_SPAN", span), mock.patch.object(reading, "_SKIP_PAGE", passed):
            assert read(reader, start, end, partition, skip=skip, limit=data.draw(st.integers(1, 3))) == expect
    for piece in whole:
        first_row = decode(piece)["row"].to_pylist()[0]
        assert piece.row0 == first_row % 1_000_000
    reader.close()
    log.close()


def test_a_batch_is_split_evenly_over_partitions(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    end = seal(log, 0, [[5, 5, 5], [5], [5, 5]])
    reader = CatalogReader.open(log.directory, TOPIC)
    plan = log.planner.plan(log.batches.tail(), max_rows=20)
    assert (plan.end.n, plan.end.r, plan.end.epoch) == (0, 4, 0)
    assert [len(read(reader, plan.start, plan.end, p)) for p in range(3)] == [10, 5, 5]
    assert prefix([3, 1, 2], 4) == [2, 1, 1]
    rest = log.planner.plan(plan.end, max_rows=20)
    assert (rest.end, rest.rows) == (end, 10)
    reader.close()
    log.close()


def test_whole_batches_are_preferred(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for batch_id in range(3):
        seal(log, batch_id, [[5, 5], [5, 5]])
    plan = log.planner.plan(log.batches.tail(), max_rows=35)
    assert (plan.end.place, plan.rows) == ((1, 0), 20)
    split = log.planner.plan(log.batches.tail(), max_rows=15)
    assert (split.end.place, split.rows) == ((0, 3), 15)
    assert log.planner.plan(split.end, max_rows=45).end.place == (3, 0)
    log.close()


def test_a_plan_stops_where_the_shape_changes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0, [[1], [1]])
    seal(log, 1, [[1], [1]])
    seal(log, 2, [[1], [1]], partitioner="hash")
    seal(log, 3, [[1], [1], [1]], partitioner="hash")
    assert [plan.end.n for plan in walk(log)] == [2, 3, 4]
    assert [plan.partitions for plan in walk(log)] == [2, 2, 3]
    assert log.planner.describe(log.batches.tail(), log.batches.head()) == walk(log)
    log.close()


def test_an_end_mark_ends_a_plan(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    end = log.seal(NewBatch.end_mark(2), [])
    plan = log.planner.plan(log.batches.tail(), max_rows=1)
    while not plan.ends:
        plan = log.planner.plan(plan.end, max_rows=2)
    assert plan.end == end
    assert log.planner.plan(end).ends
    seal(log, 1)
    assert log.planner.plan(log.batches.tail()).end == end
    after = log.planner.plan(end)
    assert (after.rows, after.ends) == (2, False)
    log.close()


def test_until_bounds_a_plan(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for batch_id in range(3):
        seal(log, batch_id, [[5, 5], [5, 5]])
    tail = log.batches.tail()
    inside = log.planner.plan(log.planner.plan(tail, max_rows=20).end, max_rows=10).end
    assert inside.place == (1, 2)
    assert log.planner.plan(tail, until=inside).end == inside
    assert log.planner.plan(tail, max_rows=25, until=inside).end.place == (1, 0)
    assert log.planner.plan(inside, until=inside).end == inside
    assert [plan.rows for plan in log.planner.describe(tail, inside)] == [30]
    with pytest.raises(RemoteProtocolError):
        log.planner.describe(inside, tail)
    log.close()


def test_nothing_to_read(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.planner.plan(log.batches.tail()) == ReadPlan(
        log.batches.tail(), log.batches.tail(), 0, 0, 0, None, False
    )
    assert log.planner.describe(log.batches.tail(), log.batches.head()) == []
    log.close()


def reason(log: TopicLog, position: Position) -> str:
    reader = CatalogReader.open(log.directory, TOPIC)
    with pytest.raises(DataLoss) as caught:
        log.batches.check(position)
    with pytest.raises(DataLoss):
        log.planner.plan(position)
    with pytest.raises(DataLoss):
        reader.segments(position, log.batches.head(), 0)
    reader.close()
    fields = caught.value.fields
    assert fields["topic"] == TOPIC
    assert Position.from_json(fields["position"]) == position
    assert Position.from_json(fields["earliest"]) == log.batches.tail()
    assert Position.from_json(fields["head"]) == log.batches.head()
    return str(fields["reason"])


def test_positions_that_do_not_fit_are_named(tmp_path: Path) -> None:
    log = open_log(tmp_path, epoch=3)
    for batch_id in range(4):
        seal(log, batch_id, [[1, 1], [1]])
    log.take_over(7, "next")
    seal(log, 4, [[1, 1], [1]])
    name = log.log_id
    for fits in (Position(name, 0, 0), Position(name, 0, 0, 2), Position(name, 3, 4, 1), Position(name, 7, 5)):
        log.batches.check(fits)
    assert reason(log, Position("0" * 16, 3, 1)) == "log"
    assert reason(log, Position(name, 7, 6)) == "beyond head"
    assert reason(log, Position(name, 7, 5, 1)) == "beyond head"
    assert reason(log, Position(name, 7, 4)) == "epoch"
    assert reason(log, Position(name, 3, 5)) == "epoch"
    assert reason(log, Position(name, 1, 0)) == "epoch"
    assert reason(log, Position(name, 3, 1, 3)) == "beyond batch"
    log.cleaner.drop_oldest(1)
    assert log.batches.tail() == Position(name, 3, 1)
    assert reason(log, Position(name, 0, 0)) == "removed"
    assert reason(log, Position(name, 3, 0)) == "epoch"
    log.cleaner.drop_oldest(1 << 40)
    assert log.batches.tail() == log.batches.head() == Position(name, 7, 5)
    assert reason(log, Position(name, 3, 3)) == "removed"
    log.close()


def test_an_older_copy_of_the_spool_is_noticed(tmp_path: Path) -> None:
    """A restored backup has the same log id and fewer batches; the next publisher has a higher epoch."""
    log = open_log(tmp_path, epoch=1)
    seal(log, 0)
    log.close()
    shutil.copytree(tmp_path / TOPIC, tmp_path / "backup")
    log = open_log(tmp_path, epoch=2)
    seal(log, 1)
    seen = seal(log, 2)
    log.close()
    shutil.rmtree(tmp_path / TOPIC)
    shutil.copytree(tmp_path / "backup", tmp_path / TOPIC)
    log = open_log(tmp_path, epoch=3)
    assert reason(log, seen) == "beyond head"
    for batch_id in range(1, 5):
        seal(log, batch_id)
    assert reason(log, seen) == "epoch"
    log.close()


def test_a_flipped_byte_never_passes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    end = seal(log, 0, [[2]], inline=False)
    reader = CatalogReader.open(log.directory, TOPIC)
    pieces = pieces_of(reader, log.batches.tail(), end, 0)
    path = pieces[0].path
    assert path is not None
    good = path.read_bytes()
    piece_bytes(pieces[0])
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        with pytest.raises(AssertionError):
            piece_bytes(pieces[0])
    reader.close()
    log.close()


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_lost_file_is_corruption_not_emptiness(tmp_path: Path, damage: str) -> None:
    log = open_log(tmp_path)
    seal(log, 0, [[2], [2]])
    end = seal(log, 1, [[2], [2]], inline=False)
    path = next(log.segments.iterdir())
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    reader = CatalogReader.open(log.directory, TOPIC)
    with pytest.raises(SegmentCorrupt) as caught:
        reader.segments(log.batches.tail(), end, 1)
    assert caught.value.fields == {"topic": TOPIC, "offset": 1, "partition": 1, "file": str(path)}
    reader.close()
    log.close()


def test_what_is_removed_between_two_pages_is_data_loss(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for batch_id in range(4):
        seal(log, batch_id, inline=False)
    reader = CatalogReader.open(log.directory, TOPIC)
    start, end = log.batches.tail(), log.batches.head()
    _, cursor = reader.segments(start, end, 0, limit=1)
    assert cursor is not None
    log.cleaner.drop_oldest(log.used_bytes() * 3 // 4)
    with pytest.raises(DataLoss) as caught:
        reader.segments(start, end, 0, limit=1, cursor=cursor)
    assert caught.value.fields["reason"] == "removed"
    reader.close()
    log.close()


@pytest.mark.parametrize(("partition", "skip"), [(0, 1000), (1, 0)])
def test_one_look_goes_so_far_and_no_further(
    partition: int, skip: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is to be passed over, and where the partition has nothing: others wait for the thread."""
    monkeypatch.setattr(reading, "_SPAN", 3)
    log = open_log(tmp_path)
    for batch_id in range(8):
        seal(log, batch_id, ((1,), ()))
    reader = CatalogReader.open(log.directory, TOPIC)
    seen, cursor = [], None
    while True:
        pieces, cursor = reader.segments(log.batches.tail(), log.batches.head(), partition, skip=skip, cursor=cursor)
        assert not pieces
        if cursor is None:
            break
        seen.append(cursor.n)
    assert seen == [3, 6]
    reader.close()
    log.close()
