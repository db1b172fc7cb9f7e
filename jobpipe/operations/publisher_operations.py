"""What publishers ask of the coordinator, and what it answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from jobpipe.config import Config, config_from_dict
from jobpipe.errors import ConfigError, RemoteProtocolError
from jobpipe.operations.messages.application import Application
from jobpipe.operations.messages.checked_values import (
    Base64Bytes,
    Boolean,
    CheckedName,
    Integer,
    Items,
    Object,
    PlainValue,
    Text,
)
from jobpipe.operations.messages.message_fields import (
    MAX_PARTITION,
    OMITTED,
    At,
    Base64,
    BatchId,
    Count,
    EmptyReply,
    EndpointText,
    Fields,
    Flag,
    FreeText,
    InstanceId,
    LogId,
    Nested,
    RequestFor,
    Secret,
    SparkSchema,
    Wait,
    message,
    take,
)
from jobpipe.operations.messages.source_messages import SourceReport
from jobpipe.store.catalog.redrive_marks import MARKS, SourceRow
from jobpipe.store.spool.segment_index import SegmentInfo, is_host_id
from jobpipe_registry.names import MAX_PARALLELISM

MAX_SEGMENTS = 100_000  # of one batch; the 16 MiB of a frame hold fewer
MAX_REQUIRED = 1000
MAX_HOSTS = 100_000
MAX_WRITERS = 1000  # queries and batch writes of one application that write a topic at the same time
MAX_SUBSCRIPTIONS = 100_000
MAX_APPENDED = 8 * 1024 * 1024  # bytes of a batch of an appender, all of which travel with its seal
MAX_SEGMENTS_APPENDED = 4000  # which a request of 1 MiB can describe

MAX_NOTE = 4096  # bytes that a publisher stores with a batch

NO_ROOM = "room"  # the reason, in a SpoolFull, for which an appender asks for room again
APPENDER = "appender"
"""The role of who publishes next to a topic's publisher."""

