"""What events of the binary log have besides rows: files, GTIDs, statements, compressed events.

Source: MySQL's documentation of its namespaces ``mysql::binlog::event`` and ``mysql::serialization``; MariaDB's
"Replication Protocol". Each function takes an event and where its own part begins; what is malformed raises what
:data:`~jobpipe.cdc.mariadb.binlog.stream_values.MALFORMED` lists.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Final, NamedTuple

from jobpipe.cdc.mariadb.binlog.binlog_position import Position
from jobpipe.cdc.mariadb.binlog.row_images import packed_number, taken
from jobpipe.errors import RemoteProtocolError

HEADER = struct.Struct("<IBIIIH")
_CHECKSUM: Final = 4
_CRC32: Final = 1
_VERSION: Final = 4
_FILE = re.compile(r"[^\0/]*\.\d+")
_MAX_UNCOMPRESSED: Final = 2**30 + 2**20
_MARIADB_GTID = struct.Struct("<QIB")
_STANDALONE, _PREPARED_XA = 1, 64
_GTID = struct.Struct("<B16sqBqq")
_LOGICAL_CLOCK: Final = 2
_HAS_ORIGINAL: Final = 1 << 55
_TAGGED_FIELDS: Final = 11
_QUERY = struct.Struct("<IIBHH")
_SIZE, _COMPRESSION, _UNCOMPRESSED_SIZE = 1, 2, 3
_ZSTD, _NOT_COMPRESSED = 0, 255


def without_checksum(data: bytes) -> bytes:
    """Return an event without its checksum, which is right."""
    content = data[:-_CHECKSUM]
    if not _is_checksum(content, data[-_CHECKSUM:]):
        raise ValueError("its checksum is wrong")
    return content


def _is_checksum(content: bytes, checksum: bytes) -> bool:
    return zlib.crc32(content).to_bytes(_CHECKSUM, "little") == checksum


def log_format(data: bytes, at: int) -> tuple[bool, bytes]:
    """Return whether events have checksums, and the lengths of what is after their headers, by their types."""
    checksums = data[-_CHECKSUM - 1] == _CRC32
    if checksums:
        without_checksum(data)
    (version,) = struct.unpack_from("<H", data, at)
    if version != _VERSION or data[at + 56] != HEADER.size:
        raise RemoteProtocolError(f"the binary log has version {version}, jobpipe reads version 4", version=version)
    return checksums, data[at + 57 : -_CHECKSUM - 1]


def rotation(data: bytes, at: int) -> Position:
    """Return where the next file begins; before the first file it is not known whether there are checksums."""
    (offset,) = struct.unpack_from("<Q", data, at)
    name = data[at + 8 :]
    if _is_checksum(data[:-_CHECKSUM], data[-_CHECKSUM:]):
        name = name[:-_CHECKSUM]
    file = name.decode()
    if not _FILE.fullmatch(file):
        raise ValueError("the name of a file is wrong; perhaps its checksum is wrong")
    return Position(file, offset)


def heartbeat(data: bytes, at: int) -> tuple[str, int]:
    """Return the file and the place of a heartbeat in MySQL's second version."""
    file, offset = "", 0
    while at < len(data) and data[at]:
        field = data[at]
        length, at = packed_number(data, at + 1)
        value = taken(data, at, length)
        at += length
        if field == 1:
            file = value.decode()
        elif field == 2:
            offset = packed_number(value, 0)[0]
    return file, offset


class MariaDbGtid(NamedTuple):
    """A GTID without the server's number, which is in the header."""

    sequence: int
    domain: int
    standalone: bool
    prepared_xa: bool


def mariadb_gtid(data: bytes, at: int) -> MariaDbGtid:
    """Return a GTID of MariaDB."""
    sequence, domain, flags = _MARIADB_GTID.unpack_from(data, at)
    return MariaDbGtid(sequence, domain, bool(flags & _STANDALONE), bool(flags & _PREPARED_XA))


def mysql_gtid(data: bytes, at: int) -> tuple[str, int]:
    """Return a GTID of MySQL, and when it was committed, in milliseconds; 0 if the event does not tell."""
    _, source, number, clock, _, _ = _GTID.unpack_from(data, at)
    if number <= 0:
        raise ValueError(f"a transaction of number {number}")
    microseconds = 0
    at += _GTID.size
    if clock == _LOGICAL_CLOCK and len(data) >= at + 7:
        microseconds = int.from_bytes(data[at : at + 7], "little")
        if microseconds & _HAS_ORIGINAL:
            microseconds = int.from_bytes(taken(data, at + 7, 7), "little")
    return _gtid(source, "", number), microseconds // 1000


