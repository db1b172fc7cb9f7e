"""The state of a hop, topic to subscription, and of one of its minutes. Pure; the counts are a coordinator's."""

from __future__ import annotations

from enum import StrEnum

from jobpipe.operations.messages.ledger_messages import HopCounts, HopMinute, RowDifference

NEWS_SECONDS = 86_400.0
"""For so long after it was found, a difference is news."""


class HopState(StrEnum):
    """How the rows that were published, read and committed compare; the gravest that applies."""

    DIFFERENT = "different"  # rows were lost or doubled: the alarm
    OPEN = "open"  # rows are not committed yet
    UNPROVEN = "unproven"  # all are committed; of some it cannot be known whether they were read
    MOVED = "moved"  # a person, or a new checkpoint, passed some over; all others are equal
    EQUAL = "equal"  # published = read = committed
    NO_ACCOUNT = "no account"  # nothing is counted: nothing is acknowledged yet, or the coordinator is an older one


def minute_state(minute: HopMinute | None) -> HopState:
    """Return the state of the rows of a minute; None: they were published before the account began."""
    if minute is None:
        return HopState.NO_ACCOUNT
    proven = minute.read + minute.unproven == minute.committed <= minute.published
    return _state(minute.differs or not proven, open_rows_of(minute), minute.unproven, minute.moved)


def open_rows_of(minute: HopMinute) -> int:
    """Return how many rows of a minute its subscription has neither committed nor passed over."""
    return max(0, minute.published - minute.committed - minute.moved)


def hop_state(counts: HopCounts | None, open_rows: int, since: float = 0.0) -> HopState:
    """Return the state of a hop over all of its account.

    Args:
        counts: of its account; None while there is none.
        open_rows: its lag; rows that are committed and not judged yet are open too.
        since: differences that were found before are not news: they are in the sums, and do not make the state.
    """
    if counts is None:
        return HopState.NO_ACCOUNT
    open_rows = max(0, open_rows) + counts.waiting
    return _state(newest_since(counts, since) is not None, open_rows, counts.unproven, counts.moved)


def newest_since(counts: HopCounts | None, since: float) -> RowDifference | None:
    """Return the newest difference of a hop; None if it has none that was found at that time or later."""
    newest = None if counts is None else counts.newest
    return newest if newest is not None and newest.found >= since else None


def _state(differs: bool, open_rows: int, unproven: int, moved: int) -> HopState:
    if differs:
        return HopState.DIFFERENT
    if open_rows:
        return HopState.OPEN
    if unproven:
        return HopState.UNPROVEN
    return HopState.MOVED if moved else HopState.EQUAL
