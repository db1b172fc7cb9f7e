"""The last move of each subscription, in the server's store: what an undo takes back, also after a restart.

A move is stored before it is made, and is in doubt until its answer is there. The one before it is kept with it until
then: if it was not made, that is still the last one.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from jobpipe.jobs.storage.job_store import Store
from jobpipe.store.catalog.position import Position

MOST_MOVES = 1000  # kept; the oldest go


@dataclass(frozen=True, kw_only=True)
class MoveRow:
    """A move; if it is in doubt, the positions tell whether it was made.

    Attributes:
        time: when, in seconds since 1970.
        before: where the subscription stood; None: nowhere.
        after: where the move leaves it.
        number: that the store gives it; None before that.
        in_doubt: it is not known whether it was made.
        earlier: of one in doubt, the move before it; None if there is none.
    """

    topic: str
    subscription: str
    time: float
    by: str
    before: Position | None
    after: Position
    number: int | None = None
    in_doubt: bool = False
    earlier: MoveRow | None = None


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

    def put(self, move: MoveRow) -> int:
        """Keep it instead of the one before; the oldest of all go.

        Returns:
            Its number; it gets one if it has none.
        """
        with self._store.write():
            self.forget(move.topic, move.subscription)
            self._database.insert(
                "moves",
                {
                    "number": move.number,
                    "topic": move.topic,
                    "subscription": move.subscription,
                    "time": move.time,
                    "mover": move.by,
                    "before": None if move.before is None else json.dumps(move.before.to_json()),
                    "after": json.dumps(move.after.to_json()),
                    "earlier": json.dumps(_earlier_json(move.earlier)) if move.in_doubt else None,
                },
            )
            self._database.execute(
                "DELETE FROM moves WHERE number NOT IN (SELECT number FROM moves ORDER BY number DESC LIMIT ?)",
                MOST_MOVES,
            )
            found = self._database.one("SELECT max(number) FROM moves")
        return move.number or (0 if found is None else int(found[0]))

    def made(self, topic: str, subscription: str) -> None:
        """Note that the last move of a subscription is in doubt no more: it was made."""
        with self._store.write():
            self._database.execute(
                "UPDATE moves SET earlier = NULL WHERE topic = ? AND subscription = ?", topic, subscription
            )

    def forget(self, topic: str, subscription: str) -> None:
        """Remove the last move of a subscription, if one is kept."""
        with self._store.write():
            self._database.execute("DELETE FROM moves WHERE topic = ? AND subscription = ?", topic, subscription)


def _move(row: sqlite3.Row) -> MoveRow:
    topic, subscription = row["topic"], row["subscription"]
    return MoveRow(
        topic=topic,
        subscription=subscription,
        time=row["time"],
        by=row["mover"],
        before=None if row["before"] is None else Position.from_json(json.loads(row["before"])),
        after=Position.from_json(json.loads(row["after"])),
        number=row["number"],
        in_doubt=row["earlier"] is not None,
        earlier=None if row["earlier"] is None else _earlier(topic, subscription, json.loads(row["earlier"])),
    )


def _earlier_json(move: MoveRow | None) -> dict[str, Any] | None:
    if move is None:
        return None
    return {
        "number": move.number,
        "time": move.time,
        "by": move.by,
        "before": None if move.before is None else move.before.to_json(),
        "after": move.after.to_json(),
    }


def _earlier(topic: str, subscription: str, value: dict[str, Any] | None) -> MoveRow | None:
    if value is None:
        return None
    before, after = value.pop("before"), Position.from_json(value.pop("after"))
    return MoveRow(
        topic=topic,
        subscription=subscription,
        before=None if before is None else Position.from_json(before),
        after=after,
        **value,
    )
