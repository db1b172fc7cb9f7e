"""What the partitions of a topic have beyond a flow's cursors: small parts with their bytes, large ones as a range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobpipe.errors import DataLoss
from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.position import Position
from jobpipe.store.catalog.recovery import Recovery
from jobpipe.store.reading.catalog_reader import CatalogReader, SegmentRange
from jobpipe.store.reading.read_plan import ReadPlanner
from jobpipe.store.subscriptions.positions import Subscriptions

HELD_BYTES = 64 * 1024
"""Of one partition in one answer; what is more is fetched from the data process."""
HELD_PIECES = 64
ANSWER_BYTES = 1024 * 1024
"""Of all partitions in one answer, in which each piece counts for PIECE_BYTES more; the rest is fetched."""
PIECE_BYTES = 1024
RANGE_BYTES = 16 * 1024 * 1024
"""Of all partitions of a range that is fetched: other partitions of the same task come in between."""


@dataclass(frozen=True)
class ChangedRange:
    """What one partition has from ``start`` to ``end``.

    The ``r`` of both counts the record batches of this partition in batch ``n``.

    Attributes:
        held: its pieces, all with their bytes; empty where there are none, or they are to be fetched.
        fetch: they are to be fetched.
    """

    partition: int
    start: Position
    end: Position
    held: tuple[SegmentRange, ...] = ()
    fetch: bool = False

    @property
    def has_rows(self) -> bool:
        """Whether anything is to be read."""
        return self.fetch or bool(self.held)


@dataclass(frozen=True)
class ChangeFeedPage:
    """One answer.

    Attributes:
        ranges: of the partitions that are further on.
        bound: up to where was looked.
        at_change: a change lies there, or the topic has ended: all cursors are waited for, and acknowledged.
        partitions: of the source there; 0 while it has no batch.
    """

    ranges: tuple[ChangedRange, ...]
    bound: Position
    at_change: bool
    partitions: int


class ChangeFeed:
    """Reads for flows, in the catalog that this thread alone writes."""

    def __init__(
        self,
        batches: Batches,
        planner: ReadPlanner,
        recovery: Recovery,
        subscriptions: Subscriptions,
        reader: CatalogReader,
    ) -> None:
        self._batches = batches
        self._planner = planner
        self._recovery = recovery
        self._subscriptions = subscriptions
        self._reader = reader

    def read(
        self, name: str, parts: Sequence[tuple[int, Position]], *, partitions: int, skip_removed: bool
    ) -> ChangeFeedPage:
        """Return what follows some cursors.

        Nothing is given beyond a change of partitions or schema, or an end mark, before the subscription has
        acknowledged all up to there, which the flow does when its last cursor is there: so rows of a key keep their
        order, whatever partition they lie in. That holds for a change that was removed too: all cursors come to the
        tail first. And nothing is given to a subscription that has acknowledged nothing yet.

        Args:
            name: of the flow's subscription.
            parts: partition, and where it goes on.
            partitions: of the source, as the flow knows it.
            skip_removed: begin at what is there where something before is removed.

        Raises:
            DataLoss: a position does not fit the log.
            Fenced: the subscription does not exist any more.
        """
        acked = self._subscriptions.get(name).acked
        if acked is None:  # the driver acknowledges within a second
            return ChangeFeedPage((), self._batches.head(), at_change=True, partitions=0)
        self._require_same_division(name, parts, acked.n, partitions)
        shape, bound = self._batches.shape(acked.n), self._batches.head()
        at_change = self._batches.ended()
        if shape is None:
            bound, at_change = self._batches.tail(), True
        elif shape.next_n is not None and shape.next_n <= bound.n:
            bound, at_change = self._batches.at(shape.next_n), True
        ranges: list[ChangedRange] = []
        left = ANSWER_BYTES
        for partition, at in parts:
            start = self._fitting(name, at, skip_removed=skip_removed)
            found = None if start is None else self._one(partition, at, start, bound, left)
            if found is not None:
                left -= sum(_size(piece) + PIECE_BYTES for piece in found.held)
                ranges.append(found)
        return ChangeFeedPage(
            tuple(ranges),
            bound,
            at_change,
            0 if shape is None or not bound.n else shape.partitions,
        )

    def _require_same_division(
        self, name: str, parts: Sequence[tuple[int, Position]], floor: int, partitions: int
    ) -> None:
        """Check that what some partitions have done is not what others are given now.

        That could be in a batch that was sealed again, after the spool was lost, and divided in another way.

        Raises:
            DataLoss: it is so.
        """
        again = self._batches.sealed_again_n()
        if again is None or not max(floor, self._batches.tail_n()) <= again < self._batches.next_n():
            return
        after = self._batches.at(again + 1)
        done = [at for _, at in parts if at.n == after.n and at.epoch != after.epoch]  # as it was before
        if done and self._recovery.divided_again(again, partitions):
            raise self._batches.loss(done[0], "divided again", flow=name)

    def _one(self, partition: int, at: Position, start: Position, bound: Position, left: int) -> ChangedRange | None:
        if start.n >= bound.n:
            return ChangedRange(partition, start, start) if start.n > at.n else None
        batch = Position(start.log, start.epoch, start.n)
        if left > 0:
            pieces, more = self._reader.segments(batch, bound, partition, skip=start.r, limit=HELD_PIECES)
            size = sum(map(_size, pieces))
            if more is None and size <= HELD_BYTES and all(piece.data is not None for piece in pieces):
                return ChangedRange(partition, start, bound, tuple(pieces))
        end = self._planner.plan(batch, until=bound, max_bytes=RANGE_BYTES).end
        if end.r:  # a plan counts the record batches of all partitions
            end = self._batches.at(end.n + 1)
        return ChangedRange(partition, start, end, fetch=True)

    def _fitting(self, name: str, at: Position, *, skip_removed: bool) -> Position | None:
        """Return where to go on, as the log counts it now; None if the batch before is about to be sealed again.

        Raises:
            DataLoss: the log does not have it.
        """
        here = self._recovery.resolve(Position(at.log, at.epoch, at.n))
        if here is None:
            return None
        try:
            self._batches.check(here)
        except DataLoss as error:
            if not skip_removed or error.fields["reason"] != "removed":
                raise
            return self._batches.tail()
        if at.r and self._batches.sealed_again(at.n) and at.epoch != self._batches.epoch_before(at.n + 1):
            raise self._batches.loss(at, "half done", flow=name)
        return Position(here.log, here.epoch, here.n, at.r)


def _size(piece: SegmentRange) -> int:
    return sum(chunk.length for chunk in piece.chunks)
