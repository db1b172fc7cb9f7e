"""Reading tables, chunk by chunk in the order of their keys, while changes stream.

A chunk is a transaction of its own, which locks nothing. Its snapshot sees all that was streamed so far; what it sees
beyond that is not known. So its rows wait, as a window, until the stream has come to a place that is after all that the
snapshot sees. Changes that come meanwhile are:

* of a key before the window: published, as that part of the table was read before;
* of a key in the window: put into its rows;
* of a key after the window: dropped, as a later chunk, whose snapshot sees them, has the row.

Then the rows are published: they are exactly those of the table at that place of the log. A window that does not fit
what the log tells of the table is given up, and the chunk is read again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobpipe.cdc.changes import Change, Operation, Table, Values
from jobpipe.cdc.mariadb.binlog.binlog_position import Position
from jobpipe.cdc.mariadb.key_order import after, places_of
from jobpipe.cdc.mariadb.mysql_note import Key
from jobpipe.cdc.mariadb.mysql_state import CapturedTable, LogState
from jobpipe.cdc.mariadb.note_sealing import NoteSealer
from jobpipe.cdc.mariadb.server.server_catalog import ReadableTable, ServerCatalog, fingerprint, quoted
from jobpipe.cdc.mariadb.server.server_log import ServerLog
from jobpipe.pipelines.databases.mysql import execute

if TYPE_CHECKING:
    from jobpipe.pipelines.databases.mysql import Connection

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.02  # between two looks whether a snapshot sees what was streamed
PROGRESS_SECONDS = 10.0
FIRST_ROWS, MOST_ROWS = 1_000, 20_000  # of a query
PIECE_BYTES, CHUNK_BYTES = 8 * 1024 * 1024, 32 * 1024 * 1024
TOUCHED_ROWS, TOUCHED_BYTES = 100_000, 64 * 1024 * 1024  # of changes in a window; with more, it is given up
_CHANGED = {1054, 1146, 1205, 1412}  # no such column, no such table, no lock in time, the table has changed


@dataclass
class _Window:
    """Rows that were read, and that wait.

    Attributes:
        columns: the table as it was read.
        values: a column of the database's values for each of its columns.
        high: the key of the last row; None: no row of the table follows.
        until: once the stream has come so far, the rows are those of the table at that place.
        touched: rows that changes have made since, by key; None: gone.
        touched_bytes: about so many were put there.
    """

    table: CapturedTable
    columns: Table
    values: pa.Table
    high: Key | None
    until: Position
    touched: dict[Key, Values | None] = field(default_factory=dict)
    touched_bytes: int = 0

    def touch(self, key: Key, values: Values | None) -> None:
        """Put a change into the rows."""
        self.touched[key] = values
        self.touched_bytes += sum(len(value) for value in values or () if isinstance(value, bytes))

    @property
    def is_outgrown(self) -> bool:
        """Whether so much has changed that it is read again."""
        return len(self.touched) > TOUCHED_ROWS or self.touched_bytes > TOUCHED_BYTES

    def rows(self, key_places: Sequence[int]) -> pa.Table:
        """Return the rows with all changes."""
        if not self.touched:
            return self.values
        keys = zip(*(_as_bytes(self.values.column(place)) for place in key_places), strict=True)
        kept = self.values.filter(pa.array([key not in self.touched for key in keys], pa.bool_()))
        made = [values for values in self.touched.values() if values is not None]
        return pa.concat_tables([kept, _table_of(self.columns, made)])


class ChunkReading:
    """Reads the tables of a session that are not read to their end, one at a time.

    Args:
        control: a connection for questions.
        reading: a connection whose transactions read tables.
    """

    def __init__(
        self, state: LogState, sealer: NoteSealer, log_: ServerLog, control: Connection, reading: Connection
    ) -> None:
        self._state = state
        self._sealer = sealer
        self._log = log_
        self._control = control
        self._reading = reading
        self._catalog = ServerCatalog(reading, state.options.text_columns)
        self._window: _Window | None = None
        self._settle_at = 0.0
        self._told_at = time.monotonic()

    @property
    def table(self) -> CapturedTable | None:
        """The table that is being read, or the next one; None if all are read."""
        waiting = [table for table in self._state.tables.values() if not table.done]
        return min(waiting, key=lambda table: table.bound is None, default=None)

    @property
    def waits(self) -> bool:
        """Whether rows wait for the stream."""
        return self._window is not None

    def drop_window(self, table: CapturedTable | None = None) -> None:
        """Give up what was read of a table, or of any, and is not published."""
        if self._window is not None and (table is None or self._window.table is table):
            self._window = None

    def sort_out(self, table: CapturedTable, changes: list[Change]) -> list[Change]:
        """Return those changes of a table that is being read which are published."""
        window = self._window if self._window is not None and self._window.table is table else None
        if window is None and table.bound is None:
            return []
        names = {column.name for column in changes[0].table.columns}
        if not all(column.name in names for column in table.readable.key):  # it has another key here
            self.drop_window(table)
            table.begin_again()
            return []
        if window is not None and window.columns.columns != changes[0].table.columns:
            self._window = window = None
        bounds = [bound for bound in (table.bound, window.high if window is not None else None) if bound is not None]
        keys = [_key_of(change, table.readable) for change in changes]
        shift = int(table.bound is None)
        published = []
        for change, key, place in zip(
            changes, keys, places_of(self._control, table.readable.key, keys, bounds), strict=True
        ):
            region = place + shift
            if region == 0:
                published.append(change)
            elif region == 1 and window is not None:
                window.touch(key, change.after)
        if window is not None and window.is_outgrown:
            self._window = None
        return published

    def settle(self) -> None:
        """Publish the rows that wait, if the stream has come so far; between two transactions."""
        window = self._window
        if window is None or self._state.at.position < window.until:
            return
        self._window = None
        table = window.table
        self._sealer.flush()
        if fingerprint(window.columns) != table.print:  # a change of columns, after which no row was changed
            self._state.note_columns(table, window.columns)
        if table.take_back:
            now = int(time.time() * 1000)
            table.topic.waiting.add([Change(table.table, Operation.TRUNCATE, None, None, 0, 0, now)])
            table.take_back = False
            self._sealer.seal(table.topic)
        rows = window.rows(table.readable.key_places)
        table.bound, table.done = window.high, window.high is None
        table.rows += rows.num_rows
        self._sealer.write(table.topic, table.topic.writer.rows.read(window.columns, rows))
        if table.done:
            log.info("capture %s: table %s is read, %d rows", self._state.options.name, table.name, table.rows)
        else:
            self._tell_progress(table)

    def read(self, table: CapturedTable) -> bool:
        """Read the next chunk of a table; between two transactions of the stream.

        Returns:
            False if nothing was read: no snapshot sees yet what was streamed, or the table changes.
        """
        now = time.monotonic()
        if now < self._settle_at or self._state.is_replaying or not self._state.placed:
            return False
        self._settle_at = now + SETTLE_SECONDS
        import pymysql

        try:
            return self._read_in_snapshot(table)
        except pymysql.MySQLError as error:
            if error.args[0] not in _CHANGED:
                raise
            return False

    def _read_in_snapshot(self, table: CapturedTable) -> bool:
        state = self._state
        seen = None if state.mariadb else self._log.executed()
        execute(self._reading, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        try:
            if seen is None:
                until = self._snapshot_position()
                if until < state.at.position:
                    return False
            else:
                head = self._log.head()
                if head is None or not seen.covers(state.at.gtids):
                    return False
                until = head.position
            readable = self._catalog.readable(table.found.schema, table.found.name)
            if readable is None or not readable.key:
                return False
            if readable.key_print != table.readable.key_print:
                table.begin_again()
            table.readable = readable
            values, high = self._read_values(readable, table.bound)
            self._window = _Window(table, readable.table, values, high, until)
        finally:
            if self._reading.open:
                execute(self._reading, "ROLLBACK")
        self._settle_at = 0.0
        self.settle()
        return True

    def _snapshot_position(self) -> Position:
        """Return the place of MariaDB's log at which a snapshot is: it sees all before, and nothing of what follows."""
        found = dict(execute(self._reading, "SHOW STATUS LIKE 'binlog_snapshot_%%'").fetchall())
        named = {str(key).lower(): value for key, value in found.items()}
        return Position(str(named["binlog_snapshot_file"]), int(named["binlog_snapshot_position"]))

    def _read_values(self, readable: ReadableTable, low: Key | None) -> tuple[pa.Table, Key | None]:
        """Return the values of the rows after a key, and the key of the last one; None if no row follows it."""
        most = self._state.options.chunk_size
        pieces: list[pa.Table] = []
        limit, size, count = min(FIRST_ROWS, most), 0, 0
        while True:
            piece = _table_of(readable.table, _rows(self._reading, _query(readable, low, limit)))
            pieces.append(piece)
            count, size = count + piece.num_rows, size + piece.nbytes
            if piece.num_rows:
                low = tuple(_as_bytes(piece.column(place)[-1:])[0] for place in readable.key_places)
            if piece.num_rows < limit:
                return pa.concat_tables(pieces), None
            if count >= most or size >= CHUNK_BYTES:
                return pa.concat_tables(pieces), low
            each = max(1, size // count)
            limit = max(1, min(MOST_ROWS, most - count, PIECE_BYTES // each))

    def _tell_progress(self, table: CapturedTable) -> None:
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_SECONDS:
            self._told_at = now
            log.info(
                "capture %s: %d of about %d rows of table %s are read",
                *(self._state.options.name, table.rows, max(table.found.estimate, table.rows), table.name),
            )


def _query(readable: ReadableTable, low: Key | None, limit: int) -> str:
    table = readable.table
    names = {column.name: quoted(column.name) for column in table.columns}
    shown = ", ".join(
        f"{name} {readable.sums[column]}" if column in readable.sums else name for column, name in names.items()
    )
    where = "" if low is None else f" WHERE {after(readable.key, low)}"
    order = ", ".join(names[column.name] for column in readable.key)
    source = f"{quoted(table.schema)}.{quoted(table.name)}"
    return f"SELECT {shown} FROM {source}{where} ORDER BY {order} LIMIT {limit}"  # noqa: S608 - quoted


def _rows(connection: Connection, statement: str) -> list[tuple[bytes | None, ...]]:
    """Run a query; return its rows as the server sends them."""
    decoders, unicode = connection.decoders, connection.use_unicode
    connection.decoders, connection.use_unicode = {}, False
    try:
        return list(execute(connection, statement).fetchall())
    finally:
        connection.decoders, connection.use_unicode = decoders, unicode


def _table_of(table: Table, rows: Sequence[Values]) -> pa.Table:
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(table.columns)
    arrays = [pa.array(values, column.type.given) for column, values in zip(table.columns, columns, strict=True)]
    return pa.Table.from_arrays(arrays, [str(place) for place in range(len(arrays))])


def _key_of(change: Change, readable: ReadableTable) -> Key:
    """Return the key of a change."""
    values = change.after if change.after is not None else change.before
    assert values is not None  # noqa: S101 - one of them is there
    places = {column.name: place for place, column in enumerate(change.table.columns)}
    key: list[Any] = [values[places[column.name]] for column in readable.key]
    return tuple(key)


def _as_bytes(column: pa.ChunkedArray[Any]) -> list[bytes]:
    values: list[Any] = column.to_pylist()
    return [value.encode() if isinstance(value, str) else value for value in values]
