"""What is inside a segment: its record batches, its chunks, their checksums. Knows no Arrow and no files.

A segment is an Arrow IPC stream without the end-of-stream mark: the schema message, then one message per record
batch. Chunks end at every message's end, and a longer message is cut in pieces of :data:`CHUNK`. So the schema's
chunks and those of any range of record batches, as they are, make a readable stream.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jobpipe.errors import RemoteProtocolError, SegmentCorrupt, short_repr

CHUNK = 256 * 1024  # one DATA frame; larger ones hold up the loop of a data process
INLINE_MAX = 64 * 1024  # a batch up to this size lives in the catalog: one fsync instead of three
MAX_INDEX = 16 * 1024 * 1024  # bytes of a packed index: enough for a segment of 1 TiB
_HEADER = struct.Struct("!BQII")  # format, schema bytes, record batches, chunks
_BATCH = struct.Struct("!IQ")  # rows, bytes
_FORMAT = 1
PACKED_CHUNK = struct.Struct("!QII")
"""A chunk on the way to a host server: offset in the segment, length, CRC-32."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_host_id(text: str) -> bool:
    """Tell whether ``text`` may name a host server."""
    return _HOST.fullmatch(text) is not None


@dataclass(frozen=True)
class Chunk:
    """A range of a segment with the CRC-32 of its bytes; ``offset`` counts from the segment's start."""

    offset: int
    length: int
    crc: int


def _pieces(size: int) -> int:
    return -(-size // CHUNK)


@dataclass(frozen=True)
class SegmentIndex:
    """The messages and checksums of one segment.

    Attributes:
        schema_bytes: Length of the schema message.
        batches: (rows, bytes) of each record batch message.
        crcs: CRC-32 of each chunk, in order.
    """

    schema_bytes: int
    batches: tuple[tuple[int, int], ...]
    crcs: tuple[int, ...]

    @cached_property
    def rows(self) -> int:
        """Rows of all record batches."""
        return sum(rows for rows, _ in self.batches)

    @cached_property
    def length(self) -> int:
        """Bytes of the segment."""
        return self.schema_bytes + sum(size for _, size in self.batches)

    def cost(self, number: int) -> int:
        """Bytes that record batch ``number`` is counted with; the first one carries the schema message."""
        return self.batches[number][1] + (self.schema_bytes if number == 0 else 0)

    def pack(self) -> bytes:
        """Return the index as bytes."""
        crcs = array("I", self.crcs)
        if struct.pack("=I", 1) != struct.pack("!I", 1):
            crcs.byteswap()
        parts = [_HEADER.pack(_FORMAT, self.schema_bytes, len(self.batches), len(self.crcs))]
        parts += [_BATCH.pack(rows, size) for rows, size in self.batches]
        parts.append(crcs.tobytes())
        return b"".join(parts)

    @classmethod
    def unpack(cls, packed: bytes) -> SegmentIndex:
        """Return the index that :meth:`pack` wrote.

        Raises:
            SegmentCorrupt: the sizes do not agree with each other.
        """
        if not _HEADER.size <= len(packed) <= MAX_INDEX:
            raise SegmentCorrupt(f"a segment index has {_HEADER.size} to {MAX_INDEX} bytes", size=len(packed))
        version, schema_bytes, count, chunks = _HEADER.unpack_from(packed)
        if version != _FORMAT:
            raise SegmentCorrupt(f"segment index format {version} is unknown, known is {_FORMAT}", format=version)
        if len(packed) != _HEADER.size + count * _BATCH.size + chunks * 4:
            raise SegmentCorrupt("a segment index has another size than it announces", size=len(packed))
        end = _HEADER.size + count * _BATCH.size
        batches = tuple(_BATCH.iter_unpack(packed[_HEADER.size : end]))
        if chunks != _pieces(schema_bytes) + sum(_pieces(size) for _, size in batches):
            raise SegmentCorrupt("a segment index has another number of checksums than of chunks", chunks=chunks)
        crcs = struct.unpack_from(f"!{chunks}I", packed, end)
        return cls(schema_bytes, batches, crcs)

    def chunks(self, first: int, last: int) -> list[Chunk]:
        """Return the schema's chunks and those of the record batches ``first`` to ``last`` (exclusive)."""
        if not 0 <= first <= last <= len(self.batches):
            raise ValueError(f"record batches {first}:{last} of {len(self.batches)}")
        found = list(self._cut(0, self.schema_bytes, 0))
        offset, number = self.schema_bytes, _pieces(self.schema_bytes)
        for index, (_, size) in enumerate(self.batches[:last]):
            if index >= first:
                found += self._cut(offset, size, number)
            offset += size
            number += _pieces(size)
        return found

    def _cut(self, offset: int, size: int, number: int) -> list[Chunk]:
        return [
            Chunk(offset + start, min(CHUNK, size - start), self.crcs[number + start // CHUNK])
            for start in range(0, size, CHUNK)
        ]


@dataclass(frozen=True)
class SegmentInfo:
    """One written segment, as the writer hands it to the seal.

    Attributes:
        partition: The publisher's partition of all its rows.
        rows, length: Rows and bytes of the segment.
        file: Name inside ``segments/``, or None when the bytes are in ``data``.
        offset: Where it starts in the file; 0 without a file.
        index: The packed :class:`SegmentIndex`.
        host: Id of the host server that keeps the file; None where it is in the spool.
        data: The bytes of a segment that has no file. They travel apart from the JSON.
    """

    partition: int
    rows: int
    length: int
    file: str | None
    offset: int
    index: bytes
    data: bytes | None = None
    host: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of all fields but ``data``."""
        return {
            "partition": self.partition,
            "rows": self.rows,
            "length": self.length,
            "file": self.file,
            "offset": self.offset,
            "index": base64.b64encode(self.index).decode("ascii"),
            **({} if self.host is None else {"host": self.host}),
        }

    @classmethod
    def from_json(cls, value: object, data: bytes | None = None) -> SegmentInfo:
        """Return the segment that :meth:`to_json` wrote; ``data`` for one without a file.

        Raises:
            RemoteProtocolError: a field is missing or has another type.
        """
        if not isinstance(value, Mapping):
            raise RemoteProtocolError("a segment is a JSON object", value=short_repr(value))
        numbers = [value.get(key) for key in ("partition", "rows", "length", "offset")]
        file, index, host = value.get("file"), value.get("index"), value.get("host")
        if (
            any(type(number) is not int or not 0 <= number < 2**63 for number in numbers)
            or not (file is None or isinstance(file, str))
            or not isinstance(index, str)
            or (file is None) != (data is not None)
            or not (host is None or (file is not None and isinstance(host, str) and is_host_id(host)))
        ):
            raise RemoteProtocolError("a segment's fields are wrong", value=short_repr(value))
        try:
            packed = base64.b64decode(index, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RemoteProtocolError("a segment's index is not base64", value=index[:200]) from error
        partition, rows, length, offset = (int(number) for number in numbers if number is not None)
        return cls(partition, rows, length, file, offset, packed, data, host)
