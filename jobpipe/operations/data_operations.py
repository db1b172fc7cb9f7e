"""The data process's operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Self

from jobpipe.errors import RemoteProtocolError
from jobpipe.net.servers.access_list import PUBLISH, READ
from jobpipe.operations.messages.checked_values import Integer, Items, PackedChunks, Text
from jobpipe.operations.messages.message_fields import (
    MAX_PARTITION,
    OMITTED,
    At,
    Count,
    EmptyReply,
    EndpointText,
    Fields,
    FileName,
    Flag,
    FreeText,
    Name,
    Nested,
    RequestFor,
    Secret,
    SlotId,
    message,
)
from jobpipe.operations.messages.operation import EVERYBODY, Operation, table
from jobpipe.store.spool.segment_index import Chunk

MAX_COUNTED = 2**40
"""Rows that one task reads at once."""

MAX_PIECES = 1_000
"""Of a range that one task reads."""


@message
class KeptPart(Fields):
    """Where a host server keeps the bytes of a part, and what they must be.

    Attributes:
        host, endpoint: which host server, and where it is.
        log: the log's place there; "" where this coordinator does not know it.
        file, offset: the file, and where the segment begins in it.
        chunks: of the segment, with their checksums.
    """

    host: Annotated[str, Text(128, 1)]
    endpoint: EndpointText
    log: Annotated[str, Text(49)]
    file: FileName
    offset: Count
    chunks: Annotated[tuple[Chunk, ...], PackedChunks()]


@message(kw_only=True)
class PartHeader(Fields):
    """What comes before the bytes of a part: a segment, or some record batches of it.

    Attributes:
        n, partition: of which batch and partition.
        partitions, schema_id: of the batch.
        sealed_ms: when it was sealed, milliseconds since 1970.
        epoch, publisher: who sealed it.
        row0: number of the first row within its partition of its batch.
        rows, record_batches, length: how much it is; length in bytes.
        before: the epoch that sealed batch ``n - 1``; an older server does not tell it.
        kept: where its bytes are, if a host server keeps them; then none follow. In JSON its fields join the others.
    """

    n: Count
    partition: Count
    partitions: Count
    schema_id: Annotated[int | None, Integer()] = None
    sealed_ms: Count
    epoch: Count
    publisher: FreeText
    row0: Count
    rows: Count
    record_batches: Count
    length: Count
    before: Annotated[int | None, Integer(), OMITTED] = None
    kept: KeptPart | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, object], blob: bytes = b"") -> Self:
        kept = KeptPart.from_json(values) if "host" in values else None
        return cls(**cls.checked(values), kept=kept)

    def to_json(self) -> dict[str, Any]:
        return {**({} if self.kept is None else self.kept.to_json()), **super().to_json()}


@message
class HeldPart(Fields):
    """A part whose bytes lie in the blob: the chunks one after another, the first the schema's."""

    header: Annotated[PartHeader, Nested(PartHeader)]
    chunks: Annotated[tuple[Chunk, ...], PackedChunks()]
    data: bytes = b""

    @property
    def length(self) -> int:
        """Bytes in the blob."""
        return sum(chunk.length for chunk in self.chunks)


def fill_held(parts: Iterable[HeldPart], blob: bytes) -> tuple[HeldPart, ...]:
    """Return the parts of a message, each with its bytes out of the blob.

    Raises:
        RemoteProtocolError: they take other bytes than came.
    """
    filled, used = [], 0
    for part in parts:
        filled.append(replace(part, data=blob[used : used + part.length]))
        used += part.length
    if used != len(blob):
        raise RemoteProtocolError(f"parts take {used} bytes of the {len(blob)} that came", field="parts")
    return tuple(filled)


@message
class FetchReply(Fields):
    """How much was streamed."""

    record_batches: Count
    rows: Count


@message
class CountedPart(Fields):
    """What a count will be of: the ``number``-th part of one reading of a range, under a subscription's name."""

    name: Name
    start: At
    end: At
    reading: SlotId
    number: Annotated[int, Integer(0, MAX_PARTITION)]


@message
class FetchRequest(RequestFor[FetchReply], op="fetch"):
    """Stream a partition's part of a range; ``skip`` record batches of it were read before.

    ``counts``: the reader reports how many rows it was, by ``count``, unless its link breaks.
    """

    start: At
    end: At
    partition: Annotated[int, Integer(0, MAX_PARTITION)]
    skip: Count = 0
    counts: Annotated[CountedPart | None, Nested(CountedPart), OMITTED] = None


@message
class PieceCount(Fields):
    """How many rows a task has read of a piece of a range: the ``number``-th one of the reading, of one partition."""

    number: Annotated[int, Integer(0, MAX_PARTITION)]
    partition: Annotated[int, Integer(0, MAX_PARTITION)]
    rows: Annotated[int, Integer(0, MAX_COUNTED)]


@message
class CountRequest(RequestFor[EmptyReply], op="count"):
    """Report how many rows a task has read, for the ledger, once it has read its share to the end.

    Attributes:
        name: the subscription's.
        start, end: the range of the micro-batch in this topic; what is acknowledged is made of such ranges.
        reading: one reading of that range, of which all pieces together are all of it: tasks that are tried again
            have the same.
        pieces: of this task.
    """

    name: Name
    start: At
    end: At
    reading: SlotId
    pieces: Annotated[tuple[PieceCount, ...], Items(Nested(PieceCount), MAX_PIECES)]


@message
class PutReply(Fields):
    """How many bytes were taken."""

    length: Count


@message
class PutRequest(RequestFor[PutReply], op="put"):
    """Take a segment file of ``length`` bytes, which follow.

    ``ticket`` shows that the sender is a task of the job that publishes (:mod:`jobpipe.net.servers.write_tokens`);
    without ``fsync`` the file need not be on the disk when it is answered.
    """

    file: FileName
    length: Count
    ticket: Secret = ""
    fsync: Flag = True


@message
class ServedReply(Fields):
    """Bytes."""

    bytes: Count


@message
class ServedRequest(RequestFor[ServedReply], op="served"):
    """How many bytes of the topic were served."""


DATA = table(
    Operation(FetchRequest, EVERYBODY, READ),
    Operation(CountRequest, frozenset({"reader"}), READ),
    Operation(PutRequest, frozenset({"publisher"}), PUBLISH),
    Operation(ServedRequest, EVERYBODY),
)
