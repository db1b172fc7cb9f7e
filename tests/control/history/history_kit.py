"""The clock of the history's tests, and what compares histories."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jobpipe.control.history.history import StoredHistory

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()  # a slot of each length begins


class Clock:
    """Seconds, as the test sets them."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def bits(kept: StoredHistory) -> list[Any]:
    """Return what is stored as values that are the same if all bits are: a gap is not equal to a gap."""
    rings = [(each.key, each.age, each.fine.tobytes(), each.coarse.tobytes()) for each in kept.series]
    return [kept.fine_slots, kept.coarse_slots, rings]
