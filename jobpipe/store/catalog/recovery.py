"""Where a topic goes on after its spool was lost, with ``acks=all``.

Before each seal the publisher's coordinator leaves a :class:`RecoveryPoint` in the registry. It says what every
required subscription has committed, since ``acks=all`` lets no batch begin before that, and which batch is about to be
sealed. A log made from it keeps the old log's id, so the subscribers' positions still mean something, and waits
for the publisher's first batch to learn which of two things is true:

* Spark offers the same batch again (``AGAIN``): some subscriptions may have committed it, others not. It gets its old
  offset. A subscription that had it already stands after it, at a position with the old epoch, and reads on from there.
* Spark offers another one (``READ``): then its predecessor is committed, so all required subscriptions have read it.
  The log goes on after it.

The spool may be lost more than once before a subscription moves on. So a point also carries the epochs under which
earlier copies of the log gave out the same two positions: each of them is still where its subscription says.

A position inside a batch does not tell of which copy of the batch it is. So plans do not cut a batch that was sealed
again. Flows do: their cursors before it, and inside it, have the epoch that sealed the batch itself.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from jobpipe.errors import RemoteProtocolError, SpoolError
from jobpipe.store.catalog.batches import APPENDERS, ONCE, Batches, LastSeal
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.position import Position

AGAIN, READ = "again", "read"
TAKEN_BACK = "taken back"  # and not sealed again yet: some subscription has not read it, so it cannot be left out
MAX_ALIASES = 16  # the newest; each stands for a loss of the spool at the same place
SEVERAL = "several"  # copies of a batch were lost, and not all of them were divided in one way
MAX_TEXT = 4096  # characters: the registry takes no more bytes from us
MAX_QUERIES = 4  # the newest of those with a checkpoint, and the newest runs, JOB:RUN, which may be repeated


@dataclass(frozen=True)
class RecoveryPoint:
    """A batch about to be sealed, and the ground it stands on.

    Attributes:
        log: The log's id.
        start_epoch, start_n: The position before the batch: all required subscriptions have committed it.
        end_epoch, end_n: The position after it; ``start_n`` again for a batch without rows.
        query_id, batch_id: Which batch; an empty query id for one that is never repeated.
        end_mark: It is an end mark.
        queries: The last sealed batch of other queries, as [query id, batch id].
        start_aliases, end_aliases: Earlier epochs of the two positions, from copies of the log that were lost.
        division: How the batch is divided, see :func:`jobpipe.store.catalog.batches.division_of`; "" where that is not
            known.
    """

    log: str
    start_epoch: int
    start_n: int
    end_epoch: int
    end_n: int
    query_id: str
    batch_id: int
    end_mark: bool = False
    queries: tuple[tuple[str, int], ...] = field(default=())
    start_aliases: tuple[int, ...] = field(default=())
    end_aliases: tuple[int, ...] = field(default=())
    division: str = ""

    def to_text(self) -> str:
        """Return it as JSON text."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def highest_epoch(self) -> int:
        """Of all epochs in it, which become the new log's."""
        return max(self.start_epoch, self.end_epoch, *self.start_aliases, *self.end_aliases)

    @classmethod
    def from_text(cls, text: str) -> RecoveryPoint:
        """Return what :meth:`to_text` wrote.

        Raises:
            RemoteProtocolError: ``text`` is anything else.
        """
        try:
            if len(text) > MAX_TEXT:
                raise ValueError(f"more than {MAX_TEXT} characters")
            value: dict[str, Any] = json.loads(text)
            lists = {key: tuple(value.get(key, ())) for key in ("start_aliases", "end_aliases")}
            point = cls(**{**value, **lists, "queries": tuple((str(q), int(b)) for q, b in value["queries"])})
            for epoch in (point.start_epoch, *point.start_aliases):
                Position.from_json({"log": point.log, "epoch": epoch, "n": point.start_n, "r": 0})
            for epoch in (point.end_epoch, *point.end_aliases):
                Position.from_json({"log": point.log, "epoch": epoch, "n": point.end_n, "r": 0})
            if max(map(len, lists.values())) > MAX_ALIASES:
                raise ValueError(f"more than {MAX_ALIASES} aliases")
            for query_id, batch_id in ((point.query_id, point.batch_id), *point.queries):
                query_id.encode()  # SQLite takes neither a lone surrogate nor a larger number
                if not -(2**63) <= batch_id < 2**63:
                    raise ValueError("a batch id has more than 64 bits")
            types = type(point.query_id), type(point.batch_id), type(point.end_mark), type(point.division)
            if types != (str, int, bool, str) or point.end_n not in (point.start_n, point.start_n + 1):
                raise ValueError("a field has a wrong type, or end_n is not start_n or the next")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"[:200]
            raise RemoteProtocolError(f"not a recovery point: {text[:200]!r} ({why})", value=text[:200]) from error
        return point


