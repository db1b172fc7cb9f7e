"""What flow jobs ask of coordinators: of that of their source, and of that of the topic which they publish.

The cursors lie with the topic that is published, where the driver of the flow is the publisher, and shows the job's
secret; its tasks show a token that the driver made. A flow that publishes nothing has its cursors with its source,
where driver and tasks show the grant of the subscription.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from jobpipe.errors import RemoteProtocolError
from jobpipe.operations.data_operations import MAX_COUNTED, HeldPart, fill_held
from jobpipe.operations.messages.checked_values import Boolean, Integer, Items, Text
from jobpipe.operations.messages.message_fields import (
    MAX_PARTITION,
    OMITTED,
    At,
    Count,
    EmptyReply,
    EndpointText,
    Fields,
    Flag,
    FreeText,
    LogId,
    Name,
    Nested,
    RequestFor,
    Secret,
    Wait,
    message,
)
from jobpipe.operations.publisher_operations import MAX_SEGMENTS, Admitted, Schema, SegmentObject, WriteId, segments_of
from jobpipe.operations.range_messages import Stop
from jobpipe.store.spool.segment_index import SegmentInfo
from jobpipe_registry.names import MAX_PARALLELISM

FLOW_TASKS = frozenset({"claim", "admit_part", "seal_parts"})
"""What tasks ask as publishers, without the secret of the job."""

PARTITIONER = "as the source"
"""Of what flows publish, as readers see it."""

MAX_PARTS = 128
"""Of one request: partitions of a task, and what it seals at once."""

Partition = Annotated[int, Integer(0, MAX_PARALLELISM - 1)]
Partitions = Annotated[int, Integer(1, MAX_PARALLELISM)]


# -- cursors -----------------------------------------------------------------------------------------------------------


@message
class CursorObject(Fields):
    """A cursor: the partition of the source, the claim that may move it, and where it is.

    The ``r`` of the position counts the record batches of this partition in batch ``n``. ``rows``: those that
    the function was given since it is counted; None where that is not known.
    """

    partition: Partition
    claim: Count
    position: At
    rows: Annotated[int | None, Integer(), OMITTED] = None


@message
class CursorsReply(Fields):
    """A flow's cursors, by partition; ``full``: the topic that has them takes no rows now."""

    cursors: Annotated[tuple[CursorObject, ...], Items(Nested(CursorObject), MAX_PARALLELISM)]
    full: Annotated[bool, Boolean(), OMITTED] = False


@message
class BeginFlowRequest(RequestFor[CursorsReply], op="begin_flow"):
    """Begin a flow, or go on with it: make the cursors that are missing, at ``start``.

    Attributes:
        flow, topic: its name, and what it reads.
        start: where it begins if it is new; in the log that the topic has now.
        partitions: of the source.
        grant: of the subscription, where its driver is a subscriber.
        token: what its tasks show, where its driver is a publisher.
        schema: of what it publishes.
        parallelism: partitions of what it publishes.
    """

    flow: Name
    topic: Name
    start: At
    partitions: Partitions
    grant: Annotated[int, Integer(), OMITTED] = 0
    token: Annotated[str, Text(64, pattern="[0-9a-f]*", words="a flow's token"), OMITTED] = ""
    schema: Annotated[Schema | None, Nested(Schema), OMITTED] = None
    parallelism: Annotated[int, Integer(1, MAX_PARALLELISM), OMITTED] = 1

    @property
    def log(self) -> str:
        return self.start.log


@message
class CursorsRequest(RequestFor[CursorsReply], op="cursors"):
    """Where a flow's cursors are, in one log of its source."""

    flow: Name
    topic: Name
    log: LogId


@message
class ClaimRequest(RequestFor[CursorsReply], op="claim"):
    """Give partitions to this task; what an older one asks for them is refused from now on."""

    flow: Name
    topic: Name
    log: LogId
    partitions: Annotated[tuple[int, ...], Items(Integer(0, MAX_PARALLELISM - 1), MAX_PARTS)]
    grant: Annotated[int, Integer(), OMITTED] = 0
    token: Annotated[Secret, OMITTED] = ""


# -- reading -----------------------------------------------------------------------------------------------------------


@message
class PartAt(Fields):
    """Where a task goes on in a partition; ``r`` counts the record batches of this partition in batch ``n``."""

    partition: Partition
    at: At


@message
class FollowedPart(Fields):
    """What a partition has, up to ``end``.

    Attributes:
        partition, start, end: the range; it may be empty of rows. It begins later than was asked where what lay before
            is removed, and that was allowed.
        fetch: its rows are to be fetched from the data process; else they are here.
        held: its rows.
    """

    partition: Partition
    start: At
    end: At
    fetch: Flag
    held: Annotated[tuple[HeldPart, ...], Items(Nested(HeldPart), MAX_SEGMENTS)]


