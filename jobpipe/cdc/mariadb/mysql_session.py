"""One stretch of a capture of MariaDB or MySQL: what is read and streamed, and in which order.

:mod:`.chunk_reading` has the rule by which reading and streaming fit together.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time

from jobpipe.cdc.changes import Change, Operation, Table
from jobpipe.cdc.mariadb.binlog.binlog_events import Begin, End, Idle, Rows, Savepoint, Statement, rolled_back_to
from jobpipe.cdc.mariadb.binlog.binlog_events import Change as LogChange
from jobpipe.cdc.mariadb.binlog.binlog_position import Position
from jobpipe.cdc.mariadb.binlog.binlog_stream import BinlogStream
from jobpipe.cdc.mariadb.binlog.row_images import BinlogTable, RowImages
from jobpipe.cdc.mariadb.chunk_reading import ChunkReading
from jobpipe.cdc.mariadb.log_errors import translated
from jobpipe.cdc.mariadb.log_statements import Effect, TableEffect, effects_of
from jobpipe.cdc.mariadb.mysql_start import MysqlParts, MysqlStart, search_of
from jobpipe.cdc.mariadb.mysql_state import CapturedTable
from jobpipe.cdc.mariadb.note_sealing import NoteSealer
from jobpipe.cdc.mariadb.server.server_catalog import fingerprint
from jobpipe.errors import DataLoss

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.25  # for an event; a stop is looked for so often
READ_SECONDS = 0.01  # for an event, while something is to be read
PUMP_SECONDS = 0.25  # for which events are taken that are there already
OPEN_SECONDS = 0.5  # after which changes are published while more are coming
LAG_SECONDS = 1.0  # between two questions how far the log goes
HANGING_SECONDS = 5.0  # without an answer, after which the server's log may have more
LEAVE_SECONDS = 5.0  # for the answer to a question, once a stop was asked for
BATCH_BYTES = 16 * 1024 * 1024
_AGAIN = "To go on, start the capture under another name: it reads all tables again"


class MysqlSession:
    """Checks the server, joins what was published before, and starts the stream.

    Raises:
        ConfigError, DataLoss, SchemaMismatch, LinkError: see :meth:`.CaptureRunner.run`.
    """

    def __init__(self, parts: MysqlParts, stack: contextlib.ExitStack) -> None:
        self._parts = parts
        self._options = parts.options
        wake, self._wake_writer = os.pipe()
        stack.callback(os.close, wake)
        stack.callback(os.close, self._wake_writer)
        self._start = start = MysqlStart(parts, stack, wake)
        self._leaving = threading.Timer(LEAVE_SECONDS, start.cut)  # the server may answer no longer
        self._leaving.daemon = True
        stack.callback(self._leaving.cancel)
        self._state = start.state
        self._sealer = NoteSealer(self._state)
        by_position = start.join(self._sealer)
        self._reading = ChunkReading(self._state, self._sealer, start.log, start.control, start.reading)
        self._tables: dict[tuple[str, str], tuple[BinlogTable, Table]] = {}
        self._begun: Begin | None = None
        self._folds_names = start.log.variable("lower_case_table_names") not in (None, "0")
        self._is_full = False  # some topic's changes that wait are enough
        self._touched = False  # the transaction that is coming has changes of captured tables
        self._seals = 0  # that were made before it
        self._marks: dict[str, int] = {}  # changes that waited before it, of each topic to which it has added some
        self._savepoints: dict[str, tuple[int, dict[str, int]]] = {}  # of it, the same two by name
        self._found_more = False
        self._heartbeat = time.monotonic()
        self._lag_at = self._answered_at = float("-inf")  # when the server was asked how far its log goes, and told it
        self._behind_bytes = 0
        self._stream = stack.enter_context(
            BinlogStream(
                start.stream,
                start.control,
                start=self._state.at.position if by_position else self._state.at.gtids,
                server_id=self._options.replica_id,
                mariadb=self._state.mariadb,
                wanted=lambda database, table: (database, table) in self._state.tables,
                kinds_of=self._kinds_of,
                wake=wake,
            )
        )

    @property
    def position(self) -> str:
        """All transactions before this place in the log are published, or wait to be."""
        return str(self._state.at.position)

    @property
    def behind_bytes(self) -> int:
        """How much of its log the server has beyond that, as it was asked last."""
        return self._behind_bytes

    @property
    def behind_seconds(self) -> float | None:
        """Since the newest transaction that is published was committed; 0 while none waits, None if not known yet."""
        waits = self._waits
        if not waits:
            self._state.freshness.publish()
        hangs = time.monotonic() - self._answered_at > HANGING_SECONDS  # what the log has meanwhile is not known
        return self._state.freshness.seconds(waits=waits or self._behind_bytes > 0 or hangs)

    @property
    def _waits(self) -> bool:
        """Whether changes wait that have come."""
        return self._begun is not None or any(each.waiting for each in list(self._state.topics.values()))

    @property
    def retained_bytes(self) -> int:
        """Of the log that the capture needs; the server keeps all of it for a time, whether or not it is needed."""
        return self._behind_bytes

    @property
    def safe_bytes(self) -> None:
        """None: the server removes its log by time."""

    def wake(self) -> None:
        """End a wait of :meth:`run`. For any thread."""
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b".")
        self._leaving.start()

    def progress(self) -> dict[str, tuple[int, float]]:
        """Return rows read, and rows there may be, of each table that is not read to its end."""
        tables = list(self._state.tables.values())
        return {each.name: (each.rows, each.found.estimate) for each in tables if not each.done}

    def run(self) -> None:
        """Read tables and stream changes until a stop is asked for, or there are new tables; publish what waits."""
        with translated(self._options, self._state):
            while not (self._parts.stopped() or self._found_more):
                self._pump(self._read_step())
                self._beat()
            if self._begun is None:
                self._sealer.flush()

    def _read_step(self) -> float:
        """Read what is to be read next; return how long an event may be waited for then."""
        if self._begun is not None:
            return WAIT_SECONDS
        table = self._reading.table
        if table is None:
            return WAIT_SECONDS
        if self._reading.waits:
            return READ_SECONDS
        self._sealer.flush()
        return 0.0 if self._reading.read(table) else READ_SECONDS

    # -- the stream ----------------------------------------------------------------------------------------------------

    def _pump(self, wait: float) -> None:
        """Take what the stream has; publish it when it has no more, or it is enough."""
        event = self._stream.read(wait)
        end = time.monotonic() + PUMP_SECONDS
        while event is not None:
            self._take(event)
            if self._is_full:
                self._flush()
                if self._parts.stopped():
                    return
            if time.monotonic() > end:
                break
            event = self._stream.read(0.0)
        begun, late = self._begun, time.monotonic() - self._sealer.flushed_at > OPEN_SECONDS
        waits = (begun is not None and begun.xa) or (not late and (begun is not None or event is not None))
        if not waits and any(topic.waiting for topic in self._state.topics.values()):
            self._sealer.flush()

    def _flush(self) -> None:
        """Publish what waits, also of the transaction that is coming."""
        if self._begun is not None and self._begun.xa and self._touched:
            raise self._xa_error(self._begun)
        self._sealer.flush()
        self._is_full = False

    def _take(self, event: LogChange) -> None:
        state = self._state
        if isinstance(event, Rows):
            self._take_rows(event)
        elif isinstance(event, Begin):
            self._begun, self._touched = event, False
            self._seals = self._sealer.seals
            self._marks.clear()
            self._savepoints.clear()
            state.note_file(*self._stream.file_made)
            state.begin(event.gtid, event.start)
        elif isinstance(event, End):
            self._take_end(event)
        elif isinstance(event, Idle):
            state.note_file(*self._stream.file_made)
            if self._begun is None and self._is_placed(event.at):
                state.reach(event.at)
                self._reading.settle()
        elif isinstance(event, Savepoint):
            waiting = {name: len(state.topics[name].waiting) for name in self._marks}
            self._savepoints[event.name] = self._sealer.seals, waiting
        elif (name := rolled_back_to(event)) is not None:
            self._undo_since(name)
        else:
            self._take_statement(event)

    def _is_placed(self, at: Position) -> bool:
        """Tell whether a place between two transactions is that of our GTIDs.

        MariaDB that is asked by GTID begins with a whole file, of which it leaves out what we have.
        """
        state = self._state
        if not state.placed:
            gtids = self._start.log.gtids_at(at) if state.mariadb else state.at.gtids
            state.placed = gtids is not None and gtids.text == state.at.gtids.text
        return state.placed

    def _take_end(self, end: End) -> None:
        begun = self._begun
        assert begun is not None  # noqa: S101 - the stream pairs them
        if begun.xa and self._touched and not end.one_phase:
            raise self._xa_error(begun)
        if (end.rolled_back or end.cut) and self._touched:
            self._undo(begun)
        self._begun = self._state.begun = None
        self._state.reach(end.at, None if end.cut else begun.gtid)
        self._state.freshness.take(begun.committed_ms)
        if self._is_placed(end.at):
            self._reading.settle()

    def _undo(self, begun: Begin) -> None:
        """Drop the changes of the transaction that is coming.

        Raises:
            DataLoss: some of them are published.
        """
        if self._sealer.seals != self._seals:
            raise DataLoss(
                f"capture {self._options.name!r}: transaction {begun.gtid} at {begun.start} was undone after changes "
                "of it were published: the server crashed in it, or it has changed tables without transactions, too. "
                f"{_AGAIN}",
                reason="rollback",
                gtid=begun.gtid,
            )
        self._undo_to(self._marks)

    def _undo_since(self, savepoint: str) -> None:
        """Drop the changes since a savepoint of the transaction that is coming.

        Raises:
            DataLoss: some of them are published.
        """
        begun = self._begun
        if begun is None or not self._touched:
            return
        seals, marks = self._savepoints.get(savepoint, (None, {}))
        if seals != self._sealer.seals:
            raise DataLoss(
                f"capture {self._options.name!r}: a part of transaction {begun.gtid} at {begun.start} was undone after "
                "changes of it were published; the log has it, as the transaction has changed tables without "
                f"transactions, too. {_AGAIN}",
                reason="rollback",
                gtid=begun.gtid,
            )
        self._undo_to({**self._marks, **marks})

    def _undo_to(self, marks: dict[str, int]) -> None:
        """Let no more changes of each topic wait than there were."""
        for name, count in marks.items():
            self._state.topics[name].waiting.undo(count)
        self._reading.drop_window()

    def _xa_error(self, begun: Begin) -> DataLoss:
        return DataLoss(
            f"capture {self._options.name!r}: transaction {begun.gtid} at {begun.start} has changed captured tables, "
            "and is only prepared (XA): whether it is committed the log tells later, for which a capture does not "
            f"wait. Change captured tables without XA. {_AGAIN}",
            reason="xa",
            gtid=begun.gtid,
        )

    def _take_rows(self, rows: Rows) -> None:
        begun = self._begun
        captured = self._state.tables.get((rows.table.database, rows.table.name))
        if captured is None or begun is None:
            return
        had = max(0, min(len(rows.rows), captured.skipped - captured.changes))
        if had:
            self._state.count(captured, int(had))
            if had == len(rows.rows):
                return
        self._touched = True
        table = self._table_of(rows.table)
        if fingerprint_of(captured, table) != captured.print:
            self._state.note_columns(captured, table)
        changes = _changes(captured.table, rows.kind, rows.rows[int(had) :], begun)
        if not captured.done:
            changes = self._reading.sort_out(captured, changes)
        if changes:
            waiting = captured.topic.waiting
            if not waiting.fits(captured.table):
                self._flush()
            self._add(captured, changes, rows.size)
            self._is_full |= len(waiting) >= self._options.batch_rows or waiting.size >= BATCH_BYTES
        # Last: until then a note that is sealed must not count them.
        self._state.count(captured, len(rows.rows) - int(had))

    def _add(self, captured: CapturedTable, changes: list[Change], size: int = 0) -> None:
        """Let changes of the transaction that is coming wait; they must fit."""
        waiting = captured.topic.waiting
        self._marks.setdefault(captured.topic.writer.topic, len(waiting))
        waiting.add(changes, size)

    def _table_of(self, logged: BinlogTable) -> Table:
        """Return a table as the log tells of it."""
        where = logged.database, logged.name
        known = self._tables.get(where)
        if known is not None and (known[0] is logged or known[0].columns == logged.columns):
            return known[1]
        kinds = {column.name: column.kind for column in logged.columns}
        kinds |= {name: kind for name, kind in self._kinds_of(*where).items() if name in kinds}
        table = self._start.catalog.table(*where, kinds, [column.name for column in logged.columns if column.key])
        self._tables[where] = logged, table
        return table

    def _kinds_of(self, database: str, name: str) -> dict[str, str]:
        """Return the columns of a table whose types the log does not tell, but as bytes."""
        captured = self._state.tables.get((database, name))
        if captured is None:
            return {}
        return {column: kind for column, kind in captured.readable.kinds.items() if kind in ("uuid", "inet4", "inet6")}

    # -- statements ----------------------------------------------------------------------------------------------------

    def _take_statement(self, statement: Statement) -> None:
        begun = self._begun
        if begun is None:
            return
        for effect in effects_of(statement.database, statement.text):
            for captured in self._tables_of(effect):
                if captured.changes >= captured.skipped:
                    self._take_effect(effect, captured)
                self._state.count(captured, 1)

    def _tables_of(self, effect: TableEffect) -> list[CapturedTable]:
        """Return the captured tables that a statement changes, or may change."""
        tables = list(self._state.tables.values())
        database, name = (self._folded(each) for each in (effect.database, effect.table))
        own = [each for each in tables if self._folded(each.found.schema) == database]
        named = [each for each in own if name in ("", self._folded(each.found.name))]
        if effect.effect is not Effect.UNKNOWN or named:
            return named
        # A view, or a table with triggers, may stand for captured ones.
        plain = self._start.catalog.is_plain(effect.database, effect.table) if name else False
        return tables if plain is False else [] if plain else own

    def _folded(self, name: str) -> str:
        return name.lower() if self._folds_names else name

    def _take_effect(self, effect: TableEffect, captured: CapturedTable) -> None:
        begun = self._begun
        assert begun is not None  # noqa: S101 - statements are of groups
        if effect.effect is Effect.UNKNOWN:
            raise DataLoss(
                f"capture {self._options.name!r}: a statement at {begun.start}, which may have changed table "
                f"{captured.name}, was logged as text, not as rows, since its session had binlog_format = STATEMENT or "
                f"MIXED: what it has changed is not known. {_AGAIN}",
                reason="statement",
                table=captured.name,
            )
        self._reading.drop_window(captured)
        if captured.is_begun or captured.take_back:
            self._flush()
            truncated = Change(
                *(captured.table, Operation.TRUNCATE, None, None, 0, begun.start.offset, begun.committed_ms),
                gtid=begun.gtid,
                file=begun.start.file,
            )
            self._add(captured, [truncated])
            captured.take_back = False
        captured.bound, captured.rows = None, 0
        if effect.effect is Effect.REPLACED:
            log.warning("capture %s: table %s has other rows now; it is read again", self._options.name, captured.name)
            captured.done, captured.wanted = False, True

    # -- now and then --------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Note where an idle capture is, look for new tables, and ask how far the log goes."""
        now = time.monotonic()
        if now - self._lag_at >= LAG_SECONDS:
            self._lag_at, asked_at = now, time.time()
            head = self._start.log.head()
            self._answered_at = time.monotonic()
            if head is not None:
                self._behind_bytes = self._start.log.bytes_between(self._state.at.position, head.position)
                if not self._behind_bytes and not self._waits:
                    self._state.freshness.catch_up(asked_at)
        if self._begun is not None or now - self._heartbeat < self._options.heartbeat:
            return
        self._heartbeat = now
        self._sealer.seal_late()
        found = search_of(self._parts, self._start.catalog).found()
        self._found_more = any((each.schema, each.name) not in self._state.tables for each in found)


def fingerprint_of(captured: CapturedTable, table: Table) -> str:
    """Return the fingerprint of a table, without making it if it is the one that is known."""
    return captured.print if table is captured.table else fingerprint(table)


def _changes(table: Table, kind: str, rows: RowImages, begun: Begin) -> list[Change]:
    """Return changed rows as what they are published as; a changed key is a deletion and a creation."""
    where = 0, begun.start.offset, begun.committed_ms, begun.gtid, begun.start.file
    if kind == "insert":
        return [Change(table, Operation.CREATE, None, after, *where) for _, after in rows]
    if kind == "delete":
        return [Change(table, Operation.DELETE, before, None, *where) for before, _ in rows]
    changes = []
    keys = table.keys
    for before, after in rows:
        assert before is not None  # noqa: S101 - an update has both
        assert after is not None  # noqa: S101
        if any(before[place] != after[place] for place in keys):
            changes.append(Change(table, Operation.DELETE, before, None, *where))
            changes.append(Change(table, Operation.CREATE, before, after, *where))
        else:
            changes.append(Change(table, Operation.UPDATE, before, after, *where))
    return changes
