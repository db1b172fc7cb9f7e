"""Where a capture of PostgreSQL is, as it is stored with each batch of a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobpipe.errors import SpoolError

VERSION = 1
MAX_LSN = (1 << 64) - 1
MAX_TABLES = 3072  # bytes; the rest of a note is for a chunk, and for parts that are read again
MAX_REQUEST = 256  # bytes of such a part's keys


@dataclass(frozen=True)
class Visibility:
    """Which transactions a snapshot of the database sees, as ``pg_current_snapshot()`` says it.

    Attributes:
        lowest: all transactions before it are seen.
        next: no transaction from it on is seen.
        running: of those between, the ones that are not seen.
    """

    lowest: int
    next: int
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Visibility:
        """Return what PostgreSQL wrote.

        >>> Visibility.of("10:14:10,12").sees(11)
        True
        """
        lowest, following, running = text.split(":")
        return cls(int(lowest), int(following), frozenset(map(int, filter(None, running.split(",")))))

    def sees(self, xid: int) -> bool:
        """Tell whether it sees a transaction that has been committed.

        Args:
            xid: of 64 bits; see :meth:`full`.
        """
        return xid < self.next and xid not in self.running

    def full(self, xid: int) -> int:
        """Return the 64 bits of a transaction's number of which 32 are known; it is not far from this snapshot."""
        whole = (self.next & ~0xFFFFFFFF) | xid
        if whole - self.next > 1 << 31:
            return whole - (1 << 32)
        return whole + (1 << 32) if self.next - whole > 1 << 31 else whole


@dataclass(frozen=True)
class Chunk:
    """The part of a table that was read last. Rows with lower keys were read before, those with higher ones were not.

    Attributes:
        table: the number of the table.
        low: the key after which it begins; None: it begins with the first row.
        high: the key with which it ends; None: it ends with the table.
        seen: what its snapshot sees.
        until: once the stream has come so far, nothing that the snapshot sees is left in it.
        partial: it is of a table without a key, and was published in part.
        key: what :attr:`.ReadableTable.key_print` was; with another key the bounds mean nothing.
    """

    table: int
    low: tuple[str, ...] | None
    high: tuple[str, ...] | None
    seen: Visibility
    until: int
    partial: bool = False
    key: str = ""


@dataclass(frozen=True)
class ToldTransaction:
    """A transaction that the stream has told of: where in the log it was committed, and when.

    Attributes:
        committed_ms: since 1970; 0: not known.
    """

    commit_lsn: int
    committed_ms: int


@dataclass(frozen=True)
class OpenTransaction(ToldTransaction):
    """A transaction of which some changes are published: the first ``changes`` of it, over all tables."""

    changes: int


@dataclass(frozen=True)
class KeyRange:
    """A part of a table that is to be read again: after a key, up to and with another; None is the end of the table.

    ``key`` is as of a :class:`Chunk`.
    """

    table: int
    after: tuple[str, ...] | None
    through: tuple[str, ...] | None
    key: str = ""


