"""Cursors: how far a flow job is in what it reads, one for each partition of its source.

They lie in the catalog of the topic that the flow publishes, and move in the transaction that seals what its function
returned: so each part of the source is published once, whatever is repeated. A flow that publishes nothing has them in
the catalog of its source.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from jobpipe.errors import Fenced, FlowNotFound
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.catalog.position import Position

FORGET_SECONDS = 30 * 86_400.0
"""Of uptime, after which the cursors of a log that the source no longer has are deleted, or those of a source's own
flow whose subscription is gone."""


@dataclass(frozen=True)
class FlowKey:
    """Whose cursors: the flow's name, the topic that it reads, and the id of that topic's log."""

    flow: str
    topic: str
    log: str


@dataclass(frozen=True)
class Cursor:
    """Where a flow goes on in one partition of its source.

    Attributes:
        partition: of the source.
        claim: the number of the task that may move it; an older task is refused.
        position: in the source's log. Its ``r`` counts the record batches of this partition in batch ``n``, and not, as
            in other positions, those of all partitions. Where batch ``n`` was sealed again after a loss, its ``epoch``
            may be that of batch ``n`` itself: see :mod:`jobpipe.store.catalog.recovery`.
        rows: of the partition that the function was given since it is counted; None after a task that did not count.
    """

    partition: int
    claim: int
    position: Position
    rows: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class CursorPlace:
    """Where a cursor is, as :class:`Cursor`, and for how many seconds already."""

    partition: int
    claim: int
    n: int
    r: int
    idle: float


@dataclass(frozen=True)
class FlowPlace:
    """Where a flow is in one log of its source ``topic``."""

    flow: str
    topic: str
    log: str
    cursors: tuple[CursorPlace, ...]


class FlowCursors:
    """The cursors in one catalog."""

    def __init__(self, database: Database, clock: LogClock) -> None:
        self._db = database
        self._clock = clock

    def all(self, key: FlowKey) -> list[Cursor]:
        """Return a flow's cursors, by partition; none if it has not begun."""
        rows = self._db.all(
            "SELECT * FROM cursors WHERE flow = ? AND topic = ? AND log = ? ORDER BY partition",
            *(key.flow, key.topic, key.log),
        )
        return [_cursor(row) for row in rows]

    def begin(self, key: FlowKey, start: Position, partitions: int) -> list[Cursor]:
        """Make the cursors that are missing, at ``start``; return all. Those that are there stay where they are."""
        with self._db.write():
            place = (start.epoch, start.n, 0, self._clock.uptime)
            self._db.execute_many(
                "INSERT OR IGNORE INTO cursors VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, 0)",
                [(key.flow, key.topic, key.log, partition, *place) for partition in range(partitions)],
            )
            self._db.execute(
                "DELETE FROM cursors WHERE flow = ? AND topic = ? AND log != ? AND moved_up < ?",
                *(key.flow, key.topic, key.log, self._clock.uptime - FORGET_SECONDS),
            )
        return self.all(key)

    def forget(self, topic: str, log: str) -> set[str]:
        """Delete what this catalog keeps of flows whose subscriptions to it are gone; return the flows that it keeps.

        Cursors that a task ever had stay for FORGET_SECONDS after the last of them moved: a flow whose subscription was
        dropped, or has expired, resumes there.

        Args:
            topic, log: of this catalog.
        """
        own = "FROM cursors WHERE topic = ? AND log = ?"
        with self._db.write():
            self._db.execute(
                f"DELETE {own} AND flow IN (SELECT flow {own} AND flow NOT IN (SELECT name FROM subscriptions) "  # noqa: S608 - constants
                "GROUP BY flow HAVING max(claim) = 0 OR max(moved_up) < ?)",
                *(topic, log, topic, log, self._clock.uptime - FORGET_SECONDS),
            )
        return {row["flow"] for row in self._db.all(f"SELECT DISTINCT flow {own}", topic, log)}

    def claim(self, key: FlowKey, partitions: Iterable[int]) -> list[Cursor]:
        """Give partitions to the task that asks: every older one is refused from now on.

        Raises:
            FlowNotFound: the flow has no such cursor: it was reset.
        """
        wanted = sorted(set(partitions))
        with self._db.write():
            for partition in wanted:
                self._db.execute(
                    "UPDATE cursors SET claim = claim + 1 WHERE flow = ? AND topic = ? AND log = ? AND partition = ?",
                    *(key.flow, key.topic, key.log, partition),
                )
            return [self.one(key, partition) for partition in wanted]

    def one(self, key: FlowKey, partition: int) -> Cursor:
        """Return one cursor.

        Raises:
            FlowNotFound: there is none.
        """
        row = self._db.one(
            "SELECT * FROM cursors WHERE flow = ? AND topic = ? AND log = ? AND partition = ?",
            *(key.flow, key.topic, key.log, partition),
        )
        if row is None:
            raise FlowNotFound(
                f"flow {key.flow!r} has no cursor for partition {partition} of topic {key.topic!r}, log {key.log}: it "
                "was reset while it ran. Start it again; it begins at the position of its subscription",
                flow=key.flow,
                topic=key.topic,
                partition=partition,
            )
        return _cursor(row)

    def held(self, key: FlowKey, partition: int, claim: int) -> Cursor:
        """Return the cursor that a task has claimed.

        Raises:
            Fenced: another task has claimed it since.
            FlowNotFound: there is none, or it was made again since: the task is to claim it there.
        """
        cursor = self.one(key, partition)
        if cursor.claim < claim:
            raise FlowNotFound(
                f"flow {key.flow!r}: the cursor of partition {partition} of topic {key.topic!r} was made again, since "
                "the one that this task has claimed is lost",
                flow=key.flow,
                topic=key.topic,
                partition=partition,
            )
        if cursor.claim != claim:
            raise Fenced(
                f"flow {key.flow!r}: another task has claimed partition {partition} of topic {key.topic!r} since",
                flow=key.flow,
                topic=key.topic,
                partition=partition,
                claim=claim,
                newest=cursor.claim,
            )
        return cursor

    def move(self, key: FlowKey, partition: int, to: Position, rows: int | None) -> None:
        """Move a cursor over so many rows. Inside a transaction, after :meth:`held` in it."""
        self._db.execute(
            "UPDATE cursors SET epoch = ?, n = ?, r = ?, moved_up = ?, rows = coalesce(rows, 0) + ? "
            "WHERE flow = ? AND topic = ? AND log = ? AND partition = ?",
            *(to.epoch, to.n, to.r, self._clock.uptime, rows, key.flow, key.topic, key.log, partition),
        )

    def reset(self, flow: str, *, dry_run: bool = False) -> list[FlowKey]:
        """Delete a flow's cursors, of all logs; return whose they were."""
        rows = self._db.all("SELECT DISTINCT topic, log FROM cursors WHERE flow = ? ORDER BY topic, log", flow)
        if rows and not dry_run:
            with self._db.write():
                self._db.execute("DELETE FROM cursors WHERE flow = ?", flow)
        return [FlowKey(flow, row["topic"], row["log"]) for row in rows]

    def places(self) -> tuple[FlowPlace, ...]:
        """Return where the flows are that have cursors here."""
        rows = self._db.all("SELECT * FROM cursors ORDER BY flow, topic, log, partition LIMIT 10000")
        return tuple(
            FlowPlace(*key, tuple(map(self._place, cursors)))
            for key, cursors in groupby(rows, lambda row: (row["flow"], row["topic"], row["log"]))
        )

    def _place(self, row: sqlite3.Row) -> CursorPlace:
        idle = round(max(0.0, self._clock.uptime - row["moved_up"]), 3)
        return CursorPlace(row["partition"], row["claim"], row["n"], row["r"], idle)


def _cursor(row: sqlite3.Row) -> Cursor:
    position = Position(row["log"], row["epoch"], row["n"], row["r"])
    return Cursor(row["partition"], row["claim"], position, row["rows"])
