"""The begin of a session: the database is checked, and what was published before is joined."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobpipe.cdc.capture_options import SchemaChange, Startup
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
from jobpipe.cdc.postgresql.database.preconditions import Needs, require, table_problems
from jobpipe.cdc.postgresql.database.slot_history import SlotHistory, require_continuous
from jobpipe.cdc.postgresql.postgres_note import CaptureNote
from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
from jobpipe.cdc.postgresql.topic_sealing import TopicSealer
from jobpipe.cdc.topic_writer import TopicWriter
from jobpipe.errors import ConfigError, SchemaMismatch
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
MAX_NOTE_OF_TABLES = 3072  # bytes; the rest of a note is for a chunk, and for parts that are read again


@dataclass(frozen=True)
class SessionParts:
    """What a session is made of.

    Attributes:
        writer: returns the writer of a topic, opened once.
        stopped: tells whether the capture is to end.
        known: the tables that sessions before this one have captured. Tables that have come since are left out if they
            cannot be captured; before the first session that is an error.
        left_out: those.
    """

    options: PostgresOptions
    database: PostgresDatabase
    writer: Callable[[str], TopicWriter]
    stopped: Callable[[], bool]
    known: set[int]
    left_out: set[int]

    def find_tables(self, catalog: DatabaseCatalog, connection: Connection) -> list[FoundTable]:
        """Return the tables that are captured."""
        found: list[FoundTable] = []
        for each in catalog.tables(self.options.tables):
            known = not self.known or each.number in self.known
            problems = [] if known else table_problems(connection, each) or self._misfits(catalog, each, found)
            if not problems:
                found.append(each)
            elif each.number not in self.left_out:
                self.left_out.add(each.number)
                for problem in problems:
                    log.warning("capture %s: %s: %s; it is left out", self.options.name, problem.what, problem.remedy)
        return found

    def _misfits(self, catalog: DatabaseCatalog, new: FoundTable, others: Sequence[FoundTable]) -> list[Problem]:
        """Return why a table that has come since fits no topic."""
        try:
            topic = self.options.topic_of(new.schema, new.name)
        except ConfigError as error:
            return [Problem(f"table {new} has no topic", error.message)]
        table = catalog.readable(new).table
        if not table.columns:
            return [Problem(f"table {new} has no columns", "add some")]
        same = next((each for each in others if self.options.topic_of(each.schema, each.name) == topic), None)
        if same is not None and not table.has_columns_of(catalog.readable(same).table):
            return [
                Problem(f"table {new} has other columns than {same}", f"give it another topic than {topic} by route")
            ]
        return []


class SessionStart:
    """Makes the connections and the state of a session.

    Attributes:
        replication: the connection for the stream, which has not begun.
    """

    def __init__(self, parts: SessionParts, stack: contextlib.ExitStack) -> None:
        self._parts = parts
        self._options = parts.options
        self._stack = stack
        self._noted: set[int] = set()  # tables of which something is published
        control, reading = self._connect(), self._connect()
        catalog = DatabaseCatalog(control, self._options.text_columns)
        self._found = parts.find_tables(catalog, control)
        self._slot = catalog.slot(self._options.slot)
        options = self._options
        patterns = () if parts.known else options.tables  # later a table may be gone
        needs = Needs(patterns, self._found, options.publication, options.slot, makes_slot=self._slot is None)
        require(control, catalog, needs)
        self.replication = self._connect(replication=True)
        self.state = CaptureState(
            options=options,
            history=SlotHistory.of(self.replication),
            control=control,
            reading=reading,
            catalog=catalog,
            reading_catalog=DatabaseCatalog(reading, options.text_columns),
        )

    def join(self, sealer: TopicSealer) -> None:
        """Open the topics, make publication and slot if they are missing, and find where the stream goes on.

        Raises:
            ConfigError, DataLoss, SchemaMismatch: see :meth:`.CaptureRunner.run`.
        """
        state, options = self.state, self._options
        notes = self._open_topics()
        self._publish_tables()
        self._require_short_notes()
        if not notes and self._slot is not None:
            raise ConfigError(
                f"capture {options.name!r}: replication slot {options.slot} exists, but no topic knows it: it belongs "
                "to something else, or the topics' spools were lost. Give slot-name, or drop the slot: SELECT "
                f"pg_drop_replication_slot('{options.slot}');",
                slot=options.slot,
                key="slot-name",
            )
        started = [note for note in notes if note.at > 0]
        if not started:  # nothing was published
            state.at = self._made_slot(sealer).confirmed
            self._seal_all(sealer)
        else:
            wal = state.catalog.wal_lsn()
            require_continuous(options, state.history, self.replication, self._slot, started, wal)
            self._warn_of_left(started)
            newest = max(note.at for note in started)
            for topic in state.topics.values():
                topic.at = topic.at or newest  # a new one begins here, with reading its tables
            state.at = min(topic.at for topic in state.topics.values())
        state.running = seen_now(state.control)
        self._parts.known.update(state.tables)

    def _connect(self, *, replication: bool = False) -> Connection:
        more = {"replication": "database"} if replication else {}
        connection = self._stack.enter_context(
            self._parts.database.connection(f"jobpipe cdc {self._options.name}", **more)
        )
        for key, value in {**SETTINGS, **_OWN_SETTINGS}.items():
            connection.execute(f"SET {key} = '{value}'")
        return connection

    def _open_topics(self) -> Sequence[CaptureNote]:
        """Open the topics of all tables, take over what their notes say, and return the notes."""
        topics = self.state.topics
        notes: dict[str, CaptureNote] = {}
        for found in self._found:
            name = self._options.topic_of(found.schema, found.name)
            if name not in topics:
                topics[name] = topic = TopicState(self._parts.writer(name))
                if (text := topic.writer.last_note) is not None:
                    notes[name] = note = CaptureNote.from_bytes(text, name)
                    topic.at, topic.open, topic.again = note.at, note.open, list(note.again)
            self._add_table(found, topics[name], notes.get(name))
        self._require_equal_columns()
        return list(notes.values())

    def _add_table(self, found: FoundTable, topic: TopicState, note: CaptureNote | None) -> None:
        readable = self.state.catalog.readable(found)
        table = CapturedTable(found, readable, topic, fingerprint(readable.table))
        if not readable.table.columns:
            raise ConfigError(f"table {found} has no columns", table=str(found))
        if note is not None and (known := note.tables.get(found.number)) is not None:
            table.done = True
            self._noted.add(found.number)
            self._require_known_columns(table, known)
        elif note is not None and note.chunk is not None and note.chunk.table == found.number:
            table.chunk = note.chunk
            self._noted.add(found.number)
            if note.chunk.partial or note.chunk.key != readable.key_print:
                table.begin_again()
        elif self._options.startup is Startup.LATEST:
            table.done = True
        topic.tables.append(table)
        self.state.tables[found.number] = table

    def _require_known_columns(self, table: CapturedTable, known: str) -> None:
        if self._options.schema_change is SchemaChange.EXCEPTION and table.print != known:
            raise SchemaMismatch(
                f"table {table.found} has other columns than when it was captured last, and schema-change-behavior is "
                "exception. Allow it by evolve",
                table=str(table.found),
            )

    def _require_equal_columns(self) -> None:
        for topic in self.state.topics.values():
            first = topic.tables[0].readable.table
            for other in topic.tables[1:]:
                if not first.has_columns_of(other.readable.table):
                    raise ConfigError(
                        f"capture {self._options.name!r}: tables {first} and {other.found} go to topic "
                        f"{topic.writer.topic}, and have different columns; give each a topic of its own by route",
                        key="route",
                        topic=topic.writer.topic,
                    )

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

    def _require_short_notes(self) -> None:
        for topic in self.state.topics.values():
            size = len(json.dumps({str(table.number): table.print for table in topic.tables}))
            if size > MAX_NOTE_OF_TABLES:
                raise ConfigError(
                    f"capture {self._options.name!r}: topic {topic.writer.topic} would have {len(topic.tables)} "
                    "tables, more than the note of a batch can name. Give some of them another topic by route",
                    key="route",
                    topic=topic.writer.topic,
                )

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
