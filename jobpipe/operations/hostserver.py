"""The host server's operations."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated

from jobpipe.net.access import PUBLISH, READ
from jobpipe.operations.data import ServedRequest
from jobpipe.operations.fields import (
    Count,
    Fields,
    FileName,
    Flag,
    Items,
    LogId,
    LogPlace,
    Number,
    Secret,
    SegmentFile,
    Text,
)
from jobpipe.operations.table import EVERYBODY, Operation, table
from jobpipe.store.index import PACKED_CHUNK, Chunk
from jobpipe.wire.frames import DATA_LIMIT

__all__ = [
    "FILES_PAGE",
    "HOSTSERVER",
    "AdoptRequest",
    "FilesRequest",
    "ForgetLogsRequest",
    "HostPutRequest",
    "OfLog",
    "OfWrittenLog",
    "PrepareRequest",
    "ReadRequest",
    "RemoveRequest",
]

FILES_PAGE = 1000
"""Names of files in one answer, and in one request."""

MAX_CHUNKS = 65_536
"""Of one read: 16 GiB."""

MAX_IDLE_SECONDS = 1e10
MAX_OFFSET = 2**62


@dataclass(frozen=True)
class Packed:
    """Chunks of a segment: offset, length and CRC-32 of each, packed, as base64."""

    expected: str = f"1 to {MAX_CHUNKS} chunks of a segment, packed, as base64"

    def take(self, value: object) -> tuple[Chunk, ...]:
        if not isinstance(value, str) or len(value) > MAX_CHUNKS * PACKED_CHUNK.size * 4 // 3 + 4:
            raise ValueError(self.expected)
        packed = base64.b64decode(value, validate=True)
        if not packed or len(packed) % PACKED_CHUNK.size:
            raise ValueError(self.expected)
        chunks = tuple(Chunk(*each) for each in PACKED_CHUNK.iter_unpack(packed))
        if any(not 0 < chunk.length <= DATA_LIMIT or chunk.offset > MAX_OFFSET for chunk in chunks):
            raise ValueError(self.expected)
        return chunks


@dataclass(frozen=True)
class OfLog(Fields):
    """What is about one log of the topic."""

    log: LogId


@dataclass(frozen=True)
class OfWrittenLog(OfLog):
    """What only the log's publisher may do: it shows the log's write token (:mod:`jobpipe.net.capability`)."""

    token: Secret


@dataclass(frozen=True)
class ReadRequest(Fields):
    """Stream chunks of a segment that begins at ``offset`` of a file, of the log at a place."""

    log: LogPlace
    file: FileName
    offset: Count
    chunks: Annotated[tuple[Chunk, ...], Packed()]


@dataclass(frozen=True)
class PrepareRequest(OfWrittenLog):
    """Make the log's directory."""


@dataclass(frozen=True)
class HostPutRequest(OfWrittenLog):
    """Take a segment file of ``length`` bytes, which follow; with ``fsync`` it is on the disk when it is answered."""

    file: FileName
    length: Count
    fsync: Flag = True


@dataclass(frozen=True)
class AdoptRequest(OfWrittenLog):
    """Take a file of ``length`` bytes that a task of this host wrote into the folder itself."""

    file: FileName
    length: Count
    fsync: Flag = True


@dataclass(frozen=True)
class FilesRequest(OfWrittenLog):
    """The names of a log's files that come after ``after``."""

    after: Annotated[str, Text(255)]


@dataclass(frozen=True)
class RemoveRequest(OfWrittenLog):
    """Remove files."""

    files: Annotated[tuple[str, ...], Items(SegmentFile(), FILES_PAGE)]


@dataclass(frozen=True)
class ForgetLogsRequest(OfWrittenLog):
    """Remove the topic's other logs in which nothing was written for ``idle`` seconds."""

    idle: Annotated[float, Number(0.0, MAX_IDLE_SECONDS)]


_PUBLISHER = frozenset({"publisher"})

HOSTSERVER = table(
    Operation("read", ReadRequest, EVERYBODY, READ),
    Operation("served", ServedRequest, EVERYBODY),
    Operation("prepare", PrepareRequest, _PUBLISHER, PUBLISH),
    Operation("put", HostPutRequest, _PUBLISHER, PUBLISH),
    Operation("adopt", AdoptRequest, _PUBLISHER, PUBLISH),
    Operation("files", FilesRequest, _PUBLISHER, PUBLISH),
    Operation("remove", RemoveRequest, _PUBLISHER, PUBLISH),
    Operation("forget_logs", ForgetLogsRequest, _PUBLISHER, PUBLISH),
)
