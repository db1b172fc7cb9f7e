"""Publishing what waits, each batch with the note of where the capture is then."""

from __future__ import annotations

import time

import pyarrow as pa

from jobpipe.cdc.mariadb.mysql_note import BinlogNote, OpenTransaction, ReadUpTo
from jobpipe.cdc.mariadb.mysql_state import CapturedTable, LogState, TopicState
from jobpipe.cdc.topic_writer import max_note
from jobpipe.errors import ConfigError


class NoteSealer:
    """Seals the topics of a session.

    Attributes:
        flushed_at: when it was done last.
        seals: how often a batch was published.
    """

    def __init__(self, state: LogState) -> None:
        self.flushed_at = time.monotonic()
        self.seals = 0
        self._state = state

    def flush(self) -> None:
        """Publish all that waits."""
        self.flushed_at = time.monotonic()
        for topic in self._state.topics.values():
            if topic.waiting:
                self.seal(topic)
        self._state.freshness.publish()

    def seal_late(self) -> None:
        """Note the present place in all topics whose notes have an earlier one."""
        for topic in self._state.topics.values():
            if topic.at is None or (not topic.replaying and topic.at.position != self._state.at.position):
                self.seal(topic)

    def seal_first(self) -> None:
        """Note in all topics where the capture begins, then that all have that note."""
        self.seal_late()
        if self._state.starting:
            self._state.starting = False
            for topic in self._state.topics.values():
                self.seal(topic)

    def seal(self, topic: TopicState) -> None:
        """Publish what waits for a topic; a note alone if nothing does."""
        if topic.waiting:
            self.write(topic, topic.waiting.rows(topic.writer.rows))
            topic.waiting.clear()
        else:
            self.seals += 1
            topic.writer.note(self._note(topic), topic.tables[0].table)

    def write(self, topic: TopicState, rows: pa.Table) -> None:
        """Publish rows; none of what waits may come before them."""
        self.seals += 1
        topic.writer.write(rows, self._note(topic))

    def _note(self, topic: TopicState) -> bytes:
        """Return the note of a batch; where the topic is then."""
        state = self._state
        if topic.at is None or not topic.replaying:
            topic.at, topic.same_server, topic.open = state.at, True, None
            if state.begun is not None:
                had = {table.name: table.had for table in topic.tables if table.had}
                topic.open = OpenTransaction(state.begun, had)
        reading = next((each for each in topic.tables if each.is_being_read and each.bound is not None), None)
        again = [each.name for each in topic.tables if each.is_being_read and each is not reading]
        note = BinlogNote(
            mariadb=state.mariadb,
            server=state.server if state.placed else "",
            at=topic.at,
            open=topic.open,
            tables={table.name: table.print for table in topic.tables if table.done},
            reading=_read_up_to(reading),
            again=(*again, *topic.absent),
            starting=state.starting,
        ).to_bytes()
        if len(note) > (most := max_note(topic.writer.topic)):
            raise ConfigError(
                f"topic {topic.writer.topic!r}: the note of where the capture is has {len(note)} bytes, and {most} "
                f"are kept: it has {len(topic.tables)} tables, the keys of the one that is being read are long, or the "
                "server's GTIDs have very many parts. Give some tables another topic by route",
                topic=topic.writer.topic,
            )
        return note


def _read_up_to(table: CapturedTable | None) -> ReadUpTo | None:
    if table is None or table.bound is None:
        return None
    return ReadUpTo(table.name, table.bound, table.readable.key_print)