def tagged_gtid(data: bytes, at: int) -> tuple[str, int]:
    """Return a GTID with a tag, and when it was committed, in milliseconds.

    Its fields have numbers: 0 flags, 1 source, 2 number, 3 tag, 6 and 7 when it was committed, here and at its source.
    """
    begin = at
    version, at = _prefixed_number(data, at)
    size, at = _prefixed_number(data, at)
    needed, at = _prefixed_number(data, at)
    if version != 1 or size != len(data) - begin or needed > _TAGGED_FIELDS:
        raise ValueError(f"a GTID with a tag in the version {version}, of {size} bytes, with the field {needed}")
    source, tag = bytearray(), ""
    numbers: dict[int, int] = {}
    while at < len(data):
        field, at = _prefixed_number(data, at)
        if field == 0:
            at += 1
        elif field == 1:
            for _ in range(16):
                byte, at = _prefixed_number(data, at)
                source.append(byte)
        elif field == 3:
            length, at = _prefixed_number(data, at)
            tag = taken(data, at, length).decode()
            at += length
        elif field <= _TAGGED_FIELDS:
            numbers[field], at = _prefixed_number(data, at)
        else:
            break
    number, negative = divmod(numbers[2], 2)
    if negative or not number or len(source) != 16:
        raise ValueError("a transaction of a wrong number or source")
    return _gtid(bytes(source), tag, number), numbers.get(7, numbers[6]) // 1000


def _gtid(source: bytes, tag: str, number: int) -> str:
    digits = source.hex()
    uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return f"{uuid}:{tag}:{number}" if tag else f"{uuid}:{number}"


def _prefixed_number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number whose lowest bits tell, as so many ones, how many bytes follow; and the place after it."""
    first = data[at]
    more = (~first & (first + 1)).bit_length() - 1
    if more == 8:
        return int.from_bytes(taken(data, at + 1, 8), "little"), at + 9
    return int.from_bytes(taken(data, at, more + 1), "little") >> (more + 1), at + more + 1


def statement(data: bytes, at: int, post_header: int) -> tuple[str, bytes]:
    """Return the database of a session, and its statement."""
    _, _, length, _, variables = _QUERY.unpack_from(data, at)
    at += post_header + variables
    database = taken(data, at, length)
    if data[at + length]:
        raise ValueError("a name without an end")
    return database.decode(), data[at + length + 1 :]


def uncompressed(data: bytes, at: int) -> bytes:
    """Return what MariaDB compressed: a byte of algorithm and size of the length, the length, zlib's data."""
    first = data[at]
    size = first & 7
    if not first & 0x80 or first & 0x70:
        raise ValueError("a compression of an unknown kind")
    length = int.from_bytes(taken(data, at + 1, size), "big")
    if length > _MAX_UNCOMPRESSED:
        raise ValueError(f"compressed data of {length} bytes")
    try:
        content = zlib.decompressobj().decompress(data[at + 1 + size :], length + 1)
    except zlib.error as error:
        raise ValueError(f"compressed data: {error}") from None
    if len(content) != length:
        raise ValueError(f"compressed data of {length} bytes has not so many")
    return content


def payload(data: bytes, at: int) -> bytes:
    """Return the events of a transaction that MySQL compressed."""
    fields: dict[int, int] = {}
    while (field := data[at]) != 0:
        length, at = packed_number(data, at + 1)
        fields[field] = packed_number(data, at)[0]
        at += length
    content = taken(data, at + 1, fields[_SIZE])
    compression = fields.get(_COMPRESSION)
    if compression == _ZSTD:
        return _unpacked(content, fields[_UNCOMPRESSED_SIZE])
    if compression != _NOT_COMPRESSED:
        raise ValueError(f"a compression of the unknown kind {compression}")
    return content


def _unpacked(data: bytes, length: int) -> bytes:
    import pyarrow as pa

    if length > _MAX_UNCOMPRESSED:
        raise ValueError(f"a compressed transaction of {length} bytes")
    try:
        content: bytes = pa.decompress(data, decompressed_size=length, codec="zstd", asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"a compressed transaction: {error}") from None
    return content
