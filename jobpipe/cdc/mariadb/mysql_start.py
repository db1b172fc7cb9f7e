"""The begin of a session: the server is checked, and what was published before is joined."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobpipe.cdc.capture_options import SchemaChange, Startup
from jobpipe.cdc.database_problems import Problem
from jobpipe.cdc.mariadb.mysql_note import BinlogNote
from jobpipe.cdc.mariadb.mysql_options import MysqlOptions
from jobpipe.cdc.mariadb.mysql_state import CapturedTable, LogState, TopicState
from jobpipe.cdc.mariadb.note_sealing import NoteSealer
from jobpipe.cdc.mariadb.server.server_catalog import ReadableTable, ServerCatalog, fingerprint
from jobpipe.cdc.mariadb.server.server_checks import CheckedTable, require, table_problems
from jobpipe.cdc.mariadb.server.server_log import ServerLog
from jobpipe.cdc.topic_writer import TopicWriter
from jobpipe.errors import ConfigError, SchemaMismatch
from jobpipe.pipelines.databases.mysql import MySqlDatabase, execute

if TYPE_CHECKING:
    from jobpipe.pipelines.databases.mysql import Connection

log = logging.getLogger(__name__)

ANSWER_SECONDS = 300.0  # for the server to answer a question
MAX_NOTE_OF_TABLES = 2560  # bytes; the rest of a note is for a key, and for GTIDs


@dataclass(frozen=True)
class MysqlParts:
    """What a session is made of.

    Attributes:
        writer: returns the writer of a topic, opened once.
        stopped: tells whether the capture is to end.
        known: the tables that sessions before this one have captured. Tables that have come since are left out if they
            cannot be captured; before the first session that is an error.
        left_out: those.
    """

    options: MysqlOptions
    database: MySqlDatabase
    writer: Callable[[str], TopicWriter]
    stopped: Callable[[], bool]
    known: set[str]
    left_out: set[str]

    def find_tables(self, catalog: ServerCatalog) -> list[CheckedTable]:
        """Return the tables that are captured."""
        found: list[CheckedTable] = []
        for each in catalog.tables(self.options.tables):
            table = CheckedTable(each, catalog.readable(each.schema, each.name))
            known = not self.known or str(each) in self.known
            problems = (
                [] if known else [*table_problems(table, self.options.allow_cascades), *self._misfits(table, found)]
            )
            if not problems:
                found.append(table)
            elif str(each) not in self.left_out:
                self.left_out.add(str(each))
                for problem in problems:
                    log.warning("capture %s: %s: %s; it is left out", self.options.name, problem.what, problem.remedy)
        return found

    def _misfits(self, new: CheckedTable, others: Sequence[CheckedTable]) -> list[Problem]:
        """Return why a table that has come since fits no topic."""
        found, readable = new.found, new.readable
        try:
            topic = self.options.topic_of(found.schema, found.name)
        except ConfigError as error:
            return [Problem(f"table {found} has no topic", error.message)]
        for other in others:
            if self.options.topic_of(other.found.schema, other.found.name) != topic:
                continue
            if readable and other.readable and not readable.table.has_columns_of(other.readable.table):
                remedy = f"give it another topic than {topic} by route"
                return [Problem(f"table {found} has other columns than {other.found}", remedy)]
        return []


class MysqlStart:
    """Makes the connections and the state of a session.

    Attributes:
        control: a connection for questions; ``reading`` one whose transactions read tables; ``stream`` one for the log.
    """

    def __init__(self, parts: MysqlParts, stack: contextlib.ExitStack) -> None:
        self._parts = parts
        self._options = parts.options
        self._stack = stack
        self.control, self.reading = self._connect(), self._connect()
        for connection in (self.control, self.reading):  # dates that are zero compare, too
            execute(connection, "SET SESSION sql_mode = 'ANSI_QUOTES,ALLOW_INVALID_DATES'")
        execute(self.reading, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        execute(self.reading, "SET SESSION lock_wait_timeout = 1")
        self.log = ServerLog(self.control)
        self.catalog = ServerCatalog(self.control, self._options.text_columns)
        self._found = parts.find_tables(self.catalog)
        patterns = () if parts.known else self._options.tables  # later a table may be gone
        require(self.control, self.log, self._options, patterns, self._found)
        self.stream = self._connect()
        self.state = LogState(self._options, self.log.mariadb, self.log.server, self.log.now())

    def join(self, sealer: NoteSealer) -> bool:
        """Open the topics, and find where the log goes on.

        Returns:
            Whether it goes on at a place in a file of this server; else by GTIDs.

        Raises:
            ConfigError, DataLoss, SchemaMismatch: see :meth:`.CaptureRunner.run`.
        """
        state = self.state
        notes = self._open_topics()
        self._require_short_notes()
        same = True
        if notes:
            same = self.log.is_same(notes)
            state.at = self.log.require_continuous(self._options.name, notes)
        by_position = state.mariadb and same
        state.placed = by_position
        for topic in state.topics.values():
            topic.replaying, topic.same_server = topic.at is not None, by_position
            topic.reach(state.at)
        for topic in state.topics.values():
            if any(table.wanted and table.name not in self._parts.known for table in topic.tables):
                sealer.seal(topic)  # a restart must know that they are read
        sealer.seal_late()
        self._parts.known.update(table.name for table in state.tables.values())
        return by_position

    def _connect(self) -> Connection:
        name = f"jobpipe cdc {self._options.name}"
        connection: Any = self._stack.enter_context(self._parts.database.connection(name))
        connection._read_timeout = connection._write_timeout = ANSWER_SECONDS
        found: Connection = connection
        return found

    def cut(self) -> None:
        """End questions that the server does not answer. For any thread."""
        for connection in (self.control, self.reading):
            raw: Any = connection
            with contextlib.suppress(OSError, TypeError):  # it is closed
                socket.socket.shutdown(raw._sock, socket.SHUT_RDWR)

    def _open_topics(self) -> list[BinlogNote]:
        """Open the topics of all tables, take over what their notes say, and return the notes."""
        topics = self.state.topics
        notes: dict[str, BinlogNote] = {}
        for each in self._found:
            name = self._options.topic_of(each.found.schema, each.found.name)
            if name not in topics:
                topics[name] = topic = TopicState(self._parts.writer(name))
                if (text := topic.writer.last_note) is not None:
                    notes[name] = note = BinlogNote.from_bytes(text, name)
                    topic.at, topic.open = note.at, note.open
                    topic.absent = self._absent(note)
            assert each.readable is not None  # noqa: S101 - it was checked
            self._add_table(each, each.readable, topics[name], notes.get(name))
        self._require_equal_columns()
        return list(notes.values())

    def _absent(self, note: BinlogNote) -> tuple[str, ...]:
        """Return the tables of a note that are gone."""
        named = {*note.tables, *note.again, *(() if note.reading is None else (note.reading.table,))}
        return tuple(sorted(named - {str(each.found) for each in self._found}))

    def _add_table(
        self, checked: CheckedTable, readable: ReadableTable, topic: TopicState, note: BinlogNote | None
    ) -> None:
        found = checked.found
        table = CapturedTable(found, readable, topic, readable.table, fingerprint(readable.table))
        if note is not None and (known := note.tables.get(table.name)) is not None:
            table.done, table.print = True, known
            self._require_known_columns(table, known)
        elif note is not None and note.reading is not None and note.reading.table == table.name:
            table.bound = note.reading.key
            table.wanted = True
            if note.reading.key_print != readable.key_print:
                table.begin_again()
        elif note is not None and table.name in note.again:
            table.wanted = table.take_back = True
        elif self._options.startup is Startup.LATEST:
            table.wanted = bool(self._parts.known) and table.name not in self._parts.known  # it has come since
            table.done = not table.wanted
        topic.tables.append(table)
        self.state.tables[found.schema, found.name] = table

    def _require_known_columns(self, table: CapturedTable, known: str) -> None:
        now = fingerprint(table.readable.table)
        if self._options.schema_change is SchemaChange.EXCEPTION and now != known:
            raise SchemaMismatch(
                f"table {table.name} has other columns than when it was captured last, and schema-change-behavior is "
                "exception. Allow it by evolve",
                table=table.name,
            )

    def _require_equal_columns(self) -> None:
        for topic in self.state.topics.values():
            first = topic.tables[0].table
            for other in topic.tables[1:]:
                if not first.has_columns_of(other.table):
                    raise ConfigError(
                        f"capture {self._options.name!r}: tables {first} and {other.name} go to topic "
                        f"{topic.writer.topic}, and have different columns; give each a topic of its own by route",
                        key="route",
                        topic=topic.writer.topic,
                    )

    def _require_short_notes(self) -> None:
        for topic in self.state.topics.values():
            size = sum(len(table.name.encode()) + len(table.print) + 6 for table in topic.tables)
            size += sum(len(name.encode()) + 3 for name in topic.absent)
            if size > MAX_NOTE_OF_TABLES:
                raise ConfigError(
                    f"capture {self._options.name!r}: topic {topic.writer.topic} would have {len(topic.tables)} "
                    "tables, more than the note of a batch can name. Give some of them another topic by route",
                    key="route",
                    topic=topic.writer.topic,
                )
