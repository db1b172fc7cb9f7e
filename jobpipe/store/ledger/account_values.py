"""What an account of the ledger is made of, and what it reports: values.

Rows of a log are numbered from 0, removed ones included.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobpipe.store.ledger.log_rows import Place

COUNTED, UNREAD, REMOVED = "counted", "unread", "removed"
"""Why a range differs: readers counted other rows; no reader has said that it read them; they were removed unread."""

UNPROVEN, MOVED, WAITING = "unproven", "moved", "waiting"
"""Why rows that were committed are not known to be read: a count is missing; they were passed over on purpose; a count
may still come."""

MAX_ROWS = 2**60
"""Sums of what readers report end there."""


@dataclass(frozen=True)
class Span:
    """Rows that were committed, and are not known to be read, from ``first`` to before ``end``; kind: why."""

    first: int
    end: int
    kind: str

    def within(self, first: int, end: int) -> int:
        """Return how many of its rows lie between two others."""
        return max(0, min(self.end, end) - max(self.first, first))


@dataclass(frozen=True)
class Difference:
    """A range of which a subscription has committed other rows than were published.

    Attributes:
        first, end: offsets of its first batch, and after its last.
        published, read: rows.
        partitions: that differ, as far as is known.
        found: seconds since 1970.
        reason: COUNTED, UNREAD or REMOVED.
        row: the number of the row after its last one.
        doubled: rows that were read more than published; of some partitions, where the sum hides it.
    """

    first: int
    end: int
    published: int
    read: int
    partitions: tuple[int, ...]
    found: float
    reason: str
    row: int
    doubled: int

    @property
    def lost(self) -> int:
        """Rows that were read less than published."""
        return self.published - self.read + self.doubled

    def lost_within(self, first: int, end: int) -> int:
        """Return how many of its lost rows count to rows from ``first`` to before ``end``: its last ones are lost."""
        return Span(self.row - self.lost, self.row, "").within(first, end)


@dataclass
class Totals:
    """Rows since the account began; ``committed`` without ``moved`` and ``waiting``; ``differences``: ranges."""

    committed: int = 0
    unproven: int = 0
    moved: int = 0
    lost: int = 0
    doubled: int = 0
    differences: int = 0
    waiting: int = 0

    @property
    def read(self) -> int:
        """Of the committed rows, those that were counted."""
        return max(0, self.committed - self.unproven - self.lost + self.doubled)


@dataclass(frozen=True)
class MinuteCounts:
    """The rows that were published in a minute, as an account has them; attributes as :class:`Totals`."""

    published: int
    committed: int
    read: int
    unproven: int
    moved: int
    differs: bool


@dataclass(frozen=True)
class CountedCursor:
    """How far a flow is in a partition; the place's ``r`` counts record batches of the partition alone.

    Attributes:
        claim: of its task; a cursor that was made again, and counts from 0, has a lower one.
        rows: that its function was given since some moment; None where that is not known.
    """

    partition: int
    claim: int
    place: Place
    rows: int | None

    def follows(self, old: CountedCursor) -> bool:
        """Tell whether its rows go on where those of an earlier look at it ended."""
        if self.rows is None or old.rows is None or self.claim < old.claim:
            return False
        return self.place >= old.place and self.rows >= old.rows
