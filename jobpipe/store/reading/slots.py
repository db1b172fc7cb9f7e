"""Slots: ranges of the log that a subscriber names before their data exist, and that are bound to an end once.

A stream that reads ahead (``readAhead``) writes a slot's id into Spark's log of offsets. The slot is added here before
that, so that one this catalog does not know tells of a catalog that was lost, or of an old copy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from jobpipe.errors import DataLoss, RemoteProtocolError, short_repr
from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.catalog.position import Position
from jobpipe.store.subscriptions.positions import Subscriptions

ID_DIGITS = 32
KEPT = 200  # of each subscription, the newest: Spark keeps the logs of 100 batches by default


def slot_id(value: object) -> str:
    """Return the id of a slot that came from outside.

    Raises:
        RemoteProtocolError: it is anything else.
    """
    if not isinstance(value, str) or len(value) != ID_DIGITS or not set(value) <= set("0123456789abcdef"):
        raise RemoteProtocolError(f"a slot is {ID_DIGITS} hex digits", value=short_repr(value))
    return value


@dataclass(frozen=True)
class Slot:
    """A range of the log under a name of its own.

    Attributes:
        start, end: Half-open; ``end`` is None until it is bound.
        epoch: The one in which it was added, or which its reader lived to see.
    """

    start: Position
    end: Position | None
    epoch: int


class Slots:
    """The slots of one log. The grant is the subscription's; an older one than its newest is refused."""

    def __init__(self, database: Database, batches: Batches, subscriptions: Subscriptions, clock: LogClock) -> None:
        self._db = database
        self._batches = batches
        self._subscriptions = subscriptions
        self._clock = clock

    def get(self, name: str, grant: int, slot: str) -> Slot:
        """Return a subscription's slot.

        Raises:
            Fenced: another grant is valid.
            DataLoss: this log does not know the slot.
        """
        self._subscriptions.check_grant(name, grant)
        row = self._db.one("SELECT * FROM slots WHERE name = ? AND slot = ?", name, slot)
        if row is None:
            topic = self._batches.topic
            raise DataLoss(
                f"topic {topic!r}: slot {slot}, which the checkpoint of subscription {name!r} names, is not known: "
                "the spool was lost, or is an older copy, or the checkpoint is. It is no longer known what that "
                "batch read. Bring the spool back, or begin with a new checkpoint",
                topic=topic,
                reason="slot",
                name=name,
                slot=slot,
            )
        end = None if row["end"] is None else _position(row["end"])
        return Slot(_position(row["start"]), end, row["epoch"])

    def add(self, name: str, grant: int, slot: str, start: Position, *, empty: bool = False) -> None:
        """Add a slot that begins at ``start``; again, it changes nothing. Only the newest of a name are kept.

        Args:
            empty: It ends there too.

        Raises:
            Fenced: another grant is valid.
        """
        with self._db.write():
            self._subscriptions.check_grant(name, grant)
            self._db.execute(
                'INSERT OR IGNORE INTO slots(name, slot, number, epoch, "start") '
                "SELECT ?, ?, coalesce(max(number), 0) + 1, ?, ? FROM slots WHERE name = ?",
                *(name, slot, self._db.epoch, _text(start), name),
            )
            self._db.execute(
                "DELETE FROM slots WHERE name = ? AND number <= (SELECT max(number) FROM slots WHERE name = ?) - ?",
                *(name, name, KEPT),
            )
            if empty:
                self._end(name, slot, start)

    def bind(self, name: str, grant: int, slot: str, end: Position) -> Slot:
        """Let a slot end at ``end``, durably, and return it; one that is bound stays as it is.

        Raises:
            Fenced: another grant is valid.
            DataLoss: this log does not know the slot.
        """
        with self._db.write():
            self._subscriptions.check_grant(name, grant)
            self._end(name, slot, end)
        return self.get(name, grant, slot)

    def close_unbound(self, name: str) -> None:
        """Let a subscription's slots of this epoch that are not bound end where they begin: their reader has left.

        A task that still comes gets no row, and the next slot begins at the same place. In a later epoch it could not
        be told any more whether the slot was bound, or this is an older copy of the catalog.
        """
        query = 'SELECT slot, "start" FROM slots WHERE name = ? AND "end" IS NULL AND epoch = ?'
        if self._db.one(query, name, self._db.epoch) is None:
            return
        with self._db.write():
            for row in self._db.all(query, name, self._db.epoch):
                self._end(name, row["slot"], _position(row["start"]))

    def witness(self, name: str) -> None:
        """Let a subscription's newest slot, if it is not bound, be of this epoch.

        For a reader that has lived through the change of epochs, and that this log knows as the holder of the name: a
        copy of the log from between the slot's making and its binding would have had to be made, lost and restored
        while that slot was its newest one.
        """
        epoch = self._db.epoch
        unwitnessed = (
            'WHERE name = ? AND "end" IS NULL AND epoch < ? AND number = (SELECT max(number) FROM slots WHERE name = ?)'
        )
        if self._db.one(f"SELECT 1 FROM slots {unwitnessed}", name, epoch, name) is None:  # noqa: S608
            return
        with self._db.write():
            self._db.execute(f"UPDATE slots SET epoch = ? {unwitnessed}", epoch, name, epoch, name)  # noqa: S608

    def _end(self, name: str, slot: str, end: Position) -> None:
        self._db.execute(
            'UPDATE slots SET "end" = ?, bound_up = ? WHERE name = ? AND slot = ? AND "end" IS NULL',
            *(_text(end), self._clock.uptime, name, slot),
        )


def _text(position: Position) -> str:
    return json.dumps(position.to_json(), sort_keys=True)


def _position(text: str) -> Position:
    return Position.from_json(json.loads(text))
