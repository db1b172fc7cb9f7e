"""How a topic stands, with its subscriptions: what its coordinator tells anybody who may see the topic.

Nothing of it decides what happens to rows. Seconds are those that have passed, or that are left.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from jobpipe.operations.admin_operations import HoldReply, LeaseReply, Seconds
from jobpipe.operations.messages.application import Application
from jobpipe.operations.messages.checked_values import (
    Boolean,
    CheckedName,
    Entries,
    Integer,
    Items,
    Number,
    OrNull,
    PositionValue,
    Text,
)
from jobpipe.operations.messages.ledger_messages import MAX_MINUTES, HopCounts, HopLedger, LedgerMinute
from jobpipe.operations.messages.message_fields import (
    OMITTED,
    Count,
    EndpointText,
    Fields,
    Flag,
    FreeText,
    LogId,
    Name,
    Nested,
    RequestFor,
    message,
)
from jobpipe.operations.messages.source_messages import SourceStatus
from jobpipe.operations.publisher_operations import NewestQuery
from jobpipe.store.catalog.position import MAX_NUMBER, Position

MANY = 65_536
"""More items than the JSON of a reply has room for."""

ACKS_WAIT = "acks=all: "
"""Begins ``TopicStatus.waiting`` where a publisher waits for acknowledgements; names follow, with commas between."""

MAX_WAITING = 1000
"""Characters of ``TopicStatus.waiting``, which is cut there: each poll of a subscriber repeats it."""

# Below zero for what a subscription has and the log has no more: the newest batch was taken back (TopicLog.take_back).
Difference = Annotated[int, Integer(-MAX_NUMBER, MAX_NUMBER)]


@message
class Lag(Fields):
    """What a subscription has not acknowledged; ``seconds``: since the first batch of it was sealed."""

    batches: Difference
    rows: Difference
    bytes: Difference
    seconds: Annotated[float, Seconds]


@message
class ReaderProcess(Fields):
    """Where a reader runs, or ran."""

    host: Annotated[str, Text(255)]
    pid: Annotated[int, Integer(0, 2**31 - 1)]


@message
class Holder(Fields):
    """Who was given a subscription's name last; ``owner``: the identity that the name counts to."""

    host: Annotated[str | None, Text(255), OMITTED] = None
    instance: Annotated[str | None, Text(128), OMITTED] = None
    owner: Annotated[str | None, Text(4096, printable=False), OMITTED] = None
    pid: Annotated[int | None, Integer(0, 2**31 - 1), OMITTED] = None


@message(kw_only=True)
class SubscriptionStatus(Fields):
    """How a subscription stands.

    Attributes:
        declared: where its reader reads now, if that is known to lie elsewhere than its position.
        grant: the number of the newest grant.
        silent: seconds of uptime since the log was told of it.
        stale: acknowledgements that were ignored, because they were late or repeated.
        hops: batches by the time from their seal to their acknowledgement, since the log was opened: in the buckets of
            :mod:`jobpipe.store.subscriptions.hop_times`; () from a coordinator that does not know the field.
        hop_seconds: the sum of those times.
        position, epoch: the offset of the next batch that it has not acknowledged, and the epoch of what lies before;
            None before the first.
        state: of its link: ``connected``, ``reconnecting`` or ``absent``.
        since: seconds for which the link is in that state; None if this coordinator never saw it.
        last_seen: seconds since it was heard of.
        application: the reader's, as it said itself; None of one that does not know the field.
        counts: the rows of its account in the ledger; None while it has none, and from a coordinator without a ledger.
    """

    name: Name
    declared: Annotated[Position | None, PositionValue()] = None
    required: Flag
    grant: Count
    holder: Annotated[Holder | None, Nested(Holder)] = None
    silent: Annotated[float, Seconds]
    stale: Count
    lag: Annotated[Lag, Nested(Lag)]
    hops: Annotated[tuple[int, ...], Items(Integer(), 64), OMITTED] = ()
    hop_seconds: Annotated[float, Seconds, OMITTED] = 0.0
    position: Annotated[int | None, Integer()] = None
    epoch: Annotated[int | None, Integer()] = None
    state: Annotated[str, Text(32)]
    since: Annotated[float | None, Seconds] = None
    reconnects: Count
    last_seen: Annotated[float | None, Seconds] = None
    where: Annotated[ReaderProcess | None, Nested(ReaderProcess)] = None
    application: Annotated[Application | None, Nested(Application), OMITTED] = None
    counts: Annotated[HopCounts | None, Nested(HopCounts), OMITTED] = None


@message
class CursorStatus(Fields):
    """Where a flow is in one partition of its source, and for how many seconds already."""

    partition: Count
    claim: Count
    n: Count
    r: Count
    idle: Annotated[float, Seconds]


@message
class FlowStatus(Fields):
    """The cursors that the topic keeps of a flow, for one log of a source; ``topic`` is the source."""

    flow: Name
    topic: Name
    log: LogId
    cursors: Annotated[tuple[CursorStatus, ...], Items(Nested(CursorStatus), MANY)]


