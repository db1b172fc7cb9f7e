"""What the tasks of one subscription have counted, of ranges that are not acknowledged yet.

Tasks are tried again, run twice, and are run again after a restart of their query. So a count belongs to one piece of
one reading of a range: the same piece counted twice is one count, and readings of the same range are alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from jobpipe.store.ledger.log_rows import Place

MAX_RANGES = 256  # of one subscription; the oldest go first
MAX_READINGS = 4  # of one range
MAX_PIECES = 10_000  # of all ranges of one subscription


@dataclass(frozen=True)
class CountedPiece:
    """How many rows one task has read of a piece of a range: the ``number``-th piece of a reading, of one partition."""

    number: int
    partition: int
    rows: int


@dataclass(frozen=True)
class RangeCount:
    """What one task has counted.

    Attributes:
        start, end: the range of the micro-batch.
        reading: an id; all pieces of one reading are all of the range.
        pieces: of this task.
        broken: the number of a piece that a task has got, and not counted, since its link broke.
    """

    start: Place
    end: Place
    reading: str
    pieces: tuple[CountedPiece, ...]
    broken: int | None = None


@dataclass
class Reading:
    """One reading of a range.

    Attributes:
        began: which reading it is, of all.
        pieces: partition and rows of each piece, by its number.
        broken: pieces that may have been read, and whose count did not come.
    """

    began: int
    pieces: dict[int, tuple[int, int]] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Of what is kept."""
        return len(self.pieces) + len(self.broken)

    @property
    def rows(self) -> int:
        """Of all pieces."""
        return sum(rows for _, rows in self.pieces.values())

    def by_partition(self) -> dict[int, int]:
        """Return rows by partition."""
        found: dict[int, int] = {}
        for partition, rows in self.pieces.values():
            found[partition] = found.get(partition, 0) + rows
        return found


@dataclass(frozen=True)
class CoveredRange:
    """A part of what was acknowledged: a range that was counted, with its readings, newest last; or a gap, without."""

    start: Place
    end: Place
    readings: tuple[Reading, ...] = ()


Choose: TypeAlias = Callable[[Sequence[CoveredRange]], CoveredRange]


class RangeCounts:
    """The counts of one subscription. Bounded, whatever its readers report."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[Place, Place], dict[str, Reading]] = {}
        self._pieces = 0
        self._readings = 0

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, count: RangeCount) -> bool:
        """Take what a task has counted; False where something is forgotten for it, or it is not taken itself."""
        key = count.start, count.end
        if count.end <= count.start:  # what covers a range relies on that
            return False
        whole = True
        if key not in self._ranges and len(self._ranges) >= MAX_RANGES:
            self._drop(next(iter(self._ranges)))
            whole = False
        readings = self._ranges.setdefault(key, {})
        if count.reading not in readings:
            if len(readings) >= MAX_READINGS:
                self._pieces -= readings.pop(next(iter(readings))).size
                whole = False
            self._readings += 1
            readings[count.reading] = Reading(self._readings)
        reading = readings[count.reading]
        pieces = reading.pieces
        if count.broken is not None and count.broken not in pieces and count.broken not in reading.broken:
            if self._pieces >= MAX_PIECES:
                return False
            reading.broken.add(count.broken)
            self._pieces += 1
        for piece in count.pieces:
            if piece.number in reading.broken:
                reading.broken.discard(piece.number)
                self._pieces -= 1
            if piece.number not in pieces:
                if self._pieces >= MAX_PIECES:
                    whole = False
                    continue
                self._pieces += 1
            pieces[piece.number] = piece.partition, piece.rows
        return whole

    def cover(self, start: Place, end: Place, choose: Choose) -> Iterator[CoveredRange]:
        """Yield what lies between two places: ranges that were counted, and the gaps between them.

        Args:
            start, end: the places.
            choose: one of several ranges that begin at the same place.
        """
        at = start
        while at < end:
            found = [
                CoveredRange(first, last, tuple(readings.values()))
                for (first, last), readings in self._ranges.items()
                if first == at and last <= end
            ]
            if found:
                chosen = found[0] if len(found) == 1 else choose(found)
                yield chosen
                at = chosen.end
                continue
            following = min((first for first, last in self._ranges if at < first and last <= end), default=end)
            yield CoveredRange(at, following)
            at = following

    def drop_before(self, place: Place) -> None:
        """Forget the ranges that end at a place or before it."""
        for key in [key for key in self._ranges if key[1] <= place]:
            self._drop(key)

    def clear(self) -> None:
        """Forget all."""
        self._ranges.clear()
        self._pieces = 0

    def _drop(self, key: tuple[Place, Place]) -> None:
        self._pieces -= sum(reading.size for reading in self._ranges.pop(key).values())


def differing(
    published: Mapping[int, int], read: Mapping[int, int], partitions: Collection[int] | None
) -> tuple[int, ...]:
    """Return the partitions of which other rows were read than published.

    Args:
        published, read: rows by partition.
        partitions: those that are to be read; of others none is. None for all.
    """
    wanted = published if partitions is None else {each: published.get(each, 0) for each in partitions}
    return tuple(sorted(each for each in wanted.keys() | read.keys() if wanted.get(each, 0) != read.get(each, 0)))
