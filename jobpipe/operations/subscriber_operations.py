"""What subscribers ask of the coordinator, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from jobpipe.operations.data_operations import HeldPart, fill_held
from jobpipe.operations.messages.application import Application
from jobpipe.operations.messages.checked_values import Boolean, Integer, Items, Number, PositionValue, SlotName, Text
from jobpipe.operations.messages.message_fields import (
    MAX_WAIT_SECONDS,
    OMITTED,
    At,
    Count,
    EmptyReply,
    End,
    Fields,
    Flag,
    Nested,
    RequestFor,
    Rows,
    SlotId,
    Start,
    Wait,
    message,
)
from jobpipe.operations.range_messages import LostBatches, News, PlannedRange, SchemaId, Stop
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import ReadLimits
from jobpipe_registry.names import MAX_PARALLELISM

MAX_READ = 2**53
"""Rows that one reader reports to have read."""

RowsRead = Annotated[int | None, Integer(0, MAX_READ), OMITTED]

MAX_HELD = 4096
"""Parts that come with the answer to `plan`, at most."""


@message(kw_only=True)
class GrantReply(News):
    """The number of the right to use the name, and the news."""

    grant: Count


@message
class GrantRequest(RequestFor[GrantReply], op="grant"):
    """Take the subscription's name; where the reader is, and of which application, for people."""

    host: Annotated[str, Text(255)] = ""
    pid: Annotated[int, Integer(0, 2**31 - 1)] = 0
    application: Annotated[Application | None, Nested(Application), OMITTED] = None


@message
class FirstReply(Fields):
    """Where a new checkpoint begins, and how many batches of what was asked for are lost."""

    position: At
    lost: Count


@message
class FirstRequest(RequestFor[FirstReply], op="first"):
    """Where a new checkpoint begins."""

    grant: Count
    start: Start
    end: End = None
    skip_removed: Flag = False


@message
class PollRequest(RequestFor[News], op="poll"):
    """Wait for news; ``head``, ``ended`` and ``waiting`` are what the peer knows.

    Attributes:
        wait: seconds, at most.
        head_wait: seconds for which a head that has moved is no news by itself.
    """

    head: Annotated[Position | None, PositionValue()] = None
    ended: Annotated[bool | None, Boolean()] = None
    waiting: Annotated[str | None, Text(4096, printable=False)] = None
    wait: Wait = 0.0
    head_wait: Annotated[float, Number(0.0, MAX_WAIT_SECONDS), OMITTED] = 0.0


@message
class Backlog(Fields):
    """All that lies after the start of a plan, whatever its limits are.

    Attributes:
        rows, bytes: how much it is.
        end: up to where: the head, or where the read ends.
        final: nothing will follow.
        waiting: the publisher waits for acknowledgements or for room.
    """

    rows: Count
    bytes: Count
    end: At
    final: Flag
    waiting: Flag


@message(kw_only=True)
class PlanReply(PlannedRange):
    """The range that comes next; empty if nothing is there, or ``end`` lies before ``start``.

    Attributes:
        stop: the position of the end that was asked for, None while it is open.
        ahead: how much there is, if it was to be counted.
        lost: batches inside that lost host servers kept a part of.
        data: endpoint of the data process; an older coordinator does not tell it.
        news: the topic's, if it was asked to wait; an older coordinator neither waits nor tells it.
        held: all rows of the range, in order, if they are few and were asked for; None where they are to be fetched.
    """

    stop: Stop = None
    ahead: Annotated[Backlog | None, Nested(Backlog), OMITTED] = None
    lost: LostBatches
    data: Annotated[str | None, Text(300), OMITTED] = None
    news: Annotated[News | None, Nested(News), OMITTED] = None
    held: Annotated[tuple[HeldPart, ...] | None, Items(Nested(HeldPart), MAX_HELD), OMITTED] = None

    @classmethod
    def from_json(cls, values: Mapping[str, object], blob: bytes = b"") -> Self:
        taken = cls.checked(values)
        held = fill_held(taken.get("held") or (), blob)
        return cls(**({**taken, "held": held} if held else taken))

    @property
    def blob(self) -> bytes:
        """The bytes of the parts that are held."""
        return b"".join(part.data for part in self.held or ())


