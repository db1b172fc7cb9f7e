"""Where a capture of MariaDB or MySQL is, as it is stored with each batch of a topic.

What it says is exact: the topic has all transactions before ``at``, the first changes of ``open``, and of the table
that is being read the rows up to a key, as they are at this place of the log.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

from jobpipe.cdc.mariadb.binlog.binlog_position import GtidState, Position
from jobpipe.errors import SpoolError

VERSION = 1
KIND = "binlog"
Key = tuple[bytes, ...]


@dataclass(frozen=True)
class Place:
    """A place in the log of a server, between two transactions: by file, and by what was executed before it.

    Attributes:
        made: when the server made the file, in seconds since 1970; 0: not known.
    """

    position: Position
    gtids: GtidState
    made: int = 0


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction of which some changes are published: by table, the first so many of them."""

    gtid: str
    changes: dict[str, int]


@dataclass(frozen=True)
class ReadUpTo:
    """How far a table is read.

    Attributes:
        table: its name, database.table.
        key: the rows up to this key are published, with all their changes.
        key_print: what :attr:`.ReadableTable.key_print` was; with another key the bound means nothing.
    """

    table: str
    key: Key
    key_print: str


@dataclass(frozen=True)
class BinlogNote:
    """What a topic's next batch follows.

    Attributes:
        mariadb: the server is MariaDB.
        server: its server_id, or of MySQL its server_uuid; empty if the file and offset are of another one.
        at: all transactions before it are published.
        open: the one after it, if it is published in part.
        tables: the tables that were read to their end, each with the fingerprint of its columns.
        reading: the table that is being read; None if none is.
        again: tables of which rows may be published that no longer hold, and that are to be read from their beginning.
        starting: other topics may have no note yet.
    """

    mariadb: bool
    server: str
    at: Place
    open: OpenTransaction | None = None
    tables: dict[str, str] = field(default_factory=dict)
    reading: ReadUpTo | None = None
    again: tuple[str, ...] = ()
    starting: bool = False

    @property
    def named(self) -> set[str]:
        """All tables of which something is published."""
        return {*self.tables, *self.again, *(() if self.reading is None else (self.reading.table,))}

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        value: dict[str, Any] = {
            "v": VERSION,
            "kind": KIND,
            "mariadb": self.mariadb,
            "server": self.server,
            "file": self.at.position.file,
            "pos": self.at.position.offset,
            "made": self.at.made,
            "gtid": self.at.gtids.text,
            "tables": self.tables,
        }
        if self.open is not None:
            value["open"] = [self.open.gtid, self.open.changes]
        if self.reading is not None:
            coded = [base64.b64encode(each).decode() for each in self.reading.key]
            value["reading"] = [self.reading.table, coded, self.reading.key_print]
        if self.again:
            value["again"] = self.again
        if self.starting:
            value["starting"] = True
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, note: bytes, topic: str) -> BinlogNote:
        """Return what :meth:`to_bytes` wrote.

        Raises:
            SpoolError: it is anything else.
        """
        try:
            value = json.loads(note)
            if (value["v"], value["kind"]) != (VERSION, KIND):
                raise ValueError(f"version {value['v']}")
            opened, reading = value.get("open"), value.get("reading")
            mariadb = bool(value["mariadb"])
            position = Position(str(value["file"]), _count(value["pos"]))
            return cls(
                mariadb=mariadb,
                server=str(value["server"]),
                at=Place(position, GtidState.of(str(value["gtid"]), mariadb), _count(value.get("made", 0))),
                open=None if opened is None else _open(opened),
                tables={str(name): str(print_) for name, print_ in value["tables"].items()},
                reading=None if reading is None else ReadUpTo(str(reading[0]), _key(reading[1]), str(reading[2])),
                again=tuple(map(str, value.get("again", ()))),
                starting=bool(value.get("starting", False)),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise SpoolError(
                f"topic {topic!r}: the note of its last batch is not that of a capture of MariaDB or MySQL ({error}); "
                "the topic was published by something else under this name. Give the capture another name, or topic",
                topic=topic,
            ) from None


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError("a number is none")
    return value


def _open(value: Any) -> OpenTransaction:
    return OpenTransaction(str(value[0]), {str(name): _count(count) for name, count in value[1].items()})


def _key(value: Any) -> Key:
    return tuple(base64.b64decode(each, validate=True) for each in value)
