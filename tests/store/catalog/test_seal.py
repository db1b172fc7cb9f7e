from __future__ import annotations

import gc
import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from jobpipe.errors import (
    CheckpointTooOld,
    ConfigError,
    DuplicateCall,
    Fenced,
    RemoteProtocolError,
    SegmentCorrupt,
    SpoolError,
)
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.spool_folders import read_status
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.store.spool.spool_files import new_write_id
from tests.store.build import TOPIC, open_log, read, rows, seal, written


def new(log: TopicLog, batch_id: int, write_id: str, *, run: str = "run", partitions: int = 2) -> NewBatch:
    return NewBatch("q", batch_id, run, write_id, log.schemas.add(b"schema", None), partitions, "rr")


def test_a_sealed_batch_is_there_after_reopening(tmp_path: Path) -> None:
    log = open_log(tmp_path, fsync=True)
    end = seal(log, 0, [[3, 2], [4]], inline=False, first_row=0)
    assert (end.epoch, end.n, end.r) == (1, 1, 0)
    log.close()
    again = TopicLog.open(tmp_path / TOPIC, TOPIC)
    assert again.batches.head() == end
    assert again.log_id == end.log
    assert again.epoch == 1
    reader = CatalogReader.open(tmp_path / TOPIC, TOPIC)
    assert read(reader, again.batches.tail(), end, 0) == [(0, row) for row in range(5)]
    reader.close()
    again.close()


