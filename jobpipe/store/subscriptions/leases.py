"""Leases: what bounded reads hold in a log for a time. Each is known by its name, which is no secret."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock

CLIPPED_SECONDS = 900.0  # that a lease of an earlier coordinator is kept, unless it is renewed
LEASES_SHOWN = 100
_ROWS = "SELECT id, first_n, last_n, until_up FROM leases"


@dataclass(frozen=True)
class Lease:
    """The offsets that a lease holds, and the seconds until it ends; ``id`` is its name."""

    id: str
    first: int
    last: int
    left: float


class Leases:
    """The leases of one log. They end by the uptime."""

    def __init__(self, database: Database, batches: Batches, clock: LogClock) -> None:
        self._db = database
        self._batches = batches
        self._clock = clock

    def hold(self, name: str, first_n: int, last_n: int, seconds: float) -> None:
        """Hold the batches ``first_n`` to ``last_n`` for a bounded read; the same name again renews.

        Raises:
            DataLoss: the first ones are gone.
        """
        with self._db.write():
            if first_n < self._batches.tail_n():
                raise self._batches.loss(self._batches.at(first_n), "removed")
            until_up = self._clock.uptime + seconds
            self._db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", name, first_n, last_n, until_up)

    def release(self, name: str) -> None:
        """Give a lease back; unknown names are ignored."""
        with self._db.write():
            self._db.execute("DELETE FROM leases WHERE id = ?", name)

    def shorten(self, name: str, seconds: float) -> None:
        """Let a lease end in so many seconds, if not before."""
        until_up = self._clock.uptime + max(seconds, 0.0)
        with self._db.write():
            self._db.execute("UPDATE leases SET until_up = min(until_up, ?) WHERE id = ?", until_up, name)

    def clip(self) -> None:
        """Bound the leases that an earlier coordinator stored: whose they are is not known. Inside a transaction."""
        self._db.execute("UPDATE leases SET until_up = min(until_up, ?)", self._clock.uptime + CLIPPED_SECONDS)

    def expire(self) -> None:
        """Delete those that are over. Inside a transaction."""
        self._db.execute("DELETE FROM leases WHERE until_up <= ?", self._clock.uptime)

    def lowest_n(self) -> int:
        """The lowest offset that is held; the next batch's when none is."""
        lowest = self._db.value("SELECT min(first_n) FROM leases")
        return self._batches.next_n() if lowest is None else int(lowest)

    def count(self) -> int:
        """Return how many there are; one that is over counts until :meth:`expire` deletes it, and holds."""
        return int(self._db.value("SELECT count(*) FROM leases"))

    def all(self) -> list[Lease]:
        """Return the leases that hold most, at most 100."""
        rows = self._db.all(f"{_ROWS} ORDER BY first_n, id LIMIT ?", LEASES_SHOWN)
        return [self._lease(row) for row in rows]

    def get(self, name: str) -> Lease | None:
        """Return the lease of that name; None if there is none."""
        row = self._db.one(f"{_ROWS} WHERE id = ?", name)
        return None if row is None else self._lease(row)

    def _lease(self, row: sqlite3.Row) -> Lease:
        left = max(0.0, round(row["until_up"] - self._clock.uptime, 3))
        return Lease(row["id"], row["first_n"], row["last_n"], left)
