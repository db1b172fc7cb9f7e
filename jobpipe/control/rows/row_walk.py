"""Walks over the rows of a topic in either direction, record batch by record batch, and fetches no more than it must.

Rows are in the order of :class:`RowCursor`: batch after batch, within one by partition. What is small is fetched as
whole batches, many at once. A batch that is large is read partition by partition, from the record batch on that is
wanted; backwards that is a few record batches at a time, since a stream only goes forwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

import pyarrow as pa

from jobpipe.control.rows.rows_query import RowCursor
from jobpipe.operations.range_messages import PlannedRange
from jobpipe.operations.reader_operations import RangeReply
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary
from jobpipe.subscribing.fetching.part_fetch import Fetched
from jobpipe.subscribing.topic_reader import TopicReader

SMALL_ROWS = 5000  # of batches that are fetched at once
SMALL_BYTES = 8 << 20
MOST_LINKS = 8  # at once: several batches take one for each partition
GROUP = 4  # record batches of a large partition that are held at once when it is read backwards


@dataclass(frozen=True)
class RowPiece:
    """A record batch, or rows of one that follow each other.

    Attributes:
        cursor: before its first row.
        number: of its first row within its partition of its batch.
        published: seconds since 1970.
    """

    batch: pa.RecordBatch
    cursor: RowCursor
    number: int
    published: float

    def cut(self, first: int, stop: int) -> RowPiece:
        """Return the rows from ``first`` up to ``stop``, as a slice."""
        return RowPiece(self.batch.slice(first, stop - first), self.at(first), self.number + first, self.published)

    def at(self, row: int) -> RowCursor:
        """Return the place before a row."""
        return replace(self.cursor, row=self.cursor.row + row)

    @property
    def is_in(self) -> RowCursor:
        """The begin of the record batch that it is of."""
        return replace(self.cursor, row=0)


class RowWalk:
    """Walks between two places of a topic, which ``reader`` reads, while its caller holds a lease."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader

    def position(self, offset: int) -> Position:
        """Return the place before a batch.

        Raises:
            DataLoss: it was removed, or is not there yet.
        """
        return self._reader.bounds(Boundary("offset", offset)).start

    def forwards(self, start: Position, end: Position, cursor: RowCursor | None) -> Generator[RowPiece, None, None]:
        """Yield what lies from ``start`` to ``end``, without what comes before ``cursor``, which is in the first batch.

        Raises:
            DataLoss: rows were removed, or are lost with a host server.
        """
        for stretch in self._stretches(start, end, backwards=False):
            first = cursor if cursor is not None and stretch.first == cursor.offset else None
            for piece in stretch.forwards(first):
                if first is None or piece.is_in > first:
                    yield piece
                elif piece.is_in == replace(first, row=0) and first.row < piece.batch.num_rows:
                    yield piece.cut(first.row, piece.batch.num_rows)

    def backwards(self, start: Position, end: Position, cursor: RowCursor | None) -> Generator[RowPiece, None, None]:
        """Yield the same from its end to its begin, and nothing from ``cursor`` on, which is in the last batch."""
        for stretch in self._stretches(start, end, backwards=True):
            last = cursor if cursor is not None and stretch.last == cursor.offset else None
            for piece in stretch.backwards(last):
                if last is None or piece.is_in < replace(last, row=0):
                    yield piece
                elif piece.is_in == replace(last, row=0) and last.row:
                    yield piece.cut(0, min(last.row, piece.batch.num_rows))

    def _stretches(self, start: Position, end: Position, *, backwards: bool) -> Iterator[_Stretch]:
        if start.n >= end.n:
            return
        reply = self._reader.ranges(start, end)
        rows, size = sum(plan.rows for plan in reply.plans), sum(plan.bytes for plan in reply.plans)
        if not rows:
            return
        is_small = rows <= SMALL_ROWS and size <= SMALL_BYTES
        is_together = is_small and max(plan.partitions for plan in reply.plans) <= MOST_LINKS
        if is_together or end.n - start.n == 1:
            yield _Stretch(self._reader, reply, is_small)
        else:
            middle = self.position((start.n + end.n) // 2)
            halves = [(start, middle), (middle, end)]
            for first, last in reversed(halves) if backwards else halves:
                yield from self._stretches(first, last, backwards=backwards)


class _Stretch:
    """Some whole batches: a few small ones, or one."""

    def __init__(self, reader: TopicReader, reply: RangeReply, is_small: bool) -> None:
        self._reader = reader
        self._plans: tuple[PlannedRange, ...] = reply.plans
        self._data = reply.data
        self._is_small = is_small
        self.first = reply.plans[0].start.n
        self.last = reply.plans[-1].end.n - 1

    def forwards(self, cursor: RowCursor | None) -> Iterator[RowPiece]:
        if self._is_small:
            yield from _numbered(chain.from_iterable(self._reader.fetch_plan(plan, self._data) for plan in self._plans))
            return
        (plan,) = self._plans
        at = cursor or RowCursor(plan.start.n)
        for partition in range(at.partition, plan.partitions):
            skip = at.record_batch if partition == at.partition else 0
            yield from _numbered(self._reader.fetch_partition(plan, self._data, partition, skip), skip)

    def backwards(self, cursor: RowCursor | None) -> Iterator[RowPiece]:
        if self._is_small:
            yield from reversed(list(self.forwards(None)))
            return
        (plan,) = self._plans
        last = plan.partitions - 1 if cursor is None else min(cursor.partition, plan.partitions - 1)
        for partition in range(last, -1, -1):
            stop = self._record_batches(plan, partition)
            if cursor is not None and partition == cursor.partition:
                stop = min(stop, cursor.record_batch + 1)
            while stop > 0:
                first = max(0, stop - GROUP)
                with contextlib.closing(_part(self._reader, plan, self._data, partition, first)) as fetched:
                    yield from reversed(list(_numbered(islice(fetched, stop - first), first)))
                stop = first

    def _record_batches(self, plan: PlannedRange, partition: int) -> int:
        with contextlib.closing(_part(self._reader, plan, self._data, partition, 0)) as fetched:
            first = next(fetched, None)
            return 0 if first is None else first.header.record_batches


def _part(
    reader: TopicReader, plan: PlannedRange, data: str, partition: int, skip: int
) -> Generator[Fetched, None, None]:
    yield from reader.fetch_partition(plan, data, partition, skip)


def _numbered(fetched: Iterator[Fetched], first: int = 0) -> Iterator[RowPiece]:
    """Number the record batches of each partition of each batch."""
    before, number = None, first
    for each in fetched:
        here = (each.header.n, each.header.partition)
        number = number + 1 if here == before else first if before is None else 0
        before = here
        cursor = RowCursor(*here, record_batch=number)
        yield RowPiece(each.batch, cursor, each.row, each.header.sealed_ms / 1000)
