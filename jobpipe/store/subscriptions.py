"""Durable positions of subscribers: grants, acknowledgements, first positions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jobpipe.errors import ConfigError, Fenced
from jobpipe.store.batches import Batches
from jobpipe.store.database import Database
from jobpipe.store.position import Position

__all__ = ["Subscription", "Subscriptions"]

MAX_HOST = 255  # characters of what a reader says of its host
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Subscription:
    """A named position.

    Attributes:
        acked: What lies before it is committed by the subscriber; None until the first position is known.
        first: Where the present checkpoint began; None if that was never asked.
        grant: The number of the newest grant; 0 when nobody ever held the name.
        holder: Who got that grant.
        declared: Where the live holder reads now; may lie before ``acked``.
        stale: Acknowledgements ignored since the log was opened, because they were late or repeated.
        created_up, seen_up: Coordinator uptime, in seconds, when it was made and last heard of.
    """

    name: str
    acked: Position | None
    first: Position | None
    grant: int
    holder: dict[str, Any] | None
    required: bool
    created_up: float
    seen_up: float
    declared: Position | None
    stale: int

    @property
    def holds_first(self) -> bool:
        """True while the stored first position holds: nothing beyond it was acknowledged."""
        return self.acked is not None and self.first is not None and self.acked.n <= self.first.n


@dataclass
class _Live:
    """What is true of a subscription beside, and ahead of, its row."""

    acked_n: int
    positioned: bool
    grant: int
    seen_up: float
    dirty: bool = False  # an acknowledgement waits
    seen: bool = False  # only a sign of life waits: not worth a transaction of its own
    declared: Position | None = None
    stale: int = 0


class Subscriptions:
    """The subscriptions of one log. Acknowledgements stay in memory until :meth:`write`, all else is durable at once.

    Methods whose docstring says "inside a transaction" change memory too: call :meth:`reload` if it fails.
    """

    def __init__(self, database: Database, batches: Batches) -> None:
        self._db = database
        self._batches = batches
        self._live: dict[str, _Live] = {}
        self.reload()

    def reload(self) -> None:
        """Take the rows as they are; acknowledgements not written yet, and declared positions, are kept."""
        before, self._live = self._live, {}
        for row in self._db.all("SELECT name, acked_n, positioned, grant_no, seen_up FROM subscriptions"):
            live = _Live(row["acked_n"], bool(row["positioned"]), row["grant_no"], row["seen_up"])
            old = before.get(row["name"])
            if old is not None and old.grant == live.grant:
                live.declared, live.stale, live.dirty, live.seen = old.declared, old.stale, old.dirty, old.seen
                if old.dirty:
                    live.acked_n = max(live.acked_n, old.acked_n)
                    live.positioned = live.positioned or old.positioned
                live.seen_up = max(live.seen_up, old.seen_up)
            self._live[row["name"]] = live

    def all(self) -> list[Subscription]:
        """Return them, by name."""
        return [self._one(row) for row in self._db.all("SELECT * FROM subscriptions ORDER BY name")]

    def get(self, name: str) -> Subscription:
        """Return one.

        Raises:
            Fenced: it does not exist: it was dropped, or it expired.
        """
        row = self._db.one("SELECT * FROM subscriptions WHERE name = ?", name)
        if row is None:
            raise self._gone(name)
        return self._one(row)

    def exists(self, name: str) -> bool:
        """True when the subscription exists."""
        return name in self._live

    @property
    def dirty(self) -> bool:
        """True when something waits for :meth:`write`."""
        return any(live.dirty for live in self._live.values())

    def lowest_declared(self) -> int | None:
        """The lowest offset that a live holder declared."""
        return min((live.declared.n for live in self._live.values() if live.declared is not None), default=None)

    def declared_names(self) -> set[str]:
        """The subscriptions with a live holder."""
        return {name for name, live in self._live.items() if live.declared is not None}

    def create(self, name: str, *, required: bool, uptime: float) -> None:
        """Make it, at the tail, or only mark it as required. Inside a transaction."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"not a subscription name: {name!r}", name=name)
        tail_n = self._batches.tail_n()
        self._db.execute(
            "INSERT INTO subscriptions VALUES (?, ?, ?, NULL, 0, NULL, ?, ?, ?) ON CONFLICT(name) DO UPDATE "
            "SET required = max(required, excluded.required), positioned = max(positioned, excluded.positioned)",
            *(name, tail_n, int(required), int(required), uptime, uptime),
        )
        self.reload()

    def require(self, names: Iterable[str], *, uptime: float) -> None:
        """Make exactly these the required ones, creating those that are missing. Inside a transaction."""
        self._db.execute("UPDATE subscriptions SET required = 0")
        for name in names:
            self.create(name, required=True, uptime=uptime)

    def grant(self, name: str, holder: dict[str, Any], *, uptime: float) -> int:
        """Give the name to a new holder; return the grant's number. Inside a transaction."""
        live = self._known(name)
        number = live.grant + 1
        self._db.execute(
            "UPDATE subscriptions SET grant_no = ?, holder = ?, seen_up = ? WHERE name = ?",
            *(number, json.dumps(holder, sort_keys=True), uptime, name),
        )
        return number

    def granted(self, name: str, number: int, *, uptime: float) -> None:
        """Let a committed grant count: what the holder before declared is void."""
        live = self._known(name)
        live.grant, live.declared, live.seen_up = number, None, uptime

    def first_position(self, name: str, proposed: Position) -> Position | None:
        """Return the stored first position if it still holds, else None after storing ``proposed``.

        Stored means: the subscription stands there, forwards or backwards. Inside a transaction.
        """
        known = self.get(name)
        if known.holds_first:
            return known.first
        self._db.execute(
            "UPDATE subscriptions SET first = ?, acked_n = ?, positioned = 1 WHERE name = ?",
            *(json.dumps(proposed.to_json(), sort_keys=True), proposed.n, name),
        )
        return None

    def seek(self, name: str, position: Position) -> None:
        """Set the acknowledged position; the next first position is asked anew. Inside a transaction."""
        self._known(name)
        self._db.execute(
            "UPDATE subscriptions SET first = NULL, acked_n = ?, positioned = 1 WHERE name = ?", position.n, name
        )

    def moved(self, name: str, position: Position) -> None:
        """Let a committed :meth:`seek` or :meth:`first_position` count."""
        live = self._known(name)
        live.acked_n, live.positioned, live.dirty, live.declared = position.n, True, False, None

    def drop(self, name: str) -> bool:
        """Delete it; False when it did not exist. Inside a transaction."""
        self._db.execute("DELETE FROM slots WHERE name = ?", name)
        return self._db.execute("DELETE FROM subscriptions WHERE name = ?", name) > 0

    def acknowledge(self, name: str, grant: int, position: Position, *, uptime: float) -> bool:
        """Advance to ``position``, rounded down to whole batches; False when it is not ahead.

        Raises:
            Fenced: the grant is not the newest one, or the subscription is gone.
            DataLoss: the position is not of this log. One whose batches are removed already is no error.
        """
        live = self._held(name, grant)
        live.seen_up, live.seen = uptime, True
        if position.log != self._batches.log_id:
            raise self._batches.loss(position, "log")
        if live.declared is not None and live.declared.n < position.n:
            live.declared = Position(position.log, position.epoch, position.n)
        if position.n <= live.acked_n and live.positioned:
            if position.n < live.acked_n:
                live.stale += 1
            return False
        self._batches.check_origin(position)
        live.acked_n = position.n
        live.positioned = live.dirty = True
        return True

    def declare(self, name: str, grant: int, position: Position, *, uptime: float) -> None:
        """Note where the live holder reads.

        Raises:
            Fenced: as :meth:`acknowledge`.
            DataLoss: the position does not fit.
        """
        live = self._held(name, grant)
        self._batches.check(position)
        live.seen_up, live.seen, live.declared = uptime, True, position

    def check_grant(self, name: str, grant: int) -> None:
        """Check that a grant is the newest one.

        Raises:
            Fenced: it is not, or the subscription is gone.
        """
        self._held(name, grant)

    def drop_declared(self, name: str) -> None:
        """Forget what a holder declared that is not live any more."""
        if name in self._live:
            self._live[name].declared = None

    def touch(self, name: str, *, uptime: float) -> None:
        """Note a sign of life."""
        if name in self._live:
            live = self._live[name]
            live.seen_up, live.seen = uptime, True

    def write(self) -> None:
        """Write what is in memory only. Inside a transaction; :meth:`written` when that committed."""
        self._db.execute_many(
            "UPDATE subscriptions SET acked_n = max(acked_n, ?), positioned = max(positioned, ?), "
            "seen_up = max(seen_up, ?) WHERE name = ? AND grant_no = ?",
            [
                (live.acked_n, int(live.positioned), live.seen_up, name, live.grant)
                for name, live in self._live.items()
                if live.dirty or live.seen
            ],
        )

    def written(self) -> None:
        """Let a committed :meth:`write` count."""
        for live in self._live.values():
            live.dirty = live.seen = False

    def _one(self, row: Any) -> Subscription:
        live = self._live.get(row["name"]) or _Live(0, False, 0, 0.0)
        same = live.grant == row["grant_no"]
        acked_n = max(row["acked_n"], live.acked_n) if same else row["acked_n"]
        positioned = bool(row["positioned"]) or (same and live.positioned)
        return Subscription(
            name=row["name"],
            acked=self._batches.at(acked_n) if positioned else None,
            first=None if row["first"] is None else Position.from_json(json.loads(row["first"])),
            grant=row["grant_no"],
            holder=None if row["holder"] is None else _holder(row["holder"]),
            required=bool(row["required"]),
            created_up=row["created_up"],
            seen_up=max(row["seen_up"], live.seen_up),
            declared=live.declared,
            stale=live.stale,
        )

    def _known(self, name: str) -> _Live:
        live = self._live.get(name)
        if live is None:
            raise self._gone(name)
        return live

    def _held(self, name: str, grant: int) -> _Live:
        live = self._known(name)
        if grant != live.grant or grant == 0:
            raise Fenced(
                f"topic {self._batches.topic!r}: grant {grant} of subscription {name!r} is not valid, "
                f"the newest is {live.grant}",
                topic=self._batches.topic,
                name=name,
                grant=grant,
                newest=live.grant,
            )
        return live

    def _gone(self, name: str) -> Fenced:
        return Fenced(
            f"topic {self._batches.topic!r}: subscription {name!r} does not exist; it was dropped or expired",
            topic=self._batches.topic,
            name=name,
        )


def _holder(text: str) -> dict[str, Any]:
    """Return who held the name last; earlier versions stored whatever a reader said of its host."""
    known = json.loads(text)
    return {key: value[:MAX_HOST] if isinstance(value, str) else value for key, value in known.items()}