def test_the_directory_is_private(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0, inline=False)
    for path in (log.directory, log.segments):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in [*log.segments.iterdir(), *log.directory.glob("catalog.db*")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    log.close()


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../x", ".hidden", "x" * 129, "a\n"])
def test_a_topic_cannot_leave_the_spool(tmp_path: Path, topic: str) -> None:
    with pytest.raises(ConfigError):
        TopicLog.open(tmp_path / "t", topic)


def test_replays_are_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = seal(log, 7, run="run 1")
    assert seal(log, 7, run="run 2") == first
    later = seal(log, 8, run="run 2")
    with pytest.raises(CheckpointTooOld) as caught:
        seal(log, 7, run="run 3")
    assert caught.value.fields["last_batch_id"] == 8
    with pytest.raises(DuplicateCall):
        seal(log, 8, run="run 2")
    assert seal(log, 8, run="run 3") == later
    assert log.batches.head().n == 2
    log.close()


def test_a_new_query_appends(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 5, query="old")
    assert seal(log, 0, query="new").n == 2
    assert log.batches.last_sealed("old") is not None
    assert log.batches.last_sealed("nobody") is None
    log.close()


def test_the_same_call_again_gets_the_same_answer(tmp_path: Path) -> None:
    """The answer of a seal may be lost on its way; asking again is not a second call of the sink."""
    log = open_log(tmp_path)
    write_id, segments = written(log, [(0, rows(0, 0, 2))])
    batch = new(log, 0, write_id)
    first = log.seal(batch, segments)
    assert log.seal(batch, segments) == first
    assert log.batches.head() == first
    log.close()


def test_the_dedupe_row_outlives_the_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = seal(log, 0)
    log.cleaner.drop_oldest(1)
    assert log.batches.tail() == log.batches.head() == first
    assert seal(log, 0, run="another") == first
    assert seal(log, 1, run="another").n == 2
    log.close()


def test_a_batch_without_rows_takes_no_offset_but_is_remembered(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    head = seal(log, 0)
    assert seal(log, 1, [[], []]) == head
    last = log.batches.last_sealed("q")
    assert last is not None
    assert (last.batch_id, last.n) == (1, 1)
    with pytest.raises(DuplicateCall):
        seal(log, 1, [[], []])
    with pytest.raises(CheckpointTooOld):
        seal(log, 0, run="another")
    log.close()


def test_an_end_mark_takes_an_offset_and_ends_until_more_comes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    assert not log.batches.ended()
    assert log.seal(NewBatch.end_mark(2), []).n == 2
    assert log.batches.ended()
    log.cleaner.drop_oldest(1 << 40)
    assert log.batches.ended()
    seal(log, 1)
    assert not log.batches.ended()
    log.close()


def test_sealing_needs_an_epoch_of_its_own(tmp_path: Path) -> None:
    log = TopicLog.open(tmp_path / TOPIC, TOPIC, fsync=False)
    with pytest.raises(Fenced):
        log.seal(NewBatch.end_mark(1), [])
    log.close()


def test_the_lower_epoch_is_fenced(tmp_path: Path) -> None:
    old = open_log(tmp_path, epoch=4)
    old.subscriptions.subscribe("s")
    grant = old.subscriptions.grant("s", {})
    old.subscriptions.first_position("s", old.batches.tail())
    middle = seal(old, 0)
    assert old.subscriptions.acknowledge("s", grant, middle)
    young = open_log(tmp_path, epoch=9)
    in_progress = young.segments / f"{new_write_id()}-0.seg"
    in_progress.write_bytes(b"x")
    for work in (
        lambda: seal(old, 1),
        lambda: seal(old, 0, run="replay"),
        old.subscriptions.flush,
        lambda: old.cleaner.sweep(set()),
        lambda: old.subscriptions.grant("s", {}),
        lambda: old.subscriptions.drop("s"),
        lambda: old.leases.hold("x", 0, 0, 1),
        lambda: old.cleaner.drop_oldest(1),
    ):
        with pytest.raises(Fenced):
            work()
    assert in_progress.exists()
    with pytest.raises(Fenced):
        old.take_over(9, "again")
    assert young.subscriptions.all()[0].acked == young.batches.tail()
    assert old.batches.head() == middle  # reads are not fenced
    assert seal(young, 1).epoch == 9
    old.close()
    young.close()


def test_a_take_over_between_check_and_commit_fences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = open_log(tmp_path)
    real = old._sealer.check

    def slow(*args: object) -> object:
        checked = real(*args)
        open_log(tmp_path).close()
        return checked

    monkeypatch.setattr(old._sealer, "check", slow)
    with pytest.raises(Fenced):
        seal(old, 0)
    assert old.batches.head().n == 0
    old.close()


@pytest.mark.parametrize("damage", ["missing", "short", "link"])
def test_files_are_checked_before_the_commit(tmp_path: Path, damage: str) -> None:
    log = open_log(tmp_path)
    write_id, segments = written(log, [(0, rows(0, 0, 2))], inline=False)
    path = log.segments / str(segments[0].file)
    if damage == "short":
        os.truncate(path, segments[0].length - 1)
    else:
        path.rename(tmp_path / "moved")
        if damage == "link":
            path.symlink_to(tmp_path / "moved")
    with pytest.raises(SegmentCorrupt) as caught:
        log.seal(new(log, 0, write_id), segments)
    assert caught.value.fields["file"] == str(path)
    assert log.batches.head().n == 0
    assert log.batches.last_sealed("q") is None
    log.close()


def test_descriptions_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write_id, segments = written(log, [(1, rows(1, 0, 2))], inline=False)
    good = segments[0]
    batch = new(log, 0, write_id)
    for bad in (
        replace(good, partition=2),
        replace(good, partition=-1),
        replace(good, rows=1),
        replace(good, length=good.length - 8),
        replace(good, offset=-8),
        replace(good, file="../catalog.db"),
        replace(good, file=f"{new_write_id()}-0.seg"),
        replace(good, data=b"x"),
        replace(good, file=None),
        replace(good, file=None, data=b"x"),
    ):
        with pytest.raises(RemoteProtocolError):
            log.seal(batch, [bad])
    for wrong in (
        replace(batch, partitions=0),
        replace(batch, partitions=10**6),
        replace(batch, write_id="x"),
        replace(batch, end=True),
    ):
        with pytest.raises(RemoteProtocolError):
            log.seal(wrong, segments)
    assert log.seal(batch, segments).n == 1
    log.close()


def test_inline_bytes_are_checked(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write_id, segments = written(log, [(0, rows(0, 0, 2))])
    data = bytearray(segments[0].data or b"")
    data[-20] ^= 1
    with pytest.raises(SegmentCorrupt):
        log.seal(new(log, 0, write_id), [replace(segments[0], data=bytes(data))])
    log.close()


def test_many_inline_segments_move_to_one_file(tmp_path: Path) -> None:
    """Each task's bytes are few; together they would bloat the catalog."""
    log = open_log(tmp_path)
    write_id = new_write_id()
    segments = [
        info
        for task in range(4)
        for info in written(log, [(task % 2, rows(0, task * 1000, 1000))], write_id=write_id)[1]
    ]
    assert all(info.file is None for info in segments)
    end = log.seal(new(log, 0, write_id), segments)
    assert len(list(log.segments.iterdir())) == 1
    assert log.cleaner.sweep(set()) == 0
    reader = CatalogReader.open(log.directory, TOPIC)
    assert read(reader, log.batches.tail(), end, 1) == [(0, row) for row in [*range(1000, 2000), *range(3000, 4000)]]
    reader.close()
    log.close()


def test_pending_acknowledgements_travel_with_the_seal(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.subscriptions.subscribe("s")
    grant = log.subscriptions.grant("s", {})
    log.subscriptions.first_position("s", log.batches.tail())
    log.subscriptions.acknowledge("s", grant, seal(log, 0))
    seal(log, 1)
    other = TopicLog.open(log.directory, TOPIC, fsync=False)
    acked = other.subscriptions.all()[0].acked
    assert acked is not None
    assert acked.n == 1
    other.close()
    log.close()


def test_schemas_are_kept_once_and_the_newest_is_known(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.schemas.newest() is None
    one, two = log.schemas.add(b"one", "{}"), log.schemas.add(b"two", None)
    assert log.schemas.newest() == (two, b"two", None)
    assert log.schemas.add(b"one", "{}") == one != log.schemas.add(b"one", None)
    assert log.schemas.get(one) == (one, b"one", "{}")
    assert log.schemas.get(99) is None
    log.close()


def test_wall_clock_jumps_never_go_back_in_the_log(tmp_path: Path) -> None:
    """Publish times rise (K5), over clocks set back and take-overs."""
    times = iter([100.0, 1000.0, 50.0, 60.0, 2000.0, *range(3000, 3100)])
    log = open_log(tmp_path, wall=lambda: next(times))
    for batch_id in range(4):
        seal(log, batch_id)
    log.close()
    log = open_log(tmp_path, wall=lambda: 70.0)  # taken over, by a host whose clock is behind
    seal(log, 4)
    stamps = [row["sealed_ms"] for row in log._db.all("SELECT sealed_ms FROM batches ORDER BY n")]
    assert stamps == [1_000_000, 1_000_000, 1_000_000, 2_000_000, 2_000_000]
    log.close()


def test_a_foreign_or_damaged_catalog_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    catalog = log.directory / "catalog.db"
    with pytest.raises(SpoolError):
        TopicLog.open(log.directory, "another")
    with pytest.raises(SpoolError):
        CatalogReader.open(log.directory, "another")
    good = catalog.read_bytes()
    catalog.write_bytes(good[:60] + b"\x00\x00\x00\x63" + good[64:])  # user_version 99
    with pytest.raises(SpoolError) as caught:
        TopicLog.open(log.directory, TOPIC)
    assert caught.value.fields["file"] == str(catalog)
    catalog.write_bytes(b"junk" * 4096)
    with pytest.raises(SpoolError) as caught:
        TopicLog.open(log.directory, TOPIC)
    assert caught.value.fields["file"] == str(catalog)
    with pytest.raises(SpoolError):
        CatalogReader.open(log.directory, TOPIC)
    with pytest.raises(SpoolError):
        CatalogReader.open(tmp_path / "nothing", TOPIC)


def test_a_wiped_spool_is_another_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    for path in log.directory.glob("catalog.db*"):
        path.unlink()
    again = open_log(tmp_path)
    assert again.log_id != log.log_id
    assert again.batches.head() == Position(again.log_id, 0, 0)
    again.close()


def test_sweep_removes_only_orphans(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0, inline=False)
    kept = {path.name for path in log.segments.iterdir()}
    sealed_write_id = next(iter(kept)).split("-")[0]
    running, orphan = new_write_id(), new_write_id()
    for name in (f"{running}-0.seg", f"{orphan}-0.seg", f"{sealed_write_id}-loser.seg", "notes.txt"):
        (log.segments / name).write_bytes(b"x")
    assert log.cleaner.sweep({running}) == 2
    assert {path.name for path in log.segments.iterdir()} == kept | {f"{running}-0.seg", "notes.txt"}
    log.close()


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    log.close()
    with pytest.raises(SpoolError):
        log.batches.head()


def test_descriptors_do_not_leak(tmp_path: Path) -> None:
    gc.collect()  # files of earlier tests are not to end meanwhile
    before = len(os.listdir("/proc/self/fd"))
    for batch_id in range(20):
        log = open_log(tmp_path)
        seal(log, batch_id, inline=False)
        CatalogReader.open(log.directory, TOPIC).close()
        log.close()
    assert len(os.listdir("/proc/self/fd")) == before


def seal_noted(log: TopicLog, query: str, batch_id: int, note: bytes | None, *, rows_there: bool = True) -> None:
    write_id, segments = written(log, [(0, rows(0, batch_id, 1))] if rows_there else [])
    schema = log.schemas.add(b"schema", None)
    log.seal(NewBatch(query, batch_id, "run", write_id, schema, 2, "rr", note=note), segments)


def test_a_note_is_the_querys_until_its_next_batch(tmp_path: Path) -> None:
    """Also of a batch without rows; a catalog of format 10 has none, and can be read as it is."""
    log = open_log(tmp_path)
    seal_noted(log, "q", 0, b"first")
    seal_noted(log, "other", 0, None)
    log.close()
    database = sqlite3.connect(log.directory / "catalog.db")
    with database:
        assert database.execute("SELECT note FROM queries ORDER BY query_id").fetchall() == [(None,), (b"first",)]
        database.execute("ALTER TABLE queries DROP COLUMN note")
        database.execute("PRAGMA user_version = 10")
    database.close()
    assert read_status(log.directory, TOPIC).head.n == 2
    log = open_log(tmp_path)
    last = log.batches.last_sealed("q")
    assert last is not None
    assert (last.batch_id, last.note) == (0, None)
    seal_noted(log, "q", 1, b"\x00second", rows_there=False)
    last = log.batches.last_sealed("q")
    assert last is not None
    assert (last.batch_id, last.n, last.note) == (1, 2, b"\x00second")
