"""Marks of rows of this topic that were published in it again: each row at most once, however often it is asked.

A mark is stored by the transaction that makes its row visible. So a redrive may end at any moment, or two may run at
once: what is marked is published, and what is not is not.

A row is known by where it was, and by when its batch was published. The time tells a log from one that was made again
under the same name, and a batch from one that was sealed again at the same offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobpipe.errors import AlreadyRedriven, SpoolError

if TYPE_CHECKING:
    from jobpipe.store.catalog.catalog_file import Database  # loads SQLite, which a client has no use for

MARKS = 1000
"""Of one batch, or one question: so that neither keeps the log from its publisher for long."""

MARKS_OF_TOPIC = 1_000_000

MARKS_KEPT = 90 * 86_400.0
"""Seconds of the log's uptime; dead letters are kept for 7 days, if nothing else is said."""

FORGOTTEN_AT_ONCE = 10_000


@dataclass(frozen=True, order=True)
class SourceRow:
    """A row of a topic.

    Attributes:
        offset: of its batch.
        published_ms: when the batch was sealed, milliseconds since 1970.
        partition, number: its partition, and its number within the partition of the batch.
    """

    offset: int
    published_ms: int
    partition: int
    number: int


_KEY = "n = ? AND published_ms = ? AND partition = ? AND row = ?"


def _key(row: SourceRow) -> tuple[int, int, int, int]:
    return row.offset, row.published_ms, row.partition, row.number


class RedriveMarks:
    """The marks in one log's catalog."""

    def __init__(self, database: Database, topic: str) -> None:
        self._db = database
        self._topic = topic
        self._most: int | None = None  # marks that there are, or fewer: those of a transaction that failed count too

    def marked(self, rows: Iterable[SourceRow]) -> tuple[SourceRow, ...]:
        """Return those of some rows that are marked."""
        return tuple(row for row in rows if self._db.one(f"SELECT 1 FROM redriven WHERE {_KEY}", *_key(row)))  # noqa: S608

    def mark(self, rows: Sequence[SourceRow], uptime: float) -> None:
        """Store marks, and forget some that are old. Inside the transaction that seals the rows.

        Raises:
            AlreadyRedriven, SpoolError: as :meth:`check`.
        """
        self._forget(uptime)
        self.check(rows)
        self._most = (self._most or 0) + len(rows)
        self._db.execute_many("INSERT INTO redriven VALUES (?, ?, ?, ?, ?)", [(*_key(row), uptime) for row in rows])

    def check(self, rows: Sequence[SourceRow]) -> None:
        """See that rows may be marked.

        Raises:
            AlreadyRedriven: some of the rows are marked; says how many.
            SpoolError: the topic has too many marks.
        """
        if marked := self.marked(rows):
            raise AlreadyRedriven(
                f"topic {self._topic!r}: {len(marked)} of {len(rows)} rows were published again already, the first one "
                f"that of offset {marked[0].offset}, partition {marked[0].partition}, row {marked[0].number}; nothing "
                "of this batch was published. Ask which rows are marked, and leave them out",
                topic=self._topic,
                marked=len(marked),
            )
        if self._most is None or self._most + len(rows) > MARKS_OF_TOPIC:
            self._most = int(self._db.value("SELECT count(*) FROM redriven"))
        if self._most + len(rows) > MARKS_OF_TOPIC:
            raise SpoolError(
                f"topic {self._topic!r}: {self._most} rows were published again in the last {MARKS_KEPT / 86_400:.0f} "
                f"days, and at most {MARKS_OF_TOPIC} are remembered, so that none comes twice; nothing of this batch "
                "was published. Publish them by a job that reads the dead letters",
                topic=self._topic,
                marks=self._most,
            )

    def _forget(self, uptime: float) -> None:
        self._db.execute(
            "DELETE FROM redriven WHERE (n, published_ms, partition, row) IN "
            "(SELECT n, published_ms, partition, row FROM redriven WHERE marked_up < ? ORDER BY marked_up LIMIT ?)",
            *(uptime - MARKS_KEPT, FORGOTTEN_AT_ONCE),
        )
