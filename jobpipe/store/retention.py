"""What may be removed, and the removing. Time is the coordinator's uptime, never the wall clock."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobpipe.store.batches import Batches
from jobpipe.store.database import Database
from jobpipe.store.files import remove_files, spool_error, write_id_of
from jobpipe.store.hosts import Hosts
from jobpipe.store.subscriptions import Subscriptions

__all__ = ["Frontier", "Removed", "Retention", "Retirer"]

log = logging.getLogger(__name__)

CLIPPED_SECONDS = 900.0  # that a lease of an earlier coordinator is kept, unless it is renewed
MAX_LEASE_ID = 64
LEASES_SHOWN = 100
STEP = 200  # batches or files a transaction: a few milliseconds, so that a seal never waits long


@dataclass(frozen=True)
class Retention:
    """When a batch may go. Seconds are coordinator uptime.

    Attributes:
        time: A batch older than this may go.
        bytes: The oldest batches of a larger topic may go.
        ack_grace: Seconds that a batch stays after all have acknowledged it: Spark's own logs are not fsynced.
        subscription_expiry: A subscription, not a required one, that is silent for longer is dropped.
        min_subscribers: Nothing goes until so many subscriptions exist.
    """

    time: float
    bytes: int
    ack_grace: float
    subscription_expiry: float
    min_subscribers: int = 0


@dataclass(frozen=True)
class Removed:
    """What a call removed; ``expired`` names dropped subscriptions."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    expired: tuple[str, ...] = ()


class Frontier:
    """How far all have acknowledged, and since when. Starts anew with each opening of the log: that errs on keeping.

    Offsets below :meth:`settled` were acknowledged by all, without interruption, for the grace.
    """

    NOTES = 256
    RESOLUTION = 0.5  # seconds between two notes beyond that many; a batch may stay so much longer than its grace

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque()  # (uptime, offset), both growing
        self._settled = 0
        self._settled_grace = -1.0

    def note(self, uptime: float, n: int) -> None:
        """Note that all have acknowledged what lies before ``n``."""
        self.lower(n)
        if self._notes:
            since, known = self._notes[-1]
            if n <= known or (len(self._notes) >= self.NOTES and uptime - since < self.RESOLUTION):
                return
        self._notes.append((uptime, n))

    def lower(self, n: int) -> None:
        """Somebody needs what lies at ``n`` and behind."""
        self._settled = min(self._settled, n)
        last: tuple[float, int] | None = None
        while self._notes and self._notes[-1][1] > n:
            last = self._notes.pop()
        if last is not None and (not self._notes or self._notes[-1][1] < n):
            self._notes.append((last[0], n))

    def settled(self, uptime: float, grace: float) -> int:
        """Return the offset before which all is acknowledged for ``grace`` seconds."""
        if grace != self._settled_grace:
            self._settled, self._settled_grace = (0 if grace > self._settled_grace else self._settled), grace
        while self._notes and self._notes[0][0] + grace <= uptime:
            self._settled = max(self._settled, self._notes.popleft()[1])
        return self._settled


