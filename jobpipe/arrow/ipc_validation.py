"""Reads record batches from a stream that may be hostile: judged by what it declares, before anything is decoded.

Arrow decodes what it is given: a few kilobytes of zstd become gigabytes, and a registered extension type runs its
owner's code on reading a schema. So the metadata are looked at first. What is wrong is a ``pa.ArrowInvalid``, as
pyarrow's own complaints are. It knows no links; checksums are checked below, ``validate(full=True)`` is called above.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa

from jobpipe.errors import UnsupportedType
from jobpipe.operations.data_operations import PartHeader
from jobpipe.store.spool.segment import BOMB_FLOOR, BOMB_RATIO, DECODED_MAX, check_schema

EXTENSION = b"ARROW:extension:name"
SHOWN = 100  # characters of Arrow's own words in an error
MAX_ROWS = 2**31 - 1  # of a record batch: Spark counts them with an int

# Positions in the vtables of Arrow's format/Message.fbs: Message(version, header_type, header, bodyLength, ...) and
# RecordBatch(length, nodes, buffers, compression, ...). A Buffer is a struct of two int64, offset and length.
_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3
_BUFFER = struct.Struct("<qq")
_INT64 = struct.Struct("<q")
_U32, _I32, _U16 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")


class CheckedReader:
    """Reads one part: a schema message and then record batches.

    Args:
        file: The part's bytes.
        header: The part's header.
        accept: Called with the schema before any data are read; raises when it is not the agreed one.
    """

    def __init__(
        self, file: pa.NativeFile, header: PartHeader, accept: Callable[[pa.Schema], object] | None = None
    ) -> None:
        self._messages = pa.ipc.MessageReader.open_stream(file)
        self._rows = header.rows
        self._left = header.record_batches
        self._schema = read_schema(self._messages.read_next_message())
        if accept is not None:
            accept(self._schema)

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next record batch; its values are still to be validated.

        Raises:
            pa.ArrowInvalid: it declares more than it may, or other rows than its part.
        """
        message = self._messages.read_next_message()
        body = message.body
        if message.type != "record batch" or body is None:
            raise pa.ArrowInvalid(f"a {message.type} where a record batch is due")
        size = declared_size(memoryview(message.metadata), memoryview(body))
        if size > DECODED_MAX or (size > BOMB_FLOOR and size > len(body) * BOMB_RATIO):
            raise pa.ArrowInvalid(f"a record batch of {len(body)} bytes declares {size} bytes once decompressed")
        batch = pa.ipc.read_record_batch(message, self._schema)
        self._left -= 1
        self._rows -= batch.num_rows
        if batch.num_rows > MAX_ROWS or self._rows < 0 or (self._left == 0 and self._rows):
            raise pa.ArrowInvalid("record batches have other rows than their part")
        return batch


def read_schema(message: pa.Message) -> pa.Schema:
    """Return the schema of a message from outside.

    Raises:
        pa.ArrowInvalid: it is none, or one that :func:`check_schema` refuses. No extension type's code has run.
    """
    if message.type != "schema":
        raise pa.ArrowInvalid(f"a {message.type} where a schema is due")
    if EXTENSION in message.metadata.to_pybytes():  # before pyarrow looks for its class
        raise pa.ArrowInvalid("a column has an extension type")
    schema = pa.ipc.read_schema(message)
    try:
        check_schema(schema)
    except UnsupportedType as error:
        raise pa.ArrowInvalid(error.message) from error
    return schema


def parse_arrow_schema(topic: str, data: bytes) -> pa.Schema:
    """Return the Arrow schema that a publisher gave as an IPC message.

    Raises:
        UnsupportedType: a column has an extension type, is dictionary-encoded or nested too deeply, or it is no schema.
    """
    try:
        return read_schema(pa.ipc.read_message(pa.py_buffer(data)))
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise UnsupportedType(
            f"topic {topic!r}: what its publisher says of its columns is refused: its Arrow schema cannot be read "
            f"({error!s:.{SHOWN}})",
            topic=topic,
        ) from error


def declared_size(metadata: memoryview, body: memoryview) -> int:
    """Return how many bytes the buffers of a record batch message will have, decompressed.

    Raises:
        pa.ArrowInvalid: the metadata lead outside of themselves or of the body.
    """
    try:
        return _declared_size(metadata, body)
    except struct.error as error:
        raise pa.ArrowInvalid(f"a record batch's metadata are malformed: {error}") from error


def _declared_size(metadata: memoryview, body: memoryview) -> int:
    batch = _follow(metadata, _field(metadata, _U32.unpack_from(metadata)[0], _HEADER))
    if not _field(metadata, batch, _COMPRESSION):
        return len(body)  # pyarrow itself refuses buffers outside of it
    at = _follow(metadata, _field(metadata, batch, _BUFFERS))
    (count,) = _U32.unpack_from(metadata, at)
    buffers = metadata[at + 4 : at + 4 + count * _BUFFER.size]
    if len(buffers) != count * _BUFFER.size:
        raise struct.error("more buffers than metadata")
    size, end = 0, len(body)
    for offset, length in _BUFFER.iter_unpack(buffers):
        if offset < 0 or length < 0 or offset + length > end:
            raise struct.error("a buffer lies outside of the body")
        if not length:
            continue
        (declared,) = _INT64.unpack_from(body, offset)  # -1: this one is not compressed
        if declared < -1:
            raise struct.error("a buffer of negative size")
        size += length if declared == -1 else declared
    return size


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Return where a table's field lies, 0 when it is not there."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        raise struct.error("a table without a vtable")
    if _U16.unpack_from(metadata, vtable)[0] < 6 + 2 * number:
        return 0
    (offset,) = _U16.unpack_from(metadata, vtable + 4 + 2 * number)
    return table + offset if offset else 0


def _follow(metadata: memoryview, at: int) -> int:
    if not at:
        raise struct.error("a field is missing")
    return int(at + _U32.unpack_from(metadata, at)[0])
