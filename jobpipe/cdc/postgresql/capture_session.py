"""One stretch of a capture, on connections that live as long: what is read and streamed, and in which order.

A table is read in chunks by its key while changes stream. Each chunk is a transaction of its own, whose snapshot is
known exactly. After a chunk the stream goes on past a mark that was written to the database's log after the snapshot
was taken; only then the next chunk is read. So one chunk at most is unsettled, and a change of a table that is being
read is:

* of a key before the chunk: published, as that part of the table was read before;
* of a key in the chunk: published, unless the chunk's snapshot sees its transaction: then the row has it already;
* of a key after the chunk: dropped, as the next chunk reads it. A transaction may be in the log, and streamed, before
  snapshots see it. So the next chunk is not read before its snapshot sees all transactions of which something was
  dropped.

TRUNCATE begins the table again. What a chunk reads and what a change is compared by are both the database's own order
of keys: nothing here compares any.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time

from jobpipe.cdc.capture_health import Freshness
from jobpipe.cdc.postgresql.capture_state import OpenRun
from jobpipe.cdc.postgresql.change_filter import ChangeFilter
from jobpipe.cdc.postgresql.database.database_catalog import fingerprint
from jobpipe.cdc.postgresql.database.history_check import HistoryCheck
from jobpipe.cdc.postgresql.database.slot_meter import LogMeasure
from jobpipe.cdc.postgresql.reading_again import RangeReading
from jobpipe.cdc.postgresql.session_start import PostgresParts, SessionStart, search_of
from jobpipe.cdc.postgresql.stream.pgoutput import (
    HEADER,
    KIND,
    NUMBER,
    ROWS,
    Begin,
    Commit,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    decode,
    lsn_text,
)
from jobpipe.cdc.postgresql.stream.replication_stream import ReplicationStream
from jobpipe.cdc.postgresql.table_reading import TableReading
from jobpipe.cdc.postgresql.topic_sealing import TopicSealer
from jobpipe.cdc.session_tables import columns_error

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.25  # for a message; a stop is looked for so often
MARK_SECONDS = 0.02  # between two questions how far the server has sent
OPEN_SECONDS = 0.5  # after which changes of a transaction that is still coming are published
BATCH_BYTES = 16 * 1024 * 1024
BUSY = 100  # messages that came one after the other: then a pause does not end the batch, as more will come
PAUSE_SECONDS = 0.002  # PostgreSQL sends few messages at once, and each look for them costs more than they do
BUSY_SECONDS = 0.1  # after which a batch does not wait for more


class CaptureSession:
    """Checks the database, joins what was published before, and starts the stream.

    Raises:
        ConfigError, DataLoss, SchemaMismatch, LinkError: see :meth:`.CaptureRunner.run`.
    """

    def __init__(self, parts: PostgresParts, stack: contextlib.ExitStack) -> None:
        self._parts = parts
        self._options = parts.options
        wake, self._wake_writer = os.pipe()
        stack.callback(os.close, wake)
        stack.callback(os.close, self._wake_writer)
        start = SessionStart(parts, stack)
        self._state = start.state
        self._changes = ChangeFilter(self._state)
        self._sealer = TopicSealer(self._state, self._changes)
        start.join(self._sealer)
        self._tables = TableReading(self._state, self._changes, self._sealer)
        self._ranges = RangeReading(self._state, self._sealer)
        self._replaying = True
        self._found_more = False
        self._heartbeat = time.monotonic()
        self._asked_at = 0.0
        self._freshness = Freshness()
        self._measure: LogMeasure | None = None
        self._old_relations: set[int] = set()  # of which the stream has told only in what their topics have
        self._stream = stack.enter_context(
            ReplicationStream(
                start.replication, self._options.slot, self._options.publication, start.confirmed, wake=wake
            )
        )
        self._check = self._check_of(start)
        self._end_check()

    def _check_of(self, start: SessionStart) -> HistoryCheck | None:
        """Return the check of what the stream tells; None: nothing is published that it could tell.

        The process before may have confirmed more until the stream began; since then no one else does.
        """
        slot = self._state.catalog.slot(self._options.slot) if start.started else None
        if slot is None:
            return None
        self._stream.confirm(slot.confirmed)  # else the server may take it back
        return HistoryCheck(self._options.name, slot.confirmed, start.started)

    @property
    def position(self) -> str:
        """All transactions before this place in the log are published, or wait to be."""
        return lsn_text(self._state.at)

    @property
    def behind_bytes(self) -> int:
        """How much of its log the server has beyond that: sent, or written when it was asked last."""
        at, measure = self._state.at, self._measure
        return max(0, self._stream.sent - at, 0 if measure is None else measure.end - at)

    @property
    def behind_seconds(self) -> float | None:
        """Since the newest transaction that is published was committed; 0 while none waits, None if not known yet."""
        measure, at = self._measure, self._state.at  # before what waits: a transaction waits before it is passed
        waits = self._waits
        if measure is not None and at >= measure.end and not waits:
            self._freshness.catch_up(measure.asked_at)
            return 0.0
        return self._freshness.seconds(waits=True)

    @property
    def retained_bytes(self) -> int | None:
        """Of the log that the slot keeps, as the server was asked last."""
        return None if self._measure is None else self._measure.retained

    @property
    def safe_bytes(self) -> int | None:
        """That may be written before the slot may be lost; None: without end, or not known."""
        return None if self._measure is None else self._measure.safe

    @property
    def _waits(self) -> bool:
        """Whether changes wait that have come."""
        topics = list(self._state.topics.values())
        return self._state.begun is not None or any(topic.waiting for topic in topics)

    def note_measure(self, measure: LogMeasure | None) -> None:
        """Note how the log stands; None if the server does not say. For any thread."""
        self._measure = measure

    def wake(self) -> None:
        """End a wait of :meth:`run`. For any thread."""
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b".")

    def progress(self) -> dict[str, tuple[int, float]]:
        """Return rows read, and rows there may be, of each table that is not read to its end."""
        tables = list(self._state.tables.values())
        return {str(each.found): (each.rows, each.found.estimate) for each in tables if not each.done}

    def run(self) -> None:
        """Read tables and stream changes until a stop is asked for, or there are new tables; publish what waits."""
        while not (self._parts.stopped() or self._found_more):
            self._pump(self._read_step() if self._state.begun is None else WAIT_SECONDS)
            self._beat()
        if self._state.begun is None:
            self._flush()

    def _end_check(self) -> None:
        """Let the slot go on, once the stream has told what is published."""
        if self._check is None or self._check.done:
            self._check = None
            self._sealer.stream = self._stream

    def _read_step(self) -> float:
        """Read what is to be read next; return how long a message may be waited for then."""
        if self._check is not None:
            return self._ask()
        table = self._tables.next_table()
        if table is None and not self._ranges.wanted:
            return WAIT_SECONDS
        if self._ranges.awaits_mark if table is None else self._tables.awaits_mark(table):
            return self._ask()
        done = self._ranges.step() if table is None else self._tables.read_chunk(table)
        self._found_more |= table is not None and table.gone
        return 0.0 if done else MARK_SECONDS

    def _ask(self) -> float:
        """Ask the server how far it has sent; return how long the answer may be waited for."""
        now = time.monotonic()
        if now - self._asked_at >= MARK_SECONDS:
            self._asked_at = now
            self._stream.ask()
        return MARK_SECONDS

    # -- the stream ----------------------------------------------------------------------------------------------------

    def _pump(self, wait: float) -> None:
        """Take what the stream has; publish it when it has no more, or it is enough."""
        state, stream, limit = self._state, self._stream, self._options.batch_rows
        taken = size = 0
        messages = stream.read(wait, limit)
        began = time.monotonic()
        while messages:
            self._take(messages)
            taken += len(messages)
            size += sum(map(len, messages))
            if taken >= limit or size >= BATCH_BYTES:
                self._flush()
                taken, size, began = 0, 0, time.monotonic()
                if self._parts.stopped():
                    return
            messages = stream.read(0.0, limit - taken)
            if not messages and taken >= BUSY and time.monotonic() - began < BUSY_SECONDS:
                time.sleep(PAUSE_SECONDS)
                messages = stream.read(0.0, limit - taken)
        if state.begun is None:
            if self._check is not None:
                self._check.reach(stream.sent)
                self._end_check()
            state.at = max(state.at, stream.sent)
            if any(topic.waiting or topic.unnoted for topic in state.topics.values()):
                self._flush()
            self._freshness.publish()
        elif time.monotonic() - self._sealer.flushed_at > OPEN_SECONDS:
            self._flush()

    def _flush(self) -> None:
        """Publish what waits; before the check is done it waits on, as it may be of another history.

        A topic that is less far than others lacks at most a batch of what they have; if more waits, it is of another.
        """
        if self._check is not None:
            waiting = [topic.waiting for topic in self._state.topics.values()]
            few = sum(each.count for each in waiting) < 2 * self._options.batch_rows
            if few and sum(each.size for each in waiting) < 2 * BATCH_BYTES:
                return
        self._sealer.flush()
        self._freshness.publish()

    def _take(self, messages: list[bytes]) -> None:
        state = self._state
        for data in messages:
            if data[KIND] in ROWS:
                run = state.run
                if run is None or run.table != data[NUMBER]:
                    run = self._open_run(data[NUMBER])
                if run is not None:
                    run.messages.append(data)
                state.changes += 1  # last: until then a note that is sealed must not count it
            else:
                state.run = None
                self._take_other(decode(data, HEADER))

    def _take_other(self, message: Message) -> None:
        state = self._state
        if isinstance(message, Begin):
            if self._check is not None:
                self._check.take(message)
                self._end_check()
            state.begun, state.changes = message, 0
            self._ranges.note_begin(message.xid)
            if self._replaying:
                self._note_skipped(message)
        elif isinstance(message, Commit):
            if state.begun is not None:
                self._freshness.take(state.begun.committed_ms)
            state.end_transaction()
            state.at = max(state.at, message.end_lsn)
        elif isinstance(message, Relation):
            self._take_relation(message)
        elif isinstance(message, Truncate):
            self._take_truncate(message)
            state.changes += 1
        elif isinstance(message, LogicalMessage):
            self._ranges.take(message)

    def _note_skipped(self, begun: Begin) -> None:
        """Find what each topic has of a transaction."""
        self._replaying = False
        for topic in self._state.topics.values():
            opened = topic.open
            if begun.commit_lsn < topic.at:
                topic.skipped = float("inf")
            elif opened is not None and opened.commit_lsn == begun.commit_lsn:
                topic.skipped = opened.changes
            else:
                topic.skipped = 0
            self._replaying |= topic.skipped > 0 or (opened is not None and opened.commit_lsn > begun.commit_lsn)

    def _take_relation(self, relation: Relation) -> None:
        state, oid = self._state, relation.oid
        state.relations[oid] = state.catalog.of_relation(relation)
        captured = state.tables.get(oid)
        if captured is not None and state.changes < captured.topic.skipped:
            self._old_relations.add(oid)
        else:
            self._note_columns(oid)

    def _note_old_columns(self, oid: int) -> None:
        """Note the columns of a table whose change is published, if the stream has told of them before."""
        if oid in self._old_relations:
            self._note_columns(oid)

    def _note_columns(self, oid: int) -> None:
        """Note which columns a table has from here on in the stream."""
        self._old_relations.discard(oid)
        table = self._state.relations[oid]
        captured = self._state.tables.get(oid)
        if captured is None or (now := fingerprint(table)) == captured.print:
            return
        if (error := columns_error(self._options, captured.readable.table, table)) is not None:
            raise error
        log.info("capture %s: table %s has other columns from here on", self._options.name, table)
        captured.print = now
        if (found := self._state.catalog.table(oid)) is not None:
            readable = self._state.catalog.readable(found)
            if fingerprint(readable.table) == now:  # else the stream has not come so far
                captured.found, captured.readable = found, readable
        self._ranges.note_new_table(oid)

    def _open_run(self, number: bytes) -> OpenRun | None:
        """Return to what a row of a table is added, and those that follow; None if this one is not published."""
        state, begun = self._state, self._state.begun
        state.run = None
        captured = state.tables.get(int.from_bytes(number))
        if captured is None or begun is None or state.changes < captured.topic.skipped:
            return None
        self._note_old_columns(captured.number)
        table, waiting = state.relations[captured.number], captured.topic.waiting
        if not waiting.fits(table):
            self._sealer.flush()  # which may let the table be read from its beginning
        if not captured.done and captured.chunk is None:
            self._changes.dropped.add(begun.xid)
            return None
        state.run = OpenRun(number, waiting.begin_run(table, captured.readable, begun))
        return state.run

    def _take_truncate(self, truncate: Truncate) -> None:
        state, begun = self._state, self._state.begun
        assert begun is not None  # noqa: S101 - changes are of transactions
        captured_ones = [state.tables[oid] for oid in truncate.oids if oid in state.tables]
        found = [each for each in captured_ones if state.changes >= each.topic.skipped]
        if found:
            self._sealer.flush()  # once: some of these changes must not be sealed without the others
        for captured in found:
            self._note_old_columns(captured.number)
            if not captured.done:
                self._changes.dropped.add(begun.xid)
                if captured.chunk is None:  # nothing of it is published
                    continue
                captured.chunk, captured.rows = None, 0  # it is read again, from its beginning
            self._ranges.note_new_table(captured.number)
            table = state.relations[captured.number]
            captured.topic.waiting.truncate(table, captured.readable, begun)

    def _beat(self) -> None:
        """Note now and then where an idle capture is, so that the database keeps no more of its log than it must."""
        state, now = self._state, time.monotonic()
        waits = state.begun is not None or self._check is not None
        if waits or now - self._heartbeat < self._options.heartbeat:
            return
        self._heartbeat = now
        self._sealer.seal_behind()
        self._sealer.confirm()
        found = search_of(self._parts, state.catalog, state.control).found()
        published = state.catalog.published(self._options.publication) or set()
        self._found_more = any(each.number not in state.tables or each.number not in published for each in found)
