"""How many rows lie between two places of a log, as its publisher counted them when it sealed them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

from jobpipe.store.catalog.batches import Batches, RecordBatchSizes

Place: TypeAlias = tuple[int, int]
"""``(n, r)`` of a :class:`jobpipe.store.catalog.position.Position`: the places of one log are in this order."""

MAX_CELLS = 20_000
"""Partitions of batches that one question looks at: some 10 ms."""

_KNOWN = 256  # answers that are kept: most subscriptions stand at the same few places


class LogRows:
    """The rows of one log. Nothing is known of what lies before the oldest batch that is there."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._before: dict[int, int] = {}
        self._between: dict[tuple[Place, Place], Mapping[int, int]] = {}

    def forget(self) -> None:
        """Ask again: a batch that was sealed is no longer there, or has other rows now."""
        self._before.clear()
        self._between.clear()

    def is_removed(self, place: Place) -> bool:
        """True where the batch at a place is not there any more."""
        return place[0] < self._batches.tail_n()

    def before(self, place: Place) -> int | None:
        """Return the rows before a place, those of removed batches too; None where that is not known, or not there."""
        n, r = place
        rows = self._before.get(n)
        if rows is None:
            rows = self._batches.rows_before(n)
            if rows is None:
                return None
            if len(self._before) >= _KNOWN:
                del self._before[next(iter(self._before))]
            self._before[n] = rows
        if not r:
            return rows
        parts = self._batches.parts(n)
        return rows + parts.before(r)[0] if r < sum(parts.counts()) else None

    def by_partition(self, start: Place, end: Place) -> Mapping[int, int] | None:
        """Return the rows between two places by partition; None where that is not known, or too much to look at."""
        known = self._between.get((start, end))
        if known is not None:
            return known
        if start < end and self.is_removed(start):
            return None
        cells = self._batches.partition_rows(start[0], end[0], limit=MAX_CELLS)
        if cells is None:
            return None
        found: dict[int, int] = {}
        for _, partition, rows in cells:
            found[partition] = found.get(partition, 0) + rows
        for place, sign in ((start, -1), (end, 1)):
            if place[1]:
                for partition, rows in enumerate(self._batches.parts(place[0]).rows_before(place[1])):
                    found[partition] = found.get(partition, 0) + sign * rows
        if len(self._between) >= _KNOWN:
            del self._between[next(iter(self._between))]
        self._between[start, end] = found
        return found

    def of_partitions(self, ranges: Sequence[tuple[int, Place, Place]]) -> list[int] | None:
        """Return the rows of single partitions between two places each, whose ``r`` counts their record batches alone.

        So do the cursors of flow jobs. None where it is not known for one of them, or too much to look at.
        """
        first, last = min(start[0] for _, start, _ in ranges), max(end[0] for _, _, end in ranges)
        if self.is_removed((first, 0)):
            return None
        cells = self._batches.partition_rows(first, last, limit=MAX_CELLS)
        if cells is None:
            return None
        offsets: dict[int, list[int]] = {}
        rows: dict[int, list[int]] = {}
        for n, partition, count in cells:
            offsets.setdefault(partition, []).append(n)
            rows.setdefault(partition, []).append(count)
        sums = {partition: [0, *accumulate(counts)] for partition, counts in rows.items()}
        parts: dict[int, RecordBatchSizes] = {}

        def before(partition: int, place: Place) -> int:
            n, r = place
            known = sums.get(partition, [0])[bisect_left(offsets.get(partition, []), n)]
            if not r:
                return known
            if n not in parts:
                parts[n] = self._batches.parts(n)
            found = parts[n].partitions
            return known + (sum(count for count, _ in found[partition][:r]) if partition < len(found) else 0)

        return [before(partition, end) - before(partition, start) for partition, start, end in ranges]
