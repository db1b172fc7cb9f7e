"""Plans for many subscribers: one plan for all at the same position, until the catalog changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jobpipe.errors import SegmentCorrupt
from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.position import Position
from jobpipe.store.catalog.recovery import Recovery
from jobpipe.store.reading.boundary import ReadLimits
from jobpipe.store.reading.catalog_reader import CatalogReader, SegmentRange
from jobpipe.store.reading.offset_resolution import OffsetResolver
from jobpipe.store.reading.read_plan import ReadPlan, ReadPlanner, UnreadRows
from jobpipe.store.subscriptions.positions import Subscriptions

HELD_BYTES = 16 * 1024
"""Of a whole plan; what is more is fetched from the data process, so that control waits for no bytes."""
HELD_PIECES = 32
HELD_PARTITIONS = 32
NO_LIMITS = ReadLimits()
MOST = 64  # plans that are kept
MOST_CHECKED = 4096  # positions that are known to fit


@dataclass(frozen=True)
class PlanQuery:
    """What is to be planned, the same for all who ask.

    Attributes:
        start: where to go on.
        limits: up to where.
        count: tell too how much there is after ``start``, whatever the limits are.
        held: rows that are few come with the plan.
    """

    start: Position
    limits: ReadLimits = NO_LIMITS
    count: bool = False
    held: bool = False


@dataclass(frozen=True)
class Planned:
    """What comes next for a subscription.

    Attributes:
        plan: the range; empty if the end that was asked for lies before its start.
        stop: the position of that end, None while it is open.
        ahead: how much there is, if it was to be counted.
        held: all pieces of the range, by batch and partition, with their bytes; None where they are to be fetched.
        replies: the answers that were made of this one, kept by who makes them.
    """

    plan: ReadPlan
    stop: Position | None = None
    ahead: UnreadRows | None = None
    held: tuple[SegmentRange, ...] | None = None
    replies: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_open(self) -> bool:
        """True while there is nothing to read, and there may be later."""
        return self.plan.start.place == self.plan.end.place and not self.plan.ends and self.stop is None


class SharedPlans:
    """Plans, and the acknowledgements that come with them. What it keeps is void as soon as the catalog changes.

    A change of this process is seen at once, one of another process by :meth:`drop_stale`.
    """

    def __init__(
        self,
        database: Database,
        batches: Batches,
        planner: ReadPlanner,
        resolver: OffsetResolver,
        recovery: Recovery,
        subscriptions: Subscriptions,
        reader: CatalogReader,
    ) -> None:
        self._db = database
        self._batches = batches
        self._planner = planner
        self._resolver = resolver
        self._recovery = recovery
        self._subscriptions = subscriptions
        self._reader = reader
        self._version: tuple[int, ...] = ()
        self._fitting: dict[Position, Position | None] = {}
        self._plans: dict[PlanQuery, Planned] = {}

    def drop_stale(self) -> None:
        """Forget what is kept if any process has changed the catalog since."""
        version = self._db.version()
        if version != self._version:
            self._version = version
            self._fitting.clear()
            self._plans.clear()

    def acknowledge(
        self,
        name: str,
        grant: int,
        start: Position,
        *,
        read: int | None = None,
        counts: bool = False,
        wanted: tuple[int, ...] | None = None,
    ) -> bool:
        """Acknowledge a position whose batch is committed, and keep what follows for the holder.

        Args:
            name, grant: of the subscription, and of its holder.
            start: the position.
            read: for the ledger, rows that the holder has read before it, where it counts itself.
            counts: its tasks count what they read.
            wanted: the partitions that they read; None for all.

        Returns:
            Whether the subscription stands further on now.

        Raises:
            Fenced: another grant is valid, or the subscription does not exist.
            DataLoss: the position does not fit.
        """
        self._subscriptions.check_grant(name, grant)
        account = self._subscriptions.ledger.account(name)
        if counts:
            account.wants(wanted)
        try:
            here = self._fit(start)
            if here is None:  # it has the batch that the publisher is about to repeat
                return False
            self._subscriptions.declare(name, grant, here, checked=True)
            return self._subscriptions.acknowledge(name, grant, here, checked=True, read=read)
        finally:  # also where the start is removed: it may go on after what is lost
            if counts and start.log == self._batches.log_id:
                account.counts_from(start.place)

    def plan(self, order: PlanQuery) -> Planned:
        """Return what comes next.

        Raises:
            DataLoss: the start or the end does not fit.
        """
        here = self._fit(order.start)
        if here is None:
            ahead = UnreadRows(0, 0, order.start, final=False) if order.count else None
            return Planned(ReadPlan(order.start, order.start, 0, 0, 0, None, False), None, ahead)
        if order.count or order.limits.end is not None:  # a time may decide an end, and that changes the catalog
            return self._plan(here, order)
        known = self._plans.get(order)
        if known is None:
            if len(self._plans) >= MOST:
                del self._plans[next(iter(self._plans))]
            known = self._plans[order] = self._plan(here, order)
        return known

    def plan_fresh(self, order: PlanQuery) -> Planned:
        """Return what comes next, as the catalog is now; raises as :meth:`plan`."""
        self.drop_stale()
        return self.plan(order)

    def _plan(self, here: Position, order: PlanQuery) -> Planned:
        limits = order.limits
        stop = None if limits.end is None else self._resolver.end(limits.end)
        until = here if stop is not None and stop.place < here.place else stop
        ahead = self._planner.ahead(here, until) if order.count else None
        plan = self._planner.plan(here, until=until, max_rows=limits.max_rows, max_bytes=limits.max_bytes)
        return Planned(plan, stop, ahead, self._held(plan) if order.held else None)

    def _held(self, plan: ReadPlan) -> tuple[SegmentRange, ...] | None:
        if not plan.bytes:
            return ()  # an end mark, or nothing at all
        if plan.bytes > HELD_BYTES or plan.partitions > HELD_PARTITIONS:
            return None
        held: list[SegmentRange] = []
        for partition in range(plan.partitions):
            try:
                pieces, more = self._reader.segments(plan.start, plan.end, partition, limit=HELD_PIECES)
            except SegmentCorrupt:  # the reader that fetches it gets the error
                return None
            held += pieces
            if more is not None or len(held) > HELD_PIECES or any(piece.data is None for piece in pieces):
                return None
        return tuple(sorted(held, key=_place))

    def _fit(self, start: Position) -> Position | None:
        """Return ``start`` as this log counts it; None if it has the batch that the publisher is about to repeat.

        Raises:
            DataLoss: reading cannot go on there.
        """
        if self._db.changes != self._version[:2]:
            self.drop_stale()
        if start not in self._fitting:
            here = self._recovery.resolve(start)
            if here is not None:
                self._batches.check(here)
            if len(self._fitting) >= MOST_CHECKED:
                self._fitting.clear()
            self._fitting[start] = here
        return self._fitting[start]


def _place(piece: SegmentRange) -> tuple[int, int]:
    return piece.n, piece.partition
