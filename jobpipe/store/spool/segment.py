"""Writing segments: Arrow record batches in, checked bytes out. Imports no SQLite: Spark tasks use it.

An uncompressed record batch goes through ``RecordBatch.serialize()`` (one copy, one write); compression needs
pyarrow's stream writer, whose pieces are joined to one message first.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobpipe.errors import ConfigError, SchemaMismatch, SpoolError, UnsupportedType
from jobpipe.store.spool.segment_index import CHUNK, SegmentIndex, SegmentInfo
from jobpipe.store.spool.spool_files import Bytes, FileSegmentSink, SegmentSink

COMPRESSIONS = ("none", "lz4", "zstd")

# What a reader takes of one record batch, decompressed. Writers keep to half of it: they count a little otherwise.
DECODED_MAX = 2 * 1024**3
BOMB_FLOOR = 64 * 1024**2  # bytes up to which any ratio is taken: a column of one value is small
BOMB_RATIO = 1000  # zstd makes 400 MB of 12 KB, 1 : 31,887; real columns beyond the floor come to some hundreds

MAX_DEPTH = 64  # of nested types; Spark's own parser ends at about as many
MAX_FIELDS = 100_000


def check_schema(schema: pa.Schema) -> None:
    """Refuse a schema whose record batches are not readable one by one, or not without code of its owner's.

    Raises:
        UnsupportedType: a column, or a part of it, is dictionary-encoded (its dictionary is a message of its own), has
            an extension type, or is nested too deeply.
    """
    fields = 0
    for field in schema:
        parts = [(field, 1)]
        while parts:
            part, depth = parts.pop()
            kind, fields = part.type, fields + 1
            if pa.types.is_dictionary(kind):
                raise _unsupported(field, "is dictionary-encoded")
            if isinstance(kind, pa.BaseExtensionType) or b"ARROW:extension:name" in (part.metadata or {}):
                raise _unsupported(field, "has an extension type; publish its storage")
            if depth > MAX_DEPTH or fields > MAX_FIELDS:
                raise _unsupported(field, f"is nested deeper than {MAX_DEPTH}, or one of more than {MAX_FIELDS} fields")
            parts += [(kind.field(number), depth + 1) for number in range(kind.num_fields)]


def _unsupported(field: Any, what: str) -> UnsupportedType:
    kind = f"{field.type!s:.200}"
    return UnsupportedType(f"column {field.name!r} {what} ({kind})", column=field.name, type=kind)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch without rows."""
    return pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)


class _Pieces:
    """A file for pyarrow's stream writer that keeps what it is given."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.parts.append(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def take(self) -> bytes:
        parts, self.parts = self.parts, []
        return b"".join(parts)


class SegmentWriter:
    """Writes one segment.

    Args:
        write: Takes all of the bytes it is given, or raises.
        schema: Of every record batch; no dictionary-encoded columns (see :func:`check_schema`).
        compression: ``none``, ``lz4`` or ``zstd``, of the buffers inside each record batch.
    """

    def __init__(self, write: Callable[[Bytes], None], schema: pa.Schema, compression: str = "none") -> None:
        if compression not in COMPRESSIONS:
            raise ConfigError(f"compression is one of {', '.join(COMPRESSIONS)}", value=compression)
        check_schema(schema)
        self._write = write
        self._schema = schema
        self._batches: list[tuple[int, int]] = []
        self._crcs: list[int] = []
        self._pieces = _Pieces()
        self._stream: pa.RecordBatchStreamWriter | None = None
        if compression != "none":
            codec: Any = compression
            file: Any = self._pieces
            self._stream = pa.ipc.new_stream(file, schema, options=pa.ipc.IpcWriteOptions(compression=codec))
            self._stream.write_batch(empty_batch(schema))
            self._pieces.take()  # the schema message, which the stream writes with its first batch
        message = memoryview(schema.serialize())
        self._schema_bytes = self.length = len(message)
        self._emit(message)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the segment."""
        return self._schema

    def write(self, batch: pa.RecordBatch) -> None:
        """Append one record batch; one without rows leaves no trace.

        Raises:
            SchemaMismatch: it has another schema.
        """
        if batch.num_rows == 0:
            return
        if not batch.schema.equals(self._schema):
            raise SchemaMismatch(
                "a record batch has another schema than its segment", expected=str(self._schema), got=str(batch.schema)
            )
        size = batch.nbytes
        if size > DECODED_MAX // 2 and batch.num_rows > 1:
            half = batch.num_rows // 2
            self.write(batch.slice(0, half))
            self.write(batch.slice(half))
            return
        message: memoryview | None = None
        if self._stream is not None:
            self._stream.write_batch(batch)
            message = memoryview(self._pieces.take())
            if size > BOMB_FLOOR // 2 and size > len(message) * BOMB_RATIO // 2:
                message = None  # readers would take it for a bomb
        if message is None:
            message = memoryview(batch.serialize())
        self._emit(message)
        self._batches.append((batch.num_rows, len(message)))
        self.length += len(message)

    def finish(self) -> SegmentIndex:
        """Return the index; no more is written, not even an end-of-stream mark."""
        return SegmentIndex(self._schema_bytes, tuple(self._batches), tuple(self._crcs))

    def _emit(self, message: memoryview) -> None:
        for start in range(0, len(message), CHUNK):
            self._crcs.append(zlib.crc32(message[start : start + CHUNK]))
        self._write(message)


