"""Durable positions of subscribers: grants, acknowledgements, first positions."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobpipe.errors import ConfigError, Fenced, SpoolError
from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.catalog.position import Position
from jobpipe.store.ledger.account_values import CountedCursor
from jobpipe.store.ledger.topic_ledger import TopicLedger
from jobpipe.store.subscriptions.hop_times import HopTimes, TimeHistogram
from jobpipe.store.subscriptions.low_watermark import LowWatermark
from jobpipe.store.subscriptions.subscription import StoredSubscription

log = logging.getLogger(__name__)

_UPTIME_STEP = 10.0  # seconds of uptime that a crash may forget; each flush would cost an fsync
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass
class _Live:
    """What is true of a subscription in addition to its row, or not yet in it."""

    acked_n: int
    positioned: bool
    grant: int
    seen_up: float
    acked_row: int | None = None  # the number of rows before acked_n, as the ledger counts them
    dirty: bool = False  # an acknowledgement waits
    seen: bool = False  # only a sign of life waits: not worth a transaction of its own
    declared: Position | None = None
    stale: int = 0
    hops: TimeHistogram = field(default_factory=TimeHistogram)


class Subscriptions:
    """The subscriptions of a log. Acknowledgements stay in memory until :meth:`flush`; all else is durable at once.

    Attributes:
        ledger: whether each of them has read what was published.
    """

    def __init__(self, database: Database, batches: Batches, clock: LogClock) -> None:
        self._db = database
        self._batches = batches
        self._clock = clock
        self._watermark = LowWatermark()
        self._live: dict[str, _Live] = {}
        self._hop_times = HopTimes(time.monotonic)
        self._spent = 0  # the highest grant of a name that was dropped: its reader may still be connected
        self.ledger = TopicLedger(database, batches, clock)
        self.reload()
        self.ledger.load(self._positions())

    def reload(self) -> None:
        """Take the rows as they are; acknowledgements not written yet, and declared positions, are kept."""
        before, self._live = self._live, {}
        for row in self._db.all("SELECT * FROM subscriptions"):
            live = _Live(row["acked_n"], bool(row["positioned"]), row["grant_no"], row["seen_up"])
            live.acked_row = row["acked_row"] if "acked_row" in row.keys() else None  # noqa: SIM118 - a row of SQLite
            old = before.get(row["name"])
            if old is not None:
                live.hops = old.hops
            if old is not None and old.grant == live.grant:
                live.declared, live.stale, live.dirty, live.seen = old.declared, old.stale, old.dirty, old.seen
                if old.dirty:
                    if old.acked_n >= live.acked_n:
                        live.acked_row = old.acked_row
                    live.acked_n = max(live.acked_n, old.acked_n)
                    live.positioned = live.positioned or old.positioned
                live.seen_up = max(live.seen_up, old.seen_up)
            self._live[row["name"]] = live
        # The rows may say less than was noted: after a reopen, what seemed to be acknowledged may not be.
        self._watermark.lower(self.acknowledged_n())
        self.ledger.begin_missing(self._positions())

    def _positions(self) -> dict[str, tuple[int, int | None]]:
        """The acknowledged offsets of those that have one, with the numbers of rows before them."""
        return {name: (live.acked_n, live.acked_row) for name, live in self._live.items() if live.positioned}

    def names(self) -> Collection[str]:
        """Return the names of all, in no order."""
        return self._live.keys()

    def owners(self) -> Counter[str]:
        """Return how many names each identity holds that :meth:`grant` was told of as ``owner``."""
        rows = self._db.all(
            "SELECT json_extract(holder, '$.owner') AS owner, count(*) AS names FROM subscriptions "
            "WHERE owner IS NOT NULL GROUP BY owner"
        )
        return Counter({row["owner"]: row["names"] for row in rows})

    def all(self) -> list[StoredSubscription]:
        at = functools.cache(self._batches.at)  # most stand at the same few places
        return [self._one(row, at) for row in self._db.all("SELECT * FROM subscriptions ORDER BY name")]

    def get(self, name: str) -> StoredSubscription:
        """Return one.

        Raises:
            Fenced: it does not exist: it was dropped, or it expired.
        """
        known = self.find(name)
        if known is None:
            raise self._gone(name)
        return known

    def find(self, name: str) -> StoredSubscription | None:
        """Return one, None where it does not exist."""
        row = self._db.one("SELECT * FROM subscriptions WHERE name = ?", name)
        return None if row is None else self._one(row, self._batches.at)

    def acknowledged_n(self) -> int:
        """The offset before which every subscription acknowledged all, and reads nothing; the head without one."""
        lowest = self._db.value("SELECT min(acked_n) FROM subscriptions")
        declared = min((live.declared.n for live in self._live.values() if live.declared is not None), default=None)
        known = [n for n in (lowest, declared) if n is not None]
        return min(known) if known else self._batches.next_n()

    def settled_n(self, grace: float) -> int:
        """The offset before which all is acknowledged for ``grace`` seconds, as far as this process has seen."""
        self._watermark.note(self._clock.uptime, self.acknowledged_n())
        return self._watermark.settled(self._clock.uptime, grace)

    def subscribe(self, name: str, *, required: bool = False) -> StoredSubscription:
        """Return the subscription, made if it is new: a required one stands at the tail, another nowhere yet.

        Until it stands somewhere, it holds all that is in the log now.
        """
        if required or name not in self._live:
            with self._changing():
                self._create(name, required=required)
                self.reload()
            self._watermark.lower(self._batches.tail_n())
        return self.get(name)

    def require(self, decide: Callable[[], frozenset[str]], *, only: str | None = None) -> frozenset[str]:
        """Make exactly those required that ``decide`` returns inside the transaction; create missing ones at the tail.

        Which they are is up to :class:`jobpipe.store.subscriptions.required_subscriptions.RequiredSubscriptions`.
        ``only``: no other missing one is created.
        """
        with self._changing():
            names = decide()
            self._db.execute("UPDATE subscriptions SET required = 0")
            for name in sorted(names):
                if only in (None, name) or name in self._live:
                    self._create(name, required=True)
            self.reload()
        self._watermark.lower(self._batches.tail_n())
        return names

    def grant(self, name: str, holder: dict[str, Any]) -> int:
        """Give the name to a new holder; return the grant's number. Older ones are refused from now on.

        What the holder before declared is void.

        Raises:
            Fenced: the subscription does not exist.
        """
        self.flush()
        with self._changing():
            number = self._known(name).grant + 1
            self._db.execute(
                "UPDATE subscriptions SET grant_no = ?, holder = ?, seen_up = ? WHERE name = ?",
                *(number, json.dumps(holder, sort_keys=True), self._clock.uptime, name),
            )
        live = self._known(name)
        live.grant, live.declared, live.seen_up = number, None, self._clock.uptime
        account = self.ledger.account(name)
        account.doubt()  # another reader, which may not count, or want other partitions
        account.wants(None)
        return number

    def first_position(self, name: str, proposed: Position) -> Position:
        """Return where a new checkpoint of the subscription begins.

        The answer is stored, and repeated while nothing beyond it was acknowledged. After that the question means a
        new checkpoint: ``proposed`` is stored, and the subscription stands there, also if it stood further on before.

        Raises:
            DataLoss: ``proposed`` does not fit.
            Fenced: the subscription does not exist.
        """
        self.flush()
        self._batches.check(proposed)
        known = self.get(name)
        if known.first is not None and known.holds_first:
            return known.first
        with self.ledger.account(name).moving(proposed.place), self._changing():
            self._move(name, proposed, first=proposed)
        self._moved(name, proposed)
        return proposed

    def seek(self, name: str, position: Position) -> None:
        """Set the acknowledged position, forwards or backwards; the next first position is asked again.

        Raises:
            DataLoss, Fenced: the position does not fit; the subscription does not exist.
        """
        self.flush()
        self._batches.check(position)
        self._known(name)
        with self.ledger.account(name).moving(position.place), self._changing():
            self._move(name, position, first=None)
        self._moved(name, position)

    def drop(self, name: str) -> bool:
        """Delete a subscription, required or not; False when it does not exist.

        Its grants stay invalid, also if the name is made again.
        """
        if (live := self._live.get(name)) is not None:
            self._spent = max(self._spent, live.grant)
        with self._changing():
            self._db.execute("DELETE FROM slots WHERE name = ?", name)
            dropped = self._db.execute("DELETE FROM subscriptions WHERE name = ?", name) > 0
            self.ledger.delete(name)
        self.ledger.forget(name)
        self.reload()
        return dropped

    def expire(self, seconds: float) -> list[str]:
        """Drop the subscriptions that were silent for so long, but no required and no live one; return their names."""
        expired = []
        for row in self._db.all("SELECT name, seen_up FROM subscriptions WHERE required = 0 ORDER BY name"):
            live = self._live.get(row["name"])
            seen_up = row["seen_up"] if live is None else max(row["seen_up"], live.seen_up)
            if (live is None or live.declared is None) and self._clock.uptime - seen_up > seconds:
                expired.append(row["name"])
        for name in expired:
            log.warning("topic %s: subscription %s expired after %.0f s of silence", self._batches.topic, name, seconds)
            self.drop(name)
        return expired

    def acknowledge(
        self,
        name: str,
        grant: int,
        position: Position,
        *,
        checked: bool = False,
        read: int | None = None,
        cursors: Sequence[CountedCursor] = (),
    ) -> bool:
        """Advance the acknowledged position, in memory until :meth:`flush`; False for a late or repeated one.

        Inside of a batch, the position counts as the batch's beginning.

        Args:
            name, grant: of the subscription, and of its holder.
            position: before which all is committed.
            checked: it is known to fit.
            read: rows that the holder has read before it since it has the name, where it counts itself.
            cursors: how far a flow is in each partition.

        Raises:
            Fenced: another grant is valid, or the subscription does not exist.
            DataLoss: the position is not of this log. One whose batches are removed already is no error.
        """
        live = self._held(name, grant)
        live.seen_up, live.seen = self._clock.uptime, True
        if position.log != self._batches.log_id:
            raise self._batches.loss(position, "log")
        if live.declared is not None and live.declared.n < position.n:
            live.declared = Position(position.log, position.epoch, position.n)
        if position.n < live.acked_n and live.positioned:
            live.stale += 1
            return False
        further = position.n > live.acked_n or not live.positioned
        if further and not checked:
            self._batches.check_origin(position)
        if cursors:
            self.ledger.account(name).commit_flow(position.place, cursors)
        else:
            self.ledger.account(name).commit(position.place, grant=grant, read=read)
        if not further:
            return False
        if live.positioned:
            self._hop_times.acknowledged(live.hops, live.acked_n, position.n)
        live.acked_n, live.acked_row = position.n, self.ledger.rows_before(position.n)
        live.positioned = live.dirty = True
        return True

    def declare(self, name: str, grant: int, position: Position, *, checked: bool = False) -> None:
        """Note where the live holder reads now: retention keeps it, until an acknowledgement passes it.

        ``checked``: the position is known to fit.

        Raises:
            Fenced: as :meth:`acknowledge`.
            DataLoss: the position does not fit.
        """
        live = self._held(name, grant)
        if not checked:
            self._batches.check(position)
        live.seen_up, live.seen, live.declared = self._clock.uptime, True, position
        self._watermark.lower(position.n)

    def check_grant(self, name: str, grant: int) -> None:
        """Check that a grant is the newest one.

        Raises:
            Fenced: it is not, or the subscription is gone.
        """
        self._held(name, grant)

    def drop_declared(self, name: str) -> None:
        """Forget the declared position: the holder is not live any more."""
        if name in self._live:
            self._live[name].declared = None

    def touch(self, name: str) -> None:
        """Note that the subscriber is alive; expiry counts from here."""
        if name in self._live:
            live = self._live[name]
            live.seen_up, live.seen = self._clock.uptime, True

    def flush(self, *, force: bool = False) -> None:
        """Write the acknowledgements that wait, and the uptime if much of it waits, or any with ``force``."""
        late = self._clock.unwritten
        if (
            self.ledger.is_dirty
            or any(live.dirty for live in self._live.values())
            or late >= _UPTIME_STEP
            or (force and late > 0)
        ):
            with self._changing():
                self.write()
            self.written()
        self._watermark.note(self._clock.uptime, self.acknowledged_n())

    def write(self) -> None:
        """Write what is in memory only, uptime included. Inside a transaction; :meth:`written` when that committed."""
        self._db.execute_many(
            "UPDATE subscriptions SET acked_n = max(acked_n, ?), acked_row = ?, positioned = max(positioned, ?), "
            "seen_up = max(seen_up, ?) WHERE name = ? AND grant_no = ?",
            [
                (live.acked_n, live.acked_row, int(live.positioned), live.seen_up, name, live.grant)
                for name, live in self._live.items()
                if live.dirty or live.seen
            ],
        )
        self._clock.write()
        self.ledger.write()

    def note_sealed(self, first: int) -> None:
        """Note that the batches from offset ``first`` on were sealed just now; never fails: they are sealed."""
        with contextlib.suppress(SpoolError):
            self._hop_times.sealed(first, self._batches.next_n())
            self.ledger.note_sealed()

    def written(self) -> None:
        """Let a committed :meth:`write` count."""
        self._clock.written()
        self.ledger.written()
        for live in self._live.values():
            live.dirty = live.seen = False

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        # What is in memory follows the rows, so a transaction that fails must not leave memory ahead of them.
        try:
            with self._db.write():
                yield
        except BaseException:
            with contextlib.suppress(SpoolError):
                self.reload()
            raise

    def _create(self, name: str, *, required: bool) -> None:
        """Make it, at the tail, or only mark it as required. Inside a transaction; :meth:`reload` after it."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"not a subscription name: {name!r}", name=name)
        uptime, tail_n = self._clock.uptime, self._batches.tail_n()
        unused = self._spent + 1 if self._spent else 0
        self._db.execute(
            "INSERT INTO subscriptions VALUES (?, ?, ?, NULL, ?, NULL, ?, ?, ?, NULL) ON CONFLICT(name) DO UPDATE "
            "SET required = max(required, excluded.required), positioned = max(positioned, excluded.positioned)",
            *(name, tail_n, int(required), unused, int(required), uptime, uptime),
        )

    def _move(self, name: str, position: Position, *, first: Position | None) -> None:
        """Set the acknowledged position and the first one. Inside a transaction; :meth:`_moved` when it committed."""
        self._db.execute(
            "UPDATE subscriptions SET first = ?, acked_n = ?, acked_row = ?, positioned = 1 WHERE name = ?",
            *(None if first is None else json.dumps(first.to_json(), sort_keys=True), position.n),
            *(self.ledger.rows_before(position.n), name),
        )
        self.ledger.write()

    def _moved(self, name: str, position: Position) -> None:
        live = self._known(name)
        live.acked_n, live.positioned, live.dirty, live.declared = position.n, True, False, None
        live.acked_row = self.ledger.rows_before(position.n)
        self.ledger.written()
        self._watermark.lower(position.n)

    def _one(self, row: Any, at: Callable[[int], Position]) -> StoredSubscription:
        live = self._live.get(row["name"]) or _Live(0, False, 0, 0.0)
        same = live.grant == row["grant_no"]
        acked_n = max(row["acked_n"], live.acked_n) if same else row["acked_n"]
        positioned = bool(row["positioned"]) or (same and live.positioned)
        return StoredSubscription(
            name=row["name"],
            acked=at(acked_n) if positioned else None,
            first=None if row["first"] is None else Position.from_json(json.loads(row["first"])),
            grant=row["grant_no"],
            holder=None if row["holder"] is None else json.loads(row["holder"]),
            required=bool(row["required"]),
            created_up=row["created_up"],
            seen_up=max(row["seen_up"], live.seen_up),
            declared=live.declared,
            stale=live.stale,
            hops=live.hops,
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
