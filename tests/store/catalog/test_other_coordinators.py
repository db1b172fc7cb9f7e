"""What a coordinator does, or a late call, after another one or a later call has gone on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jobpipe.errors import Fenced, SpoolError
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.log import host_segments
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.spool.segment_index import SegmentInfo
from jobpipe.store.spool.spool_files import holds_instance, new_write_id
from tests.store.build import SCHEMA, TOPIC, open_log, rows, seal, written


def late(log: TopicLog, *, inline: bool = False, host: str | None = None) -> tuple[NewBatch, list[SegmentInfo]]:
    """Return batch 0, written and not sealed."""
    write_id, segments = written(log, [(0, rows(0, 0, 5))], inline=inline)
    if host is not None:
        segments = [replace(segment, host=host) for segment in segments]
    schema_id = log.schemas.add(SCHEMA.serialize().to_pybytes(), None)
    return NewBatch("q", 0, "run", write_id, schema_id, 2, "rr"), segments


@pytest.mark.parametrize("host", [None, "host-1"])
def test_a_late_seal_of_files_that_tidying_may_have_removed(tmp_path: Path, host: str | None) -> None:
    """R9: refused where a later call has begun; a call whose answer was lost is answered, whatever has begun."""
    log = open_log(tmp_path)
    batch, segments = late(log, host=host)
    later = new_write_id()
    assert log.cleaner.orphans([str(segments[0].file)], {later}) == [
        segments[0].file
    ]  # the list goes to the host server
    with pytest.raises(SpoolError, match="another batch has begun since"):
        log.seal(batch, segments, writing={later})
    assert log.batches.head().n == 0
    position = log.seal(batch, segments, writing={batch.write_id})
    assert log.seal(batch, segments, writing={later}) == position
    log.close()


def test_a_late_seal_that_brings_its_bytes_along(tmp_path: Path) -> None:
    """R9: nothing of it can have been removed; an end mark has no files either."""
    log = open_log(tmp_path)
    batch, segments = late(log, inline=True)
    assert log.seal(batch, segments, writing=set()).n == 1
    assert log.seal(NewBatch.end_mark(2), [], writing=set()).n == 2
    log.close()


def test_a_log_that_another_one_has_begun_is_not_restored(tmp_path: Path) -> None:
    """R1's sibling: a coordinator that was slow to read the recovery point must not wipe what was sealed meanwhile."""
    former = open_log(tmp_path / "former")
    seal(former, 0)
    point = former.recovery.point()
    former.close()
    old = TopicLog.open(tmp_path / TOPIC, TOPIC, fsync=False)
    assert old.is_new
    new = open_log(tmp_path)
    seal(new, 0)
    seal(new, 1)
    with pytest.raises(Fenced):
        old.restore(point)
    assert (new.batches.head().n, new.batches.last_sealed("q").batch_id) == (2, 1)
    assert seal(new, 2).n == 3
    old.close()
    new.close()


def test_a_coordinator_that_was_replaced_leaves_the_mark_of_the_next(tmp_path: Path) -> None:
    """R1's sibling: tasks of the new one go on writing straight into the spool."""
    old = open_log(tmp_path)
    old.mark("old")
    new = open_log(tmp_path)
    new.mark("new")
    with pytest.raises(Fenced):
        old.mark("old")
    assert holds_instance(new.directory, "new")
    old.close()
    new.close()


def test_opening_a_catalog_drops_no_lock_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1's sibling: a descriptor that is opened and closed beside SQLite's would drop them all."""
    monkeypatch.setattr("jobpipe.store.catalog.catalog_file._BUSY_SECONDS", 0.0)
    log = open_log(tmp_path / "shared")
    locks = Path("/proc/locks")
    inode = f":{log._db.path.stat().st_ino} "

    def held() -> int:
        return sum(inode in line for line in locks.read_text().splitlines())

    with log._db.write():
        before = held()
        with pytest.raises(SpoolError):
            Database.create_or_open(tmp_path / "shared" / TOPIC / "catalog.db", "another", fsync=False, shared=True)
        assert held() >= before > 0
    log.close()


@pytest.mark.parametrize("page", [1, 2, 3, 100])
def test_all_that_lost_hosts_kept_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """R15: however much it is; 10,000 rows were the end of the list, in silence."""
    monkeypatch.setattr(host_segments, "PAGE", page)
    log = open_log(tmp_path)
    for batch_id in range(7):
        write_id, segments = written(log, [(0, rows(0, 0, 5)), (1, rows(1, 0, 5))], inline=False)
        kept = [replace(segment, host=f"host-{segment.partition}") for segment in segments]
        schema_id = log.schemas.add(SCHEMA.serialize().to_pybytes(), None)
        log.seal(NewBatch("q", batch_id, "run", write_id, schema_id, 2, "rr"), kept)
    both = ("host-0", "host-1")
    assert [(lost.n, lost.hosts) for lost in log.hosts.lost(1, 6, both)] == [(n, both) for n in range(1, 6)]
    assert [(lost.n, lost.hosts) for lost in log.hosts.lost(0, 9, {"host-1"})] == [(n, ("host-1",)) for n in range(7)]
    log.close()
