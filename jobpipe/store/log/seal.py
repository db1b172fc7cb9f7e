"""Sealing: a batch is checked and inserted; the transaction of ``TopicLog.seal`` makes it visible."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from jobpipe.errors import CheckpointTooOld, DuplicateCall, RemoteProtocolError, SegmentCorrupt
from jobpipe.store.catalog.batches import Batches, LastSeal
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.catalog.position import Position
from jobpipe.store.catalog.recovery import Recovery
from jobpipe.store.log.host_segments import HostSegments
from jobpipe.store.spool.segment_index import INLINE_MAX, SegmentIndex, SegmentInfo
from jobpipe.store.spool.spool_files import (
    FileSegmentSink,
    check_length,
    file_name,
    new_write_id,
    sync_directory,
    write_id_of,
)

MAX_PARTITIONS = 65_536


@dataclass(frozen=True)
class NewBatch:
    """A batch to be sealed.

    Attributes:
        query_id: The dedupe key, with ``batch_id``; empty for a batch that no query replays, such as an end mark.
        run_id: Spark's run id. A second call with another ``write_id`` in one run is a user's mistake.
        write_id: The id of the sink's call, which is in the names of all files of the batch.
        partitions, partitioner, schema_id: The shape; ``partitioner`` names how rows were divided.
        end: An end mark, without rows.
        note: Kept as the query's until its next batch; None for nothing.
    """

    query_id: str
    batch_id: int
    run_id: str
    write_id: str
    schema_id: int | None
    partitions: int
    partitioner: str
    end: bool = False
    note: bytes | None = None

    @classmethod
    def end_mark(cls, partitions: int) -> NewBatch:
        """Return the batch that says that nothing follows."""
        return cls("", -1, "", new_write_id(), None, partitions, "", end=True)


class BatchSealer:
    """Checks what tasks wrote and enters it into the catalog."""

    def __init__(
        self,
        database: Database,
        batches: Batches,
        recovery: Recovery,
        hosts: HostSegments,
        clock: LogClock,
        segments: Path,
        *,
        fsync: bool,
    ) -> None:
        self._db = database
        self._batches = batches
        self._recovery = recovery
        self._hosts = hosts
        self._clock = clock
        self._segments = segments
        self._fsync = fsync

    def replayed(self, batch: NewBatch) -> Position | None:
        """Return the position after the batch if it is sealed already.

        A request with the same write id repeats a call whose answer was lost.

        Raises:
            CheckpointTooOld: a later batch of the query is sealed.
            DuplicateCall: this run of the query sealed it by another call.
        """
        if not batch.query_id:
            n = self._db.value("SELECT n FROM batches WHERE write_id = ?", batch.write_id)
            return None if n is None else self._batches.at(int(n) + 1)
        last = self._batches.last_sealed(batch.query_id)
        if last is None or batch.batch_id > last.batch_id:
            return None
        topic = self._batches.topic
        if batch.batch_id < last.batch_id:
            raise CheckpointTooOld(
                f"topic {topic!r}: query {batch.query_id} replays batch {batch.batch_id}, but batch {last.batch_id} "
                "is sealed already: its checkpoint is an old copy",
                topic=topic,
                query_id=batch.query_id,
                batch_id=batch.batch_id,
                last_batch_id=last.batch_id,
            )
        if batch.run_id == last.run_id and batch.write_id != last.write_id:
            raise DuplicateCall(
                f"topic {topic!r}: the sink was called twice for batch {batch.batch_id} of query {batch.query_id}",
                topic=topic,
                query_id=batch.query_id,
                batch_id=batch.batch_id,
            )
        return self._batches.at(last.n)

    def check(self, batch: NewBatch, segments: list[SegmentInfo]) -> list[SegmentInfo]:
        """Check the segments against what is on disk; return them, inline ones moved to a file if too large in sum.

        With fsync on, every byte that the batch needs is durable afterwards, file names included: the writers have
        forced the files, this forces the directory, and the catalog's commit comes last (:meth:`TopicLog.seal`).

        Raises:
            SegmentCorrupt: a file is missing or short, inline bytes do not match their checksums.
            RemoteProtocolError: the description contradicts itself.
            SpoolError: the disk fails.
        """
        if (
            not 1 <= batch.partitions <= MAX_PARTITIONS
            or (batch.end and segments)
            or write_id_of(f"{batch.write_id}-0.seg") is None
        ):
            raise RemoteProtocolError("a batch's description is wrong", batch=repr(batch)[:500])
        lengths: dict[str, int] = {}
        inline = 0
        for segment in segments:
            self._check_one(batch, segment)
            if segment.file is None:
                inline += segment.length
            elif segment.host is None:  # else its host server has checked it, and made it durable
                lengths[segment.file] = max(lengths.get(segment.file, 0), segment.offset + segment.length)
        for name, needed in lengths.items():
            check_length(self._segments / name, needed)
        if inline > INLINE_MAX:
            segments = self._spill(batch, segments)
        if self._fsync and any(segment.file is not None and segment.host is None for segment in segments):
            sync_directory(self._segments)
        return segments

    def insert(self, batch: NewBatch, segments: list[SegmentInfo]) -> Position:
        """Enter the batch, inside a transaction; return the position after it.

        A batch without rows takes no offset, except an end mark, or a batch that is sealed again after a loss.
        """
        db = self._db
        waited_for = self._recovery.decide(batch.query_id, batch.batch_id)
        if waited_for is not None and waited_for.end_mark and not batch.end:
            # the end mark that was being sealed when the spool was lost comes first
            self.insert(NewBatch.end_mark(batch.partitions), [])
        meta = db.one("SELECT * FROM meta")
        assert meta is not None  # noqa: S101 - it has one row
        n = int(meta["next_n"])
        rows, size = sum(segment.rows for segment in segments), sum(segment.length for segment in segments)
        # A batch that is sealed again after a loss takes its old offset, even if it has no rows now.
        visible = rows > 0 or batch.end or self._batches.sealed_again(n)
        if visible:
            cum_rows, cum_bytes = meta["total_rows"] + rows, meta["total_bytes"] + size
            sealed_ms = max(int(self._clock.wall() * 1000), int(meta["sealed_ms"]))
            self._insert_shape(batch, n, after_end=bool(meta["ended"]))
            db.execute(
                "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                *(n, self._db.epoch, batch.query_id, batch.batch_id, batch.run_id, batch.write_id, rows, size),
                *(cum_rows, cum_bytes, sealed_ms, self._clock.uptime, int(batch.end)),
            )
            self._insert_segments(n, segments)
            db.execute(
                "UPDATE meta SET next_n = ?, total_rows = ?, total_bytes = ?, sealed_ms = ?, ended = ?, "
                "schema_id = coalesce(?, schema_id)",
                *(n + 1, cum_rows, cum_bytes, sealed_ms, int(batch.end), batch.schema_id),
            )
            n += 1
        if batch.query_id:
            self._batches.note_sealed(
                batch.query_id, LastSeal(batch.batch_id, n, batch.run_id, batch.write_id, batch.note)
            )
        return Position(self._batches.log_id, self._db.epoch, n) if visible else self._batches.at(n)

    def _check_one(self, batch: NewBatch, segment: SegmentInfo) -> None:
        index = SegmentIndex.unpack(segment.index)
        valid = (
            0 <= segment.partition < batch.partitions
            and segment.rows == index.rows > 0
            and segment.length == index.length
            and segment.offset >= 0
        )
        if segment.file is None:
            valid = valid and segment.data is not None and len(segment.data) == segment.length
        else:
            valid = valid and segment.data is None and write_id_of(segment.file) == batch.write_id
        if not valid:
            described = json.dumps(segment.to_json())[:500]
            raise RemoteProtocolError("a segment's description is wrong", segment=described)
        if segment.data is not None:
            view = memoryview(segment.data)
            for chunk in index.chunks(0, len(index.batches)):
                if zlib.crc32(view[chunk.offset : chunk.offset + chunk.length]) != chunk.crc:
                    raise SegmentCorrupt(
                        f"topic {self._batches.topic!r}: inline bytes of partition {segment.partition} "
                        "do not match their checksum",
                        topic=self._batches.topic,
                        partition=segment.partition,
                    )

    def _spill(self, batch: NewBatch, segments: list[SegmentInfo]) -> list[SegmentInfo]:
        """Move inline bytes of many tasks to one file, so that the catalog stays small."""
        name = file_name(batch.write_id, f"seal{new_write_id()}")
        sink = FileSegmentSink(self._segments / name)
        moved, offset = [], 0
        try:
            for segment in segments:
                if segment.data is None:
                    moved.append(segment)
                    continue
                sink.write(segment.data)
                moved.append(replace(segment, file=name, offset=offset, data=None))
                offset += segment.length
            sink.finish(fsync=self._fsync)
        except BaseException:
            sink.abort()
            raise
        return moved

    def _insert_shape(self, batch: NewBatch, n: int, *, after_end: bool) -> None:
        known = self._batches.shape(n)
        shape = (batch.partitions, batch.partitioner, batch.schema_id)
        if known is not None and not after_end:
            same = (known.partitions, known.partitioner, known.schema_id) == shape
            if same or batch.end:
                return
        self._db.execute("INSERT INTO shapes VALUES (?, ?, ?, ?)", n, *shape)

    def _insert_segments(self, n: int, segments: list[SegmentInfo]) -> None:
        ordinals: dict[int, int] = {}
        rows = []
        for segment in segments:
            ordinal = ordinals.get(segment.partition, 0)
            ordinals[segment.partition] = ordinal + 1
            count = len(SegmentIndex.unpack(segment.index).batches)
            place = (n, segment.partition, ordinal, segment.file, segment.offset)
            rows.append((*place, segment.length, segment.rows, count, segment.index, segment.data, segment.host))
        self._db.execute_many("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._hosts.note(n)
