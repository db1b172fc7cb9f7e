"""Leases: what bounded reads hold in a log for a time."""

from __future__ import annotations

from typing import Any

from jobpipe.store.batches import Batches
from jobpipe.store.clock import Clock
from jobpipe.store.database import Database

__all__ = ["Leases"]

CLIPPED_SECONDS = 900.0  # that a lease of an earlier coordinator is kept, unless it is renewed
MAX_LEASE_ID = 64
LEASES_SHOWN = 100


class Leases:
    """The leases of one log. They end by the uptime."""

    def __init__(self, database: Database, batches: Batches, clock: Clock) -> None:
        self._db = database
        self._batches = batches
        self._clock = clock

    def hold(self, key: str, first_n: int, last_n: int, seconds: float) -> None:
        """Hold the batches ``first_n`` to ``last_n`` for a bounded read; the same key again renews.

        Raises:
            DataLoss: the first ones are gone.
        """
        with self._db.write():
            if first_n < self._batches.tail_n():
                raise self._batches.loss(self._batches.at(first_n), "removed")
            until_up = self._clock.uptime + seconds
            self._db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", key, first_n, last_n, until_up)

    def release(self, key: str) -> None:
        """Give a lease back; unknown keys are ignored."""
        with self._db.write():
            self._db.execute("DELETE FROM leases WHERE id = ?", key)

    def shorten(self, key: str, seconds: float) -> None:
        """Let a lease end in so many seconds, if not before."""
        until_up = self._clock.uptime + max(seconds, 0.0)
        with self._db.write():
            self._db.execute("UPDATE leases SET until_up = min(until_up, ?) WHERE id = ?", until_up, key)

    def clip(self) -> None:
        """Bound what an earlier coordinator stored, since the new one does not know whose it is. Inside a transaction.

        Earlier versions took ids and times of any size.
        """
        self._db.execute("DELETE FROM leases WHERE length(id) > ?", MAX_LEASE_ID)
        self._db.execute("UPDATE leases SET until_up = min(until_up, ?)", self._clock.uptime + CLIPPED_SECONDS)

    def expire(self) -> None:
        """Delete those that are over. Inside a transaction."""
        self._db.execute("DELETE FROM leases WHERE until_up <= ?", self._clock.uptime)

    def lowest_n(self) -> int:
        """The lowest offset that is held; the next batch's when none is."""
        lowest = self._db.value("SELECT min(first_n) FROM leases")
        return self._batches.next_n() if lowest is None else int(lowest)

    def all(self) -> list[dict[str, Any]]:
        """Return the leases that hold most, at most 100, as JSON; ``left`` is in seconds."""
        now = self._clock.uptime
        rows = self._db.all(
            "SELECT id, first_n, last_n, until_up FROM leases WHERE until_up > ? ORDER BY first_n, id LIMIT ?",
            *(now, LEASES_SHOWN),
        )
        return [{"id": row[0], "first": row[1], "last": row[2], "left": round(row[3] - now, 3)} for row in rows]
