"""Reading tables, chunk by chunk, while changes stream."""

from __future__ import annotations

import logging
import time

from jobpipe.cdc.postgresql.capture_state import CapturedTable, CaptureState
from jobpipe.cdc.postgresql.change_filter import ChangeFilter
from jobpipe.cdc.postgresql.database.database_catalog import fingerprint
from jobpipe.cdc.postgresql.postgres_note import Chunk
from jobpipe.cdc.postgresql.table_chunks import ChunkReader, Key
from jobpipe.cdc.postgresql.topic_sealing import TopicSealer

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05  # between two looks whether transactions have ended
PROGRESS_SECONDS = 10.0


class TableReading:
    """Reads the tables of a session that are not read to their end, one at a time."""

    def __init__(self, state: CaptureState, changes: ChangeFilter, sealer: TopicSealer) -> None:
        self._state = state
        self._changes = changes
        self._sealer = sealer
        self._settle_at = 0.0
        self._told_at = time.monotonic()

    def next_table(self) -> CapturedTable | None:
        """Return the table that is being read, or the next one; None if all are read."""
        waiting = [table for table in self._state.tables.values() if not table.done]
        return min(waiting, key=lambda table: table.chunk is None, default=None)

    def awaits_mark(self, table: CapturedTable) -> bool:
        """Tell whether the stream has yet to pass the mark of the table's last chunk."""
        return table.chunk is not None and self._state.at < table.chunk.until

    def read_chunk(self, table: CapturedTable) -> bool:
        """Read the next chunk of a table, or end it; between two transactions of the stream.

        Returns:
            False if nothing was done, as no snapshot sees yet what the chunk must see.
        """
        last = table.chunk
        self._sealer.flush()
        if last is not None and last.high is None:
            table.done, table.chunk = True, None
            self._sealer.seal(table.topic)
            log.info("capture %s: table %s is read, %d rows", self._state.name, table.found, table.rows)
            return True
        import psycopg

        now = time.monotonic()
        if now < self._settle_at:
            return False
        found = self._state.catalog.table(table.number)
        if found is None:
            table.gone = True
            return False
        table.found = found
        try:
            return self._read_in_snapshot(table)
        except psycopg.errors.LockNotAvailable:
            self._settle_at = now + SETTLE_SECONDS
            return False

    def _read_in_snapshot(self, table: CapturedTable) -> bool:
        last, found = table.chunk, table.found
        reader = ChunkReader(self._state.reading)
        with reader.snapshot(self._state.control, found.schema, found.name):
            if self._changes.dropped.unseen(reader.seen) or reader.seen.lowest < self._state.running.next:
                self._settle_at = time.monotonic() + SETTLE_SECONDS
                self._tell_waiting(table)
                return False
            now = self._state.reading_catalog.table(table.number)
            if now is None or str(now) != str(found):  # another one has the name that was locked
                return False
            self._changes.dropped.clear()
            table.found = now
            self._read(reader, table, None if last is None else last.high)
        return True

    def _read(self, reader: ChunkReader, table: CapturedTable, low: Key | None) -> None:
        topic = table.topic
        table.readable = readable = self._state.reading_catalog.readable(table.found)
        table.print = fingerprint(readable.table)
        if table.chunk is not None and table.chunk.key != readable.key_print:
            table.begin_again()
            low = None
        if table.unfinished is not None:
            table.unfinished = None
            self._sealer.truncate(table)
        limit, high, count = self._state.options.chunk_size, low, 0
        for piece in reader.pieces(readable, low, None, limit):
            count += piece.texts.num_rows
            high = piece.high if piece.high is not None else high
            ended = piece.last and (not readable.key or count < limit)
            chunk = Chunk(
                table=table.number,
                low=low,
                high=None if ended or not readable.key else high,
                seen=reader.seen,
                until=reader.until,
                partial=not readable.key and not piece.last,
                key=readable.key_print,
            )
            self._sealer.write(topic, topic.writer.rows.read(readable.table, piece.texts), (table, chunk))
            table.rows += piece.texts.num_rows
            self._tell_progress(table)

    def _tell_progress(self, table: CapturedTable) -> None:
        if self._is_time():
            log.info(
                "capture %s: %d of about %d rows of table %s are read",
                *(self._state.name, table.rows, max(table.found.estimate, table.rows), table.found),
            )

    def _tell_waiting(self, table: CapturedTable) -> None:
        if self._is_time():
            log.warning(
                "capture %s: table %s is read once transactions have ended that were open when the capture started",
                *(self._state.name, table.found),
            )

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._told_at < PROGRESS_SECONDS:
            return False
        self._told_at = now
        return True
