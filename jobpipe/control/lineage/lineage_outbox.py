"""What the server remembers of lineage, in a SQLite file of its own: events that wait, and runs that have not ended.

The file may be lost: then events that wait are lost, and runs of that moment begin again, with new ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobpipe.errors import StoreError

FORMAT = 1
MOST_EVENTS = 10_000  # that wait
MOST_BYTES = 64 << 20  # of these
MOST_AGE_SECONDS = 3 * 86_400.0
_BUSY_SECONDS = 10.0
_RUNNING = "RUNNING"
_TABLES = """
CREATE TABLE read (event INTEGER NOT NULL) STRICT;
CREATE TABLE runs (
    run TEXT PRIMARY KEY, id TEXT NOT NULL, pipeline TEXT NOT NULL, job TEXT NOT NULL, version INTEGER NOT NULL,
    lower TEXT, upper TEXT, began REAL NOT NULL, told REAL NOT NULL, before TEXT NOT NULL
) STRICT;
CREATE TABLE waiting (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, kind TEXT NOT NULL, since REAL NOT NULL,
    size INTEGER NOT NULL, event TEXT NOT NULL
) STRICT;
CREATE INDEX waiting_of_run ON waiting (id, kind);
CREATE INDEX waiting_since ON waiting (since);
CREATE INDEX waiting_size ON waiting (kind, number, size);
"""


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run that was told to begin, and not to end. Times are seconds since 1970.

    Attributes:
        run: the server's id; ``id`` is OpenLineage's.
        version: of the pipeline's file with which its newest attempt began.
        lower, upper: its bounds, as the server has them.
        told: when an event of it was made last.
        before: of topics that it publishes, as they were when it began: log, rows and bytes.
    """

    run: str
    id: str
    pipeline: str
    job: str
    version: int
    lower: str | None
    upper: str | None
    began: float
    told: float
    before: Mapping[str, tuple[str, int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class WaitingEvent:
    """An event that is to be sent, as JSON; ``number`` is its place in the order."""

    number: int
    text: str


class LineageOutbox:
    """One file. Methods may be called from any thread.

    Args:
        clock: seconds since 1970.
        dropped: called with the number of events that were dropped, and why.

    Raises:
        StoreError: by each method: the file cannot be read or written, or is none of ours.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        dropped: Callable[[int, str], None] = lambda count, why: None,
    ) -> None:
        self.path = path
        self._clock = clock
        self._dropped = dropped
        self._lock = threading.RLock()
        self._depth = 0
        with self._mapped():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        with self._mapped():
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
        with self.write():
            found = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            if found == 0:
                for statement in _TABLES.split(";"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {FORMAT}")
            elif found != FORMAT:
                raise StoreError(
                    f"{self.path} has format {found}, this version of jobpipe knows {FORMAT}: move the file away; "
                    "lineage events that wait in it are lost, and active runs get new ids",
                    file=str(self.path),
                )

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.close()

    @contextlib.contextmanager
    def write(self) -> Iterator[None]:
        """Make the changes inside as one, durable when it returns; on any error none of them. May be nested."""
        with self._lock, self._mapped():
            if self._depth:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            self._depth = 1
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._depth = 0

    # -- what was read of the server's events --------------------------------------------------------------------------

    def last_event(self) -> int | None:
        """Return the last event of the server of which all that it means is here; None before the first."""
        row = self._one("SELECT event FROM read")
        return None if row is None else int(row["event"])

    def note_event(self, event: int) -> None:
        """Store that an event of the server was read."""
        with self.write():
            self._connection.execute("DELETE FROM read")
            self._connection.execute("INSERT INTO read VALUES (?)", (event,))

    # -- runs ----------------------------------------------------------------------------------------------------------

    def open_runs(self) -> list[OpenRun]:
        """Return all, by the times of their last events, the oldest first."""
        return [_run(row) for row in self._all("SELECT * FROM runs ORDER BY told, run")]

    def open_run(self, run: str) -> OpenRun | None:
        """Return one by the server's id; None if it was not told to begin, or has ended."""
        row = self._one("SELECT * FROM runs WHERE run = ?", run)
        return None if row is None else _run(row)

    def put_run(self, run: OpenRun) -> None:
        """Add it, or change it."""
        values = {**vars(run), "before": json.dumps(dict(run.before))}
        marks = ", ".join(f":{name}" for name in values)
        with self.write():
            self._connection.execute(
                f"INSERT OR REPLACE INTO runs ({', '.join(values)}) VALUES ({marks})",  # noqa: S608
                values,
            )

    def remove_run(self, run: str) -> None:
        """Forget it: it has ended."""
        with self.write():
            self._connection.execute("DELETE FROM runs WHERE run = ?", (run,))

    # -- events that wait ----------------------------------------------------------------------------------------------

    def add(self, id_: str, kind: str, text: str) -> None:
        """Let an event be sent. Of what says that a run goes on, only the newest of each run waits.

        Where too many wait, what says that a run goes on is dropped first, then the oldest.

        Args:
            id_: of the run, OpenLineage's.
            kind: START, RUNNING, COMPLETE, FAIL or ABORT.
            text: JSON.
        """
        with self.write():
            if kind == _RUNNING:
                self._connection.execute("DELETE FROM waiting WHERE id = ? AND kind = ?", (id_, _RUNNING))
            row = (id_, kind, self._clock(), len(text), text)
            self._connection.execute("INSERT INTO waiting (id, kind, since, size, event) VALUES (?, ?, ?, ?, ?)", row)
            dropped = 0
            while (size := self.waiting())[0] > MOST_EVENTS or size[1] > MOST_BYTES:
                dropped += self._connection.execute(
                    "DELETE FROM waiting WHERE number = coalesce("
                    "(SELECT min(number) FROM waiting WHERE kind = ?), (SELECT min(number) FROM waiting))",
                    (_RUNNING,),
                ).rowcount
        if dropped:
            self._dropped(dropped, f"more than {MOST_EVENTS} events, or {MOST_BYTES >> 20} MiB, wait")

    def waiting(self) -> tuple[int, int]:
        """Return how many events wait, and their characters."""
        row = self._one("SELECT count(*), coalesce(sum(size), 0) FROM waiting")
        return (0, 0) if row is None else (int(row[0]), int(row[1]))

    def oldest(self) -> WaitingEvent | None:
        """Return the event that is to be sent next; None if none waits. Those that are too old are dropped."""
        with self.write():
            too_old = self._clock() - MOST_AGE_SECONDS
            dropped = self._connection.execute("DELETE FROM waiting WHERE since < ?", (too_old,)).rowcount
        if dropped:
            self._dropped(dropped, f"they waited longer than {MOST_AGE_SECONDS / 86_400:.0f} days")
        row = self._one("SELECT number, event FROM waiting ORDER BY number LIMIT 1")
        return None if row is None else WaitingEvent(row["number"], row["event"])

    def remove(self, number: int) -> None:
        """Forget an event: it was sent."""
        with self.write():
            self._connection.execute("DELETE FROM waiting WHERE number = ?", (number,))

    def give_up(self, number: int, why: str) -> None:
        """Drop an event."""
        self.remove(number)
        self._dropped(1, why)

    def _one(self, query: str, *values: Any) -> sqlite3.Row | None:
        with self._lock, self._mapped():
            row: sqlite3.Row | None = self._connection.execute(query, values).fetchone()
            return row

    def _all(self, query: str) -> list[sqlite3.Row]:
        with self._lock, self._mapped():
            return self._connection.execute(query).fetchall()

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            what = f"the lineage events in {self.path}: {error}; if the file is damaged, move it away"
            raise StoreError(what, file=str(self.path)) from error


def _run(row: sqlite3.Row) -> OpenRun:
    before = {topic: (str(log), int(rows), int(size)) for topic, (log, rows, size) in json.loads(row["before"]).items()}
    return OpenRun(**{**dict(row), "before": before})
