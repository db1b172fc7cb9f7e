"""What host servers keep, by the catalog: how much, which of it is out of reach, and a last batch taken back."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass

from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.recovery import Recovery

PAGE = 10_000  # rows that one query returns


@dataclass(frozen=True)
class UnreadableBatch:
    """A batch that cannot be read as a whole; ``rows`` are all of its rows, ``hosts`` those that kept some of it."""

    n: int
    rows: int
    hosts: tuple[str, ...]


class HostSegments:
    """The host servers of one log. Changes run inside the caller's transaction."""

    def __init__(self, database: Database, batches: Batches) -> None:
        self._db = database
        self._batches = batches

    def write_token(self) -> str:
        """Return the secret of the log at host servers, random, made with the first call and kept for ever.

        With it a client can write, list and remove the log's files there
        (:func:`jobpipe.net.servers.write_tokens.log_place`).
        """
        self._db.execute("CREATE TABLE IF NOT EXISTS host_token(one INTEGER PRIMARY KEY CHECK (one = 1), token TEXT)")
        self._db.execute("INSERT OR IGNORE INTO host_token VALUES (1, ?)", secrets.token_hex(32))
        return str(self._db.value("SELECT token FROM host_token"))

    def kept(self) -> dict[str, dict[str, int]]:
        """Return segments and bytes by host id; costs the same for any number of batches."""
        rows = self._db.all("SELECT host, segments, bytes FROM kept ORDER BY host")
        return {row["host"]: {"segments": row["segments"], "bytes": row["bytes"]} for row in rows}

    def note(self, n: int) -> None:
        """Count a batch that was just entered."""
        for host, count, size in self._of(n, n + 1):
            self._db.execute(
                "INSERT INTO kept VALUES (?, ?, ?) ON CONFLICT(host) DO UPDATE SET "
                "segments = segments + excluded.segments, bytes = bytes + excluded.bytes",
                *(host, count, size),
            )

    def forget(self, first: int, end: int) -> set[str]:
        """Count batches out that are about to be deleted; return whose files are not needed any more."""
        found = self._of(first, end)
        for host, count, size in found:
            self._db.execute(
                "UPDATE kept SET segments = segments - ?, bytes = bytes - ? WHERE host = ?", count, size, host
            )
        self._db.execute("DELETE FROM kept WHERE segments <= 0")
        return {host for host, _, _ in found}

    def _of(self, first: int, end: int) -> list[tuple[str, int, int]]:
        rows = self._db.all(
            "SELECT host, count(*), sum(length) FROM segments WHERE host IS NOT NULL AND n >= ? AND n < ? "
            "GROUP BY host",
            *(first, end),
        )
        return [(row[0], row[1], row[2]) for row in rows]

    def lost(self, first: int, end: int, gone: Collection[str]) -> list[UnreadableBatch]:
        """Return the batches from ``first`` to ``end`` (exclusive) that have segments on hosts in ``gone``."""
        if not gone:
            return []
        marks = ", ".join("?" * len(gone))
        found: dict[int, UnreadableBatch] = {}
        after = (first - 1, "")
        while True:
            rows = self._db.all(
                "SELECT DISTINCT s.n, b.rows, s.host FROM segments s JOIN batches b ON b.n = s.n "  # noqa: S608 - marks
                f"WHERE s.host IN ({marks}) AND s.n >= ? AND s.n < ? AND (s.n, s.host) > (?, ?) "
                "ORDER BY s.n, s.host LIMIT ?",
                *(*gone, max(first, after[0]), end, *after, PAGE),
            )
            for row in rows:
                known = found.get(row["n"])
                hosts = (*(known.hosts if known else ()), row["host"])
                found[row["n"]] = UnreadableBatch(row["n"], row["rows"], hosts)
            if len(rows) < PAGE:
                return list(found.values())
            after = (rows[-1]["n"], rows[-1]["host"])

    def take_back(self, query_id: str, batch_id: int) -> None:
        """Undo the seal of the newest batch, so that its publisher may seal it again, under a higher epoch.

        Afterwards the log stands as one that was lost while this batch was sealed, see
        :mod:`jobpipe.store.catalog.recovery`: subscriptions that have the batch stay after it. Nothing else is sealed
        before it.
        """
        db, n = self._db, self._batches.next_n() - 1
        batch = self._batches.row(n)
        if batch is None or (batch["query_id"], batch["batch_id"]) != (query_id, batch_id):
            raise ValueError(f"batch {batch_id} of query {query_id} is not the newest one")
        start, end, division = self._batches.at(n), self._batches.at(n + 1), self._batches.division(n)
        self.forget(n, n + 1)
        db.execute("DELETE FROM segments WHERE n = ?", n)
        db.execute("DELETE FROM batches WHERE n = ?", n)
        db.execute("DELETE FROM shapes WHERE first_n >= ?", n)
        db.execute(
            "UPDATE meta SET next_n = ?, total_rows = total_rows - ?, total_bytes = total_bytes - ?",
            *(n, batch["rows"], batch["bytes"]),
        )
        db.execute("UPDATE epochs SET first_n = ? WHERE first_n > ?", n, n)
        if batch_id > 0:
            db.execute("UPDATE queries SET batch_id = ?, n = ?, run_id = '', write_id = NULL WHERE query_id = ?", *(
                batch_id - 1, n, query_id
            ))  # fmt: skip
        else:
            db.execute("DELETE FROM queries WHERE query_id = ?", query_id)
        Recovery(db, self._batches).take_back(start, end, query_id, batch_id, division)
