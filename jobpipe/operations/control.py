"""The coordinator's operations: of publishers, subscribers, readers and administrators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from jobpipe.config import Config
from jobpipe.errors import ConfigError, RemoteProtocolError
from jobpipe.operations.fields import (
    MAX_LEASE_SECONDS,
    MAX_PARTITION,
    At,
    Base64,
    Bound,
    Count,
    End,
    Fields,
    Flag,
    Items,
    Name,
    Named,
    Number,
    Object,
    Place,
    SlotId,
    SlotName,
    Start,
    Text,
    Truth,
    Wait,
    Whole,
    take,
)
from jobpipe.operations.table import EVERYBODY, Operation, table
from jobpipe.store.boundary import Boundary
from jobpipe.store.index import SegmentInfo
from jobpipe.store.position import Position
from registry.names import MAX_PARALLELISM

__all__ = [
    "CONTROL",
    "AckRequest",
    "AckedRequest",
    "BeginRequest",
    "BindRequest",
    "BoundsRequest",
    "CloseRequest",
    "CutRequest",
    "DeclareRequest",
    "DrainedRequest",
    "DropLeaseRequest",
    "DropRequest",
    "FirstRequest",
    "GrantRequest",
    "HandoverRequest",
    "LeaseRequest",
    "OpenRequest",
    "PlanRequest",
    "PollRequest",
    "RangeRequest",
    "ReleaseRequest",
    "SchemaRequest",
    "SealRequest",
    "SeekRequest",
    "SettleRequest",
    "SlotRequest",
    "StatusRequest",
    "job_secret",
]

MAX_SEGMENTS = 100_000  # of one batch; the 16 MiB of a frame hold fewer
MAX_SCHEMA = 16 * 1024 * 1024
MAX_REQUIRED = 1000
MAX_FITTING = 10_000  # schemas that a query says it can read

BatchId = Annotated[int, Whole(-(2**63), 2**63 - 1)]
FreeText = Annotated[str, Text(4096, printable=False)]  # a user's words, such as the names of columns
Spark = Annotated[str | None, Text(MAX_SCHEMA, printable=False)]
Rows = Annotated[int | None, Whole()]
LeaseId = Annotated[str, Text(64, 1, pattern="[A-Za-z0-9._-]*", words="a lease's id: 1 to 64 of A-Z a-z 0-9 . _ -")]


def job_secret(args: Mapping[str, object]) -> str:
    """Return what a publisher shows to prove whose job it is; "" for what cannot be one."""
    secret = args.get("job")
    return secret if isinstance(secret, str) and len(secret) <= 128 and secret.isascii() else ""


# -- publisher ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConfigObject(Object):
    """Settings, as :meth:`Config.to_dict` writes them."""

    expected: str = "settings by their full names, each as text"

    def take(self, value: object) -> Config:  # type: ignore[override]
        found = super().take(value)
        if not all(isinstance(setting, str) for setting in found.values()):
            raise ValueError(self.expected)
        try:
            return Config.from_dict(found)
        except ConfigError:
            raise
        except (KeyError, TypeError) as error:
            raise ValueError(self.expected) from error


@dataclass(frozen=True)
class OpenRequest(Fields):
    """Take a topic over for this job.

    Attributes:
        name: of the publisher, for people.
        parallelism: partitions of the topic.
        config: the publisher's settings.
        required: subscriptions that ``acks=all`` waits for.
        min_subscribers: so many must have acknowledged.
        serve: nobody publishes; what is sealed is served until a publisher comes.
        application: the publisher's, for errors.
        writing: write id of a batch in progress, when the coordinator before this one died.
        opener: made at random by each publisher: who asks again, since the answer was lost, has the topic.
    """

    name: Annotated[str, Text(255, 1)]
    parallelism: Annotated[int, Whole(1, MAX_PARALLELISM)]
    config: Annotated[Config, ConfigObject()]
    required: Annotated[tuple[str, ...], Items(Named(), MAX_REQUIRED)] = ()
    min_subscribers: Count = 0
    serve: Flag = False
    application: FreeText = ""
    writing: Annotated[str, Text(64, pattern="[0-9a-f]*", words="a write id")] = ""
    opener: Annotated[str, Text(64, pattern="[0-9a-f]*", words="a publisher's id")] = ""


@dataclass(frozen=True)
class BeginRequest(Fields):
    """Look at what is sealed, and wait for room in the spool."""

    query_id: FreeText
    batch_id: BatchId
    run_id: FreeText = ""
    wait: Wait = 0.0


@dataclass(frozen=True)
class Schema(Fields):
    """The schema of a batch: as Arrow has it, and Spark's JSON where the publisher is Spark."""

    arrow: Base64
    spark: Spark = None