class Recovery:
    """What a catalog knows of having been made from a recovery point: its one row of ``restored``."""

    def __init__(self, database: Database, batches: Batches) -> None:
        self._db = database
        self._batches = batches

    @property
    def undecided(self) -> RecoveryPoint | None:
        """What the log was made from, while the publisher has not sealed anything since."""
        text = self._db.value("SELECT point FROM restored WHERE outcome IS NULL OR outcome = ?", TAKEN_BACK)
        return None if text is None else RecoveryPoint.from_text(text)

    def point(self) -> RecoveryPoint:
        """Return where the topic would go on if the spool were lost now."""
        undecided = self.undecided
        if undecided is not None:
            return undecided
        # The newest batch: as far as this catalog knows, some subscriptions have not read it.
        head = self._batches.head()
        newest = self._batches.row(head.n - 1)
        if newest is None:
            return self._point(head, head, "", -1)
        start = self._batches.at(head.n - 1)
        known: tuple[str, int] = newest["query_id"], newest["batch_id"]
        return self._point(
            *(start, head, *(("", -1) if known[0].startswith(APPENDERS) else known)),  # an appender repeats nothing
            end_mark=bool(newest["is_end"]),
            division=self._batches.division(start.n),
        )

    def before(
        self, query_id: str, batch_id: int, *, rows: bool, end_mark: bool, division: str = ""
    ) -> RecoveryPoint | None:
        """Return where the topic would go on if the spool were lost while a batch is being sealed.

        Args:
            query_id, batch_id: Which one.
            rows: It has some.
            end_mark: It is one.
            division: How it is divided.

        Returns:
            None for a batch that is sealed already: then nothing new is to be said.
        """
        last = self._batches.last_sealed(query_id) if query_id else None
        if last is not None and batch_id <= last.batch_id:
            return None
        start, waited_for = self._batches.head(), self.undecided
        if waited_for is not None and (query_id, batch_id) != (waited_for.query_id, waited_for.batch_id):
            start = Position(start.log, waited_for.end_epoch, waited_for.end_n)
        end = Position(start.log, self._db.epoch, start.n + 1) if rows or end_mark else start
        return self._point(start, end, query_id, batch_id, end_mark=end_mark, division=division)

    def _point(
        self,
        start: Position,
        end: Position,
        query_id: str,
        batch_id: int,
        *,
        end_mark: bool = False,
        division: str = "",
    ) -> RecoveryPoint:
        lost = self._lost_division(end.n)
        if lost is not None and lost != division:
            division = SEVERAL if lost and division else ""
        others = [
            row
            for kind in (
                "once_up IS NULL",
                f"query_id GLOB '{ONCE}*:*' AND query_id NOT GLOB '{APPENDERS}*'",
            )
            for row in self._db.all(
                f"SELECT query_id, batch_id FROM queries WHERE query_id != ? AND {kind} ORDER BY n DESC LIMIT ?",  # noqa: S608 - constants
                *(query_id, MAX_QUERIES),
            )
        ]
        return RecoveryPoint(
            log=start.log,
            start_epoch=start.epoch,
            start_n=start.n,
            start_aliases=self._aliases(start),
            end_aliases=self._aliases(end),
            end_epoch=end.epoch,
            end_n=end.n,
            query_id=query_id,
            batch_id=batch_id,
            end_mark=end_mark,
            queries=tuple((row["query_id"], row["batch_id"]) for row in others),
            division=division,
        )

    def _lost_division(self, end_n: int) -> str | None:
        """Return how the batch before ``end_n`` was divided in copies of the log that were lost; None without one."""
        text = self._db.value("SELECT point FROM restored WHERE end_n = ?", end_n)
        return None if text is None else RecoveryPoint.from_text(text).division

    def divided_again(self, n: int, partitions: int) -> bool:
        """Tell whether batch ``n``, which was sealed again, has other rows in its partitions than before.

        Args:
            n: The batch, which is there.
            partitions: How many it had, as far as the reader knows: it is gone by that where nothing better is known.
        """
        lost, shape = self._lost_division(n + 1), self._batches.shape(n)
        if lost:
            return self._batches.division(n) != lost
        return shape is not None and shape.partitions != partitions

    def _aliases(self, position: Position) -> tuple[int, ...]:
        """Return the other epochs that a position had in copies of the log that were lost; the newest last."""
        known = set(self._epochs_of(position.n)) - {position.epoch}
        return tuple(sorted(known)[-MAX_ALIASES:])

    def _epochs_of(self, n: int) -> tuple[int, ...]:
        row = self._db.one("SELECT * FROM restored")
        if row is None or n not in (row["start_n"], row["end_n"]):
            return ()
        point = RecoveryPoint.from_text(row["point"])
        if n == point.end_n:
            return (point.end_epoch, *point.end_aliases)
        return (point.start_epoch, *point.start_aliases)

    def begin(self, point: RecoveryPoint) -> None:
        """Put an empty catalog where ``point`` says. Inside a transaction; may be repeated until an epoch is taken."""
        db = self._db
        for table in ("epochs", "queries", "restored"):
            db.execute(f"DELETE FROM {table}")  # noqa: S608 - constants
        db.execute(
            "UPDATE meta SET log_id = ?, next_n = ?, epoch = ?",
            *(point.log, point.start_n, max(point.start_epoch, point.end_epoch)),
        )
        if point.start_n > 0:
            db.execute("INSERT INTO epochs VALUES (?, ?, '', 0)", point.start_epoch, point.start_n - 1)
        last = [*point.queries, *([(point.query_id, point.batch_id - 1)] if point.batch_id > 0 else [])]
        for query_id, batch_id in last:
            self._batches.note_sealed(query_id, LastSeal(batch_id, point.start_n, "", None))
        self._wait_for(point, None if point.end_n > point.start_n else READ)

    def take_back(self, start: Position, end: Position, query_id: str, batch_id: int, division: str) -> None:
        """Wait for the newest batch again, which was sealed and is being undone. Inside a transaction."""
        self._wait_for(self._point(start, end, query_id, batch_id, division=division), TAKEN_BACK)

    def _wait_for(self, point: RecoveryPoint, outcome: str | None) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO restored VALUES (1, ?, ?, ?, ?, ?)",
            *(point.start_n, point.end_epoch, point.end_n, point.to_text(), outcome),
        )

    def decide(self, query_id: str, batch_id: int) -> RecoveryPoint | None:
        """Learn, from the first batch that the publisher seals since, what became of the batch that was under way.

        Inside the transaction that seals, before it.

        Returns:
            The point, None when all was decided before.

        Raises:
            SpoolError: another batch comes than the one that was taken back, and that one is not read by all.
        """
        point = self.undecided
        if point is None:
            return None
        db = self._db
        again = point.end_mark or (query_id == point.query_id != "" and batch_id == point.batch_id)
        if not again and db.value("SELECT outcome FROM restored") == TAKEN_BACK:
            raise SpoolError(
                f"topic {self._batches.topic!r}: batch {point.batch_id} of query {point.query_id}, at offset "
                f"{point.start_n}, was partly on a lost host server, and not every subscription has read it: "
                "it must be published again before anything else. Start that query again with its checkpoint",
                topic=self._batches.topic,
                offset=point.start_n,
                query_id=point.query_id,
                batch_id=point.batch_id,
            )
        db.execute("UPDATE restored SET outcome = ?", AGAIN if again else READ)
        if again:
            return point
        db.execute(
            "UPDATE epochs SET first_n = ? WHERE first_n = ? AND epoch > ?",
            *(point.end_n, point.start_n, point.end_epoch),
        )
        db.execute("INSERT OR IGNORE INTO epochs VALUES (?, ?, '', 0)", point.end_epoch, point.start_n)
        db.execute("UPDATE meta SET next_n = ?", point.end_n)
        self._batches.note_sealed(point.query_id, LastSeal(point.batch_id, point.end_n, "", None))
        db.execute("UPDATE subscriptions SET acked_n = ? WHERE acked_n = ?", point.end_n, point.start_n)
        return point

    def resolve(self, position: Position) -> Position | None:
        """Return ``position`` as this log counts it; None if it lies after the batch that is still waited for."""
        n = position.n
        if position.log != self._batches.log_id or position.r:
            return position
        if position.epoch in self._epochs_of(n):
            row = self._db.one("SELECT end_n, outcome FROM restored")
            waited_for = row is not None and row["end_n"] == n and row["outcome"] not in (AGAIN, READ)
            return None if waited_for else self._batches.at(n)
        if position.epoch == self._batches.epoch_before(n):
            return position
        own = (self._batches.epoch_before(n + 1),) if n < self._batches.next_n() else ()
        return self._batches.at(n) if position.epoch in (*own, *self._epochs_of(n + 1)) else position
