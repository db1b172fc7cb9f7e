"""Retention: which batches may be deleted, and deleting them. Time is the coordinator's uptime, not the wall clock."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from jobpipe.store.catalog.batches import APPENDERS, Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.log.host_segments import HostSegments
from jobpipe.store.spool.spool_files import remove_files, spool_error, write_id_of
from jobpipe.store.subscriptions.holds import DROPPED, EXPIRED, Hold, Holds
from jobpipe.store.subscriptions.leases import Leases
from jobpipe.store.subscriptions.positions import Subscriptions

ONCE_KEPT = 7 * 86_400.0  # seconds of uptime in which a run that failed is run again, and must not publish twice
EPOCHS_KEPT = 1_000  # the newest; older ones only if batches of theirs are there
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
        expire_holds: Holds that were not moved in time are dropped; no where the topic is only served, and nothing
            waits for room.
    """

    time: float
    bytes: int
    ack_grace: float
    subscription_expiry: float
    min_subscribers: int = 0
    expire_holds: bool = True


@dataclass(frozen=True)
class Removed:
    """What a call removed; ``expired`` names dropped subscriptions."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    expired: tuple[str, ...] = ()


class RetentionCleaner:
    """Removes batches from the front of one log, and the files that nothing refers to."""

    def __init__(
        self,
        database: Database,
        batches: Batches,
        subscriptions: Subscriptions,
        hosts: HostSegments,
        leases: Leases,
        holds: Holds,
        clock: LogClock,
        segments: Path,
    ) -> None:
        self._db = database
        self._batches = batches
        self._subscriptions = subscriptions
        self._hosts = hosts
        self._leases = leases
        self._holds = holds
        self._clock = clock
        self._segments = segments
        self._left_on: set[str] = set()  # host servers that keep files which no batch needs any more

    def retain(self, policy: Retention, *, need: int = 0) -> Removed:
        """Remove batches from the front while each may go; first drop subscriptions that expired.

        A batch may go when (a) every subscription has acknowledged it, and none reads it or what lies before it;
        (b) that is so for ``ack_grace``; (c) it is older than ``policy.time``, or the topic is over
        ``policy.bytes``, or ``need`` bytes are not free yet; (d) no lease and no hold keeps it. While fewer than
        ``min_subscribers`` exist nothing goes. Holds that were not moved in time are dropped before.

        Args:
            need: Bytes to free.
        """
        self._subscriptions.flush()
        expired = self._subscriptions.expire(policy.subscription_expiry)
        settled = self._subscriptions.settled_n(policy.ack_grace)
        total = Removed(expired=tuple(expired))
        while True:
            dropped: list[Hold] = []
            with self._logs_dropped(dropped, EXPIRED), self._db.write():
                self._leases.expire()
                self._forget()
                if policy.expire_holds:
                    dropped += self._holds.expire()
                if self._db.value("SELECT count(*) FROM subscriptions") < policy.min_subscribers:
                    return total
                last = self._last(
                    min(
                        *(settled, self._subscriptions.acknowledged_n()),
                        *(self._leases.lowest_n(), self._holds.lowest_n()),
                    ),
                    over=self._batches.used_bytes() - policy.bytes,
                    need=need - total.bytes,
                    sealed_before=self._clock.uptime - policy.time,
                )
                step, files = self._delete(last)
            remove_files(self._segments, files)
            total = _add(total, step)
            if step.batches < STEP:
                return total

    def drop_oldest(self, need: int) -> Removed:
        """Remove the oldest batches until ``need`` bytes are free, acknowledged or not; leases still hold.

        A named hold does not, since it may last for days: it is dropped with what it kept, and reported.
        """
        self._subscriptions.flush()
        total = Removed()
        while total.bytes < need:
            dropped: list[Hold] = []
            with self._logs_dropped(dropped, DROPPED), self._db.write():
                held = self._leases.lowest_n()
                last = self._last(held, over=0, need=need - total.bytes, sealed_before=float("-inf"))
                step, files = self._delete(last)
                dropped += self._holds.overtaken()
            remove_files(self._segments, files)
            total = _add(total, step)
            if step.batches == 0:
                break
        return total

    def sweep(self, keep: Container[str]) -> int:
        """Unlink segment files that no batch refers to; return how many.

        The names are listed before the epoch is checked: a file of a later epoch cannot be among them.

        Args:
            keep: Write ids of calls in progress. Pass the live collection itself, with every id in it before that id
                is given away: it is asked right before each unlink.
        """
        try:
            names = sorted(entry.name for entry in self._segments.iterdir())
        except OSError as error:
            raise spool_error("cannot list", self._segments, error) from error
        removed = 0
        for start in range(0, len(names), STEP):
            with self._db.write():
                orphans = [name for name in names[start : start + STEP] if self._orphan(name, keep)]
                removed += remove_files(self._segments, orphans)
        return removed

    def orphans(self, names: list[str], keep: Container[str]) -> list[str]:
        """Return those of a host server's files, listed before this call, that no batch refers to.

        Args:
            names: The files.
            keep: As for :meth:`sweep`.
        """
        with self._db.write():  # a later epoch may know of files that we do not
            return [name for name in names if self._orphan(name, keep)]

    def hosts_to_sweep(self) -> set[str]:
        """Return, once, the hosts whose files batches removed since the last call had."""
        found, self._left_on = self._left_on, set()
        return found

    def _forget(self) -> None:
        """Forget queries that do not come again, and old epochs whose batches were removed, or that have sealed none.

        The newest query of a publisher stays: it tells a new one that another was here.
        """
        tail = self._batches.tail_n()
        self._db.execute(
            f"DELETE FROM queries WHERE once_up < ? AND n <= ? AND (query_id GLOB '{APPENDERS}*' OR rowid < "  # noqa: S608
            f"(SELECT max(rowid) FROM queries WHERE query_id NOT GLOB '{APPENDERS}*'))",
            *(self._clock.uptime - ONCE_KEPT, tail),
        )
        self._db.execute(
            "DELETE FROM epochs WHERE epoch < (SELECT epoch FROM epochs ORDER BY epoch DESC LIMIT 1 OFFSET ?) "
            "AND (first_n < (SELECT max(first_n) FROM epochs WHERE first_n < ?) OR EXISTS "
            "(SELECT 1 FROM epochs AS later WHERE later.first_n = epochs.first_n AND later.epoch > epochs.epoch))",
            *(EPOCHS_KEPT - 1, tail),
        )

    @contextlib.contextmanager
    def _logs_dropped(self, dropped: list[Hold], why: str) -> Iterator[None]:
        """Log the holds that the transaction inside drops, if it commits."""
        yield
        self._holds.log_dropped(dropped, why)

    def _orphan(self, name: str, keep: Container[str]) -> bool:
        write_id = write_id_of(name)
        if write_id is None or write_id in keep:
            return False
        query = "SELECT 1 FROM batches b JOIN segments s ON s.n = b.n WHERE b.write_id = ? AND s.file = ? LIMIT 1"
        return self._db.one(query, write_id, name) is None

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
        self._left_on |= self._hosts.forget(0, end)
        self._db.execute("DELETE FROM segments WHERE n < ?", end)
        self._db.execute(
            "UPDATE meta SET removed_ms = "
            "max(removed_ms, (SELECT coalesce(max(sealed_ms), 0) FROM batches WHERE n < ?))",
            end,
        )
        self._db.execute("DELETE FROM batches WHERE n < ?", end)
        self._db.execute("DELETE FROM shapes WHERE first_n < (SELECT max(first_n) FROM shapes WHERE first_n <= ?)", end)
        return Removed(row[0], row[1], row[2]), [file["file"] for file in files]


def _add(left: Removed, right: Removed) -> Removed:
    return Removed(left.batches + right.batches, left.rows + right.rows, left.bytes + right.bytes, left.expired)