@message(kw_only=True)
class HostStatus(Fields):
    """What a host server keeps of the topic.

    Attributes:
        endpoint: None while it is not registered.
        state: ``registered``, ``absent`` or ``lost``.
        absent: seconds for which it has been away, as far as the coordinator knows.
    """

    segments: Count
    bytes: Count
    endpoint: Annotated[str | None, Text(300)] = None
    state: Annotated[str, Text(32)]
    absent: Annotated[float, Seconds]


@message(kw_only=True)
class TopicStatus(Fields):
    """How a topic stands, as its coordinator knows it.

    Attributes:
        uptime: seconds for which the log was open, in all coordinators together.
        at: when it stood so, in seconds on the clock of the coordinator's host: for differences between two answers of
            one endpoint; 0 from a coordinator that does not know the field.
        last_query: who sealed the newest batch.
        batches, stored_bytes: of what is kept.
        spool_limit: bytes at which the publisher waits; None from a coordinator that does not know the field.
        rows, bytes: of all that was ever published.
        leases: those that keep most; ``lease_count`` of all.
        flows: those whose cursors are kept here.
        required: the subscriptions that are required, dropped ones too.
        disk: the trouble with the disk.
        application: the publisher's, as it said itself; None of one that does not know the field.
        waiting: for whom the publisher waits.
        source: the database whose changes it publishes, as its publisher said last; None of one that captures none.
        identities: what each identity holds of the coordinator, and was refused.
        publishing: a publisher has the topic, and its process lives.
        publisher_gone: seconds since its process was found dead.
        served_for: seconds for which the topic is served yet, while there is such a limit.
        hosts: by id, where host servers keep segments.
        served: bytes that each process has served, if it was asked for; None of one that is silent.
    """

    topic: Name
    log: LogId
    epoch: Count
    uptime: Annotated[float, Seconds]
    catalog_bytes: Count
    last_query: Annotated[NewestQuery | None, Nested(NewestQuery)] = None
    head: Count
    tail: Count
    batches: Count
    rows: Count
    ended: Flag
    subscriptions: Annotated[tuple[SubscriptionStatus, ...], Items(Nested(SubscriptionStatus), MANY)]
    leases: Annotated[tuple[LeaseReply, ...], Items(Nested(LeaseReply), MANY)]
    lease_count: Annotated[int, Integer()] = 0
    holds: Annotated[tuple[HoldReply, ...], Items(Nested(HoldReply), MANY)] = ()
    flows: Annotated[tuple[FlowStatus, ...], Items(Nested(FlowStatus), MANY)] = ()
    required: Annotated[tuple[str, ...], Items(CheckedName(), MANY)] = ()
    disk: Annotated[str | None, Text(65_536, printable=False)] = None
    stored_bytes: Count
    spool_limit: Annotated[int | None, Integer(), OMITTED] = None
    bytes: Count
    publisher: FreeText
    application: Annotated[Application | None, Nested(Application), OMITTED] = None
    parallelism: Count
    waiting: Annotated[str | None, Text(4096, printable=False)] = None
    at: Annotated[float, Seconds, OMITTED] = 0.0
    source: Annotated[SourceStatus | None, Nested(SourceStatus), OMITTED] = None
    # What the topic itself does not know, and the coordinator adds.
    endpoint: EndpointText = field(default_factory=str)
    data: EndpointText = field(default_factory=str)
    identities: Annotated[dict[str, dict[str, int]], Entries(Entries(Integer(), MANY), MANY)] = field(
        default_factory=dict
    )
    publishing: Flag = True
    publisher_gone: Annotated[float | None, Seconds] = None
    served_for: Annotated[float | None, Seconds] = None
    hosts: Annotated[dict[str, HostStatus] | None, Entries(Nested(HostStatus), MANY), OMITTED] = None
    served: Annotated[dict[str, int | None] | None, Entries(OrNull(Integer()), MANY), OMITTED] = None


@message
class StatusRequest(RequestFor[TopicStatus], op="status"):
    """How the topic stands; with ``served`` also what each process has served.

    With ``topic`` how another topic of the same coordinator stands: who asks for many topics needs one link.
    """

    served: Annotated[bool, Boolean(), OMITTED] = False
    topic: Annotated[str | None, CheckedName(), OMITTED] = None


@message(kw_only=True)
class LedgerReply(Fields):
    """The ledger of a topic.

    Attributes:
        at: when it was made, in seconds since 1970 by the clock of the coordinator's host.
        minutes: those in which something was published, oldest first; fewer than asked for where there are more
            than :data:`jobpipe.operations.messages.ledger_messages.MAX_CELLS` of all subscriptions.
        hops: the subscriptions, by name.
    """

    topic: Name
    at: Annotated[float, Number(0.0, 1e12)]
    minutes: Annotated[tuple[LedgerMinute, ...], Items(Nested(LedgerMinute), MAX_MINUTES)]
    hops: Annotated[tuple[HopLedger, ...], Items(Nested(HopLedger), MANY)]


@message
class LedgerRequest(RequestFor[LedgerReply], op="ledger"):
    """The ledger of the newest minutes in which something was published; of one subscription, or of all.

    With ``topic`` that of another topic of the same coordinator.
    """

    minutes: Annotated[int, Integer(1, MAX_MINUTES)] = 60
    name: Annotated[str | None, CheckedName(), OMITTED] = None
    topic: Annotated[str | None, CheckedName(), OMITTED] = None