@message
class FollowReply(Fields):
    """What came.

    Attributes:
        parts: of the partitions that are further now; the others have nothing new.
        partitions: how many the source has there; 0 while it has no batch. What the task believes, if nothing was read.
        over: the flow is stopped; the task ends.
        data: endpoint of the data process.
        hurry: the source's publisher waits for acknowledgements: cursors are to move at once.
    """

    parts: Annotated[tuple[FollowedPart, ...], Items(Nested(FollowedPart), MAX_PARTS)]
    partitions: Annotated[int, Integer(0, MAX_PARTITION)]
    over: Flag
    data: EndpointText
    hurry: Annotated[bool, Boolean(), OMITTED] = False

    @classmethod
    def from_json(cls, values: Mapping[str, object], blob: bytes = b"") -> Self:
        taken = cls.checked(values)
        held = iter(fill_held([piece for part in taken["parts"] for piece in part.held], blob))
        parts = [
            FollowedPart(part.partition, part.start, part.end, part.fetch, tuple(next(held) for _ in part.held))
            for part in taken["parts"]
        ]
        return cls(**{**taken, "parts": tuple(parts)})

    @property
    def blob(self) -> bytes:
        """The bytes of all parts."""
        return b"".join(piece.data for part in self.parts for piece in part.held)


@message
class FollowRequest(RequestFor[FollowReply], op="follow"):
    """Wait for rows of some partitions.

    Attributes:
        name, grant: the subscription.
        parts: where the task goes on.
        partitions: how many the task believes the source to have; it gets a reply at once when there are more.
        skip_removed: begin at what is there if something before is removed.
        wait: seconds.
        hurries: the task knows that it must hurry; one that does not gets a reply at once.
    """

    name: Name
    grant: Count
    parts: Annotated[tuple[PartAt, ...], Items(Nested(PartAt), MAX_PARTS)]
    partitions: Partitions
    skip_removed: Annotated[bool, Boolean(), OMITTED] = False
    wait: Wait = 0.0
    hurries: Annotated[bool, Boolean(), OMITTED] = False


@message
class HaltRequest(RequestFor[EmptyReply], op="halt"):
    """Tell the tasks that wait under this grant that the flow is stopped."""

    grant: Count


# -- publishing --------------------------------------------------------------------------------------------------------


@message
class AdmitPartReply(Fields):
    """What a task must know to write a file.

    Attributes:
        full: why there is no room; None if there is.
        admitted: None where there is no room.
        ticket: for uploads to the data process.
        log, log_token: of the topic, for host servers.
    """

    log: LogId
    full: Annotated[str | None, Text(4096, printable=False)] = None
    admitted: Annotated[Admitted | None, Nested(Admitted)] = None
    ticket: Secret = ""
    log_token: Secret = ""


@message
class AdmitPartRequest(RequestFor[AdmitPartReply], op="admit_part"):
    """Wait for room, and for the right to write files for a partition that this task has claimed."""

    flow: Name
    token: Secret
    partition: Partition
    claim: Count
    wait: Wait = 0.0


@message
class PartSeal(Fields):
    """What a function returned for a part of a partition of the source.

    Attributes:
        partition, claim, start, to: of the source; published if the cursor stands at ``start``.
        write_id: in the names of its files.
        segments: how many of the request's are its own.
        read: rows of the source that the function was given for it; None of a task that does not count them.
    """

    partition: Partition
    claim: Count
    start: At
    to: At
    write_id: WriteId
    segments: Annotated[int, Integer(0, MAX_SEGMENTS)] = 0
    read: Annotated[int | None, Integer(0, MAX_COUNTED), OMITTED] = None


@message
class PartSealed(Fields):
    """What became of a part.

    Attributes:
        position: where the cursor stands now: at ``to`` or beyond if the part is sealed.
        code, message: of the error that kept it from being sealed, as in a FAULT; "" for none.
        again: it must be written again.
    """

    position: Stop = None
    code: Annotated[str, Text(64), OMITTED] = ""
    message: Annotated[FreeText, OMITTED] = ""
    again: Annotated[bool, Boolean(), OMITTED] = False


@message
class SealPartsReply(Fields):
    """What became of each part, in order; ``room``: more may come at once."""

    parts: Annotated[tuple[PartSealed, ...], Items(Nested(PartSealed), MAX_PARTS)]
    room: Flag


@message
class SealPartsRequest(RequestFor[SealPartsReply], op="seal_parts"):
    """Publish parts, and move their cursors. Segments without a file lie in the blob, as in ``seal``."""

    flow: Name
    topic: Name
    log: LogId
    parts: Annotated[tuple[PartSeal, ...], Items(Nested(PartSeal), MAX_PARTS)]
    segments: Annotated[tuple[SegmentInfo, ...], Items(SegmentObject(), MAX_SEGMENTS)] = ()
    grant: Annotated[int, Integer(), OMITTED] = 0
    token: Annotated[Secret, OMITTED] = ""

    @classmethod
    def from_json(cls, values: Mapping[str, object], blob: bytes = b"") -> Self:
        taken: dict[str, Any] = cls.checked(values)
        segments = segments_of(taken.get("segments", ()), blob)
        if sum(part.segments for part in taken["parts"]) != len(segments):
            raise RemoteProtocolError("the parts have other segments than came with them", field="parts")
        return cls(**{**taken, "segments": segments})

    @property
    def blob(self) -> bytes:
        """The segments without a file."""
        return b"".join(info.data for info in self.segments if info.data is not None)


# -- administration ----------------------------------------------------------------------------------------------------


@message
class ResetFlowReply(Fields):
    """The topics whose cursors were deleted, or would be."""

    topics: Annotated[tuple[str, ...], Items(Text(255), MAX_SEGMENTS)]


@message
class ResetFlowRequest(RequestFor[ResetFlowReply], op="reset_flow"):
    """Delete a flow's cursors: it begins again where its subscription stands."""

    flow: Name
    dry_run: Flag = False
