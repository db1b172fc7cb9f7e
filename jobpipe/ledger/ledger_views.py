"""The ledger as JSON has it, of the command line and of REST alike. Values alone; times are seconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass

from jobpipe.ledger.difference_words import difference_words
from jobpipe.ledger.hop_lines import HopLine, MinuteLine
from jobpipe.ledger.hop_states import HopState
from jobpipe.operations.messages.ledger_messages import RowDifference


@dataclass(frozen=True, kw_only=True)
class DifferenceView:
    """A range of offsets of which other rows were committed than published; ``said``: in words."""

    first: int
    end: int
    partitions: tuple[int, ...]
    published: int
    read: int
    reason: str
    found: float
    said: str


@dataclass(frozen=True, kw_only=True)
class MinuteView:
    """The rows that were published in the minute that begins at ``minute``; None before the account began."""

    minute: int
    first: int
    end: int
    published: int | None
    read: int | None
    committed: int | None
    open: int | None
    unproven: int | None
    moved: int | None
    state: HopState


@dataclass(frozen=True, kw_only=True)
class HopView:
    """A subscription of a topic.

    Attributes:
        position: the offset of the next batch that it has not acknowledged.
        published: rows, up to its position, since its account began.
        open: rows that it has not acknowledged.
        differences, minutes: the newest first.
    """

    topic: str
    subscription: str
    state: HopState
    position: int | None
    published: int | None
    read: int | None
    committed: int | None
    open: int
    unproven: int | None
    moved: int | None
    lost: int | None
    doubled: int | None
    differences: tuple[DifferenceView, ...]
    minutes: tuple[MinuteView, ...]


def hop_view(hop: HopLine) -> HopView:
    """Return the view of a hop."""
    counts = hop.counts
    return HopView(
        topic=hop.topic,
        subscription=hop.name,
        state=hop.state,
        position=hop.position,
        published=hop.published,
        read=None if counts is None else counts.read,
        committed=None if counts is None else counts.committed,
        open=hop.open_rows,
        unproven=None if counts is None else counts.unproven,
        moved=None if counts is None else counts.moved,
        lost=None if counts is None else counts.lost,
        doubled=None if counts is None else counts.doubled,
        differences=tuple(map(_difference_view, hop.differences)),
        minutes=tuple(map(_minute_view, hop.minutes)),
    )


def _difference_view(each: RowDifference) -> DifferenceView:
    return DifferenceView(
        first=each.first,
        end=each.end,
        partitions=each.partitions,
        published=each.published,
        read=each.read,
        reason=each.reason,
        found=each.found,
        said=difference_words(each),
    )


def _minute_view(each: MinuteLine) -> MinuteView:
    rows = each.rows
    return MinuteView(
        minute=60 * each.minute.minute,
        first=each.minute.first,
        end=each.minute.end,
        published=None if rows is None else rows.published,
        read=None if rows is None else rows.read,
        committed=None if rows is None else rows.committed,
        open=each.open_rows,
        unproven=None if rows is None else rows.unproven,
        moved=None if rows is None else rows.moved,
        state=each.state,
    )
