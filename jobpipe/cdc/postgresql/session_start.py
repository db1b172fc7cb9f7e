"""The begin of a session: the database is checked, and what was published before is joined."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from jobpipe.cdc.capture_options import Startup
from jobpipe.cdc.database_problems import Problem
from jobpipe.cdc.postgresql.capture_state import CapturedTable, CaptureState, TopicState, seen_now
from jobpipe.cdc.postgresql.database.column_types import SETTINGS
from jobpipe.cdc.postgresql.database.database_catalog import (
    FAILOVER_SINCE,
    DatabaseCatalog,
    FoundTable,
    Slot,
    fingerprint,
)
from jobpipe.cdc.postgresql.database.preconditions import (
    Needs,
    later_problems,
    require,
    require_primary,
    table_problems,
)
from jobpipe.cdc.postgresql.database.slot_history import SlotHistory, require_continuous
from jobpipe.cdc.postgresql.postgres_note import MAX_TABLES, CaptureNote, ToldTransaction
from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
from jobpipe.cdc.postgresql.topic_sealing import TopicSealer
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
from jobpipe.errors import ConfigError
from jobpipe.pipelines.databases.postgres import PostgresDatabase

if TYPE_CHECKING:
    from jobpipe.cdc.postgresql.database.database_catalog import Connection

log = logging.getLogger(__name__)

_OWN_SETTINGS = {
    "row_security": "off",  # an error in place of a part of the rows
    "statement_timeout": "0",
    # A mark must be on the disk before the rows of its chunk are published. Else a crash could undo what the chunk has
    # read, and give the numbers of its transactions to others.
    "synchronous_commit": "local",
}
CANCEL_SECONDS = 0.2


PostgresParts: TypeAlias = SessionParts[PostgresOptions, PostgresDatabase, int]
"""Tables are known by their numbers, which outlive new names."""


def search_of(
    parts: PostgresParts, catalog: DatabaseCatalog, connection: Connection
) -> TableSearch[PostgresOptions, PostgresDatabase, int, FoundTable]:
    """Return what finds the tables that are captured."""
    options = parts.options
    return TableSearch(
        parts,
        listed=partial(catalog.tables, options.tables),
        key=lambda table: table.number,
        problems=partial(_problems, options, catalog, connection),
    )


def _problems(
    options: PostgresOptions,
    catalog: DatabaseCatalog,
    connection: Connection,
    new: FoundTable,
    others: Sequence[FoundTable],
) -> list[Problem]:
    """Return why a table cannot be captured."""
    return (
        table_problems(connection, new)
        or later_problems(connection, catalog, options.publication, new)
        or topic_problems(options, catalog.readable(new).table, others, lambda each: catalog.readable(each).table)
    )


class SessionStart:
    """Makes the connections and the state of a session.

    Attributes:
        replication: the connection for the stream, which has not begun.
        confirmed: by the slot; the stream begins there.
        started: the notes of what is published, which the stream must tell; empty: nothing is.
    """

    def __init__(self, parts: PostgresParts, stack: contextlib.ExitStack) -> None:
        self._parts = parts
        self._options = parts.options
        self._stack = stack
        self._noted: set[int] = set()  # tables of which something is published
        control, reading = self._connect(), self._connect()
        require_primary(control, parts.options.name, begun=bool(parts.tables.known))
        catalog = DatabaseCatalog(control, self._options.text_columns)
        options = self._options
        self._slot = catalog.slot(options.slot)
        first = not parts.tables.known  # later a table may be gone
        self._found = search_of(parts, catalog, control).found_first(self._noted_tables)
        require(control, catalog, Needs(options, self._found, makes_slot=self._slot is None, first=first))
        self.replication = self._connect(replication=True)
        self.confirmed = 0
        self.started: Sequence[CaptureNote] = ()
        self.state = CaptureState(
            options=options,
            history=SlotHistory.of(self.replication),
            control=control,
            reading=reading,
            catalog=catalog,
            reading_catalog=DatabaseCatalog(reading, options.text_columns),
        )

    def _noted_tables(self, found: Sequence[FoundTable]) -> set[int]:
        """Return the tables that the notes of the topics name; none if there is no slot."""
        return set() if self._slot is None else noted_tables(self._parts, found, CaptureNote.from_bytes)

    def join(self, sealer: TopicSealer) -> None:
        """Open the topics, make publication and slot if they are missing, and find where the stream goes on.

        Raises:
            ConfigError, DataLoss, SchemaMismatch: see :meth:`.CaptureRunner.run`.
        """
        state, options = self.state, self._options
        notes, going = self._open_topics()
        self._publish_tables()
        sizes = {
            name: (len(topic.tables), len(json.dumps({str(table.number): table.print for table in topic.tables})))
            for name, topic in state.topics.items()
        }
        require_short_notes(options.name, sizes, MAX_TABLES)
        if not notes and self._slot is not None:
            raise ConfigError(
                f"capture {options.name!r}: replication slot {options.slot} exists, but no topic knows it: it belongs "
                "to something else, or the topics' spools were lost. Give slot-name, or drop the slot: SELECT "
                f"pg_drop_replication_slot('{options.slot}');",
                slot=options.slot,
                key="slot-name",
            )
        self.started = started = [note for note in notes if note.at > 0]
        if not started:  # nothing was published
            state.at = self.confirmed = self._made_slot(sealer).confirmed
            state.last = ToldTransaction(0, 0)
            self._seal_all(sealer)
        else:
            wal = state.catalog.wal_lsn()
            slot = require_continuous(options, state.history, self.replication, self._slot, started, going, wal)
            self.confirmed = slot.confirmed
            self._warn_of_left(started)
            newest = max(slot.confirmed, *(note.at for note in started))
            state.last = max(started, key=lambda note: note.at).last
            for topic in state.topics.values():
                if not topic.at:  # a new one begins here; its note says so before the slot goes on
                    topic.at, topic.unnoted = newest, True
            state.at = min(topic.at for topic in state.topics.values())
        state.running = seen_now(state.control)
        self._parts.tables.known.update(state.tables)

    def _connect(self, *, replication: bool = False) -> Connection:
        more = {"replication": "database"} if replication else {}
        connection = self._stack.enter_context(
            self._parts.database.connection(f"jobpipe cdc {self._options.name}", **more)
        )
        for key, value in {**SETTINGS, **_OWN_SETTINGS}.items():
            connection.execute(f"SET {key} = '{value}'")
        return connection

    def _open_topics(self) -> tuple[Sequence[CaptureNote], Sequence[CaptureNote]]:
        """Open the topics of all tables, and take over what their notes say.

        Returns:
            The notes, and those of them from which something goes on. Of the others the tables were dropped and others
            have their names: these are read, and begin where the other topics are.
        """
        options, topics = self._options, self.state.topics
        opened = open_topics(self._parts, self._found, CaptureNote.from_bytes)
        tables: dict[str, set[int]] = {}
        for found in self._found:
            topic_name = opened[options.topic_of(found.schema, found.name)].writer.topic
            tables.setdefault(topic_name, set()).add(found.number)
        notes: list[CaptureNote] = []
        going: list[CaptureNote] = []
        for each in opened.values():
            if each.writer.topic in topics:  # a route leads to a version of another topic, whose notes are taken
                continue
            topics[each.writer.topic] = topic = TopicState(each.writer)
            goes_on = [note for note in each.notes if not note.named.isdisjoint(tables[topic.writer.topic])]
            notes += each.notes
            going += [note for note in goes_on if note.at > 0]
            if (note := each.note) is not None and note in goes_on:
                topic.at, topic.open, topic.again = note.at, note.open, list(note.again)
        begun = self._slot is not None or any(note.at > 0 for note in notes)  # the slot was made after all first notes
        for found in self._found:
            each = opened[options.topic_of(found.schema, found.name)]
            self._add_table(found, topics[each.writer.topic], each.note, begun=begun)
        for name, topic in topics.items():
            require_equal_columns(options.name, name, [table.readable.table for table in topic.tables])
        return notes, going

    def _add_table(self, found: FoundTable, topic: TopicState, note: CaptureNote | None, *, begun: bool) -> None:
        readable = self.state.catalog.readable(found)
        table = CapturedTable(found, readable, topic, fingerprint(readable.table))
        if not readable.table.columns:
            raise ConfigError(f"table {found} has no columns", table=str(found))
        if note is not None and (known := note.tables.get(found.number)) is not None:
            table.done = True
            self._noted.add(found.number)
            require_known_columns(self._options, str(found), table.print, known)
        elif note is not None and note.chunk is not None and note.chunk.table == found.number:
            table.chunk = note.chunk
            self._noted.add(found.number)
            if note.chunk.partial or note.chunk.key != readable.key_print:
                table.begin_again()
        elif self._options.startup is Startup.LATEST:
            table.done = not begun  # of one that has come since, changes came before it was found
        topic.tables.append(table)
        self.state.tables[found.number] = table

    def _publish_tables(self) -> None:
        """Make the publication, or add what it lacks."""
        from psycopg import sql

        published = self.state.catalog.published(self._options.publication)
        lacking = [each for each in self._found if published is None or each.number not in published]
        if not lacking:
            return
        for each in lacking:
            table = self.state.tables[each.number]
            if table.number in self._noted:
                log.warning(
                    "capture %s: table %s was not in publication %s; its changes since are not known: it is read again",
                    *(self._options.name, each, self._options.publication),
                )
                table.take_back()
        name = sql.Identifier(self._options.publication)
        listed = sql.SQL(", ").join(sql.Identifier(each.schema, each.name) for each in lacking)
        statement = "ALTER PUBLICATION {} ADD TABLE {}"
        if published is None:
            statement = "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)"
        self.state.control.execute(sql.SQL(statement).format(name, listed))

    def _made_slot(self, sealer: TopicSealer) -> Slot:
        """Return the slot; made, if it is not there. Notes come first, so that a slot that is there is ours."""
        slot, state, options = self._slot, self.state, self._options
        if slot is None:
            self._seal_all(sealer)
            log.info(
                "capture %s: making replication slot %s; this waits for transactions that are open",
                *(options.name, options.slot),
            )
            failover = ", failover => true" if state.catalog.version >= FAILOVER_SINCE else ""
            with self._cancelled_by_stop():
                state.control.execute(
                    f"SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput'{failover})",
                    (options.slot,),
                )
            slot = state.catalog.slot(options.slot)
        assert slot is not None  # noqa: S101 - it was made
        return slot

    @contextlib.contextmanager
    def _cancelled_by_stop(self) -> Iterator[None]:
        """End a statement of the block once the capture is to end."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(CANCEL_SECONDS):
                if self._parts.stopped():
                    self.state.control.cancel()

        thread = threading.Thread(target=watch, name="cdc-cancel", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _warn_of_left(self, notes: Sequence[CaptureNote]) -> None:
        """Warn of tables that were captured, are there, and are captured no longer."""
        for number in sorted({each for note in notes for each in note.tables} - set(self.state.tables)):
            if (left := self.state.catalog.table(number)) is not None:
                log.warning(
                    "capture %s: table %s was captured, and is captured no longer: no expression of tables matches it",
                    *(self._options.name, left),
                )

    def _seal_all(self, sealer: TopicSealer) -> None:
        for topic in self.state.topics.values():
            sealer.seal(topic)
