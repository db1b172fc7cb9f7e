"""The last move of each subscription, in the server's store: what an undo takes back, also after a restart."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from jobpipe.jobs.storage.job_store import Store
from jobpipe.store.catalog.position import Position

MOST_MOVES = 1000  # kept; the oldest go


@dataclass(frozen=True, kw_only=True)
class MoveRow:
    """A move, stored before it is made: if the server is killed in between, the positions tell whether it was.

    Attributes:
        time: when, in seconds since 1970.
        before: where the subscription stood; None: nowhere.
        after: where the move leaves it.
    """

    topic: str
    subscription: str
    time: float
    by: str
    before: Position | None
    after: Position


class MoveStore:
    """Typed access to one table."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database

    def last(self, topic: str, subscription: str) -> MoveRow | None:
        """Return the last move of a subscription; None if none is kept."""
        row = self._database.one("SELECT * FROM moves WHERE topic = ? AND subscription = ?", topic, subscription)
        return None if row is None else _move(row)

    def of_topic(self, topic: str) -> dict[str, MoveRow]:
        """Return the last moves in a topic, by subscription."""
        rows = self._database.all("SELECT * FROM moves WHERE topic = ?", topic)
        return {row["subscription"]: _move(row) for row in rows}

    def put(self, move: MoveRow) -> None:
        """Keep it instead of the one before; the oldest of all go."""
        with self._store.write():
            self.forget(move.topic, move.subscription)
            self._database.insert(
                "moves",
                {
                    "topic": move.topic,
                    "subscription": move.subscription,
                    "time": move.time,
                    "mover": move.by,
                    "before": None if move.before is None else json.dumps(move.before.to_json()),
                    "after": json.dumps(move.after.to_json()),
                },
            )
            self._database.execute(
                "DELETE FROM moves WHERE number NOT IN (SELECT number FROM moves ORDER BY number DESC LIMIT ?)",
                MOST_MOVES,
            )

    def forget(self, topic: str, subscription: str) -> None:
        """Remove the last move of a subscription, if one is kept."""
        with self._store.write():
            self._database.execute("DELETE FROM moves WHERE topic = ? AND subscription = ?", topic, subscription)


def _move(row: sqlite3.Row) -> MoveRow:
    return MoveRow(
        topic=row["topic"],
        subscription=row["subscription"],
        time=row["time"],
        by=row["mover"],
        before=None if row["before"] is None else Position.from_json(json.loads(row["before"])),
        after=Position.from_json(json.loads(row["after"])),
    )