class Retirer:
    """Removes batches from the front of one log, and the files that nothing refers to."""

    def __init__(
        self, database: Database, batches: Batches, subscriptions: Subscriptions, hosts: Hosts, segments: Path
    ) -> None:
        self.left_on: set[str] = set()  # host servers that keep files nobody needs any more
        self._hosts = hosts
        self._db = database
        self._batches = batches
        self._subscriptions = subscriptions
        self._segments = segments
        self.frontier = Frontier()

    def acknowledged_n(self) -> int:
        """The offset before which every subscription acknowledged all, and reads nothing; the head without one."""
        lowest = self._db.value("SELECT min(acked_n) FROM subscriptions")
        declared = self._subscriptions.lowest_declared()
        known = [n for n in (lowest, declared) if n is not None]
        return min(known) if known else self._batches.next_n()

    def retain(self, policy: Retention, *, need: int, uptime: float, epoch: int) -> Removed:
        """Remove what the four rules allow; see :meth:`jobpipe.store.catalog.TopicLog.retain`."""
        self.frontier.note(uptime, self.acknowledged_n())
        settled = self.frontier.settled(uptime, policy.ack_grace)
        total = Removed()
        while True:
            with self._db.write(epoch):
                self._db.execute("DELETE FROM leases WHERE until_up <= ?", uptime)
                if self._db.value("SELECT count(*) FROM subscriptions") < policy.min_subscribers:
                    return total
                last = self._last(
                    min(settled, self.acknowledged_n(), self._leased()),
                    over=self._batches.used_bytes() - policy.bytes,
                    need=need - total.bytes,
                    sealed_before=uptime - policy.time,
                )
                step, files = self._delete(last)
            remove_files(self._segments, files)
            total = _add(total, step)
            if step.batches < STEP:
                return total

    def drop_oldest(self, need: int, *, epoch: int) -> Removed:
        """Remove the oldest batches until ``need`` bytes are free, acknowledged or not; leases hold."""
        total = Removed()
        while total.bytes < need:
            with self._db.write(epoch):
                last = self._last(self._leased(), over=0, need=need - total.bytes, sealed_before=float("-inf"))
                step, files = self._delete(last)
            remove_files(self._segments, files)
            total = _add(total, step)
            if step.batches == 0:
                break
        return total

    def lease(self, key: str, first_n: int, last_n: int, *, until_up: float) -> None:
        """Hold the batches ``first_n`` to ``last_n``; inside a transaction.

        Raises:
            DataLoss: the first ones are gone.
        """
        if first_n < self._batches.tail_n():
            raise self._batches.loss(self._batches.at(first_n), "removed")
        self._db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", key, first_n, last_n, until_up)

    def release(self, key: str) -> None:
        """Give a lease back; inside a transaction."""
        self._db.execute("DELETE FROM leases WHERE id = ?", key)

    def shorten_lease(self, key: str, *, until_up: float) -> None:
        """Let a lease end no later; inside a transaction."""
        self._db.execute("UPDATE leases SET until_up = min(until_up, ?) WHERE id = ?", until_up, key)

    def clip_leases(self, uptime: float) -> None:
        """Bound what was stored before this coordinator, which does not know whose it is; inside a transaction.

        Earlier versions took ids and times of any size.
        """
        self._db.execute("DELETE FROM leases WHERE length(id) > ?", MAX_LEASE_ID)
        self._db.execute("UPDATE leases SET until_up = min(until_up, ?)", uptime + CLIPPED_SECONDS)

    def leases(self, uptime: float) -> list[dict[str, Any]]:
        """Return the leases that hold most, as JSON; ``left`` is in seconds."""
        rows = self._db.all(
            "SELECT id, first_n, last_n, until_up FROM leases WHERE until_up > ? ORDER BY first_n, id LIMIT ?",
            *(uptime, LEASES_SHOWN),
        )
        return [{"id": row[0], "first": row[1], "last": row[2], "left": round(row[3] - uptime, 3)} for row in rows]

    def sweep(self, keep: Container[str], *, epoch: int) -> int:
        """Unlink the files that no batch refers to; return how many.

        The names are listed before the epoch is checked: a file of a later epoch cannot be among them.
        """
        try:
            names = sorted(entry.name for entry in self._segments.iterdir())
        except OSError as error:
            raise spool_error("cannot list", self._segments, error) from error
        removed = 0
        for start in range(0, len(names), STEP):
            with self._db.write(epoch):
                orphans = [name for name in names[start : start + STEP] if self._orphan(name, keep)]
                removed += remove_files(self._segments, orphans)
        return removed

    def orphans(self, names: list[str], keep: Container[str], *, epoch: int) -> list[str]:
        """Return those of the files, listed before this call, that no batch refers to.

        Args:
            keep: As for :meth:`sweep`.
        """
        with self._db.write(epoch):  # a later epoch may know of files that we do not
            return [name for name in names if self._orphan(name, keep)]

    def _orphan(self, name: str, keep: Container[str]) -> bool:
        write_id = write_id_of(name)
        if write_id is None or write_id in keep:
            return False
        query = "SELECT 1 FROM batches b JOIN segments s ON s.n = b.n WHERE b.write_id = ? AND s.file = ? LIMIT 1"
        return self._db.one(query, write_id, name) is None

    def _leased(self) -> int:
        lowest = self._db.value("SELECT min(first_n) FROM leases")
        return self._batches.next_n() if lowest is None else int(lowest)

    def _last(self, limit: int, *, over: int, need: int, sealed_before: float) -> int:
        """Return the offset before which to remove: at most STEP batches, each below ``limit`` and with a reason."""
        end = 0
        for row in self._db.all("SELECT n, bytes, sealed_up FROM batches WHERE n < ? ORDER BY n LIMIT ?", limit, STEP):
            if over <= 0 and need <= 0 and row["sealed_up"] > sealed_before:
                break
            over -= row["bytes"]
            need -= row["bytes"]
            end = row["n"] + 1
        return end

    def _delete(self, end: int) -> tuple[Removed, list[str]]:
        row = self._db.one(
            "SELECT count(*), coalesce(sum(rows), 0), coalesce(sum(bytes), 0) FROM batches WHERE n < ?", end
        )
        if row is None or row[0] == 0:
            return Removed(), []
        files = self._db.all(
            "SELECT DISTINCT file FROM segments WHERE n < ? AND file IS NOT NULL AND host IS NULL", end
        )
        self.left_on |= self._hosts.forget(0, end)
        self._db.execute("DELETE FROM segments WHERE n < ?", end)
        self._db.execute("DELETE FROM batches WHERE n < ?", end)
        self._db.execute("DELETE FROM shapes WHERE first_n < (SELECT max(first_n) FROM shapes WHERE first_n <= ?)", end)
        return Removed(row[0], row[1], row[2]), [file["file"] for file in files]


def _add(left: Removed, right: Removed) -> Removed:
    return Removed(left.batches + right.batches, left.rows + right.rows, left.bytes + right.bytes)