Note = Base64Bytes((MAX_NOTE + 2) // 3 * 4, f"at most {MAX_NOTE} bytes, as base64")
WriteId = Annotated[str, Text(64, 1, pattern="[0-9a-f]*", words="a write id")]


def job_secret(args: Mapping[str, object]) -> str:
    """Return what a publisher shows to prove whose job it is; "" for what cannot be one."""
    secret = args.get("job")
    return secret if isinstance(secret, str) and len(secret) <= 128 and secret.isascii() else ""


@dataclass(frozen=True)
class ConfigObject(Object):
    """Settings, as :meth:`Config.to_dict` writes them."""

    expected: str = "settings by their full names, each as text"

    def take(self, value: object) -> Config:  # type: ignore[override]
        found = super().take(value)
        if not all(isinstance(setting, str) for setting in found.values()):
            raise ValueError(self.expected)
        try:
            return config_from_dict(found)
        except ConfigError:
            raise
        except (KeyError, TypeError) as error:
            raise ValueError(self.expected) from error

    def give(self, value: Config) -> dict[str, str]:
        return value.to_dict()


@dataclass(frozen=True)
class HostId(PlainValue):
    """The id of a host server."""

    expected: str = "the id of a host server"

    def take(self, value: object) -> str:
        if not isinstance(value, str) or not is_host_id(value):
            raise ValueError(self.expected)
        return value


@dataclass(frozen=True)
class Counts(PlainValue):
    """How many batches, by subscription."""

    expected: str = "an object of whole numbers"

    def take(self, value: object) -> Mapping[str, int]:
        found = Object().take(value)
        if len(found) > MAX_SUBSCRIPTIONS:
            raise ValueError(self.expected)
        return {
            take(CheckedName(), "a subscription", name): take(Integer(), name, count) for name, count in found.items()
        }


@message
class OpenReply(Fields):
    """The topic is this job's.

    Attributes:
        log: its id.
        epoch: in which the publisher seals.
        head: after the newest batch.
        token: the log's write token, which host servers want to see.
    """

    log: LogId
    epoch: Count
    head: At
    token: Secret


@message
class OpenRequest(RequestFor[OpenReply], op="open"):
    """Take a topic over for this job.

    Attributes:
        name: of the publisher, for people.
        parallelism: partitions of the topic.
        config: the publisher's settings.
        required: subscriptions that ``acks=all`` waits for.
        min_subscribers: so many must have acknowledged.
        serve: nothing is published; what is sealed is served until a publisher comes.
        application: the name of the publisher's, for errors.
        by: the publisher's application.
        writing: write id of a batch in progress, when the coordinator before this one died.
        others: write ids of other batches in progress, of the same publisher's other processes.
        opener: made at random by each publisher: who asks again, since the answer was lost, has the topic.
    """

    name: Annotated[str, Text(255, 1)]
    parallelism: Annotated[int, Integer(1, MAX_PARALLELISM)]
    config: Annotated[Config, ConfigObject()]
    required: Annotated[tuple[str, ...], Items(CheckedName(), MAX_REQUIRED)] = ()
    min_subscribers: Count = 0
    serve: Annotated[bool, Boolean(), OMITTED] = False
    application: FreeText = ""
    writing: Annotated[str, Text(64, pattern="[0-9a-f]*", words="a write id")] = ""
    opener: Annotated[str, Text(64, pattern="[0-9a-f]*", words="a publisher's id")] = ""
    others: Annotated[
        tuple[str, ...], Items(Text(64, 1, pattern="[0-9a-f]*", words="a write id"), MAX_WRITERS), OMITTED
    ] = ()
    by: Annotated[Application | None, Nested(Application), OMITTED] = None

    @property
    def in_progress(self) -> frozenset[str]:
        """All write ids of batches in progress."""
        return frozenset((self.writing, *self.others))

    def same_settings(self, other: OpenRequest) -> bool:
        """Tell whether another request asks for the same, no matter what is in progress and which process asks."""
        mine = dataclasses.replace(self, writing=other.writing, others=other.others, by=other.by)
        return mine == other


@message
class LastSealed(Fields):
    """The last batch that is sealed for a query, the position after it, and the note that came with it."""

    batch_id: BatchId
    position: At
    run_id: FreeText
    note: Annotated[bytes | None, Note, OMITTED] = None


@message
class NewestQuery(Fields):
    """The last batch that any query sealed; ``n`` is the offset after it."""

    query_id: FreeText
    batch_id: BatchId
    n: Count


@message
class Admitted(Fields):
    """What a publisher must know to write its next batch.

    Attributes:
        write_id: all files of the batch carry it in their names.
        data: endpoint of the data process.
        hosts: ids of the host servers that may keep segments.
        instance: of the coordinator.
    """

    write_id: WriteId
    data: EndpointText
    hosts: Annotated[tuple[str, ...], Items(HostId(), MAX_HOSTS)]
    instance: InstanceId


@message
class Appending(Fields):
    """What an appender must know to write a batch: partitions and partitioner of the newest one. It has the same."""

    partitions: Annotated[int, Integer(1, MAX_PARTITION)]
    partitioner: FreeText


@message
class BeginReply(Fields):
    """Whether the batch is sealed already, or may be written.

    Attributes:
        epoch: in which the publisher seals; it was raised if a batch must be written again.
        last: of the same query; None if it has sealed nothing.
        newest: of any query, told where the query has sealed nothing.
        full: why there is no room; None if there is.
        admitted: None for a batch that is sealed, where there is no room, and for an appender.
        appending: for an appender, in place of ``admitted``.
    """

    epoch: Count
    last: Annotated[LastSealed | None, Nested(LastSealed)] = None
    newest: Annotated[NewestQuery | None, Nested(NewestQuery)] = None
    full: Annotated[str | None, Text(4096, printable=False)] = None
    admitted: Annotated[Admitted | None, Nested(Admitted)] = None
    appending: Annotated[Appending | None, Nested(Appending), OMITTED] = None


@message
class BeginRequest(RequestFor[BeginReply], op="begin"):
    """Look at what is sealed, and wait for room in the spool; ``written``: the batch has been written, by ``prepare``.

    Of a written batch only ``epoch``, ``last`` and ``newest`` are answered: it needs neither room nor a write id.
    """

    query_id: FreeText
    batch_id: BatchId
    run_id: FreeText = ""
    wait: Wait = 0.0
    written: Annotated[bool, Boolean(), OMITTED] = False


@message
class PrepareReply(Fields):
    """What a batch may be written by.

    Attributes:
        admitted: as for ``begin``.
        control: where tasks ask for ``room``.
        full: why there is none yet; None if there is.
    """

    admitted: Annotated[Admitted, Nested(Admitted)]
    control: EndpointText
    full: Annotated[str | None, Text(4096, printable=False)] = None


@message
class PrepareRequest(RequestFor[PrepareReply], op="prepare"):
    """Begin a batch whose query and id only its tasks know; the earlier one of the same writer is given up."""

    writer: Annotated[str, Text(64, 1, pattern="[0-9a-f]*", words="a writer's id")]


@message
class RoomReply(Fields):
    """Why there is no room; None if there is."""

    full: Annotated[str | None, Text(4096, printable=False)] = None


@message
class RoomRequest(RequestFor[RoomReply], op="room"):
    """Wait for room in the spool; asked by the tasks of a prepared batch, which show their ticket."""

    write_id: WriteId
    ticket: Secret
    wait: Wait = 0.0


@message
class Schema(Fields):
    """The schema of a batch: as Arrow has it, and Spark's JSON where the publisher is Spark."""

    arrow: Base64
    spark: SparkSchema = None


@dataclass(frozen=True)
class SegmentObject(Object):
    """A segment; with ``inline`` its bytes lie in the blob, which :class:`SealRequest` divides."""

    expected: str = "a segment"

    def give(self, value: SegmentInfo) -> dict[str, Any]:
        return {**value.to_json(), "inline": None if value.data is None else len(value.data)}


def segments_of(items: Iterable[Mapping[str, Any]], blob: bytes) -> tuple[SegmentInfo, ...]:
    """Return a request's segments; those without a file lie in the blob, one after another.

    Raises:
        RemoteProtocolError: one is described wrongly, or the blob has other bytes than they have.
    """
    segments: list[SegmentInfo] = []
    used = 0
    for number, item in enumerate(items):
        where = f"segments[{number}]"
        size = None if item.get("inline") is None else take(Integer(0, len(blob)), where, item["inline"])
        data = None if size is None else blob[used : used + size]
        used += size or 0
        segments.append(take(_Segment(data), where, item))
    if used != len(blob):
        raise RemoteProtocolError(f"segments take {used} bytes of the {len(blob)} that came", field="segments")
    return tuple(segments)


@message
class RedrivenRow(Fields):
    """A row of the topic, by where it was; ``published_ms``: when its batch was sealed."""

    offset: Count
    published_ms: Count
    partition: Annotated[int, Integer(0, MAX_PARTITION)]
    row: Count

    @classmethod
    def of(cls, row: SourceRow) -> Self:
        """Return the form that travels."""
        return cls(row.offset, row.published_ms, row.partition, row.number)

    @property
    def source(self) -> SourceRow:
        """The form that is stored."""
        return SourceRow(self.offset, self.published_ms, self.partition, self.row)


RedrivenRows = Annotated[tuple[RedrivenRow, ...], Items(Nested(RedrivenRow), MARKS)]


@message
class RedrivenReply(Fields):
    """Those that were published again."""

    rows: RedrivenRows


@message
class RedrivenRequest(RequestFor[RedrivenReply], op="redriven"):
    """Which of some rows of the topic were published in it again."""

    rows: RedrivenRows


@message
class SealReply(Fields):
    """The position after the batch; ``admitted`` if the next one may come at once."""

    position: At
    admitted: Annotated[Admitted | None, Nested(Admitted)] = None


@message
class SealRequest(RequestFor[SealReply], op="seal"):
    """Make a batch visible. Segments without a file lie in the blob, one after another, each ``inline`` bytes.

    Attributes:
        redriven: which rows of the topic the batch publishes again: as many as it has.
        note: kept with the query until its next batch, and told by ``begin``; not with ``acks=all``.
    """

    query_id: FreeText
    batch_id: BatchId
    run_id: FreeText
    write_id: WriteId
    schema: Annotated[Schema, Nested(Schema, "an object with arrow, in base64, and spark")]
    partitions: Annotated[int, Integer(1, MAX_PARTITION)]
    partitioner: FreeText
    segments: Annotated[tuple[SegmentInfo, ...], Items(SegmentObject(), MAX_SEGMENTS)]
    redriven: Annotated[tuple[RedrivenRow, ...], Items(Nested(RedrivenRow), MARKS), OMITTED] = ()
    note: Annotated[bytes | None, Note, OMITTED] = None

    @classmethod
    def from_json(cls, values: Mapping[str, object], blob: bytes = b"") -> Self:
        taken = cls.checked(values)
        return cls(**{**taken, "segments": segments_of(taken["segments"], blob)})

    @property
    def blob(self) -> bytes:
        """The segments without a file."""
        return b"".join(info.data for info in self.segments if info.data is not None)


@dataclass(frozen=True)
class _Segment(PlainValue):
    data: bytes | None
    expected: str = "a segment"

    def take(self, value: object) -> SegmentInfo:
        return SegmentInfo.from_json(value, self.data)


@message
class DeclareReply(Fields):
    """The schema's id."""

    id: Count


@message
class DeclareRequest(RequestFor[DeclareReply], op="declare"):
    """Tell the schema before the first batch; Arrow's form is the blob."""

    spark: SparkSchema = None
    arrow: bytes = b""

    @classmethod
    def from_json(cls, values: Mapping[str, object], blob: bytes = b"") -> Self:
        return cls(**cls.checked(values), arrow=blob)

    @property
    def blob(self) -> bytes:
        """The schema, as Arrow has it."""
        return self.arrow


@message
class AckedReply(Fields):
    """Who is still waited for, and the lost host servers that kept a part of the batch, if there are any."""

    missing: Annotated[tuple[str, ...], Items(Text(255), MAX_REQUIRED + 1)]
    gone: Annotated[tuple[str, ...], Items(HostId(), MAX_HOSTS)]


@message
class AckedRequest(RequestFor[AckedReply], op="acked"):
    """Wait until all that must have acknowledged offset ``n``."""

    n: Count
    wait: Wait = 0.0


@message
class DrainedReply(Fields):
    """The subscriptions that have not acknowledged everything, with their lag in batches."""

    lagging: Annotated[Mapping[str, int], Counts()]


@message
class DrainedRequest(RequestFor[DrainedReply], op="drained"):
    """Wait until all subscriptions have acknowledged everything."""

    wait: Wait = 0.0


@message
class SourceRequest(RequestFor[EmptyReply], op="source"):
    """Tell how the database stands whose changes the publisher captures; kept in memory, for the topic's status."""

    report: Annotated[SourceReport, Nested(SourceReport)]


@message
class CloseReply(Fields):
    """The topic is given up.

    Attributes:
        head: after the newest batch.
        kept: how many batches there are.
        lagging: by subscription, how many batches it has not acknowledged. None, as ``kept``, where the disk fails.
    """

    head: At
    kept: Annotated[int | None, Integer(), OMITTED] = None
    lagging: Annotated[Mapping[str, int] | None, Counts(), OMITTED] = None


@message
class CloseRequest(RequestFor[CloseReply], op="close"):
    """The publisher is done; ``final``: no other comes after it."""

    final: Flag


def marked_rows(ask: Callable[[RedrivenRequest], RedrivenReply], rows: Sequence[SourceRow]) -> set[SourceRow]:
    """Return those of some rows that are marked; ``ask`` returns the reply to a request."""
    found: set[SourceRow] = set()
    for start in range(0, len(rows), MARKS):
        asked = tuple(map(RedrivenRow.of, rows[start : start + MARKS]))
        found.update(row.source for row in ask(RedrivenRequest(asked)).rows)
    return found