class SegmentFile:
    """The segments of one task attempt or one driver call, one after another in one file.

    Up to ``inline_max`` bytes stay in memory and make no file at all. After any error only :meth:`abort` is legal.

    Args:
        name: The file's name, see :func:`jobpipe.store.spool.spool_files.file_name`.
        open_sink: Called once, when the bytes pass ``inline_max``.
        inline_max: 0 writes a file for the first byte.
    """

    def __init__(self, name: str, open_sink: Callable[[], SegmentSink], *, inline_max: int = 0) -> None:
        self.name = name
        self.length = 0
        self._open_sink = open_sink
        self._inline_max = inline_max
        self._held: list[bytes] = []
        self._sink: SegmentSink | None = None
        self._writer: SegmentWriter | None = None
        self._partition = 0
        self._start = 0
        self._infos: list[SegmentInfo] = []
        self._ended = False

    @classmethod
    def create(cls, directory: Path, name: str, *, inline_max: int = 0) -> SegmentFile:
        """Return one that writes ``directory/name``, created exclusively."""
        return cls(name, lambda: FileSegmentSink(directory / name), inline_max=inline_max)

    def begin(self, partition: int, schema: pa.Schema, compression: str = "none") -> SegmentWriter:
        """End the segment that is open, if any, and begin one of ``partition``."""
        if self._ended:
            raise SpoolError(f"{self.name} is finished", file=self.name)
        self.end()
        self._partition, self._start = partition, self.length
        self._writer = SegmentWriter(self._write, schema, compression)
        return self._writer

    def end(self) -> None:
        """End the segment that is open; one without rows is not reported."""
        if self._writer is not None:
            index = self._writer.finish()
            if index.rows > 0:
                info = SegmentInfo(self._partition, index.rows, index.length, self.name, self._start, index.pack())
                self._infos.append(info)
            self._writer = None

    def finish(self, *, fsync: bool = True) -> list[SegmentInfo]:
        """Make all durable and return the segments, in the order of writing.

        Raises:
            SpoolError: the bytes did not reach the disk; the attempt is lost, never retry its fsync.
        """
        if self._ended:
            raise SpoolError(f"{self.name} is finished", file=self.name)
        self.end()
        self._ended = True
        if self._sink is not None:
            self._sink.finish(fsync=fsync)
            return list(self._infos)
        held = b"".join(self._held)
        return [
            SegmentInfo(info.partition, info.rows, info.length, None, 0, info.index, held[info.offset :][: info.length])
            for info in self._infos
        ]

    def abort(self) -> None:
        """Throw all away; idempotent, never raises."""
        self._ended = True
        self._held.clear()
        if self._sink is not None:
            with contextlib.suppress(Exception):
                self._sink.abort()

    def _write(self, data: Bytes) -> None:
        if self._sink is None and self.length + len(data) <= self._inline_max:
            self._held.append(bytes(data))
        else:
            if self._sink is None:
                self._sink = self._open_sink()
                for held in self._held:
                    self._sink.write(held)
                self._held.clear()
            self._sink.write(data)
        self.length += len(data)
