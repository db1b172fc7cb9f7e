"""How a log stands, for a topic's status (``jobpipe topics describe``). Costs the same for any number of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobpipe.store.catalog.batches import Batches, NewestSeal
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.catalog.position import Position
from jobpipe.store.ledger.account_values import Difference, Totals
from jobpipe.store.log.flow_cursors import FlowPlace
from jobpipe.store.subscriptions.holds import Hold
from jobpipe.store.subscriptions.leases import Lease
from jobpipe.store.subscriptions.positions import Subscriptions
from jobpipe.store.subscriptions.subscription import StoredSubscription


@dataclass(frozen=True)
class StoredLag:
    """What a subscription has not acknowledged; ``seconds``: since the first batch of it was sealed."""

    batches: int
    rows: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class SubscriptionLine:
    """A subscription in a catalog's status; attributes as :class:`StoredSubscription`.

    Attributes:
        holder: without its identity.
        silent: seconds of uptime since it was heard of.
        hops: batches by how long they took until they were acknowledged, and the sum of their seconds, since the log
            was opened.
        totals, difference: of its account in the ledger; None while there is none, and while nothing differs.
    """

    name: str
    acked: Position | None
    declared: Position | None
    required: bool
    grant: int
    holder: dict[str, Any] | None
    silent: float
    stale: int
    lag: StoredLag
    hops: tuple[int, ...]
    hop_seconds: float
    totals: Totals | None = None
    difference: Difference | None = None


@dataclass(frozen=True)
class CatalogStatus:
    """What a catalog says of its log, whether the topic is served or not.

    Attributes:
        batches, rows, bytes: of what is kept.
        total_rows, total_bytes: of all that was ever sealed.
        ended: the newest batch is an end mark.
    """

    head: Position
    tail: Position
    batches: int
    rows: int
    bytes: int
    total_rows: int
    total_bytes: int
    ended: bool
    subscriptions: tuple[SubscriptionLine, ...]


@dataclass(frozen=True)
class LogStatus(CatalogStatus):
    """How an open log stands.

    Attributes:
        uptime: seconds for which it was open.
        leases: those that hold most; ``lease_count`` of all.
        kept: segments and bytes by host server.
        required: names of the subscriptions that are required.
    """

    topic: str
    log: str
    epoch: int
    uptime: float
    catalog_bytes: int
    last_query: NewestSeal | None
    leases: tuple[Lease, ...]
    lease_count: int
    holds: tuple[Hold, ...]
    flows: tuple[FlowPlace, ...]
    kept: dict[str, dict[str, int]]
    required: tuple[str, ...]


def describe_log(db: Database, batches: Batches, subscriptions: Subscriptions, clock: LogClock) -> CatalogStatus:
    """Return head, tail, sizes, and each subscription with its lag; inside a transaction."""
    wall = clock.wall()
    head, tail = batches.head(), batches.tail()
    rows, size = batches.before(head.n)
    tail_rows, tail_bytes = batches.before(tail.n)

    def line(known: StoredSubscription) -> SubscriptionLine:
        n = tail.n if known.acked is None else known.acked.n
        before_rows, before_bytes = batches.before(n)
        oldest = db.value("SELECT sealed_ms FROM batches WHERE n >= ? ORDER BY n LIMIT 1", n)
        holder = known.holder
        totals, difference = subscriptions.ledger.summary(known.name) or (None, None)
        return SubscriptionLine(
            name=known.name,
            acked=known.acked,
            declared=known.declared,
            required=known.required,
            grant=known.grant,
            holder=None if holder is None else {key: each for key, each in holder.items() if key != "identity"},
            silent=max(0.0, clock.uptime - known.seen_up),
            stale=known.stale,
            hops=tuple(known.hops.counts),
            hop_seconds=known.hops.seconds,
            totals=totals,
            difference=difference,
            lag=StoredLag(
                batches=head.n - n,
                rows=rows - before_rows,
                bytes=size - before_bytes,
                seconds=0.0 if oldest is None else round(max(0.0, wall - oldest / 1000), 3),
            ),
        )

    return CatalogStatus(
        head=head,
        tail=tail,
        batches=head.n - tail.n,
        rows=rows - tail_rows,
        bytes=size - tail_bytes,
        total_rows=rows,
        total_bytes=size,
        ended=batches.ended(),
        subscriptions=tuple(map(line, subscriptions.all())),
    )