@dataclass(frozen=True)
class SchemaObject:
    """A schema."""

    expected: str = "an object with arrow, in base64, and spark"

    def take(self, value: object) -> Schema:
        return Schema.from_json(Object().take(value))


@dataclass(frozen=True)
class SealRequest(Fields):
    """Make a batch visible. Segments without a file lie in the blob, one after another, each ``inline`` bytes."""

    query_id: FreeText
    batch_id: BatchId
    run_id: FreeText
    write_id: Annotated[str, Text(64, 1, pattern="[0-9a-f]*", words="a write id")]
    schema: Annotated[Schema, SchemaObject()]
    partitions: Annotated[int, Whole(1, MAX_PARTITION)]
    partitioner: FreeText
    segments: Annotated[tuple[SegmentInfo, ...], Items(Object("a segment"), MAX_SEGMENTS)]

    @classmethod
    def from_json(cls, values: Mapping[str, object], blob: bytes = b"") -> Self:
        taken = cls.checked(values)
        segments: list[SegmentInfo] = []
        used = 0
        for number, item in enumerate(taken["segments"]):
            where = f"segments[{number}]"
            size = None if item.get("inline") is None else take(Whole(0, len(blob)), where, item["inline"])
            data = None if size is None else blob[used : used + size]
            used += size or 0
            segments.append(take(_Segment(data), where, item))
        if used != len(blob):
            raise RemoteProtocolError(f"segments take {used} bytes of the {len(blob)} that came", field="segments")
        return cls(**{**taken, "segments": tuple(segments)})


@dataclass(frozen=True)
class _Segment:
    data: bytes | None
    expected: str = "a segment"

    def take(self, value: object) -> SegmentInfo:
        return SegmentInfo.from_json(value, self.data)


@dataclass(frozen=True)
class DeclareRequest(Fields):
    """Tell the schema before the first batch; Arrow's form is the blob."""

    spark: Spark = None
    arrow: bytes = b""

    @classmethod
    def from_json(cls, values: Mapping[str, object], blob: bytes = b"") -> Self:
        return cls(**cls.checked(values), arrow=blob)


@dataclass(frozen=True)
class AckedRequest(Fields):
    """Wait until all that must have acknowledged offset ``n``."""

    n: Count
    wait: Wait = 0.0


@dataclass(frozen=True)
class DrainedRequest(Fields):
    """Wait until all subscriptions have acknowledged everything."""

    wait: Wait = 0.0


@dataclass(frozen=True)
class CloseRequest(Fields):
    """The publisher is done; ``final``: no other comes after it."""

    final: Flag


# -- subscriber --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GrantRequest(Fields):
    """Take the subscription's name; where the reader is, for people."""

    host: Annotated[str, Text(255)] = ""
    pid: Annotated[int, Whole(0, 2**31 - 1)] = 0


@dataclass(frozen=True)
class FirstRequest(Fields):
    """Where a new checkpoint begins."""

    grant: Count
    start: Start
    end: End = None
    skip_removed: Flag = False


@dataclass(frozen=True)
class PollRequest(Fields):
    """Wait for news; ``head``, ``ended`` and ``waiting`` are what the peer knows."""

    head: Annotated[Position | None, Place()] = None
    ended: Annotated[bool | None, Truth()] = None
    waiting: Annotated[str | None, Text(4096, printable=False)] = None
    wait: Wait = 0.0


@dataclass(frozen=True)
class PlanRequest(Fields):
    """Acknowledge ``start`` and plan what follows, at most to ``end``; with ``count`` tell how much there is."""

    grant: Count
    start: At
    end: End = None
    max_rows: Rows = None
    max_bytes: Rows = None
    count: Flag = False


@dataclass(frozen=True)
class AckRequest(Fields):
    """Acknowledge a position."""

    grant: Count
    position: At


@dataclass(frozen=True)
class SlotRequest(Fields):
    """Acknowledge the slot ``last`` and make the next one, ``slot``.

    ``witnessed``: the asker itself had ``last`` made, as its newest one, and has run since; so no backup from before
    that can have taken the place of the log.
    """

    grant: Count
    start: At
    slot: SlotId
    last: Annotated[str | None, SlotName()] = None
    end: End = None
    witnessed: Flag = False


@dataclass(frozen=True)
class SettleRequest(Fields):
    """Where a slot of the checkpoint ends."""

    grant: Count
    start: At
    slot: SlotId
    committed: Flag


