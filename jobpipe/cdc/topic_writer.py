"""One topic of a capture: rows that are published, and the note that says what is."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pyarrow as pa

from jobpipe.cdc.change_rows import ChangeRows
from jobpipe.cdc.changes import Table
from jobpipe.cdc.topic_schema import TopicSchema
from jobpipe.errors import SpoolFull
from jobpipe.operations.messages.source_messages import SourceReport
from jobpipe.operations.publisher_operations import MAX_NOTE
from jobpipe.publishing.plain_publisher import PlainPublisher
from jobpipe_registry.names import check_name

log = logging.getLogger(__name__)
_FOLLOWING = "next"  # in a note, which is JSON of the database's own
MAX_SUFFIX = ".v99999"  # of the version of a topic


def followed_by(note: bytes, topic: str) -> bytes:
    """Return a note that says that another topic follows."""
    return json.dumps(json.loads(note) | {_FOLLOWING: topic}, separators=(",", ":"), ensure_ascii=False).encode()


def following(note: bytes) -> str | None:
    """Return the topic that follows by a note that was understood; None for none."""
    name = json.loads(note).get(_FOLLOWING)
    return None if name is None else check_name(name)


def max_note(topic: str) -> int:
    """Return how many bytes a note of a topic may have: the topic that follows has room in the last one."""
    return MAX_NOTE - len(followed_by(b"{}", topic + MAX_SUFFIX))


class TopicWriter:
    """Publishes rows in the order in which they come, a batch at a time. For one caller at a time.

    Args:
        publisher: of the topic, with a name.
        rows: makes the rows.
        schema: of the topic, as it may change.
        stopped: tells whether the capture is to end; then room is no longer waited for.

    Attributes:
        rows: makes the rows.
        published: rows since it was made.
        usable: what became of the last batch is known.
    """

    def __init__(
        self, publisher: PlainPublisher, rows: ChangeRows, schema: TopicSchema, stopped: Callable[[], bool]
    ) -> None:
        self.published = 0
        self.usable = True
        self._publisher = publisher
        self.rows = rows
        self._schema = schema
        self._stopped = stopped

    @property
    def topic(self) -> str:
        """Its name."""
        return self._publisher.topic

    @property
    def last_note(self) -> bytes | None:
        """The note of the newest batch, also of an earlier process; None for none."""
        return self._publisher.last_note

    def write(self, rows: pa.Table, note: bytes) -> None:
        """Publish rows with a note; returns when both are durable.

        Raises:
            SchemaMismatch: a column has become another one; nothing is published.
            SpoolFull: the topic has no room, and the capture is to end.
        """
        self._publish(self._schema.fitted(rows), note)

    def note(self, note: bytes, table: Table) -> None:
        """Publish a note alone, which subscribers do not see, as :meth:`write`.

        It has columns that the topic has had: those of a table may be others, of which nothing is published yet.

        Args:
            table: whose columns it has if the topic has had none.
        """
        nothing = self._schema.nothing()
        if nothing is None:
            nothing = self._schema.fitted(self.rows.schema(table).empty_table())
        self._publish(nothing, note)

    def end(self, following: str) -> None:
        """Note that another topic follows this one from where its newest note is."""
        note, nothing = self.last_note, self._schema.nothing()
        assert note is not None  # noqa: S101 - a topic without rows has no columns
        assert nothing is not None  # noqa: S101
        self._publish(nothing, followed_by(note, following))

    def _publish(self, rows: pa.Table, note: bytes) -> None:
        last = self._publisher.last_batch_id
        batch_id = 0 if last is None else last + 1
        self.usable = False
        while True:
            try:
                self.published += self._publisher.write(rows, batch_id=batch_id, note=note).rows
            except SpoolFull as error:
                if "reason" not in error.fields or self._stopped():
                    raise
                log.warning("%s; the capture waits", error)
            else:
                break
        self.usable = True

    def tell_source(self, report: SourceReport, seconds: float) -> None:
        """Tell the topic's coordinator how the database stands; for any thread. Raises JobpipeError."""
        self._publisher.tell_source(report, seconds)

    def close(self) -> None:
        """Give the topic up."""
        self._publisher.close()
