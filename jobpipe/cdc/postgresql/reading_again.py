"""Reading a part of a table again: asked for by a message in the database's log, which the capture streams.

So the request has its place among the changes, needs no table of signals, and is not lost by a kill. The rows are
published once the stream has passed the mark that follows their snapshot, without those that the stream has changed
meanwhile: their changes are published already.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from jobpipe.cdc.postgresql.capture_state import CaptureState, TopicState, seen_now
from jobpipe.cdc.postgresql.change_filter import StreamedTransactions
from jobpipe.cdc.postgresql.database.column_types import SETTINGS
from jobpipe.cdc.postgresql.database.database_catalog import DatabaseCatalog, ReadableTable
from jobpipe.cdc.postgresql.postgres_note import MAX_REQUEST, KeyRange, Visibility, have_room
from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
from jobpipe.cdc.postgresql.stream.pgoutput import LogicalMessage
from jobpipe.cdc.postgresql.stream.replication_stream import MESSAGES_SINCE
from jobpipe.cdc.postgresql.table_chunks import ChunkReader, Key, Piece
from jobpipe.cdc.postgresql.topic_sealing import TopicSealer
from jobpipe.cdc.postgresql.waiting.waiting_rows import TableChanges
from jobpipe.errors import ConfigError

log = logging.getLogger(__name__)

MAX_RANGES = 8  # of a topic; more are refused
MAX_PRINT = 16  # characters of the fingerprint of a key


def prefix_of(slot: str) -> str:
    """Return the prefix of messages to the capture of a slot."""
    return f"jobpipe:{slot}"


def request(options: PostgresOptions, table: str, after: Key | None, through: Key | None) -> None:
    """Ask the capture with these options to read a part of a table again.

    Args:
        table: as schema.table.
        after, through: keys, as texts; None is the end of the table.

    Raises:
        ConfigError: the capture has no such table, the keys do not fit, or the server is too old.
        LinkError, NotAuthorized: the database refuses.
    """
    if len(json.dumps([after, through]).encode()) > MAX_REQUEST:
        raise ConfigError(f"table {table}: the keys have more than {MAX_REQUEST} bytes; give shorter ones", table=table)
    with options.database_api().connection("jobpipe cdc") as connection:
        for key, value in SETTINGS.items():  # names of types are as the capture's
            connection.execute(f"SET {key} = '{value}'")
        if connection.info.server_version < MESSAGES_SINCE:
            raise ConfigError("a part of a table can be read again with PostgreSQL 14 or newer", table=table)
        catalog = DatabaseCatalog(connection)
        found = next((each for each in catalog.tables(options.tables) if str(each) == table), None)
        if found is None:
            raise ConfigError(f"capture {options.name!r} captures no table {table}", table=table, key="tables")
        readable = catalog.readable(found)
        if (problem := _problem(readable, after, through)) is not None:
            raise ConfigError(f"table {table} cannot be read again in part: {problem}", table=table)
        asked = {"table": found.number, "key": readable.key_print, "after": after, "through": through}
        connection.execute(
            "SELECT pg_catalog.pg_logical_emit_message(true, %s, %s::text)",
            (prefix_of(options.slot), json.dumps(asked)),
        )


def _problem(readable: ReadableTable, *bounds: Key | None) -> str | None:
    """Return why a part of a table cannot be read; None if it can."""
    names = ", ".join(column.name for column in readable.key)
    if not names:
        return "it has no key in whose order it is read"
    if any(bound is not None and len(bound) != len(readable.key) for bound in bounds):
        return f"a key has a value for each of {names}"
    return None


def _have_room(topic: TopicState, again: Sequence[KeyRange]) -> bool:
    return have_room({each.number: each.print for each in topic.tables}, again)


def _decode(content: bytes) -> KeyRange | None:
    """Return what a request asks for; None where it is not one of ours."""
    try:
        value = json.loads(content)
        table, key = value["table"], value["key"]
        asked = KeyRange(table, _key(value["after"]), _key(value["through"]), key)
        ours = type(table) is int and isinstance(key, str) and len(key) <= MAX_PRINT
        return asked if ours and len(json.dumps([asked.after, asked.through]).encode()) <= MAX_REQUEST else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _key(value: Any) -> Key | None:
    if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise ValueError("a key is a list of texts")
    return None if value is None else tuple(value)


@dataclass
class _Window:
    """Rows that were read again, and what the stream has changed of them since.

    Attributes:
        topic: to which the rows go.
        until: a place in the log; all that the rows have was committed before it.
        ended: no row of the range follows.
        changed: keys.
    """

    topic: TopicState
    readable: ReadableTable
    piece: Piece
    until: int
    ended: bool
    changed: set[Key] = field(default_factory=set)

    def unchanged(self) -> pa.Table:
        """Return the rows that no change has touched."""
        texts = self.piece.texts
        if not self.changed:
            return texts
        keys = zip(*(texts.column(place).to_pylist() for place in self.readable.key_places), strict=True)
        return texts.filter(pa.array([key not in self.changed for key in keys], pa.bool_()))


class RangeReading:
    """Takes requests from the stream, and does them, one at a time."""

    def __init__(self, state: CaptureState, sealer: TopicSealer) -> None:
        self._state = state
        self._sealer = sealer
        sealer.note_changes = self.note_changes
        self._asked = [topic for topic in state.topics.values() if topic.again]  # one after the other
        self._window: _Window | None = None
        self._running: Visibility | None = None  # what ran when the next request was begun: snapshots must see it
        self._streamed = StreamedTransactions(state)

    @property
    def wanted(self) -> bool:
        """Whether there is something to do."""
        return bool(self._asked)

    @property
    def awaits_mark(self) -> bool:
        """Whether the stream has yet to pass the mark of the rows that are read."""
        return self._window is not None and self._state.at < self._window.until

    def take(self, message: LogicalMessage) -> None:
        """Note what a message asks for."""
        state = self._state
        if message.prefix != prefix_of(state.options.slot) or state.begun is None:
            return
        asked = _decode(message.content)
        table = None if asked is None else state.tables.get(asked.table)
        if state.begun.commit_lsn < (state.at if table is None else table.topic.at):
            return  # it is noted, or was refused
        problem = None
        if asked is None:
            problem = "it is no request of `jobpipe cdc read-again`"
        elif table is None:
            problem = f"the capture has no table of number {asked.table}"
        elif len(table.topic.again) >= MAX_RANGES:
            problem = f"table {table.found}: {MAX_RANGES} parts of tables wait already"
        elif not _have_room(table.topic, [*table.topic.again, asked]):
            problem = f"table {table.found}: its topic has many tables, so that few parts can wait"
        if asked is None or table is None or problem is not None:
            log.error("capture %s: a part of a table is not read again: %s", state.name, problem)
            return
        if not table.topic.again:
            self._asked.append(table.topic)
        table.topic.again.append(asked)
        table.topic.unnoted = True

    def note_changes(self, changes: TableChanges) -> None:
        """Note changes that are about to be published."""
        if self._window is not None and self._window.readable.table.number == changes.table.number:
            self._window.changed.update(changes.keys(self._window.readable))

    def note_new_table(self, number: int) -> None:
        """Note that a table is another one from here on: it has other columns, or no rows."""
        if self._window is not None and self._window.readable.table.number == number:
            self._window = None  # it is read once more

    def note_begin(self, xid: int) -> None:
        """Note a transaction that is streamed: a snapshot may not see it yet."""
        if self.wanted:
            self._streamed.add(xid)

    def step(self) -> bool:
        """Read, or publish what was read; between two transactions of the stream. False if something comes first."""
        self._sealer.flush()
        window, self._window = self._window, None
        if window is None:
            return self._read(self._asked[0], self._asked[0].again[0])
        topic = window.topic
        asked = topic.again.pop(0)
        rest = replace(asked, after=window.piece.high or asked.after)
        if window.ended:
            log.info("capture %s: a part of table %s was read again", self._state.name, window.readable.table)
        elif _have_room(topic, [rest, *topic.again]):
            topic.again.insert(0, rest)
        else:
            log.error(
                "capture %s: a part of table %s is read again only in part: a note has no room for the key up to which "
                "it is; ask for less",
                *(self._state.name, window.readable.table),
            )
        self._drop_done()
        self._sealer.write(topic, topic.writer.rows.read(window.readable.table, window.unchanged()))
        return True

    def _read(self, topic: TopicState, asked: KeyRange) -> bool:
        """Read the next rows of a range, once a snapshot sees all that was streamed."""
        import psycopg

        state, reader = self._state, ChunkReader(self._state.reading)
        table = state.tables.get(asked.table)
        found = None if table is None else state.catalog.table(asked.table)
        if found is None:  # it is captured no longer, or gone
            return self._refuse(topic, "it is captured no longer")
        if self._running is None:
            self._running = seen_now(state.control)
        limit = state.options.chunk_size
        try:
            with reader.snapshot(state.control, found.schema, found.name):
                if self._streamed.unseen(reader.seen) or reader.seen.lowest < self._running.next:
                    return False
                readable = state.reading_catalog.readable(found)
                if readable.key_print != asked.key:
                    return self._refuse(topic, f"table {found} has another key now")
                if (problem := _problem(readable, asked.after, asked.through)) is not None:
                    return self._refuse(topic, f"table {found}: {problem}")
                piece = next(reader.pieces(readable, asked.after, asked.through, limit))
        except psycopg.errors.LockNotAvailable:
            return False
        except (psycopg.DataError, psycopg.ProgrammingError) as error:  # values that the key's types do not have
            return self._refuse(topic, f"table {found}: {type(error).__name__} ({error.sqlstate})")
        self._streamed.clear()
        self._running = None
        self._window = _Window(topic, readable, piece, reader.until, piece.last and piece.texts.num_rows < limit)
        return False

    def _refuse(self, topic: TopicState, why: str) -> bool:
        """Drop a request that cannot be done."""
        topic.again.pop(0)
        topic.unnoted = True
        self._drop_done()
        log.error("capture %s: a part of a table is not read again: %s", self._state.name, why)
        return True

    def _drop_done(self) -> None:
        self._asked = [topic for topic in self._asked if topic.again]
