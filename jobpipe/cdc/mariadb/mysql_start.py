"""The begin of a session: the server is checked, and what was published before is joined."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from jobpipe.cdc.capture_options import Startup
from jobpipe.cdc.changes import Table
from jobpipe.cdc.database_problems import Problem
from jobpipe.cdc.mariadb.binlog.binlog_position import Position
from jobpipe.cdc.mariadb.binlog.binlog_stream import FIRST_EVENT, BinlogStream
from jobpipe.cdc.mariadb.mysql_note import BinlogNote
from jobpipe.cdc.mariadb.mysql_options import MysqlOptions
from jobpipe.cdc.mariadb.mysql_state import CapturedTable, LogState, TopicState
from jobpipe.cdc.mariadb.note_sealing import NoteSealer
from jobpipe.cdc.mariadb.server.server_catalog import FoundTable, ReadableTable, ServerCatalog, fingerprint
from jobpipe.cdc.mariadb.server.server_checks import CheckedTable, require, table_problems
from jobpipe.cdc.mariadb.server.server_log import ServerLog
from jobpipe.cdc.session_tables import (
    SessionParts,
    TableSearch,
    noted_tables,
    open_topics,
    require_equal_columns,
    require_known_columns,
    require_short_notes,
    topic_problems,
)
from jobpipe.errors import DataLoss
from jobpipe.pipelines.databases.mysql import MySqlDatabase, execute

if TYPE_CHECKING:
    from jobpipe.pipelines.databases.mysql import Connection

log = logging.getLogger(__name__)

ANSWER_SECONDS = 300.0  # for the server to answer a question
FILE_SECONDS = 1.0  # between two looks for a stop, while it is asked for a file
MAX_NOTE_OF_TABLES = 2560  # bytes; the rest of a note is for a key, and for GTIDs


MysqlParts: TypeAlias = SessionParts[MysqlOptions, MySqlDatabase, str]
"""Tables are known by their names, database.table."""


def search_of(parts: MysqlParts, catalog: ServerCatalog) -> TableSearch[MysqlOptions, MySqlDatabase, str, FoundTable]:
    """Return what finds the tables that are captured."""
    options = parts.options
    return TableSearch(
        parts, listed=partial(catalog.tables, options.tables), key=str, problems=partial(_problems, options, catalog)
    )


def _problems(
    options: MysqlOptions, catalog: ServerCatalog, new: FoundTable, others: Sequence[FoundTable]
) -> list[Problem]:
    """Return why a table cannot be captured."""

    def table_of(each: FoundTable) -> Table | None:
        readable = catalog.readable(each.schema, each.name)
        return None if readable is None else readable.table

    checked = CheckedTable(new, catalog.readable(new.schema, new.name))
    problems = table_problems(checked, options.allow_cascades)
    if problems or checked.readable is None:
        return problems
    return topic_problems(options, checked.readable.table, others, table_of)


class MysqlStart:
    """Makes the connections and the state of a session.

    Attributes:
        control: a connection for questions; ``reading`` one whose transactions read tables; ``stream`` one for the log.
    """

    def __init__(self, parts: MysqlParts, stack: contextlib.ExitStack, wake: int) -> None:
        self._parts = parts
        self._wake = wake
        self._options = parts.options
        self._stack = stack
        self._to_note: set[str] = set()  # topics
        self.control, self.reading = self._connect(), self._connect()
        for connection in (self.control, self.reading):  # dates that are zero compare, too
            execute(connection, "SET SESSION sql_mode = 'ANSI_QUOTES,ALLOW_INVALID_DATES'")
        execute(self.reading, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        execute(self.reading, "SET SESSION lock_wait_timeout = 1")
        self.log = ServerLog(self.control)
        self.catalog = ServerCatalog(self.control, self._options.text_columns)
        first = not parts.tables.known  # later a table may be gone
        noted = partial(noted_tables, parts, read=BinlogNote.from_bytes)
        found = search_of(parts, self.catalog).found_first(noted)
        self._found = [CheckedTable(each, self.catalog.readable(each.schema, each.name)) for each in found]
        begun = partial(noted, found)
        require(self.control, self.log, self._options, self._found, first=first, begun=lambda: bool(begun()))
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
        sizes = {
            name: (
                len(topic.tables),
                sum(len(table.name.encode()) + len(table.print) + 6 for table in topic.tables)
                + sum(len(absent.encode()) + 3 for absent in topic.absent),
            )
            for name, topic in state.topics.items()
        }
        require_short_notes(self._options.name, sizes, MAX_NOTE_OF_TABLES)
        same = True
        if notes:
            same = self.log.is_same(notes)
            state.at = self.log.require_continuous(self._options.name, notes)
            self._require_same_files(notes)
        elif (made := self._file_made(state.at.position.file)) is not None:
            state.note_file(state.at.position.file, made)
            state.at = replace(state.at, made=made)
        by_position = state.mariadb and same
        state.placed = by_position
        state.replay(same_server=by_position)
        for name in self._to_note:
            sealer.seal(state.topics[name])  # a restart must know that its tables are read
        sealer.seal_first()
        self._parts.tables.known.update(table.name for table in state.tables.values())
        return by_position

    def _require_same_files(self, notes: Sequence[BinlogNote]) -> None:
        """See that the files of the server's log are those that the notes name, not others of the same names and sizes.

        Raises:
            DataLoss: one was made at another time.
        """
        noted = {note.at.position.file: note.at for note in notes if note.server == self.log.server and note.at.made}
        for file, at in noted.items():
            made = self._file_made(file)
            if made is None:
                continue
            if made != at.made:
                then, now = (time.strftime("%F %T UTC", time.gmtime(each)) for each in (at.made, made))
                raise DataLoss(
                    f"capture {self._options.name!r}: changes up to {at.position} are published, of a file that was "
                    f"made at {then}, and the server's {file} was made at {now}: an older copy of the server was "
                    "restored, or its log was reset. To read all tables again, start the capture under another name",
                    reason="restored",
                    position=str(at.position),
                )
            self.state.note_file(file, made)

    def _file_made(self, file: str) -> int | None:
        """Return when the server made a file of its log; None if it has none of that name, or a stop was asked for.

        No statement tells it: a stream that begins with the file does.
        """
        if file not in self.log.files():
            return None
        with contextlib.ExitStack() as stack:
            name = f"jobpipe cdc {self._options.name}"
            stream = stack.enter_context(
                BinlogStream(
                    stack.enter_context(self._parts.database.connection(name, answer=ANSWER_SECONDS)),
                    self.control,
                    start=Position(file, FIRST_EVENT),
                    server_id=self._options.replica_id,
                    mariadb=self.log.mariadb,
                    wanted=lambda database, table: False,
                    kinds_of=lambda database, table: {},
                    wake=self._wake,
                )
            )
            while stream.file_made[0] != file and not self._parts.stopped():
                stream.read(FILE_SECONDS)
            named, made = stream.file_made
        return made if named == file else None

    def _connect(self) -> Connection:
        name = f"jobpipe cdc {self._options.name}"
        return self._stack.enter_context(self._parts.database.connection(name, answer=ANSWER_SECONDS))

    def cut(self) -> None:
        """End questions that the server does not answer. For any thread."""
        for connection in (self.control, self.reading):
            raw: Any = connection
            with contextlib.suppress(OSError, TypeError):  # it is closed
                socket.socket.shutdown(raw._sock, socket.SHUT_RDWR)

    def _open_topics(self) -> list[BinlogNote]:
        """Open the topics of all tables, take over what their notes say, and return the notes."""
        options, topics = self._options, self.state.topics
        opened = open_topics(self._parts, [each.found for each in self._found], BinlogNote.from_bytes)
        for newest in opened.values():
            if newest.writer.topic in topics:  # a route leads to a version of another topic
                continue
            topics[newest.writer.topic] = topic = TopicState(newest.writer)
            if (note := newest.note) is not None:
                topic.at, topic.open = note.at, note.open
                topic.absent = tuple(sorted(note.named - {str(each.found) for each in self._found}))
        notes = [note for newest in opened.values() for note in newest.notes]
        begun = any(not note.starting for note in notes)
        self.state.starting = options.startup is Startup.LATEST and len(topics) > 1 and not begun
        for each in self._found:
            assert each.readable is not None  # noqa: S101 - it was checked
            newest = opened[options.topic_of(each.found.schema, each.found.name)]
            self._add_table(each.found, each.readable, topics[newest.writer.topic], newest.note, begun=begun)
        for name, topic in topics.items():
            require_equal_columns(options.name, name, [table.table for table in topic.tables])
        return notes

    def _add_table(
        self, found: FoundTable, readable: ReadableTable, topic: TopicState, note: BinlogNote | None, *, begun: bool
    ) -> None:
        table = CapturedTable(found, readable, topic, readable.table, fingerprint(readable.table))
        if note is not None and (known := note.tables.get(table.name)) is not None:
            table.done = True  # the log may have rows of other columns still; they tell of those
            require_known_columns(self._options, table.name, table.print, known)
        elif note is not None and note.reading is not None and note.reading.table == table.name:
            table.bound = note.reading.key
            table.wanted = True
            if note.reading.key_print != readable.key_print:
                table.begin_again()
        elif note is not None and table.name in note.again:
            table.wanted = table.take_back = True
        elif self._options.startup is Startup.LATEST:
            table.done = not begun  # of one that has come since, changes came before it was found
            table.wanted = begun
            if begun:
                self._to_note.add(topic.writer.topic)
        topic.tables.append(table)
        self.state.tables[found.schema, found.name] = table