# -- readers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BindRequest(Fields):
    """Bind a slot to a range of the log; ``schemas`` are ids of those that the query can read."""

    name: Name
    grant: Count
    slot: SlotId
    schemas: Annotated[tuple[int, ...], Items(Whole(), MAX_FITTING)]
    end: End = None
    max_rows: Rows = None
    max_bytes: Rows = None
    wait: Wait = 0.0


@dataclass(frozen=True)
class BoundsRequest(Fields):
    """Where a read would begin and end, and how a subscription stands; without a name, none."""

    name: Annotated[str, Named(empty=True)] = ""
    start: Annotated[Boundary | None, Bound()] = None
    end: End = None
    skip_removed: Flag = False


@dataclass(frozen=True)
class RangeRequest(Fields):
    """The plans of a range; a subscriber shows its grant."""

    start: At
    end: At
    grant: Annotated[int | None, Whole()] = None


@dataclass(frozen=True)
class CutRequest(Fields):
    """Cut a range into pieces; a subscriber shows its grant."""

    start: At
    end: At
    partitions: Annotated[tuple[int, ...], Items(Whole(0, MAX_PARTITION), 65_536)]
    max_rows: Annotated[int | None, Whole(1)] = None
    at_least: Annotated[int, Whole(1)] = 1
    grant: Annotated[int | None, Whole()] = None


@dataclass(frozen=True)
class LeaseRequest(Fields):
    """Keep batches from retention, for a time."""

    id: LeaseId
    first: Count
    last: Count
    seconds: Annotated[float, Number(0.0, MAX_LEASE_SECONDS)]


@dataclass(frozen=True)
class ReleaseRequest(Fields):
    """Give a lease back."""

    id: LeaseId


# -- everybody, and administrators -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SchemaRequest(Fields):
    """A schema by its id, or the newest one."""

    id: Annotated[int | None, Whole()] = None
    wait: Wait = 0.0


@dataclass(frozen=True)
class StatusRequest(Fields):
    """How the topic stands; with ``served`` also what each process has served."""

    served: Flag = False


@dataclass(frozen=True)
class HandoverRequest(Fields):
    """Release the topic, if its publisher is gone."""


@dataclass(frozen=True)
class SeekRequest(Fields):
    """Move a subscription that nobody holds."""

    name: Name
    to: Start
    dry_run: Flag


@dataclass(frozen=True)
class DropRequest(Fields):
    """Delete a subscription that nobody holds."""

    name: Name
    dry_run: Flag


_PUBLISHER, _SUBSCRIBER, _READER, _ADMIN = (
    frozenset({role}) for role in ("publisher", "subscriber", "reader", "admin")
)


@dataclass(frozen=True)
class DropLeaseRequest(Fields):
    """Take a lease away from its owner."""

    id: LeaseId
    dry_run: Flag


CONTROL = table(
    Operation("open", OpenRequest, _PUBLISHER),
    Operation("begin", BeginRequest, _PUBLISHER),
    Operation("seal", SealRequest, _PUBLISHER),
    Operation("acked", AckedRequest, _PUBLISHER),
    Operation("drained", DrainedRequest, _PUBLISHER | _ADMIN),
    Operation("close", CloseRequest, _PUBLISHER),
    Operation("declare", DeclareRequest, _PUBLISHER),
    Operation("grant", GrantRequest, _SUBSCRIBER),
    Operation("first", FirstRequest, _SUBSCRIBER),
    Operation("poll", PollRequest, EVERYBODY),
    Operation("plan", PlanRequest, _SUBSCRIBER),
    Operation("ack", AckRequest, _SUBSCRIBER),
    Operation("slot", SlotRequest, _SUBSCRIBER),
    Operation("settle", SettleRequest, _SUBSCRIBER),
    Operation("bind", BindRequest, _READER),
    Operation("bounds", BoundsRequest, _SUBSCRIBER | _READER),
    Operation("range", RangeRequest, _SUBSCRIBER | _READER),
    Operation("cut", CutRequest, _SUBSCRIBER | _READER),
    Operation("lease", LeaseRequest, _READER),
    Operation("release", ReleaseRequest, _READER),
    Operation("schema", SchemaRequest, EVERYBODY),
    Operation("status", StatusRequest, EVERYBODY),
    Operation("handover", HandoverRequest, _ADMIN, audited=True),
    Operation("seek", SeekRequest, _ADMIN, audited=True),
    Operation("drop", DropRequest, _ADMIN, audited=True),
    Operation("drop_lease", DropLeaseRequest, _ADMIN, audited=True),
)
"""Which operation has which request, and whose it is. What the access list must say, is in coordinator/access.py."""
