"""PostgreSQL's logical replication messages, as its output plug-in ``pgoutput`` writes them (protocol version 1).

Source: PostgreSQL's documentation, chapters "Logical Replication Message Formats" and "Streaming Replication
Protocol". Reads and writes bytes; does no I/O. The messages of rows, :mod:`.row_columns` reads, many at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from jobpipe.errors import RemoteProtocolError

EPOCH_MS = 946_684_800_000  # 2000-01-01, from which PostgreSQL counts, in milliseconds since 1970
HEADER = 25  # bytes before a message: the letter w, start, end, time
KIND, NUMBER = slice(HEADER, HEADER + 1), slice(HEADER + 1, HEADER + 5)  # of a message, and of the table that it is of
ROWS = frozenset((b"I", b"U", b"D"))  # kinds of messages of rows, which have the table's number
_COUNT = struct.Struct(">H")
_LENGTH = struct.Struct(">I")
_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_KEEPALIVE = struct.Struct(">QqB")
_STATUS = struct.Struct(">cQQQqB")


@dataclass(frozen=True)
class Begin:
    """A transaction follows; ``commit_lsn`` is where its commit begins, ``committed_ms`` when it was committed."""

    commit_lsn: int
    committed_ms: int
    xid: int


@dataclass(frozen=True)
class Commit:
    """The transaction ends; ``end_lsn`` is after its commit."""

    commit_lsn: int
    end_lsn: int


@dataclass(frozen=True)
class RelationColumn:
    """A column: ``key`` if it is part of the replica identity."""

    name: str
    type_oid: int
    modifier: int
    key: bool


@dataclass(frozen=True)
class Relation:
    """A table as it is from here on; ``identity`` is d (the primary key), n (none), f (all columns) or i (an index)."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class Truncate:
    """These tables are empty."""

    oids: tuple[int, ...]


@dataclass(frozen=True)
class LogicalMessage:
    """What ``pg_logical_emit_message`` wrote."""

    lsn: int
    prefix: str
    content: bytes


Message: TypeAlias = Begin | Commit | Relation | Truncate | LogicalMessage | None


@dataclass(frozen=True)
class Keepalive:
    """The server has sent all up to ``end_lsn``; it may want an answer."""

    end_lsn: int
    reply_wanted: bool


def decode(data: bytes, at: int = 0) -> Message:
    """Return the message at a place, which is not of a row; None for one that says nothing here (origins, types).

    Raises:
        RemoteProtocolError: it is none.
    """
    kind = data[at : at + 1]
    try:
        reader = _READERS.get(kind)
        if reader is None:
            raise RemoteProtocolError(f"PostgreSQL sent a message of the unknown kind {kind!r}", kind=repr(kind))
        return reader(data, at + 1)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise RemoteProtocolError(
            f"PostgreSQL sent a wrong message of kind {kind!r}: {error}", kind=repr(kind)
        ) from None


def _begin(data: bytes, at: int) -> Begin:
    lsn, time_us, xid = _BEGIN.unpack_from(data, at)
    return Begin(lsn, EPOCH_MS + time_us // 1000, xid)


def _commit(data: bytes, at: int) -> Commit:
    _, lsn, end, _ = _COMMIT.unpack_from(data, at)
    return Commit(lsn, end)


def _relation(data: bytes, at: int) -> Relation:
    (oid,) = _LENGTH.unpack_from(data, at)
    schema, at = _string(data, at + 4)
    name, at = _string(data, at)
    identity = chr(data[at])
    (count,) = _COUNT.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        key = bool(data[at] & 1)
        column, at = _string(data, at + 1)
        type_oid, modifier = struct.unpack_from(">Ii", data, at)
        at += 8
        columns.append(RelationColumn(column, type_oid, modifier, key))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _truncate(data: bytes, at: int) -> Truncate:
    count, _options = struct.unpack_from(">IB", data, at)
    return Truncate(struct.unpack_from(f">{count}I", data, at + 5))


def _logical_message(data: bytes, at: int) -> LogicalMessage:
    (lsn,) = struct.unpack_from(">Q", data, at + 1)
    prefix, at = _string(data, at + 9)
    (length,) = _LENGTH.unpack_from(data, at)
    return LogicalMessage(lsn, prefix, data[at + 4 : at + 4 + length])


def _nothing(_data: bytes, _at: int) -> None:
    return None


_READERS: dict[bytes, Callable[[bytes, int], Message]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"T": _truncate,
    b"M": _logical_message,
    b"Y": _nothing,
    b"O": _nothing,
}


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def keepalive(data: bytes) -> Keepalive:
    """Return a keepalive without its first letter, k."""
    end, _, wanted = _KEEPALIVE.unpack_from(data, 1)
    return Keepalive(end, bool(wanted))


def status_update(confirmed: int, now_us: int, *, reply: bool) -> bytes:
    """Return the message by which the server hears what it needs to keep no longer.

    Args:
        confirmed: all before it is durable here.
        now_us: microseconds since 1970.
        reply: ask for a keepalive.
    """
    return _STATUS.pack(b"r", confirmed, confirmed, confirmed, now_us - EPOCH_MS * 1000, int(reply))


def lsn_text(lsn: int) -> str:
    """Return a place in the log as PostgreSQL writes it.

    >>> lsn_text(0x16B374D48)
    '1/6B374D48'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Return the number of a place in the log.

    >>> lsn_number('1/6B374D48') == 0x16B374D48
    True
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)
