"""What readers ask of the coordinator, with or without a subscription, and what it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Self

from jobpipe.operations.messages.checked_values import (
    Boolean,
    BoundaryValue,
    CheckedName,
    Integer,
    Items,
    Number,
    SecretText,
    Text,
)
from jobpipe.operations.messages.message_fields import (
    MAX_LEASE_SECONDS,
    MAX_PARTITION,
    MAX_WAIT_SECONDS,
    MIN_LEASE_SECONDS,
    OMITTED,
    At,
    Count,
    EmptyReply,
    End,
    EndpointText,
    Fields,
    Flag,
    Name,
    Nested,
    RequestFor,
    Rows,
    SlotId,
    SparkSchema,
    Wait,
    message,
)
from jobpipe.operations.range_messages import MAX_LISTED, LostBatches, PlannedRange, SchemaId, Stop
from jobpipe.store.reading.boundary import Boundary, ReadLimits

MAX_FITTING = 10_000  # schemas that a query says it can read

LeaseSecret = Annotated[str, SecretText(32)]  # random: 128 bits in hex digits
LeaseName = Annotated[
    str, Text(64, 1, pattern="[A-Za-z0-9._-]*", words="a lease's name, as `jobpipe topics leases list` has it")
]


def lease_name(secret: str) -> str:
    """Return the name of a lease, which anybody may know: the secret cannot be found by it."""
    return hashlib.sha256(secret.encode()).hexdigest()[:24]


@message(kw_only=True)
class BindReply(PlannedRange):
    """The range of a slot, the endpoint of the data process, and the batches inside that are lost."""

    data: EndpointText
    lost: LostBatches


@message
class BindRequest(RequestFor[BindReply], op="bind"):
    """Bind a slot to a range of the log; ``schemas`` are ids of those that the query can read."""

    name: Name
    grant: Count
    slot: SlotId
    schemas: Annotated[tuple[int, ...], Items(Integer(), MAX_FITTING)]
    end: End = None
    max_rows: Rows = None
    max_bytes: Rows = None
    wait: Wait = 0.0

    @property
    def limits(self) -> ReadLimits:
        """Up to where it is bound at most."""
        return ReadLimits(self.end, self.max_rows, self.max_bytes)


@message
class Bounds(Fields):
    """Where a read would begin and end.

    Attributes:
        tail, head: of the log.
        ended: an end mark is the newest batch.
        start: where it would begin.
        lost: how many batches of what was asked for are lost.
        end: where it would end; None if that is open, or was not asked.
        standing: of the subscription: None if it stands nowhere, ``first`` while its first position holds, ``moved``.
        removed_ms: when the newest of the removed batches was published, in milliseconds since 1970; 0: none was, or an
            older coordinator does not tell it.
    """

    tail: At
    head: At
    ended: Flag
    start: At
    lost: Count
    end: Stop = None
    standing: Annotated[str | None, Text(16)] = None
    removed_ms: Annotated[int, Integer(), OMITTED] = 0


@message
class BoundsRequest(RequestFor[Bounds], op="bounds"):
    """Where a read would begin and end, and how a subscription stands; without a name, none."""

    name: Annotated[str, CheckedName(empty=True), OMITTED] = ""
    start: Annotated[Boundary | None, BoundaryValue(), OMITTED] = None
    end: Annotated[Boundary | None, BoundaryValue(), OMITTED] = None
    skip_removed: Annotated[bool, Boolean(), OMITTED] = False


@message
class RangeReply(Fields):
    """The plans of a range, the endpoint of the data process, and the batches inside that are lost."""

    plans: Annotated[tuple[PlannedRange, ...], Items(Nested(PlannedRange), MAX_LISTED)]
    data: EndpointText
    lost: LostBatches


@message
class RangeRequest(RequestFor[RangeReply], op="range"):
    """The plans of a range; a subscriber shows its grant."""

    start: At
    end: At
    grant: Annotated[int | None, Integer(), OMITTED] = None


@message
class CutPiece(Fields):
    """A piece of a range: where it ends, and the partitions that have rows in it."""

    end: At
    partitions: Annotated[tuple[int, ...], Items(Integer(0, MAX_PARTITION), MAX_LISTED)]


@message
class CutReply(Fields):
    """The pieces; each begins where the one before ends."""

    pieces: Annotated[tuple[CutPiece, ...], Items(Nested(CutPiece), MAX_LISTED)]


@message
class CutRequest(RequestFor[CutReply], op="cut"):
    """Cut a range into pieces; a subscriber shows its grant."""

    start: At
    end: At
    partitions: Annotated[tuple[int, ...], Items(Integer(0, MAX_PARTITION), 65_536)]
    max_rows: Annotated[int | None, Integer(1)] = None
    at_least: Annotated[int, Integer(1)] = 1
    grant: Annotated[int | None, Integer(), OMITTED] = None


@message
class LeaseRequest(RequestFor[EmptyReply], op="lease"):
    """Keep batches from retention, for a time; who shows the same secret again renews it."""

    secret: LeaseSecret = field(repr=False)
    first: Count
    last: Count
    seconds: Annotated[float, Number(MIN_LEASE_SECONDS, MAX_LEASE_SECONDS)]


@message
class ReleaseRequest(RequestFor[EmptyReply], op="release"):
    """Give a lease back."""

    secret: LeaseSecret = field(repr=False)


@message
class SchemaReply(Fields):
    """A schema; Arrow's form is the blob.

    Attributes:
        id: None while none is known.
        spark: as JSON, where the publisher is Spark.
    """

    id: SchemaId = None
    spark: SparkSchema = None
    arrow: bytes = b""

    @classmethod
    def from_json(cls, values: Mapping[str, object], blob: bytes = b"") -> Self:
        return cls(**cls.checked(values), arrow=blob)

    def to_json(self) -> dict[str, Any]:
        return {"id": None} if self.id is None else super().to_json()

    @property
    def blob(self) -> bytes:
        """The schema, as Arrow has it."""
        return self.arrow

    @property
    def schema(self) -> tuple[bytes, str | None] | None:
        """As Arrow and Spark have it; None if it is not known."""
        return None if self.id is None else (self.arrow, self.spark)


@message
class SchemaRequest(RequestFor[SchemaReply], op="schema"):
    """A schema by its id, or the newest one."""

    id: Annotated[int | None, Integer()] = None
    wait: Annotated[float, Number(0.0, MAX_WAIT_SECONDS), OMITTED] = 0.0
