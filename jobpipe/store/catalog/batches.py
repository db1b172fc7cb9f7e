"""Queries about the sealed batches, for the log and for readers alike. Each costs O(log n), or one batch."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

from jobpipe.errors import DataLoss, SpoolError
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.position import Position, prefix
from jobpipe.store.spool.segment_index import SegmentIndex

ONCE = "once:"  # begins the ids of queries that publish in one process, or one run, and never come again
APPENDERS = f"{ONCE}append:"  # begins the ids of appenders: who publish next to a topic's publisher
APPENDERS_KEPT = 10_000


@dataclass(frozen=True)
class LogDivision:
    """What all batches of a part of the log share; ``next_n`` is where the next part begins, if there is one."""

    first_n: int
    next_n: int | None
    partitions: int
    partitioner: str
    schema_id: int | None


@dataclass(frozen=True)
class LastSeal:
    """The last sealed batch of one query.

    Attributes:
        n: The offset after it.
        note: What its publisher stored with it, such as where its source goes on; None for nothing.
    """

    batch_id: int
    n: int
    run_id: str
    write_id: str | None
    note: bytes | None = None


@dataclass(frozen=True)
class NewestSeal:
    """The last batch that any query sealed; ``n`` is the offset after it."""

    query_id: str
    batch_id: int
    n: int


@dataclass(frozen=True)
class RecordBatchSizes:
    """(rows, bytes) of each record batch of one batch, per partition."""

    partitions: tuple[tuple[tuple[int, int], ...], ...]

    def counts(self) -> list[int]:
        """Record batches per partition."""
        return [len(parts) for parts in self.partitions]

    def in_order(self) -> list[tuple[int, int]]:
        """(rows, bytes) in the order in which ``r`` counts."""
        depth = max(self.counts(), default=0)
        return [parts[level] for level in range(depth) for parts in self.partitions if level < len(parts)]

    def rows_before(self, r: int) -> list[int]:
        """Rows of the first ``r`` record batches, per partition."""
        taken = prefix(self.counts(), r)
        return [sum(rows for rows, _ in parts[:count]) for parts, count in zip(self.partitions, taken, strict=True)]

    def before(self, r: int) -> tuple[int, int]:
        """Rows and bytes of the first ``r`` record batches."""
        taken = prefix(self.counts(), r)
        chosen = [part for parts, count in zip(self.partitions, taken, strict=True) for part in parts[:count]]
        return sum(rows for rows, _ in chosen), sum(size for _, size in chosen)


NO_ROWS = "no rows"
"""How a batch without rows is divided, such as an end mark."""


def division_of(partitions: int, partitioner: str, segments: Iterable[tuple[int, int, bytes]]) -> str:
    """Return what tells whether a batch that is published twice has the same rows in each partition both times.

    A hash looks at nothing but the row, so that numbers of rows are enough: their order may be another one. Else the
    bytes are compared too.

    Args:
        partitions, partitioner: of the batch.
        segments: partition, rows and packed index of each, in order.
    """
    segments = list(segments)
    if not segments:
        return NO_ROWS
    rows: Counter[int] = Counter()
    indexes: list[tuple[int, int]] = []
    for partition, count, index in sorted(segments, key=itemgetter(0)):
        rows[partition] += count
        if not partitioner.startswith("hash("):
            indexes.append((partition, zlib.crc32(index)))  # it has the checksums of the bytes
    text = json.dumps([partitions, partitioner, sorted(rows.items()), indexes])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Batches:
    """The batches of one catalog, as of now or of the transaction around the call."""

    def __init__(self, database: Database, topic: str) -> None:
        self._db = database
        self.topic = topic
        self.log_id = str(database.value("SELECT log_id FROM meta"))

    def head(self) -> Position:
        """The position after the newest batch."""
        return self.at(self.next_n())

    def tail(self) -> Position:
        """The earliest position that can be read; the head when there is no batch."""
        return self.at(self.tail_n())

    def next_n(self) -> int:
        """The offset that the next batch will get."""
        return int(self._db.value("SELECT next_n FROM meta"))

    def tail_n(self) -> int:
        """The lowest offset whose batch is there; the next one's when there is none."""
        lowest = self._db.value("SELECT min(n) FROM batches")
        return self.next_n() if lowest is None else int(lowest)

    def at(self, n: int, r: int = 0) -> Position:
        """The position at offset ``n``, with the epoch that belongs to it."""
        return Position(self.log_id, self.epoch_before(n), n, r)

    def epoch_before(self, n: int) -> int:
        """The epoch that sealed batch ``n - 1``, also if it is removed; 0 for none, and for what is forgotten."""
        if n <= 0:
            return 0
        found = self._db.value(
            "SELECT epoch FROM epochs WHERE first_n < ? ORDER BY first_n DESC, epoch DESC LIMIT 1", n
        )
        return 0 if found is None else int(found)

    def sealed_ms(self, n: int) -> int:
        """The publish time of batch ``n``, which must be there: milliseconds since 1970."""
        return int(self._db.value("SELECT sealed_ms FROM batches WHERE n = ?", n))

    def removed_ms(self) -> int:
        """Return when the newest removed batch was published, in milliseconds since 1970; 0: none was removed."""
        return int(self._db.value("SELECT removed_ms FROM meta"))

    def time_floor(self) -> int:
        """No batch to come is published before this; the newest one's publish time, or later."""
        return int(self._db.value("SELECT sealed_ms FROM meta"))

    def raise_time_floor(self, ms: int) -> None:
        """Let no batch to come be published before ``ms``. Inside a transaction."""
        self._db.execute("UPDATE meta SET sealed_ms = max(sealed_ms, ?)", ms)

    def newest_ms(self) -> int | None:
        """The publish time of the newest batch; where it was removed, of none later; None if there never was one."""
        newest = self._db.value("SELECT sealed_ms FROM batches ORDER BY n DESC LIMIT 1")
        if newest is None and self.next_n() > 0:
            newest = self.time_floor() or None
        return None if newest is None else int(newest)

    def last_sealed(self, query_id: str) -> LastSeal | None:
        """The last sealed batch of a query; permanent, also for a batch without rows."""
        row = self._db.one("SELECT batch_id, n, run_id, write_id, note FROM queries WHERE query_id = ?", query_id)
        return None if row is None else LastSeal(**row)

    def note_sealed(self, query_id: str, last: LastSeal) -> None:
        """Note what a query has sealed last. Inside a transaction."""
        self._db.execute(
            "INSERT OR REPLACE INTO queries SELECT ?, ?, ?, ?, ?, CASE WHEN ? THEN uptime END, ? FROM meta",
            *(query_id, last.batch_id, last.n, last.run_id, last.write_id, query_id.startswith(ONCE), last.note),
        )

    def require_room_for_appender(self, query_id: str) -> None:
        """See that an appender's id may be remembered. One is forgotten a week after its last batch.

        Raises:
            SpoolError: too many are.
        """
        ids = f"query_id GLOB '{APPENDERS}*'"
        known = int(self._db.value(f"SELECT count(*) FROM queries WHERE {ids} AND query_id != ?", query_id))  # noqa: S608
        if known >= APPENDERS_KEPT:
            raise SpoolError(
                f"topic {self.topic!r}: {known} redrives and replays published to it in the last days, and no more are "
                "remembered, so that none publishes twice; nothing of this batch was published. Try again in some days",
                topic=self.topic,
            )

    def newest_query(self) -> NewestSeal | None:
        """Which query sealed last.

        Appenders are left out: they say nothing about the checkpoint of the topic's publisher.
        """
        # Each seal writes the row of its query again, with a new rowid.
        row = self._db.one(
            f"SELECT query_id, batch_id, n FROM queries WHERE query_id NOT GLOB '{APPENDERS}*' "  # noqa: S608 - a constant
            "ORDER BY rowid DESC LIMIT 1"
        )
        return None if row is None else NewestSeal(**row)

    def is_newest(self, query_id: str, batch_id: int) -> bool:
        """True for the newest batch of the log."""
        newest = self.row(self.next_n() - 1)
        return newest is not None and (newest["query_id"], newest["batch_id"]) == (query_id, batch_id)

    def ended(self) -> bool:
        """True when the newest batch is an end mark."""
        return bool(self._db.value("SELECT ended FROM meta"))

    def used_bytes(self) -> int:
        """Bytes of the segments of all batches that are there."""
        total = int(self._db.value("SELECT total_bytes FROM meta"))
        return total - self.before(self.tail_n())[1]

    def before(self, n: int) -> tuple[int, int]:
        """Rows and bytes of all batches before ``n``, removed ones included."""
        row = self._db.one("SELECT cum_rows - rows, cum_bytes - bytes FROM batches WHERE n = ?", n)
        if row is None and n > 0:
            row = self._db.one("SELECT cum_rows, cum_bytes FROM batches WHERE n = ?", n - 1)
        if row is None and n < self.next_n():
            row = self._db.one(
                "SELECT cum_rows - rows, cum_bytes - bytes FROM batches WHERE n > ? ORDER BY n LIMIT 1", n
            )
        if row is None:
            row = self._db.one("SELECT total_rows, total_bytes FROM meta")
        assert row is not None  # noqa: S101 - meta has one row
        return int(row[0]), int(row[1])

    def rows_before(self, n: int) -> int | None:
        """Rows of all batches before ``n``, removed ones included; None where neither ``n`` nor ``n - 1`` is there."""
        if n <= 0:
            return 0
        row = self._db.one("SELECT n, rows, cum_rows FROM batches WHERE n IN (?, ?) ORDER BY n LIMIT 1", n - 1, n)
        if row is not None:
            return int(row["cum_rows"] if row["n"] < n else row["cum_rows"] - row["rows"])
        total = self._db.one("SELECT next_n, total_rows FROM meta")
        return int(total["total_rows"]) if total is not None and total["next_n"] == n else None

    def shape(self, n: int) -> LogDivision | None:
        """The shape that batch ``n`` has; None when no batch was sealed yet."""
        row = self._db.one("SELECT * FROM shapes WHERE first_n <= ? ORDER BY first_n DESC LIMIT 1", n)
        if row is None:
            return None
        following = self._db.value("SELECT first_n FROM shapes WHERE first_n > ? ORDER BY first_n LIMIT 1", n)
        return LogDivision(row["first_n"], following, row["partitions"], row["partitioner"], row["schema_id"])

    def parallelism(self) -> int:
        """The partitions of the newest batch; 1 while there is none."""
        shape = self.shape(self.next_n())
        return 1 if shape is None else shape.partitions

    def most_partitions(self) -> int:
        """The most partitions of a batch that is there; 1 while there is none."""
        return int(self._db.value("SELECT max(partitions) FROM shapes") or 1)

    def is_end(self, n: int) -> bool:
        """True when batch ``n`` is there and is an end mark."""
        return bool(self._db.value("SELECT is_end FROM batches WHERE n = ?", n))

    def counts(self, n: int) -> list[int]:
        """The record batches of batch ``n`` in each partition."""
        shape = self.shape(n)
        counts = [0] * (shape.partitions if shape else 0)
        for row in self._db.all(
            "SELECT partition, sum(record_batches) FROM segments WHERE n = ? GROUP BY partition", n
        ):
            counts[row[0]] = row[1]
        return counts

    def parts(self, n: int) -> RecordBatchSizes:
        """The record batches of batch ``n`` with their sizes."""
        shape = self.shape(n)
        found: list[list[tuple[int, int]]] = [[] for _ in range(shape.partitions if shape else 0)]
        for row in self._db.all("SELECT partition, idx FROM segments WHERE n = ? ORDER BY partition, ordinal", n):
            index = SegmentIndex.unpack(row["idx"])
            found[row["partition"]] += [(rows, index.cost(number)) for number, (rows, _) in enumerate(index.batches)]
        return RecordBatchSizes(tuple(tuple(parts) for parts in found))

    def division(self, n: int) -> str:
        """How batch ``n`` is divided, as :func:`division_of` says it."""
        shape = self.shape(n)
        rows = self._db.all("SELECT partition, rows, idx FROM segments WHERE n = ? ORDER BY partition, ordinal", n)
        partitions, partitioner = (shape.partitions, shape.partitioner) if shape else (0, "")
        return division_of(partitions, partitioner, ((row[0], row[1], row[2]) for row in rows))

    def partition_rows(self, first: int, stop: int, *, limit: int) -> list[tuple[int, int, int]] | None:
        """(offset, partition, rows) of the batches from ``first`` to before ``stop``; None for more than ``limit``."""
        rows = self._db.all(
            "SELECT n, partition, sum(rows) FROM segments WHERE n >= ? AND n < ? GROUP BY n, partition LIMIT ?",
            *(first, stop, limit + 1),
        )
        return None if len(rows) > limit else [(row[0], row[1], row[2]) for row in rows]

    def sizes(self, first: int, stop: int) -> list[tuple[int, dict[int, tuple[int, int]]]]:
        """(rows, record batches) by partition of each batch from ``first`` to ``stop`` (exclusive) that has rows."""
        found: dict[int, dict[int, tuple[int, int]]] = {}
        for n, partition, rows, count in self._db.all(
            "SELECT n, partition, sum(rows), sum(record_batches) FROM segments WHERE n >= ? AND n < ? "
            "GROUP BY n, partition ORDER BY n, partition",
            first,
            stop,
        ):
            found.setdefault(n, {})[partition] = (rows, count)
        return list(found.items())

    def check(self, position: Position) -> None:
        """Check that reading can go on at ``position``.

        Raises:
            DataLoss: it does not fit. ``fields["reason"]``: ``log`` (another log), ``beyond head``, ``epoch`` (the
                batch before it was sealed by another epoch: the spool is an older or a newer copy), ``removed``,
                ``beyond batch`` (batch ``n`` has no record batch ``r``), or ``sealed again`` (the spool was lost, see
                :mod:`jobpipe.store.catalog.recovery`, while this batch was being read).
        """
        self.check_origin(position)
        if position.n < self.tail_n():
            raise self.loss(position, "removed")
        if position.r > 0 and self.sealed_again(position.n):
            raise self.loss(position, "sealed again")
        if position.r > 0 and position.r >= sum(self.counts(position.n)):
            raise self.loss(position, "beyond batch")

    def check_origin(self, position: Position) -> None:
        """Check that this log has, or had, what lies before ``position``, as far as it remembers.

        Raises:
            DataLoss: as :meth:`check`, for ``log``, ``beyond head``, ``epoch`` and ``sealed again``.
        """
        if position.log != self.log_id:
            raise self.loss(position, "log")
        head_n = self.next_n()
        if position.n > head_n or (position.n == head_n and position.r > 0):
            raise self.loss(position, self._or_sealed_again(position, "beyond head"))
        sealed_by = self.epoch_before(position.n)
        if position.epoch != sealed_by and not (position.n > 0 and sealed_by == 0):
            raise self.loss(position, self._or_sealed_again(position, "epoch"))

    def _or_sealed_again(self, position: Position, reason: str) -> str:
        old = self.sealed_again(position.n - 1) and position.epoch < self.epoch_before(position.n)
        return "sealed again" if old else reason

    def loss(self, position: Position, reason: str, *, flow: str = "") -> DataLoss:
        """Return the error for a position that does not fit; ``flow``: of which flow job it is."""
        earliest, head = self.tail(), self.head()
        place = f"{position.n}.{position.r}" if position.r else str(position.n)
        reset = f"`jobpipe topics flows reset {flow}` lets it start over"
        texts = {
            "log": f"it is of log {position.log}, but the topic's log is {self.log_id}",
            "epoch": f"epoch {self.epoch_before(position.n)} sealed the batch before it, not epoch {position.epoch}",
            "removed": f"batches {position.n} to {earliest.n - 1} are missing",
            "beyond head": f"the log ends at offset {head.n}; begin there or earlier",
            "beyond batch": f"batch {position.n} has fewer record batches than {position.r + 1}",
            "sealed again": "the spool was lost while this batch was read, and its rows may now be in other record "
            "batches; start the query again: it reads the whole batch again",
            "divided again": "the spool was lost while this batch was read, and the batch was published again with "
            f"other rows in its partitions, some of which the flow had finished already; {reset}",
            "half done": "the spool was lost while the flow had done a part of this batch, and its rows may now be in "
            f"other record batches; {reset}",
        }
        return DataLoss(
            f"topic {self.topic!r}: position {place} does not fit: {texts[reason]}",
            topic=self.topic,
            reason=reason,
            position=position.to_json(),
            log=self.log_id,
            earliest=earliest.to_json(),
            head=head.to_json(),
        )

    def sealed_again(self, n: int) -> bool:
        """True for the batch that an earlier copy of this log, lost by now, had too."""
        return self.sealed_again_n() == n

    def sealed_again_n(self) -> int | None:
        """The offset of the batch that an earlier copy of this log, lost by now, had too; None for none."""
        row = self._db.one("SELECT start_n, outcome FROM restored")
        return None if row is None or row["outcome"] == "read" else int(row["start_n"])

    def row(self, n: int) -> sqlite3.Row | None:
        """The catalog's row of batch ``n``."""
        return self._db.one("SELECT * FROM batches WHERE n = ?", n)
