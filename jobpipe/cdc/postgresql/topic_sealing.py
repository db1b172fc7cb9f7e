"""Publishing what waits, each batch with the note of where the capture is then."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from jobpipe.cdc.postgresql.capture_state import CapturedTable, CaptureState, TopicState
from jobpipe.cdc.postgresql.change_filter import ChangeFilter
from jobpipe.cdc.postgresql.postgres_note import CaptureNote, Chunk, OpenTransaction
from jobpipe.cdc.postgresql.stream.pgoutput import Begin
from jobpipe.cdc.postgresql.stream.replication_stream import ReplicationStream
from jobpipe.cdc.postgresql.waiting.waiting_rows import TableChanges, WaitingRows, in_order
from jobpipe.cdc.topic_writer import max_note
from jobpipe.errors import ConfigError


class TopicSealer:
    """Seals the topics of a session.

    Attributes:
        stream: told what the database need not keep; None before it has begun.
        flushed_at: when it was done last.
        note_changes: called with all changes of a table that are about to be published.
    """

    def __init__(self, state: CaptureState, changes: ChangeFilter) -> None:
        self.stream: ReplicationStream | None = None
        self.flushed_at = time.monotonic()
        self.note_changes: Callable[[TableChanges], None] = lambda _: None
        self._state = state
        self._changes = changes

    def flush(self) -> None:
        """Publish all that waits; then tell the database that it is no longer needed."""
        self.flushed_at = time.monotonic()
        self._state.run = None  # what is added to it would not be published
        for topic in self._state.topics.values():
            if topic.waiting:
                changes = topic.waiting.changes()
                for each in changes:
                    self.note_changes(each)
                self._publish(topic, self._changes.sort_out(topic, changes))
            elif topic.unnoted:
                self.seal(topic)
        self.confirm()

    def confirm(self) -> None:
        """Tell the database that what the notes of all topics have is no longer needed."""
        if self.stream is not None:
            self.stream.confirm(min(topic.at for topic in self._state.topics.values()))

    def seal_behind(self) -> None:
        """Note the present place in all topics whose notes have an earlier one."""
        for topic in self._state.topics.values():
            if topic.at < self._state.at:
                self.seal(topic)

    def seal(self, topic: TopicState) -> None:
        """Publish a note alone, which subscribers do not see; nothing may wait."""
        topic.writer.note(self._note(topic), topic.tables[0].readable.table)
        topic.unnoted = False

    def truncate(self, table: CapturedTable) -> None:
        """Publish that a table is empty; nothing may wait."""
        topic, waiting = table.topic, WaitingRows()
        waiting.truncate(table.readable.table, table.readable, Begin(0, int(time.time() * 1000), 0))
        self._publish(topic, waiting.changes())

    def _publish(self, topic: TopicState, changes: list[TableChanges]) -> None:
        """Publish changes, which may be none; nothing waits then."""
        if changes:
            rows = [topic.writer.rows.of_columns(each.columns) for each in changes]
            self.write(topic, in_order(changes, rows))
        elif topic.unnoted:
            self.seal(topic)
        topic.waiting.clear()

    def write(self, topic: TopicState, rows: pa.Table, read: tuple[CapturedTable, Chunk] | None = None) -> None:
        """Publish rows; none of what waits may come before them.

        Args:
            read: the table, and the chunk of which they are; None for others.
        """
        if read is not None:
            read[0].chunk = read[1]
        topic.writer.write(rows, self._note(topic))
        topic.unnoted = False

    def _open_transaction(self, known: OpenTransaction | None, at: int) -> OpenTransaction | None:
        """Return of which transaction a topic has a part; of one that is sent once more it may have more than came."""
        begun, changes = self._state.begun, self._state.changes
        if begun is None or begun.commit_lsn < at:
            return known if known is not None and known.commit_lsn >= at else None
        if known is not None and known.commit_lsn == begun.commit_lsn:
            changes = max(known.changes, changes)
        return OpenTransaction(begun.commit_lsn, begun.committed_ms, changes)

    def _note(self, topic: TopicState) -> bytes:
        """Return the note of a batch; where the topic is then."""
        state = self._state
        topic.at = max(topic.at, state.at)  # other topics may be less far
        topic.open = self._open_transaction(topic.open, topic.at)
        chunks = [chunk for table in topic.tables if (chunk := table.chunk or table.unfinished) is not None]
        note = CaptureNote(
            system=state.history.system,
            timeline=state.history.timeline,
            database=state.options.database,
            slot=state.options.slot,
            at=topic.at,
            last=state.last,
            open=topic.open,
            tables={table.number: table.print for table in topic.tables if table.done},
            chunk=chunks[0] if chunks else None,
            again=tuple(topic.again),
        ).to_bytes()
        if len(note) > (most := max_note(topic.writer.topic)):
            reading = next((str(table.found) for table in topic.tables if table.chunk is not None), "none")
            raise ConfigError(
                f"topic {topic.writer.topic!r}: the note of where the capture is has {len(note)} bytes, and {most} "
                f"are kept: it has {len(topic.tables)} tables, and the keys of the one that is being read ({reading}) "
                "are long, or very many transactions are open. Give the table a topic of its own by route, or a "
                "shorter replica identity",
                topic=topic.writer.topic,
            )
        return note
