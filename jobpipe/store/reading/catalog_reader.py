"""The catalog as the data process reads it: which bytes make up a partition of a range."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jobpipe.errors import SegmentCorrupt
from jobpipe.store.catalog.batches import Batches, LogDivision
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.position import Position, prefix
from jobpipe.store.spool.segment_index import Chunk, SegmentIndex
from jobpipe.store.spool.spool_files import CATALOG, SEGMENTS, check_length, check_topic

# Batches drive the join, so that a page costs the same for any number of partitions.
_PAGE = """
SELECT b.n, b.epoch, b.sealed_ms, s.ordinal, s.rows, s.record_batches, s.file, s.offset, s.length, s.host{more}
FROM batches b CROSS JOIN segments s ON s.n = b.n AND s.partition = ?
WHERE b.n >= ? AND b.n < ? AND NOT (b.n = ? AND s.ordinal < ?) ORDER BY b.n, s.ordinal LIMIT ?
"""
_SKIP_PAGE = 1000  # segments passed over in one call: 5 ms
_SPAN = 4096  # batches looked into in one call: most may have nothing of the partition
_MOST_RECORD_BATCHES = 4096  # a piece; its chunks stand in one message where a host server has its bytes


class PageStart(NamedTuple):
    """Where the next page begins: segment ``ordinal`` of batch ``n``, at its record batch ``first``.

    ``before`` and ``row`` count the record batches and rows of the partition in that batch which lie before; ``skip``
    those that are still to be passed over.
    """

    n: int
    ordinal: int
    first: int
    before: int
    row: int
    skip: int = 0


@dataclass(frozen=True)
class SegmentRange:
    """A segment, or part of it, that lies inside a range.

    Attributes:
        n, partition: The batch and the partition.
        partitions, schema_id: Of the batch.
        sealed_ms: Wall clock of the seal, milliseconds since 1970; never falls within a topic.
        epoch, publisher: Who sealed the batch.
        before: The epoch of a flow's cursor before the batch, and inside it; see :mod:`jobpipe.store.catalog.recovery`.
        row0: Number of the first row within its partition of that batch.
        rows, record_batches: In this piece.
        path, offset: The file and where the *segment* starts in it; None and 0 when the bytes are in ``data``. A host
            server's file has only its name here.
        host: Id of the host server that keeps the file, None for the spool.
        data: The whole segment, if it has no file.
        chunks: The schema's and those of the record batches; their offsets count from the segment's start.
    """

    n: int
    partition: int
    partitions: int
    schema_id: int | None
    sealed_ms: int
    epoch: int
    publisher: str
    row0: int
    rows: int
    record_batches: int
    path: Path | None
    offset: int
    data: bytes | None
    chunks: list[Chunk]
    host: str | None = None
    before: int = 0


class CatalogReader:
    """A read-only view of a catalog that another process writes; for one thread at a time. Sees each seal at once."""

    def __init__(self, database: Database, directory: Path, topic: str, batches: Batches | None = None) -> None:
        self.topic = topic
        self.directory = directory
        self._db = database
        self.batches = batches or Batches(database, topic)
        self._publishers: dict[int, str] = {}
        self.log_id = self.batches.log_id

    @classmethod
    def open(cls, directory: Path, topic: str) -> CatalogReader:
        """Open the catalog in ``directory`` (``<spool_dir>/<topic>``).

        Raises:
            SpoolError: there is none, or it is damaged, of another format or topic.
        """
        check_topic(topic)
        database = Database.open_to_read(directory / CATALOG, topic)
        try:
            return cls(database, directory, topic)
        except BaseException:
            database.close()
            raise

    @property
    def epoch(self) -> int:
        """The topic's epoch now."""
        return int(self._db.value("SELECT epoch FROM meta"))

    def segments(
        self,
        start: Position,
        end: Position,
        partition: int,
        *,
        skip: int = 0,
        limit: int = 64,
        cursor: PageStart | None = None,
    ) -> tuple[list[SegmentRange], PageStart | None]:
        """Return a page of what ``partition`` has between two positions, in order, and the cursor of the next page.

        Args:
            skip: Record batches of this partition in this range that were read already; ignored with a cursor.
            limit: Segments a page. The last page has no cursor. A page with one may be empty: a call takes some
                milliseconds, however far away what is wanted lies.

        Raises:
            DataLoss: a position does not fit, or some of the page was removed.
            SegmentCorrupt: a committed file is missing or too short: ``fields`` have topic, offset, partition, file.
        """
        with self._db.read():
            self.batches.check(end)
            if cursor is None:
                self.batches.check(start)
                cursor = PageStart(start.n, 0, 0, 0, 0, skip + self._share(start, partition))
            elif cursor.n < self.batches.tail_n():
                raise self.batches.loss(self.batches.at(cursor.n), "removed")
            stop = end.n + (1 if end.r > 0 else 0)
            if cursor.skip:
                cursor = self._pass_over(cursor, partition, stop)
                if cursor.n >= stop:
                    return [], None
                if cursor.skip:
                    return [], cursor
            # The place in the last batch up to which the range goes; no batch has it when `end` lies between two.
            last = self._share(end, partition)
            reach = min(stop, cursor.n + _SPAN)
            rows = self._page(partition, cursor, reach, limit + 1, ", s.idx, s.data")
            pieces: list[SegmentRange] = []
            shape: LogDivision | None = None
            for row in rows[:limit]:
                if row["n"] != cursor.n:
                    cursor = PageStart(row["n"], row["ordinal"], 0, 0, 0)
                elif row["ordinal"] != cursor.ordinal:
                    cursor = cursor._replace(ordinal=row["ordinal"])
                count = row["record_batches"] - cursor.first
                if row["n"] == end.n:
                    count = min(count, last - cursor.before)
                if count > 0 and (shape is None or (shape.next_n is not None and shape.next_n <= row["n"])):
                    shape = self.batches.shape(row["n"])
                while count > 0:
                    piece = self._piece(row, shape, partition, cursor, count)
                    pieces.append(piece)
                    count -= piece.record_batches
                    cursor = cursor._replace(
                        first=cursor.first + piece.record_batches,
                        before=cursor.before + piece.record_batches,
                        row=cursor.row + piece.rows,
                    )
                cursor = PageStart(row["n"], row["ordinal"] + 1, 0, cursor.before, cursor.row)
        # Not before: a disk that hangs must not keep the transaction open, since the write-ahead log would only grow.
        for piece in pieces:
            self._check_file(piece)
        if len(rows) > limit:
            return pieces, cursor
        return pieces, (PageStart(reach, 0, 0, 0, 0) if reach < stop else None)

    def check_kept(self, n: int) -> None:
        """Check that batch ``n`` was not removed since it was looked up.

        Raises:
            DataLoss: it was.
        """
        if n < self.batches.tail_n():
            raise self.batches.loss(self.batches.at(n), "removed")

    def close(self) -> None:
        """Close the catalog; idempotent."""
        self._db.close()

    def _page(self, partition: int, cursor: PageStart, stop: int, limit: int, more: str) -> Sequence[sqlite3.Row]:
        return self._db.all(_PAGE.format(more=more), partition, cursor.n, stop, cursor.n, cursor.ordinal, limit)

    def _share(self, position: Position, partition: int) -> int:
        """The record batches of the partition that lie before ``position`` inside its batch."""
        if position.r == 0:
            return 0
        counts = self.batches.counts(position.n)
        return prefix(counts, position.r)[partition] if partition < len(counts) else 0

    def _pass_over(self, cursor: PageStart, partition: int, stop: int) -> PageStart:
        """Go on towards the first record batch that is wanted, by one page."""
        reach = min(stop, cursor.n + _SPAN)
        rows = self._page(partition, cursor, reach, _SKIP_PAGE, "")
        for row in rows:
            if not cursor.skip:
                return cursor
            if row["n"] != cursor.n:
                cursor = PageStart(row["n"], 0, 0, 0, 0, cursor.skip)
            count = row["record_batches"]
            if cursor.skip < count:
                return self._inside(cursor, row, partition)
            before, passed = cursor.before + count, cursor.row + row["rows"]
            cursor = PageStart(row["n"], row["ordinal"] + 1, 0, before, passed, cursor.skip - count)
        return cursor if len(rows) == _SKIP_PAGE else PageStart(reach, 0, 0, 0, 0, cursor.skip)

    def _inside(self, cursor: PageStart, row: sqlite3.Row, partition: int) -> PageStart:
        """Return the place inside a segment where what is to be passed over ends."""
        first = cursor.skip
        packed = self._db.value(
            "SELECT idx FROM segments WHERE n = ? AND partition = ? AND ordinal = ?",
            row["n"],
            partition,
            row["ordinal"],
        )
        before = sum(rows for rows, _ in SegmentIndex.unpack(packed).batches[:first])
        return PageStart(row["n"], row["ordinal"], first, cursor.before + first, cursor.row + before)

    def _piece(
        self, row: sqlite3.Row, shape: LogDivision | None, partition: int, cursor: PageStart, count: int
    ) -> SegmentRange:
        index = SegmentIndex.unpack(row["idx"])
        count = min(count, _MOST_RECORD_BATCHES)
        path = None if row["file"] is None else self.directory / SEGMENTS / row["file"]
        if row["host"] is not None:
            path = Path(row["file"])
        elif path is None and len(row["data"]) != row["length"]:
            raise self._corrupt(row["n"], partition, None, f"the catalog has {len(row['data'])} bytes of it")
        return SegmentRange(
            n=row["n"],
            partition=partition,
            partitions=0 if shape is None else shape.partitions,
            schema_id=None if shape is None else shape.schema_id,
            sealed_ms=row["sealed_ms"],
            epoch=row["epoch"],
            publisher=self._publisher(row["epoch"]),
            row0=cursor.row,
            rows=sum(rows for rows, _ in index.batches[cursor.first : cursor.first + count]),
            record_batches=count,
            path=path,
            offset=row["offset"],
            data=row["data"],
            chunks=index.chunks(cursor.first, cursor.first + count),
            host=row["host"],
            before=self.batches.epoch_before(row["n"] + (1 if self.batches.sealed_again(row["n"]) else 0)),
        )

    def _check_file(self, piece: SegmentRange) -> None:
        if piece.path is None or piece.host is not None:
            return
        try:
            check_length(piece.path, piece.offset + max(chunk.offset + chunk.length for chunk in piece.chunks))
        except SegmentCorrupt as error:
            self.check_kept(piece.n)
            raise self._corrupt(piece.n, piece.partition, piece.path, error.message) from error

    def _corrupt(self, n: int, partition: int, path: Path | None, why: str) -> SegmentCorrupt:
        return SegmentCorrupt(
            f"topic {self.topic!r}, offset {n}, partition {partition}: {why}",
            topic=self.topic,
            offset=n,
            partition=partition,
            file=None if path is None else str(path),
        )

    def _publisher(self, epoch: int) -> str:
        if epoch not in self._publishers:
            found = self._db.value("SELECT publisher FROM epochs WHERE epoch = ?", epoch)
            self._publishers[epoch] = "" if found is None else str(found)
        return self._publishers[epoch]