@dataclass(frozen=True)
class CaptureNote:
    """What a topic's next batch follows.

    Attributes:
        system: the number of the database cluster; ``timeline`` of its history.
        database, slot: names.
        at: all transactions before it are published; a place in the log.
        last: the newest one of them that the stream has told of, of 0 if it has told of none; None: not known.
        open: the one after it, if it is published in part.
        tables: the tables that were read to their end, by number, each with the fingerprint of its columns.
        chunk: of the table that is being read; None if none is.
        again: what is to be read again.
    """

    system: str
    timeline: int
    database: str
    slot: str
    at: int
    last: ToldTransaction | None = None
    open: OpenTransaction | None = None
    tables: dict[int, str] = field(default_factory=dict)
    chunk: Chunk | None = None
    again: tuple[KeyRange, ...] = ()

    @property
    def named(self) -> set[int]:
        """All tables of which something is published."""
        return {*self.tables, *(() if self.chunk is None else (self.chunk.table,))}

    @property
    def reaches(self) -> int:
        """A place in the log: something is published that a log which ends before it does not have."""
        opened = 0 if self.open is None else self.open.commit_lsn + 1  # the commit begins there
        return max(self.at, opened, 0 if self.chunk is None else self.chunk.until)

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        value: dict[str, Any] = {
            "v": VERSION,
            "system": self.system,
            "timeline": self.timeline,
            "database": self.database,
            "slot": self.slot,
            "at": self.at,
            "tables": {str(number): print_ for number, print_ in self.tables.items()},
        }
        if self.last is not None:
            value["last"] = [self.last.commit_lsn, self.last.committed_ms]
        if self.open is not None:
            value["open"] = [self.open.commit_lsn, self.open.changes, self.open.committed_ms]
        if self.again:
            value["again"] = [[each.table, each.after, each.through, each.key] for each in self.again]
        if self.chunk is not None:
            chunk = self.chunk
            running = sorted(chunk.seen.running)
            steps = [each - before for before, each in zip([chunk.seen.lowest, *running], running, strict=False)]
            value["chunk"] = {
                "table": chunk.table,
                "low": chunk.low,
                "high": chunk.high,
                "seen": [chunk.seen.lowest, chunk.seen.next, steps],
                "until": chunk.until,
                "partial": chunk.partial,
                "key": chunk.key,
            }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, note: bytes, topic: str) -> CaptureNote:
        """Return what :meth:`to_bytes` wrote.

        Raises:
            SpoolError: it is anything else.
        """
        try:
            value = json.loads(note)
            if value["v"] != VERSION:
                raise ValueError(f"version {value['v']}")
            chunk, opened, last = value.get("chunk"), value.get("open"), value.get("last")
            return cls(
                system=str(value["system"]),
                timeline=int(value["timeline"]),
                database=str(value["database"]),
                slot=str(value["slot"]),
                at=_lsn(value["at"]),
                last=None if last is None else ToldTransaction(_lsn(last[0]), int(last[1])),
                open=None if opened is None else _open(*opened),
                tables={int(number): str(print_) for number, print_ in value["tables"].items()},
                chunk=None if chunk is None else _chunk(chunk),
                again=tuple(
                    KeyRange(int(table), _key(after), _key(through), str(key))
                    for table, after, through, key in value.get("again", ())
                ),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise SpoolError(
                f"topic {topic!r}: the note of its last batch is not that of a capture of PostgreSQL ({error}); "
                "the topic was published by something else under this name. Give the capture another name, or topic",
                topic=topic,
            ) from None


def have_room(tables: Mapping[int, str], again: Sequence[KeyRange]) -> bool:
    """Tell whether a note has room for some tables, and for parts that are read again, and for a chunk besides."""
    ranges = [[each.table, each.after, each.through, each.key] for each in again]
    return len(json.dumps([tables, ranges]).encode()) <= MAX_TABLES + MAX_REQUEST


def _lsn(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_LSN:
        raise ValueError("a place in the log is none")
    return value


def _open(commit_lsn: Any, changes: Any, committed_ms: Any = 0) -> OpenTransaction:
    return OpenTransaction(_lsn(commit_lsn), int(committed_ms), int(changes))


def _key(value: Any) -> tuple[str, ...] | None:
    return None if value is None else tuple(str(each) for each in value)


def _chunk(value: dict[str, Any]) -> Chunk:
    lowest, following, steps = value["seen"]
    running, at = [], int(lowest)
    for step in steps:
        at += int(step)
        running.append(at)
    return Chunk(
        table=int(value["table"]),
        low=_key(value["low"]),
        high=_key(value["high"]),
        seen=Visibility(int(lowest), int(following), frozenset(running)),
        until=_lsn(value["until"]),
        partial=bool(value["partial"]),
        key=str(value["key"]),
    )
