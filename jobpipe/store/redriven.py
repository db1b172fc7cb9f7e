"""Marks of rows of another topic that were published again here: each row at most once, however often it is asked.

A mark is stored by the transaction that makes its row visible. So a redrive may end at any moment, or two may run at
once: what is marked is published, and what is not is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobpipe.errors import AlreadyRedriven

if TYPE_CHECKING:
    from jobpipe.store.database import Database  # loads SQLite, which a client has no use for

PAGE = 10_000
"""Ranges that one call returns at most, and that one batch may mark."""


@dataclass(frozen=True, order=True)
class RowRange:
    """Rows of one batch of another topic: from number ``first`` to ``last``, both included."""

    offset: int
    first: int
    last: int


@dataclass(frozen=True)
class Marks:
    """Which rows of another topic a batch publishes again.

    Attributes:
        log: Id of that topic's log.
        tail: Offset of the first batch that it still has. Marks of the log before that are forgotten.
        rows: What is marked.
    """

    log: str
    tail: int
    rows: tuple[RowRange, ...]

    @property
    def count(self) -> int:
        """How many rows."""
        return sum(rows.last - rows.first + 1 for rows in self.rows)


def ranges_of(rows: Sequence[tuple[int, int]]) -> tuple[RowRange, ...]:
    """Return the ranges of rows, each given by its offset and number.

    >>> ranges_of([(1, 0), (1, 1), (1, 3), (2, 4)])
    (RowRange(offset=1, first=0, last=1), RowRange(offset=1, first=3, last=3), RowRange(offset=2, first=4, last=4))
    """
    found: list[RowRange] = []
    for offset, number in sorted(set(rows)):
        last = found[-1] if found else None
        if last is not None and last.offset == offset and last.last + 1 == number:
            found[-1] = RowRange(offset, last.first, number)
        else:
            found.append(RowRange(offset, number, number))
    return tuple(found)


class MarkedSet:
    """Rows of another topic that are marked, to ask whether one is.

    >>> marked = MarkedSet([RowRange(4, 0, 2)])
    >>> (4, 2) in marked, (4, 3) in marked, (5, 0) in marked
    (True, False, False)
    """

    def __init__(self, ranges: Iterable[RowRange] = ()) -> None:
        self._by_offset: dict[int, set[tuple[int, int]]] = {}
        self.update(ranges)

    def update(self, ranges: Iterable[RowRange]) -> None:
        """Add rows."""
        for rows in ranges:
            self._by_offset.setdefault(rows.offset, set()).add((rows.first, rows.last))

    def __contains__(self, place: tuple[int, int]) -> bool:
        """Tell whether the row of an offset and a number is marked."""
        offset, number = place
        return any(first <= number <= last for first, last in self._by_offset.get(offset, ()))


class Redriven:
    """The marks in one log's catalog."""

    def __init__(self, database: Database, topic: str) -> None:
        self._db = database
        self._topic = topic

    def mark(self, marks: Marks) -> None:
        """Store marks, and forget those of batches that are gone. Inside the transaction that seals the rows.

        Raises:
            AlreadyRedriven: one of the rows is marked; names the first one.
        """
        for rows in marks.rows:
            found = self._db.one(
                "SELECT first, last FROM redriven WHERE log = ? AND n = ? AND first <= ? AND last >= ? ORDER BY first",
                *(marks.log, rows.offset, rows.last, rows.first),
            )
            if found is not None:
                first = max(rows.first, int(found["first"]))
                raise AlreadyRedriven(
                    f"topic {self._topic!r}: row {first} at offset {rows.offset} of log {marks.log} was published "
                    "again already; nothing of this batch was published. Ask which rows are marked, and leave them out",
                    topic=self._topic,
                    log=marks.log,
                    offset=rows.offset,
                    row=first,
                )
            self._db.execute("INSERT INTO redriven VALUES (?, ?, ?, ?)", marks.log, rows.offset, rows.first, rows.last)
        self._db.execute("DELETE FROM redriven WHERE log = ? AND n < ?", marks.log, marks.tail)

    def page(self, log: str, start: tuple[int, int], end: int, limit: int = PAGE) -> tuple[RowRange, ...]:
        """Return what is marked of a log's batches before ``end``, in order.

        Args:
            log: Id of the other topic's log.
            start: Offset and row number to begin at.
            end: Offset.
            limit: So many ranges at most; if there are as many, more may follow.
        """
        offset, number = start
        rows = self._db.all(
            "SELECT n, first, last FROM redriven WHERE log = ? AND n < ? AND (n > ? OR (n = ? AND last >= ?)) "
            "ORDER BY n, first LIMIT ?",
            *(log, end, offset, offset, number, limit),
        )
        return tuple(RowRange(row["n"], row["first"], row["last"]) for row in rows)
