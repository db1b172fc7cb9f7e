"""Slots: ranges of the log that a subscriber names before their data exist, and that are bound to an end once.

A stream that reads ahead (``readAhead``) writes a slot's id into Spark's log of offsets. The slot is added here before
that, so that one this catalog does not know tells of a catalog that was lost, or of an old copy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from jobpipe.errors import DataLoss, RemoteProtocolError, shown
from jobpipe.store.batches import Batches
from jobpipe.store.database import Database
from jobpipe.store.position import Position

__all__ = ["Slot", "Slots", "slot_id"]

ID_DIGITS = 32
KEPT = 200  # of each subscription, the newest: Spark keeps the logs of 100 batches by default


def slot_id(value: object) -> str:
    """Return the id of a slot that came from outside.

    Raises:
        RemoteProtocolError: it is anything else.
    """
    if not isinstance(value, str) or len(value) != ID_DIGITS or not set(value) <= set("0123456789abcdef"):
        raise RemoteProtocolError(f"a slot is {ID_DIGITS} hex digits", value=shown(value))
    return value


@dataclass(frozen=True)
class Slot:
    """A range of the log under a name of its own.

    Attributes:
        start, end: Half-open; ``end`` is None until it is bound.
        epoch: The one in which it was added.
    """

    start: Position
    end: Position | None
    epoch: int


class Slots:
    """The slots of one log. Every change happens inside a transaction of the caller."""

    def __init__(self, database: Database, batches: Batches) -> None:
        self._db = database
        self._batches = batches

    def get(self, name: str, slot: str) -> Slot:
        """Return a subscription's slot.

        Raises:
            DataLoss: there is none of this id.
        """
        row = self._db.one("SELECT * FROM slots WHERE name = ? AND slot = ?", name, slot)
        if row is None:
            topic = self._batches.topic
            raise DataLoss(
                f"topic {topic!r}: slot {slot}, which the checkpoint of subscription {name!r} names, is not known: "
                "the spool was lost, or is an older copy, or the checkpoint is. What that batch read cannot be told "
                "any more. Bring the spool back, or begin with a new checkpoint",
                topic=topic,
                reason="slot",
                name=name,
                slot=slot,
            )
        end = None if row["end"] is None else _position(row["end"])
        return Slot(_position(row["start"]), end, row["epoch"])

    def add(self, name: str, slot: str, start: Position, *, epoch: int) -> None:
        """Add a slot that is not bound, unless it is there, and forget the subscription's oldest ones."""
        self._db.execute(
            'INSERT OR IGNORE INTO slots(name, slot, number, epoch, "start") '
            "SELECT ?, ?, coalesce(max(number), 0) + 1, ?, ? FROM slots WHERE name = ?",
            *(name, slot, epoch, _text(start), name),
        )
        self._db.execute(
            "DELETE FROM slots WHERE name = ? AND number <= (SELECT max(number) FROM slots WHERE name = ?) - ?",
            *(name, name, KEPT),
        )

    def bind(self, name: str, slot: str, end: Position, *, uptime: float) -> None:
        """Set the end of a slot; one that has an end keeps it."""
        self._db.execute(
            'UPDATE slots SET "end" = ?, bound_up = ? WHERE name = ? AND slot = ? AND "end" IS NULL',
            *(_text(end), uptime, name, slot),
        )


def _text(position: Position) -> str:
    return json.dumps(position.to_json(), sort_keys=True)


def _position(text: str) -> Position:
    return Position.from_json(json.loads(text))
