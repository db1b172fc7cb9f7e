"""The host server's operations."""

from __future__ import annotations

from typing import Annotated

from jobpipe.net.servers.access_list import PUBLISH, READ
from jobpipe.operations.data_operations import ServedRequest
from jobpipe.operations.messages.checked_values import Items, Number, PackedChunks, SegmentFileName, Text
from jobpipe.operations.messages.message_fields import (
    Count,
    EmptyReply,
    Fields,
    FileName,
    Flag,
    LogId,
    LogPlace,
    R,
    RequestFor,
    Secret,
    message,
)
from jobpipe.operations.messages.operation import EVERYBODY, Operation, table
from jobpipe.store.spool.segment_index import Chunk

FILES_PAGE = 1000
"""Names of files in one answer, and in one request."""

RENEW_SECONDS = 600.0
"""Between two requests for the files of a log, by the coordinator that serves it: each shows that the log is in use."""

KEEP_SECONDS = 3 * RENEW_SECONDS
"""For so long a host server keeps a log that is not in use, at least."""

MAX_LOGS = 100_000  # of one topic
MAX_IDLE_SECONDS = 1e10


@message
class OfLog(RequestFor[R]):
    """What is about one log of the topic."""

    log: LogId


@message
class OfWrittenLog(OfLog[R]):
    """What only the log's publisher may do: it shows the write token (:mod:`jobpipe.net.servers.write_tokens`)."""

    token: Secret


@message
class ReadReply(Fields):
    """How many bytes were streamed; the PART before them has it too."""

    length: Count


@message
class FilesReply(Fields):
    """Names of files, in order; none after the last."""

    files: Annotated[tuple[str, ...], Items(Text(255), FILES_PAGE)]


@message
class RemoveReply(Fields):
    """How many files were removed."""

    removed: Count


@message
class ForgetLogsReply(Fields):
    """The logs that were removed, by their places."""

    forgotten: Annotated[tuple[str, ...], Items(Text(255), MAX_LOGS)]


@message
class ReadRequest(RequestFor[ReadReply], op="read"):
    """Stream chunks of a segment that begins at ``offset`` of a file, of the log at a place."""

    log: LogPlace
    file: FileName
    offset: Count
    chunks: Annotated[tuple[Chunk, ...], PackedChunks()]


@message
class PrepareRequest(OfWrittenLog[EmptyReply], op="prepare"):
    """Make the log's directory."""


@message
class HostPutRequest(OfWrittenLog[EmptyReply], op="put"):
    """Take a segment file of ``length`` bytes, which follow; with ``fsync`` it is on the disk when it is answered."""

    file: FileName
    length: Count
    fsync: Flag = True


@message
class AdoptRequest(OfWrittenLog[EmptyReply], op="adopt"):
    """Take a file of ``length`` bytes that a task of this host wrote into the folder itself."""

    file: FileName
    length: Count
    fsync: Flag = True


@message
class FilesRequest(OfWrittenLog[FilesReply], op="files"):
    """The names of a log's files that come after ``after``."""

    after: Annotated[str, Text(255)]


@message
class RemoveRequest(OfWrittenLog[RemoveReply], op="remove"):
    """Remove files."""

    files: Annotated[tuple[str, ...], Items(SegmentFileName(), FILES_PAGE)]


@message
class ForgetLogsRequest(OfWrittenLog[ForgetLogsReply], op="forget_logs"):
    """Remove the topic's other logs that were not in use for ``idle`` seconds: no write, and no request for files."""

    idle: Annotated[float, Number(0.0, MAX_IDLE_SECONDS)]


_PUBLISHER = frozenset({"publisher"})

HOSTSERVER = table(
    Operation(ReadRequest, EVERYBODY, READ),
    Operation(ServedRequest, EVERYBODY),
    Operation(PrepareRequest, _PUBLISHER, PUBLISH),
    Operation(HostPutRequest, _PUBLISHER, PUBLISH),
    Operation(AdoptRequest, _PUBLISHER, PUBLISH),
    Operation(FilesRequest, _PUBLISHER, PUBLISH),
    Operation(RemoveRequest, _PUBLISHER, PUBLISH),
    Operation(ForgetLogsRequest, _PUBLISHER, PUBLISH),
)
