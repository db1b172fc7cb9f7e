"""Decodes events of the binary log of MariaDB and MySQL, in their order.

Source: MySQL's "Binary Log Event" and "Replication Protocol" in its source documentation; MariaDB's "Replication
Protocol". Reads bytes; does no I/O, but for what character sets and :class:`TableReader` ask.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from jobpipe.cdc.mariadb.binlog import event_bodies
from jobpipe.cdc.mariadb.binlog.binlog_events import (
    Begin,
    Change,
    End,
    Idle,
    Rows,
    Savepoint,
    Statement,
    savepoint_name,
)
from jobpipe.cdc.mariadb.binlog.binlog_position import Position
from jobpipe.cdc.mariadb.binlog.character_sets import CharacterSets
from jobpipe.cdc.mariadb.binlog.event_bodies import HEADER
from jobpipe.cdc.mariadb.binlog.row_images import TableReader, taken
from jobpipe.cdc.mariadb.binlog.stream_values import MALFORMED
from jobpipe.cdc.mariadb.binlog.table_maps import KindsOf, TableMap, table_reader
from jobpipe.errors import ConfigError, DataLoss, LinkBroken, RemoteProtocolError

_ARTIFICIAL: Final = 0x20
_IGNORABLE: Final = 0x80
_WRAP: Final = 2**32
_MAX_TABLES: Final = 4096
_NO_TABLE: Final = 0x00FFFFFF  # ends a statement

_QUERY, _STOP, _ROTATE, _FORMAT, _XID = 2, 3, 4, 15, 16
_EXECUTE_LOAD_QUERY, _TABLE_MAP, _INCIDENT, _HEARTBEAT = 18, 19, 26, 27
_GTID, _ANONYMOUS_GTID, _XA_PREPARE, _PARTIAL_UPDATE, _PAYLOAD, _HEARTBEAT_2, _GTID_TAGGED = 33, 34, 38, 39, 40, 41, 42
_MARIADB_GTID, _QUERY_COMPRESSED = 162, 165
_INSERTS, _UPDATES, _DELETES = (23, 30, 166, 169), (24, 31, 167, 170), (25, 32, 168, 171)
_SECOND_VERSION = (30, 31, 32, 169, 170, 171)
_COMPRESSED_ROWS = range(166, 172)
_OF_NO_INTEREST = {
    5: "a number of AUTO_INCREMENT, for the statement that follows",
    9: "a part of the file of LOAD DATA",
    11: "the end of LOAD DATA's file",
    13: "seeds of RAND(), for the statement that follows",
    14: "a variable, for the statement that follows",
    17: "the begin of LOAD DATA's file",
    28: "an event that may be ignored",
    29: "the text of a statement whose rows follow",
    35: "the GTIDs of files before",
    36: "of group replication",
    37: "of group replication",
    160: "the text of a statement whose rows follow",
    161: "for the server's recovery",
    163: "the GTIDs of files before",
    164: "the file is encrypted on the server's disk",
}


class _Event(NamedTuple):
    """An event: its bytes without a checksum, and where its own part begins.

    Attributes:
        begins: where it begins in the file; None if it is not in the file.
    """

    kind: int
    data: bytes
    at: int
    seconds: int
    server: int
    begins: Position | None


@dataclass
class _Group:
    """A group that is open.

    Attributes:
        begin: None once it was handed on.
        opened: MySQL: it is known to have more than one statement.
        standalone: MariaDB: it is one statement.
    """

    begin: Begin | None
    opened: bool
    standalone: bool


class BinlogDecoder:
    """Decodes events in the order in which they come.

    Args:
        wanted: whether rows of a table are to be decoded, by its database and name.
        kinds_of: the columns of a table that have the types uuid, inet6 and inet4, by name.
        start: where the first event is; without a file's name if that is not known.

    Attributes:
        decoded: what is to be handed on.
        position: where the newest event ended.
        file_made: the newest file, and when the server made it, in seconds since 1970.
    """

    def __init__(
        self,
        character_sets: CharacterSets,
        *,
        mariadb: bool,
        wanted: Callable[[str, str], bool],
        kinds_of: KindsOf,
        start: Position,
    ) -> None:
        self.decoded: deque[Change] = deque()
        self.position = start
        self.file_made = ("", 0)
        self._character_sets = character_sets
        self._mariadb = mariadb
        self._wanted = wanted
        self._kinds_of = kinds_of
        self._checksums = False
        self._post_headers = b""
        self._group: _Group | None = None
        self._tables: dict[int, TableReader | None] = {}
        self._known_tables: dict[bytes, TableReader | None] = {}
        self._sequences: dict[int, int] = {}
        self._handlers: dict[int, Callable[[_Event], None]] = {
            _QUERY: self._query,
            _QUERY_COMPRESSED: self._query,
            _EXECUTE_LOAD_QUERY: self._query,
            _STOP: self._last_of_file,
            _ROTATE: self._last_of_file,
            _XID: self._xid,
            _TABLE_MAP: self._table_map,
            _INCIDENT: self._incident,
            _HEARTBEAT: self._heartbeat,
            _HEARTBEAT_2: self._heartbeat_2,
            _GTID: self._mysql_gtid,
            _GTID_TAGGED: self._mysql_gtid,
            _ANONYMOUS_GTID: self._anonymous_gtid,
            _XA_PREPARE: self._xa_prepare,
            _PARTIAL_UPDATE: self._partial_update,
            _PAYLOAD: self._payload,
            _MARIADB_GTID: self._mariadb_gtid,
            **dict.fromkeys((*_INSERTS, *_UPDATES, *_DELETES), self._rows),
            **dict.fromkeys(_OF_NO_INTEREST, self._nothing),
        }
        self._row_kinds = {
            **dict.fromkeys(_INSERTS, "insert"),
            **dict.fromkeys(_UPDATES, "update"),
            **dict.fromkeys(_DELETES, "delete"),
        }

    def feed(self, data: bytes) -> None:
        """Decode an event; what it has for us is in :attr:`decoded`.

        Raises:
            LinkBroken: it is malformed, or was damaged on its way.
            ConfigError, SchemaMismatch, DataLoss, RemoteProtocolError: it cannot be captured.
        """
        before = self.position
        kind = data[4] if len(data) > 4 else 0
        try:
            self._feed(data)
        except MALFORMED as error:
            raise LinkBroken(
                f"the binary log is malformed after {before}: an event of type {kind}: {error}",
                position=str(before),
                type=kind,
            ) from None

    def _feed(self, data: bytes) -> None:
        seconds, kind, server, size, end, flags = HEADER.unpack_from(data)
        if size != len(data):
            raise ValueError(f"it has {len(data)} bytes instead of {size}")
        if kind == _FORMAT:
            self._format(data, end)
            self.file_made = self.position.file, seconds
            return
        if kind == _ROTATE and (not end or flags & _ARTIFICIAL):
            self._artificial_rotate(data)
            return
        if self._checksums:
            data = event_bodies.without_checksum(data)
        begins = None
        if end and not flags & _ARTIFICIAL and kind not in (_HEARTBEAT, _HEARTBEAT_2):
            begins = self._advance(end, size)
        self._dispatch(_Event(kind, data, HEADER.size, seconds, server, begins), flags)

    def _dispatch(self, event: _Event, flags: int) -> None:
        handler = self._handlers.get(event.kind)
        if handler is not None:
            handler(event)
        elif flags & _IGNORABLE:
            self._nothing(event)
        else:
            raise RemoteProtocolError(
                f"the binary log has an event of type {event.kind} before {self.position}, which jobpipe does not know",
                type=event.kind,
                position=str(self.position),
            )

    def _advance(self, end: int, size: int) -> Position:
        """Go on to where an event ends, of which the log has 32 bits; return where it begins."""
        if not self.position.file:
            raise ValueError("it comes before the name of its file")
        file, offset = self.position.file, self.position.offset
        end += offset - offset % _WRAP
        if end < offset:
            end += _WRAP  # the file is longer than 4 GiB
        if end - offset > _WRAP // 2:
            raise ValueError("its place is before that of the last one")
        self.position = Position(file, end)
        return Position(file, end - size)

    def _idle(self) -> None:
        if self._group is None:
            self.decoded.append(Idle(self.position))

    def _nothing(self, event: _Event) -> None:
        if event.begins is not None:
            self._idle()

    # Files

    def _format(self, data: bytes, end: int) -> None:
        self._checksums, self._post_headers = event_bodies.log_format(data, HEADER.size)
        self._known_tables.clear()
        if end:
            self._advance(end, len(data))
            self._cut()
            self._idle()

    def _artificial_rotate(self, data: bytes) -> None:
        """Take the name of the file that follows."""
        position = event_bodies.rotation(data, HEADER.size)
        if self.position != position:
            self._cut()
            self.position = position
            self._idle()

    def _last_of_file(self, event: _Event) -> None:
        """End the file: the next one is named once more when the server has opened it."""
        self._cut()

    def _cut(self) -> None:
        """End a group of which no more will come: the server crashed while it wrote it."""
        if self._group is not None:
            self._hand_on_begin(self._group)
            self._end(rolled_back=True, cut=True)

    def _heartbeat(self, event: _Event) -> None:
        self._beat(event.data[event.at :].decode(), HEADER.unpack_from(event.data)[4])

    def _heartbeat_2(self, event: _Event) -> None:
        self._beat(*event_bodies.heartbeat(event.data, event.at))

    def _beat(self, file: str, offset: int) -> None:
        """Hear that the server has sent all up to a place."""
        if self._group is not None:
            return
        if file == self.position.file and offset:
            offset += self.position.offset - self.position.offset % _WRAP if offset < _WRAP else 0
            self.position = max(self.position, Position(file, offset))
        self._idle()

    # Groups

    def _begin(self, begin: Begin, *, standalone: bool = False, hold: bool = False) -> None:
        if self._group is not None:
            raise ValueError(f"the transaction {begin.gtid} begins within another")
        self._group = _Group(begin, opened=not hold, standalone=standalone)
        if not hold:
            self._hand_on_begin(self._group)

    def _hand_on_begin(self, group: _Group, *, xa: bool = False) -> None:
        if group.begin is not None:
            self.decoded.append(replace(group.begin, xa=True) if xa else group.begin)
            group.begin = None

    def _end(self, *, rolled_back: bool = False, cut: bool = False, one_phase: bool = False) -> None:
        self.decoded.append(End(self.position, rolled_back, cut, one_phase))
        self._group = None
        self._tables.clear()

    def _open_group(self) -> _Group:
        if self._group is None or self._group.begin is not None:
            raise ValueError("it is outside of a transaction")
        return self._group

    def _mariadb_gtid(self, event: _Event) -> None:
        found = event_bodies.mariadb_gtid(event.data, event.at)
        gtid = f"{found.domain}-{event.server}-{found.sequence}"
        if (last := self._sequences.get(found.domain, 0)) >= found.sequence:
            raise ConfigError(
                f"the binary log has the GTID {gtid} at {event.begins}, after the sequence number {last} in the same "
                "domain. Give each server that is written to a gtid_domain_id of its own, or SET GLOBAL "
                "gtid_strict_mode = ON",
                gtid=gtid,
                position=str(event.begins),
            )
        self._sequences[found.domain] = found.sequence
        begin = Begin(gtid, self._start(event), event.seconds * 1000, found.prepared_xa)
        self._begin(begin, standalone=found.standalone)

    def _mysql_gtid(self, event: _Event) -> None:
        read = event_bodies.tagged_gtid if event.kind == _GTID_TAGGED else event_bodies.mysql_gtid
        gtid, milliseconds = read(event.data, event.at)
        begin = Begin(gtid, self._start(event), milliseconds or event.seconds * 1000, xa=False)
        self._begin(begin, hold=True)

    def _anonymous_gtid(self, event: _Event) -> None:
        raise ConfigError(
            f"the binary log has a transaction without a GTID at {event.begins}: SET GLOBAL gtid_mode = ON",
            position=str(event.begins),
        )

    def _start(self, event: _Event) -> Position:
        if event.begins is None:
            raise ValueError("it has no place in the log")
        return event.begins

    def _query(self, event: _Event) -> None:
        kind = _EXECUTE_LOAD_QUERY if event.kind == _EXECUTE_LOAD_QUERY else _QUERY
        database, text = event_bodies.statement(event.data, event.at, self._post_headers[kind - 1])
        self._statement(database, event_bodies.uncompressed(text, 0) if event.kind == _QUERY_COMPRESSED else text)

    def _statement(self, database: str, text: bytes) -> None:
        group = self._group or self._open_group()
        word = text[:10].upper()
        if not group.opened:
            xa = word.startswith(b"XA START")
            with_rows = word == b"CREATE TAB" and text.endswith(b" START TRANSACTION")
            group.opened = xa or with_rows or word == b"BEGIN"
            self._hand_on_begin(group, xa=xa)
            if not (xa or word == b"BEGIN"):
                self._hand_on(database, text)
            if not group.opened:
                self._end()
        elif group.standalone:
            self._hand_on(database, text)
            self._end()
        elif word in (b"COMMIT", b"ROLLBACK"):
            self._end(rolled_back=word == b"ROLLBACK")
        elif not (word == b"BEGIN" or word.startswith(b"XA END")):
            self._hand_on(database, text)

    def _hand_on(self, database: str, text: bytes) -> None:
        statement = text.decode("utf-8", "backslashreplace")
        savepoint = savepoint_name(statement, "SAVEPOINT ")
        self.decoded.append(Statement(database, statement) if savepoint is None else Savepoint(savepoint))

    def _xid(self, event: _Event) -> None:
        self._open_group()
        self._end()

    def _xa_prepare(self, event: _Event) -> None:
        self._open_group()
        self._end(one_phase=bool(event.data[event.at]))

    def _incident(self, event: _Event) -> None:
        (number,) = struct.unpack_from("<H", event.data, event.at)
        raise DataLoss(
            f"the server lost events of its binary log (incident {number}) before {self.position}: what happened then "
            "is lost to this capture. To read all tables again, start the capture under another name",
            position=str(self.position),
        )

    # Rows

    def _table_map(self, event: _Event) -> None:
        self._open_group()
        body = event.data[event.at :]
        number = int.from_bytes(body[:6], "little")
        try:
            self._tables[number] = self._known_tables[body]
            return
        except KeyError:
            pass
        found = TableMap.parse(body, 0)
        reader = None
        if self._wanted(found.database, found.name):
            reader = table_reader(body, found, self._character_sets, self._kinds_of, mariadb=self._mariadb)
        if len(self._known_tables) >= _MAX_TABLES:
            self._known_tables.clear()
        self._tables[number] = self._known_tables[body] = reader

    def _rows(self, event: _Event) -> None:
        self._open_group()
        data, at = event.data, event.at
        number = int.from_bytes(data[at : at + 6], "little")
        try:
            reader = self._tables[number]
        except KeyError:
            if number == _NO_TABLE:
                return
            raise ValueError(f"rows of the table number {number}, which was not described") from None
        if reader is None:
            return
        at += 8
        if event.kind in _SECOND_VERSION:
            (extra,) = struct.unpack_from("<H", data, at)
            if extra < 2:
                raise ValueError("extra data of a wrong length")
            at += extra
        kind = self._row_kinds[event.kind]
        if event.kind in _COMPRESSED_ROWS:
            at = reader.check(data, at, kind)
            data, at = event_bodies.uncompressed(data, at), 0
            rows = reader.read_images(data, at, kind)
        else:
            rows = reader.read_images(data, reader.check(data, at, kind), kind)
        self.decoded.append(Rows(reader.table, kind, rows, len(data)))

    def _partial_update(self, event: _Event) -> None:
        self._open_group()
        number = int.from_bytes(event.data[event.at : event.at + 6], "little")
        if (reader := self._tables.get(number)) is not None:
            raise ConfigError(
                f"the binary log has parts of JSON values of {reader.table} before {self.position}: SET GLOBAL "
                "binlog_row_value_options = '', and let sessions that are connected now connect again",
                table=str(reader.table),
            )

    def _payload(self, event: _Event) -> None:
        """Decode the events of a compressed transaction."""
        inner = event_bodies.payload(event.data, event.at)
        at = 0
        while at < len(inner):
            seconds, kind, server, size, _, flags = HEADER.unpack_from(inner, at)
            if size < HEADER.size:
                raise ValueError("an event of a wrong length")
            self._dispatch(_Event(kind, taken(inner, at, size), HEADER.size, seconds, server, None), flags)
            at += size
