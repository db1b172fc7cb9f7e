"""Divides the log into ranges that a subscriber reads as one micro-batch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jobpipe.errors import RemoteProtocolError
from jobpipe.store.catalog.batches import Batches, LogDivision
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.range_splitting import RangeSplitter


@dataclass(frozen=True)
class ReadPlan:
    """A range of the log.

    Attributes:
        start, end: What is read lies between them; equal when there is nothing.
        rows, bytes: Inside the range. A segment's schema message is counted with its first record batch.
        partitions, schema_id: Of all its batches; 0 and None when there is nothing.
        ends: The batch right before ``end`` is an end mark.
    """

    start: Position
    end: Position
    rows: int
    bytes: int
    partitions: int
    schema_id: int | None
    ends: bool


@dataclass(frozen=True)
class UnreadRows:
    """How much lies after a position, planned or not.

    Attributes:
        rows, bytes: All that is there, or up to where the read ends.
        end: Up to where that is.
        final: Nothing will follow it: an end mark is the newest batch, or the read ends there.
    """

    rows: int
    bytes: int
    end: Position
    final: bool


class _Limit:
    def __init__(self, rows: int | None, size: int | None) -> None:
        self._rows = rows
        self._bytes = size

    def allows(self, rows: int, size: int) -> bool:
        return (self._rows is None or rows <= self._rows) and (self._bytes is None or size <= self._bytes)


class ReadPlanner:
    """Divides one log into ranges to read. Each answer is of one state of the log."""

    def __init__(self, database: Database, batches: Batches) -> None:
        self._db = database
        self._batches = batches

    def plan(
        self,
        start: Position,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        until: Position | None = None,
    ) -> ReadPlan:
        """Return the longest range from ``start`` within the limits, of whole batches if one fits.

        Only a batch that alone passes a limit is split. At least one record batch is taken, whatever its size. The
        range stops where partitions, partitioner or schema change, right after an end mark, and at ``until``.

        Raises:
            DataLoss: ``start`` or ``until`` does not fit.
            RemoteProtocolError: ``until`` lies before ``start``.
        """
        with self._db.read():
            return _plan(self._batches, start, _Limit(max_rows, max_bytes), until)

    def describe(self, start: Position, end: Position) -> list[ReadPlan]:
        """Return the ranges from ``start`` to ``end``, one for each shape; an empty list when they are equal.

        Raises:
            DataLoss: one of them does not fit.
            RemoteProtocolError: ``end`` lies before ``start``.
        """
        plans: list[ReadPlan] = []
        with self._db.read():
            while True:
                found = _plan(self._batches, start, _Limit(None, None), end)
                if found.end.place == start.place:
                    return plans
                plans.append(found)
                start = found.end

    def ahead(self, start: Position, until: Position | None = None) -> UnreadRows:
        """Return what lies between ``start`` and the head, or ``until``. Costs O(log n), or one batch.

        Raises:
            DataLoss: one of them does not fit.
        """
        batches = self._batches
        with self._db.read():
            batches.check(start)
            if until is not None:
                batches.check(until)
            end = until or batches.head()
            return UnreadRows(*_between(batches, start, end), end, until is not None or batches.ended())

    def splitter(
        self,
        start: Position,
        end: Position,
        *,
        wanted: Collection[int] | None = None,
        max_rows: int | None = None,
        at_least: int = 1,
    ) -> RangeSplitter:
        """Return what cuts a planned range, step by step; each step sees the log as it is by then."""
        return RangeSplitter(
            self._batches, self._db.read, start, end, wanted=wanted, max_rows=max_rows, at_least=at_least
        )


def _plan(batches: Batches, start: Position, limit: _Limit, until: Position | None) -> ReadPlan:
    batches.check(start)
    stop = batches.head()
    if until is not None:
        batches.check(until)
        if until.place < start.place:
            raise RemoteProtocolError("a range ends before it starts", start=start.to_json(), end=until.to_json())
        stop = until
    if stop.place == start.place:
        return ReadPlan(start, start, 0, 0, 0, None, start.r == 0 and batches.is_end(start.n - 1))
    shape = batches.shape(start.n)
    assert shape is not None  # noqa: S101 - there is a batch at start.n
    if shape.next_n is not None and shape.next_n < stop.n:
        stop = batches.at(shape.next_n)
    whole = _whole_batches(batches, start, stop.n, limit)
    if whole is None:
        return _split(batches, shape, start, stop, limit)
    if whole == stop.n and stop.r > 0:  # only `until` lies inside a batch
        rows, size = _between(batches, start, stop)
        if limit.allows(rows, size):
            return _planned(batches, shape, start, stop)
    return _planned(batches, shape, start, batches.at(whole))


def _whole_batches(batches: Batches, start: Position, stop_n: int, limit: _Limit) -> int | None:
    """Return the largest offset up to ``stop_n`` that the limit allows; None when it is inside the first batch."""
    base_rows, base_bytes = _before(batches, start)

    def allowed(n: int) -> bool:
        rows, size = batches.before(n)
        return limit.allows(rows - base_rows, size - base_bytes)

    if start.n == stop_n or not allowed(start.n + 1):
        return None
    if allowed(stop_n):
        return stop_n
    low, high = start.n + 1, start.n + 2
    while allowed(min(high, stop_n)):
        low, high = high, start.n + 2 * (high - start.n)
    high = min(high, stop_n)
    while low + 1 < high:
        middle = (low + high) // 2
        if allowed(middle):
            low = middle
        else:
            high = middle
    return low


def _split(batches: Batches, shape: LogDivision, start: Position, stop: Position, limit: _Limit) -> ReadPlan:
    parts = batches.parts(start.n).in_order()
    last = stop.r if stop.n == start.n else len(parts)
    if batches.sealed_again(start.n):  # a position inside it would not tell of which copy it is
        limit = _Limit(None, None)
    rows = size = 0
    r = start.r
    for part_rows, part_bytes in parts[start.r : last]:
        rows, size = rows + part_rows, size + part_bytes
        if r > start.r and not limit.allows(rows, size):
            break
        r += 1
    end = batches.at(start.n + 1) if r == len(parts) else Position(start.log, start.epoch, start.n, r)
    return _planned(batches, shape, start, end)


def _planned(batches: Batches, shape: LogDivision, start: Position, end: Position) -> ReadPlan:
    rows, size = _between(batches, start, end)
    ends = end.r == 0 and batches.is_end(end.n - 1)
    return ReadPlan(start, end, rows, size, shape.partitions, shape.schema_id, ends)


def _before(batches: Batches, position: Position) -> tuple[int, int]:
    rows, size = batches.before(position.n)
    if position.r:
        more_rows, more_bytes = batches.parts(position.n).before(position.r)
        rows, size = rows + more_rows, size + more_bytes
    return rows, size


def _between(batches: Batches, start: Position, end: Position) -> tuple[int, int]:
    start_rows, start_bytes = _before(batches, start)
    end_rows, end_bytes = _before(batches, end)
    return end_rows - start_rows, end_bytes - start_bytes
