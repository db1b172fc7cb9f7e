"""A database of a server with a binary log, and what is streamed of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import pymysql

from jobpipe.cdc.mariadb.binlog.binlog_events import Change, End, Idle, Rows
from jobpipe.cdc.mariadb.binlog.binlog_position import GtidState, Position
from jobpipe.cdc.mariadb.binlog.binlog_stream import BinlogStream
from tests.databases.mysql_server import MySqlServer

Connection: TypeAlias = "pymysql.connections.Connection[Any]"
READ_SECONDS = 20.0
SERVER_ID = 7001


@dataclass
class LoggedDatabase:
    """A database, and statements in it by one connection without a strict mode.

    Attributes:
        kinds: of columns whose types the log does not know, by name.
        wake: its first descriptor ends a wait.
    """

    server: MySqlServer
    name: str
    connection: Connection
    kinds: Mapping[str, str] = field(default_factory=dict)
    wake: tuple[int, int] = field(default_factory=os.pipe)

    @classmethod
    @contextlib.contextmanager
    def made(cls, server: MySqlServer) -> Iterator[Self]:
        """Make one; it is gone at the end."""
        with server.database() as name, contextlib.closing(server.connect(name)) as connection:
            found = cls(server, name, connection)
            found.run("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
            try:
                yield found
            finally:
                for descriptor in found.wake:
                    os.close(descriptor)

    @property
    def mariadb(self) -> bool:
        """Whether the server is MariaDB."""
        return self.server.name == "MariaDB"

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall()) if cursor.description else []

    def texts(self, question: str) -> list[tuple[bytes | None, ...]]:
        """Return the texts that the server sends for a question's rows."""
        with contextlib.closing(self.server.connect(self.name)) as connection:
            connection.decoders = {}
            with connection.cursor() as cursor:
                cursor.execute(question)
                return [tuple(map(_text, row)) for row in cursor.fetchall()]

    def position(self) -> Position:
        """Return where the log ends."""
        file, offset, *_ = self.run("SHOW MASTER STATUS" if self.mariadb else "SHOW BINARY LOG STATUS")[0]
        return Position(file, offset)

    def state(self) -> GtidState:
        """Return the GTIDs of what is in the log."""
        ((text,),) = self.run("SELECT @@gtid_binlog_pos" if self.mariadb else "SELECT @@gtid_executed")
        return GtidState.of(text, self.mariadb)

    @contextlib.contextmanager
    def stream(
        self,
        start: Position | GtidState,
        *,
        wanted: Callable[[str, str], bool] | None = None,
        server_id: int = SERVER_ID,
        heartbeat: float = 0.1,
    ) -> Iterator[BinlogStream]:
        """Stream what is of this database."""
        with contextlib.closing(self.server.connect()) as control:
            stream = BinlogStream(
                self.server.connect(),
                control,
                start=start,
                server_id=server_id,
                mariadb=self.mariadb,
                wanted=wanted or (lambda database, _: database == self.name),
                kinds_of=lambda _database, _table: self.kinds,
                wake=self.wake[0],
                heartbeat=heartbeat,
            )
            with stream:
                yield stream

    def changes(self, start: Position | GtidState, **options: Any) -> list[Change]:
        """Return all from a place to where the log ends now."""
        with self.stream(start, **options) as stream:
            return read_until(stream, self.position())

    def rows(self, start: Position | GtidState, **options: Any) -> list[Rows]:
        """Return the changed rows from a place to where the log ends now."""
        return [change for change in self.changes(start, **options) if isinstance(change, Rows)]


def read_until(stream: BinlogStream, end: Position) -> list[Change]:
    """Return all changes up to a place."""
    found: list[Change] = []
    deadline = time.monotonic() + READ_SECONDS
    while time.monotonic() < deadline:
        if (change := stream.read(READ_SECONDS)) is not None:
            found.append(change)
        if isinstance(change, Idle | End) and change.at >= end:
            return found
    raise AssertionError(f"not within {READ_SECONDS:g} s: {end}; came {stream.sent}")


def images(changes: Sequence[Rows], side: int) -> list[tuple[bytes | None, ...]]:
    """Return the rows before (0) or after (1) changes."""
    return [image for change in changes for pair in change.rows if (image := pair[side]) is not None]


def _text(value: object) -> bytes | None:
    return value.encode() if isinstance(value, str) else value  # type: ignore[return-value]
