"""Splits a planned range into pieces that are read side by side: by limits of rows, or into so many partitions.

A position counts record batches evenly over all partitions, so one between two record batches cuts every partition at
about the same place: a piece has one input partition for each partition that has rows in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from jobpipe.errors import ConfigError, RemoteProtocolError
from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.position import Position

MOST_INPUT_PARTITIONS = 100_000  # of one range: about 11 MB on the wire, and more than Spark's driver likes
_PAGE_SEGMENTS = 4096  # looked up at once: 20 ms


@dataclass(frozen=True)
class RangePiece:
    """A piece of a range; ``partitions`` are those that have rows in it, of the wanted ones, from 0 and rising."""

    start: Position
    end: Position
    partitions: tuple[int, ...]


class RangeSplitter:
    """Cuts one range, page by page: others want the log's thread meanwhile, and a range may have 100,000 batches.

    The pieces follow each other, and none is without rows. A batch that was sealed again after the loss of its spool is
    not cut inside: a position there would not tell of which copy it is.

    Args:
        batches: the log.
        read: a transaction, in which one state of the log is seen.
        start, end: of one plan, so the partitions do not change in between.
        wanted: the partitions that are read; None for all. Others do not count.
        max_rows: No partition has more rows in a piece, unless a single record batch has.
        at_least: Make so many input partitions, of about equally many rows, if there are so many record batches.

    Raises:
        DataLoss: ``start`` or ``end`` does not fit.
        RemoteProtocolError: ``end`` lies before ``start``.
    """

    def __init__(
        self,
        batches: Batches,
        read: Callable[[], AbstractContextManager[None]],
        start: Position,
        end: Position,
        *,
        wanted: Collection[int] | None = None,
        max_rows: int | None = None,
        at_least: int = 1,
    ) -> None:
        self._batches = batches
        self._read = read
        self._start = start
        self._end = end
        self._wanted = None if wanted is None else frozenset(wanted)
        self._stop_n = end.n + (1 if end.r else 0)
        with read():
            batches.check(start)
            batches.check(end)
            shape = batches.shape(start.n)
            self._again = batches.sealed_again_n()
        if end.place < start.place:
            raise RemoteProtocolError("a range ends before it starts", start=start.to_json(), end=end.to_json())
        self._page = max(_PAGE_SEGMENTS // (shape.partitions if shape else 1), 1)
        self._builder = _PieceBuilder(batches.topic, start.place, max_rows, at_least)
        self._counts = at_least > 1  # the first time through; then the same pages are cut
        self._next_n = start.n
        self._places: list[tuple[tuple[int, int] | None, tuple[int, ...]]] | None = None  # where each piece ends
        self._made: list[RangePiece] = []
        if not self._counts:
            self._builder.begin()

    def step(self) -> list[RangePiece] | None:
        """Go on by one page; return the pieces once there are all, None before.

        Raises:
            DataLoss: the range was removed meanwhile.
            ConfigError: ``max_rows`` or ``at_least`` leads to more than 100,000 input partitions.
        """
        with self._read():
            if self._next_n < self._stop_n:
                first, self._next_n = self._next_n, min(self._next_n + self._page, self._stop_n)
                for batch in self._found(first, self._next_n):
                    if self._counts:
                        self._builder.expect(batch)
                    elif not self._builder.take_whole(batch):
                        self._builder.take_parts(batch)
                return None
            if self._counts:
                self._counts, self._next_n = False, self._start.n
                self._builder.begin()
                return None
            if self._places is None:
                self._places = self._builder.finish()
            for place, partitions in self._places[len(self._made) : len(self._made) + _PAGE_SEGMENTS]:
                here = self._made[-1].end if self._made else self._start
                there = self._end if place is None else self._batches.at(*place)
                self._made.append(RangePiece(here, there, partitions))
            if len(self._made) < len(self._places):
                return None
            self._batches.check(self._start)  # else a page may have been empty because it was removed
            return self._made

    def _found(self, first_n: int, stop_n: int) -> Iterator[_BatchInRange]:
        """Yield the batches that have rows of wanted partitions inside the range."""
        for n, sizes in self._batches.sizes(first_n, stop_n):
            first = self._start.r if n == self._start.n else 0
            last = self._end.r if n == self._end.n else None
            parts: Iterable[tuple[int, int]] = _in_order(self._batches, n, sizes)
            if first or last is not None:  # an end of the range lies inside this batch
                parts = list(parts)[first:last]
                sizes = _summed(parts)
            keep = sizes if self._wanted is None else {k: size for k, size in sizes.items() if k in self._wanted}
            if keep and n == self._again:
                yield _BatchInRange(n, 0, {k: (rows, 1) for k, (rows, _) in keep.items()}, None)
            elif keep:
                yield _BatchInRange(n, first, keep, parts)


@dataclass(frozen=True)
class _BatchInRange:
    """What one batch has inside the range.

    Attributes:
        n: Its offset.
        r: The record batches of it that lie before the range.
        sizes: Rows and record batches by partition, of wanted partitions that have some.
        parts: (partition, rows) of each record batch in the order of ``r``, of all partitions; None for a batch that
            must not be cut inside, which counts as one record batch a partition.
    """

    n: int
    r: int
    sizes: dict[int, tuple[int, int]]
    parts: Iterable[tuple[int, int]] | None


class _PieceBuilder:
    """Takes record batches in order, and decides before which ones a new piece begins. Knows no catalog."""

    def __init__(self, topic: str, begin: tuple[int, int], max_rows: int | None, at_least: int) -> None:
        self._topic = topic
        self._begin = begin
        self._max_rows = max_rows
        self._wish = at_least  # input partitions still to be made, those of the open piece included
        self._made = 0  # in closed pieces
        self._pieces: list[tuple[tuple[int, int], tuple[int, ...]]] = []  # where each ends
        self._open: dict[int, int] = {}  # rows of the open piece by partition
        self._rows = 0  # of the open piece
        self._rows_left = 0  # from the begin of the open piece on; only counted while there is a wish
        self._parts_left = 0  # record batches that were not taken yet; the same
        self._seen: set[int] = set()

    def expect(self, batch: _BatchInRange) -> None:
        """Count what is going to come."""
        self._seen.update(batch.sizes)
        for rows, count in batch.sizes.values():
            self._rows_left += rows
            self._parts_left += count

    def begin(self) -> None:
        """Decide how many input partitions are to be made: whole pieces if there are record batches enough."""
        width = max(len(self._seen), 1)
        whole = -(-self._wish // width) * width
        self._wish = whole if whole <= self._parts_left else min(self._wish, self._parts_left)

    def take_whole(self, batch: _BatchInRange) -> bool:
        """Take the batch if it lies in one piece for certain; tell whether it did."""
        rows = sum(size for size, _ in batch.sizes.values())
        parts = sum(count for _, count in batch.sizes.values())
        if self._max_rows is not None and any(
            self._open.get(partition, 0) + size > self._max_rows for partition, (size, _) in batch.sizes.items()
        ):
            return False
        if self._wish > 0 and (
            (self._rows + rows) * self._wish >= max(len(self._open), 1) * self._rows_left
            or self._parts_left - parts < self._wish - len(self._open)
        ):
            return False
        for partition, (size, _) in batch.sizes.items():
            self._open[partition] = self._open.get(partition, 0) + size
        self._rows += rows
        self._parts_left -= parts
        return True

    def take_parts(self, batch: _BatchInRange) -> None:
        """Take the batch's record batches one by one, or all at once where it must not be cut inside."""
        if batch.parts is None:
            if any(self._wants_cut(partition, rows) for partition, (rows, _) in batch.sizes.items()):
                self._close((batch.n, 0))
            for partition, (rows, _) in batch.sizes.items():
                self._add(partition, rows)
            return
        for number, (partition, rows) in enumerate(batch.parts, batch.r):
            if partition not in batch.sizes:
                continue
            if self._wants_cut(partition, rows):
                self._close((batch.n, number))
            self._add(partition, rows)

    def _wants_cut(self, partition: int, rows: int) -> bool:
        """Tell whether a new piece begins before this record batch."""
        has = self._open.get(partition, 0)
        if not self._open:
            return False
        if self._max_rows is not None and has and has + rows > self._max_rows:
            return True
        if self._wish <= 0:
            return False
        # So many rows that each input partition has its share; or so few record batches left that each must be one.
        return self._rows * self._wish >= len(self._open) * self._rows_left or (
            has > 0 and self._parts_left <= self._wish - len(self._open)
        )

    def _add(self, partition: int, rows: int) -> None:
        self._open[partition] = self._open.get(partition, 0) + rows
        self._rows += rows
        self._parts_left -= 1

    def _close(self, place: tuple[int, int]) -> None:
        self._made += len(self._open)
        if self._made >= MOST_INPUT_PARTITIONS:
            raise ConfigError(
                f"topic {self._topic!r}: minPartitions or maxRowsPerPartition cuts what one read takes, from offset "
                f"{self._begin[0]} on, into more than {MOST_INPUT_PARTITIONS} input partitions. Raise "
                "maxRowsPerPartition, or let a micro-batch take less (maxRowsPerTrigger, maxBytesPerTrigger)",
                topic=self._topic,
                most=MOST_INPUT_PARTITIONS,
            )
        self._pieces.append((place, tuple(sorted(self._open))))
        self._wish -= len(self._open)
        self._rows_left -= self._rows
        self._open = {}
        self._rows = 0

    def finish(self) -> list[tuple[tuple[int, int] | None, tuple[int, ...]]]:
        """Return where each piece ends, None for the last one, and its partitions."""
        last = [(None, tuple(sorted(self._open)))] if self._open else []
        return [*self._pieces, *last]


def _in_order(batches: Batches, n: int, sizes: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (partition, rows) of a batch's record batches in the order in which ``r`` counts."""
    if all(count == 1 for _, count in sizes.values()):  # no need to decode what is inside the segments
        yield from ((k, rows) for k, (rows, _) in sorted(sizes.items()))
        return
    left = {k: iter(parts) for k, parts in enumerate(batches.parts(n).partitions) if parts}
    while left:
        for k in list(left):
            part = next(left[k], None)
            if part is None:
                del left[k]
            else:
                yield k, part[0]


def _summed(parts: Iterable[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    sizes: dict[int, tuple[int, int]] = {}
    for k, rows in parts:
        known = sizes.get(k, (0, 0))
        sizes[k] = (known[0] + rows, known[1] + 1)
    return sizes
