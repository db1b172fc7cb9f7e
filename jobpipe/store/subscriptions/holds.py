"""Holds: named positions that keep retention back until a scheduled job has read them.

A lease belongs to a read that goes on: it is renewed, and ends soon after its reader. A hold belongs to a job that
does not run most of the time: it is in the catalog with its owner, and outlives readers and coordinators. It ends by
itself if it was not moved for its ``max_time``, so that an abandoned schedule does not keep a publisher from
its room. Then its row stays, as a report of the gap, until the hold is moved on or released.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from jobpipe.errors import ConfigError, HoldNotFound, NotAuthorized
from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.catalog.position import Position

log = logging.getLogger(__name__)

MAX_HOLDS = 1000
"""Of one topic, of all owners; and as many gaps."""

MAX_OWN_HOLDS = 200
"""Of one owner in one topic."""

FORGET_SECONDS = 30 * 86_400.0  # of uptime, that a gap is reported

_ROWS = "SELECT h.*, b.sealed_up FROM holds h LEFT JOIN batches b ON b.n = h.n"  # sealed_up: of the batch held first

EXPIRED = "not moved for its max_time"
DROPPED = "the spool was full, and its publisher drops the oldest batches (spool.on_full=drop_oldest)"


@dataclass(frozen=True)
class Hold:
    """A hold, or the gap that is left of one.

    Attributes:
        name: as a subscription's: of the job that is to read.
        owner: the identity that took it.
        offset: from here on nothing is removed, while ``gap`` is None.
        max_time: seconds of coordinator uptime for which it lasts without being moved, once there is something to read.
        since: seconds since it was made or moved.
        left: seconds until it ends; None while nothing lies after it, and for a gap.
        gap: why it was dropped; None while it holds.
        lost: batches from ``offset`` on that were removed since.
    """

    name: str
    owner: str
    offset: int
    max_time: float
    since: float
    left: float | None
    gap: str | None
    lost: int


class Holds:
    """The holds of one log. They end by the uptime; every change is durable at once."""

    def __init__(self, database: Database, batches: Batches, clock: LogClock) -> None:
        self._db = database
        self._batches = batches
        self._clock = clock

    def take(self, name: str, owner: str, position: Position, max_time: float, *, others: bool = False) -> Hold:
        """Make a hold, or move it on; return how it stands then.

        At the place where it stands, or at an earlier one, nothing is moved, and its time goes on: only the new
        ``max_time`` counts. So a request that comes twice, or late, does no harm. Inside of a batch, the position
        counts as the batch's beginning. A gap is a hold again as soon as it is moved on.

        Args:
            others: those of other owners may be moved, and are the caller's then.

        Raises:
            NotAuthorized: it is another owner's.
            ConfigError: the owner, or the topic, has too many.
            DataLoss: the position was removed already.
        """
        uptime = self._clock.uptime
        with self._db.write():
            row = self._row(name)
            if row is not None:
                self._require_owner(row, owner, others=others)
                self._db.execute("UPDATE holds SET owner = ?, max_time = ? WHERE name = ?", owner, max_time, name)
            if row is None or position.n > row["n"]:
                if position.n < self._batches.tail_n():
                    raise self._batches.loss(position, "removed")
                if row is None or row["gap_up"] is not None or row["owner"] != owner:
                    self._require_room(owner)
                self._db.execute(
                    "INSERT OR REPLACE INTO holds VALUES (?, ?, ?, ?, ?, NULL, NULL)",
                    *(name, owner, position.n, max_time, uptime),
                )
            return self.get(name)

    def get(self, name: str) -> Hold:
        """Return one.

        Raises:
            HoldNotFound: there is none of that name.
        """
        row = self._row(name)
        if row is None:
            topic = self._batches.topic
            raise HoldNotFound(f"topic {topic!r} has no hold {name!r}", topic=topic, name=name)
        return self._hold(row)

    def release(self, name: str, owner: str, *, others: bool = False, dry_run: bool = False) -> Hold:
        """Delete a hold, or the report of a gap; return how it stood. With ``dry_run`` nothing is changed.

        Raises:
            HoldNotFound: there is none of that name.
            NotAuthorized: it is another owner's, and ``others`` is not set.
        """
        with self._db.write():
            hold, row = self.get(name), self._row(name)
            if row is not None:
                self._require_owner(row, owner, others=others)
            if not dry_run:
                self._db.execute("DELETE FROM holds WHERE name = ?", name)
        return hold

    def clip(self, max_time: float) -> None:
        """Let no hold last longer than this: the publisher's setting counts for those too that are there already."""
        with self._db.write():
            self._db.execute("UPDATE holds SET max_time = min(max_time, ?)", max_time)

    def expire(self) -> list[Hold]:
        """Drop those that were not moved in time; return them as they were. Inside a transaction."""
        query = (
            f"{_ROWS} WHERE h.gap_up IS NULL AND max(h.moved_up, b.sealed_up) + h.max_time <= ? ORDER BY h.n, h.name"
        )
        return self._drop(self._db.all(query, self._clock.uptime), EXPIRED)

    def overtaken(self) -> list[Hold]:
        """Drop those whose batches were removed all the same; return them as they were. Inside a transaction."""
        query = f"{_ROWS} WHERE h.gap_up IS NULL AND h.n < ? ORDER BY h.n, h.name"
        return self._drop(self._db.all(query, self._batches.tail_n()), DROPPED)

    def log_dropped(self, dropped: list[Hold], why: str) -> None:
        """Log what was dropped, once that is committed."""
        for hold in dropped:
            log.warning(
                "topic %s: hold %s of %s was dropped: %s; from offset %d on batches may be missing",
                *(self._batches.topic, hold.name, hold.owner, why, hold.offset),
            )

    def lowest_n(self) -> int:
        """The lowest offset that is held; the next batch's when none is."""
        lowest = self._db.value("SELECT min(n) FROM holds WHERE gap_up IS NULL")
        return self._batches.next_n() if lowest is None else min(int(lowest), self._batches.next_n())

    def all(self) -> list[Hold]:
        """Return them, those that hold most first, then the gaps."""
        return [self._hold(row) for row in self._db.all(f"{_ROWS} ORDER BY h.gap_up IS NOT NULL, h.n, h.name")]

    def offset_of(self, name: str) -> int | None:
        """Return where a hold, or a gap, stands; None if there is none of that name."""
        row = self._row(name)
        return None if row is None else int(row["n"])

    def _drop(self, rows: Sequence[sqlite3.Row], why: str) -> list[Hold]:
        uptime = self._clock.uptime
        self._db.execute("DELETE FROM holds WHERE gap_up <= ?", uptime - FORGET_SECONDS)
        for row in rows:
            self._db.execute("UPDATE holds SET gap_up = ?, gap = ? WHERE name = ?", uptime, why, row["name"])
        if rows:
            self._db.execute(
                "DELETE FROM holds WHERE gap_up IS NOT NULL AND name NOT IN "
                "(SELECT name FROM holds WHERE gap_up IS NOT NULL ORDER BY gap_up DESC, name LIMIT ?)",
                MAX_HOLDS,
            )
        return [self._hold(row) for row in rows]

    def _row(self, name: str) -> sqlite3.Row | None:
        return self._db.one(f"{_ROWS} WHERE h.name = ?", name)

    def _hold(self, row: sqlite3.Row) -> Hold:
        uptime, left = self._clock.uptime, None
        if row["gap_up"] is None and row["sealed_up"] is not None:
            left = max(row["moved_up"], row["sealed_up"]) + row["max_time"] - uptime
        return Hold(
            name=row["name"],
            owner=row["owner"],
            offset=row["n"],
            max_time=row["max_time"],
            since=round(max(0.0, uptime - row["moved_up"]), 3),
            left=None if left is None else round(left, 3),
            gap=row["gap"],
            lost=0 if row["gap_up"] is None else max(0, self._batches.tail_n() - row["n"]),
        )

    def _require_owner(self, row: sqlite3.Row, owner: str, *, others: bool) -> None:
        if row["owner"] != owner and not others:
            topic = self._batches.topic
            raise NotAuthorized(
                f"topic {topic!r}: hold {row['name']!r} belongs to {row['owner']}, not to {owner}; to move or release "
                "it needs the right `admin` on the topic",
                topic=topic,
                name=row["name"],
                owner=row["owner"],
            )

    def _require_room(self, owner: str) -> None:
        topic = self._batches.topic
        there = int(self._db.value("SELECT count(*) FROM holds WHERE gap_up IS NULL"))
        own = int(self._db.value("SELECT count(*) FROM holds WHERE gap_up IS NULL AND owner = ?", owner))
        if there >= MAX_HOLDS or own >= MAX_OWN_HOLDS:
            whose, most = (owner, MAX_OWN_HOLDS) if own >= MAX_OWN_HOLDS else ("all", MAX_HOLDS)
            raise ConfigError(
                f"topic {topic!r} has {most} holds of {whose}, and accepts no new one; `jobpipe topics holds list` "
                "shows their owners, `jobpipe topics holds drop` ends one",
                topic=topic,
                limit=most,
            )


def held_back(holds: list[Hold], before: int) -> Hold | None:
    """Return the hold that keeps most of what lies before an offset from retention; None if none does."""
    first = min((hold for hold in holds if hold.gap is None), key=lambda hold: hold.offset, default=None)
    return first if first is not None and first.offset < before else None