@message
class PlanRequest(RequestFor[PlanReply], op="plan"):
    """Acknowledge ``start`` and plan what follows, at most to ``end``; with ``count`` tell how much there is.

    Attributes:
        grant: of the subscription.
        start: where to go on; what lies before it is committed.
        end: where the whole read ends.
        max_rows, max_bytes: of this range.
        count: tell how much there is after ``start``, whatever the limits are.
        wait: seconds to wait for something to read, as a poll waits; an older coordinator answers at once.
        held: rows that are few may come with the answer.
        read: for the ledger, how many rows this reader has read before ``start`` since it has the name; None of one
            that does not count, or whose tasks do.
        counts: its tasks report how many rows they read, by ``count``.
        wanted: the partitions that they read, where it is not all of them.
    """

    grant: Count
    start: At
    end: End = None
    max_rows: Rows = None
    max_bytes: Rows = None
    count: Annotated[bool, Boolean(), OMITTED] = False
    wait: Annotated[float, Number(0.0, MAX_WAIT_SECONDS), OMITTED] = 0.0
    held: Annotated[bool, Boolean(), OMITTED] = False
    read: RowsRead = None
    counts: Annotated[bool, Boolean(), OMITTED] = False
    wanted: Annotated[tuple[int, ...] | None, Items(Integer(0, MAX_PARALLELISM - 1), MAX_PARALLELISM), OMITTED] = None

    @property
    def limits(self) -> ReadLimits:
        """Up to where is planned at most."""
        return ReadLimits(self.end, self.max_rows, self.max_bytes)


@message
class CursorCount(Fields):
    """How far a flow is in a partition, under which claim, and how many rows of it its function was given.

    The ``r`` of the position counts the record batches of this partition in batch ``n``.
    """

    partition: Annotated[int, Integer(0, MAX_PARALLELISM - 1)]
    claim: Count
    position: At
    rows: Annotated[int, Integer(0, MAX_READ)]


@message
class AckRequest(RequestFor[EmptyReply], op="ack"):
    """Acknowledge a position.

    Attributes:
        read: for the ledger, as in ``plan``.
        cursors: for the ledger, how far a flow is in each partition; its ``position`` lies before all of them.
    """

    grant: Count
    position: At
    read: RowsRead = None
    cursors: Annotated[tuple[CursorCount, ...], Items(Nested(CursorCount), MAX_PARALLELISM), OMITTED] = ()


@message(kw_only=True)
class SlotReply(PlannedRange):
    """Where a stream that reads ahead goes on, and what lies there now, without limits.

    Attributes:
        made: the slot was added; not where the read is over and nothing was added before.
        stop: where the read ends, None while that is open.
        over: nothing will follow: the slot is bound empty.
        newest: id of the schema there, or of the newest one; None while none is known.
        lost: the first batch, if a lost host server kept a part of it.
    """

    made: Flag
    stop: Stop = None
    over: Flag
    newest: SchemaId = None
    lost: LostBatches


@message
class SlotRequest(RequestFor[SlotReply], op="slot"):
    """Acknowledge the slot ``last`` and make the next one, ``slot``.

    ``witnessed``: the asker itself had ``last`` made, as its newest one, and has run since; so no backup from before
    that can have taken the place of the log. ``counts`` as in ``plan``.
    """

    grant: Count
    start: At
    slot: SlotId
    last: Annotated[str | None, SlotName()] = None
    end: End = None
    witnessed: Flag = False
    counts: Annotated[bool, Boolean(), OMITTED] = False


@message
class SettleReply(Fields):
    """Where the slot ends."""

    end: At


@message
class SettleRequest(RequestFor[SettleReply], op="settle"):
    """Where a slot of the checkpoint ends."""

    grant: Count
    start: At
    slot: SlotId
    committed: Flag
