"""The server's SQLite file: one connection, changes that are durable or not made, tables. Knows no rows' meaning."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobpipe.errors import StoreError

FORMAT = 7
_BUSY_SECONDS = 10.0
_MOVES = (  # of subscriptions: the last one of each
    "CREATE TABLE moves (number INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, subscription TEXT NOT NULL, "
    "time REAL NOT NULL, mover TEXT NOT NULL, before TEXT, after TEXT NOT NULL, UNIQUE (topic, subscription)) STRICT"
)
_EARLIER_MOVE = "ALTER TABLE moves ADD COLUMN earlier TEXT"  # of one in doubt, as JSON: the move before it
_TABLES = (
    """
CREATE TABLE pipelines (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, want TEXT NOT NULL, submitted REAL NOT NULL,
    born REAL NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE definitions (
    pipeline TEXT NOT NULL REFERENCES pipelines ON DELETE CASCADE, version INTEGER NOT NULL,
    file TEXT NOT NULL, folder TEXT NOT NULL, tree TEXT NOT NULL,
    submitted REAL NOT NULL DEFAULT 0, submitter TEXT NOT NULL DEFAULT '', changes TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (pipeline, version)
) STRICT;
CREATE TABLE jobs (
    pipeline TEXT NOT NULL REFERENCES pipelines ON DELETE CASCADE, name TEXT NOT NULL, position INTEGER NOT NULL,
    kind TEXT NOT NULL, scheduled INTEGER NOT NULL, on_demand INTEGER NOT NULL,
    present INTEGER NOT NULL, want TEXT NOT NULL,
    renew INTEGER NOT NULL, digest TEXT NOT NULL,
    reads TEXT NOT NULL, publishes TEXT NOT NULL, subscriptions TEXT NOT NULL,
    numbers INTEGER NOT NULL, run TEXT, following TEXT, PRIMARY KEY (pipeline, name)
) STRICT;
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, pipeline TEXT NOT NULL, job TEXT NOT NULL,
    state TEXT NOT NULL, began REAL NOT NULL, since REAL NOT NULL, ended REAL, detail TEXT NOT NULL,
    lower TEXT, upper TEXT, stop INTEGER NOT NULL, forced INTEGER NOT NULL, failures INTEGER NOT NULL,
    next_at REAL NOT NULL, delay REAL NOT NULL, attempts INTEGER NOT NULL,
    before INTEGER NOT NULL, batches INTEGER NOT NULL, rows INTEGER NOT NULL,
    FOREIGN KEY (pipeline, job) REFERENCES jobs ON DELETE CASCADE
) STRICT;
CREATE INDEX runs_of_job ON runs (pipeline, job, number);
CREATE INDEX active_runs ON runs (pipeline, job) WHERE ended IS NULL;
CREATE TABLE attempts (
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, pipeline TEXT NOT NULL, job TEXT NOT NULL,
    number INTEGER NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL, began REAL NOT NULL, ended REAL,
    launched TEXT, holder TEXT, application TEXT NOT NULL, error TEXT NOT NULL, detail TEXT NOT NULL,
    exit_code INTEGER, batches INTEGER NOT NULL, rows INTEGER NOT NULL, stop_by REAL, open INTEGER NOT NULL,
    PRIMARY KEY (run, number)
) STRICT;
CREATE UNIQUE INDEX open_attempt ON attempts (pipeline, job) WHERE open;
CREATE TABLE schedules (
    pipeline TEXT NOT NULL, job TEXT NOT NULL, accepted TEXT NOT NULL, known_from TEXT NOT NULL,
    paused INTEGER NOT NULL, problem TEXT NOT NULL, spec TEXT NOT NULL, reads TEXT NOT NULL,
    topic TEXT, ends INTEGER, PRIMARY KEY (pipeline, job),
    FOREIGN KEY (pipeline, job) REFERENCES jobs ON DELETE CASCADE
) STRICT;
CREATE TABLE intervals (
    pipeline TEXT NOT NULL, job TEXT NOT NULL, lower TEXT NOT NULL, upper TEXT NOT NULL, state TEXT NOT NULL,
    run TEXT, since REAL NOT NULL, first TEXT, last TEXT, PRIMARY KEY (pipeline, job, lower),
    FOREIGN KEY (pipeline, job) REFERENCES schedules ON DELETE CASCADE
) STRICT;
CREATE INDEX open_intervals ON intervals (pipeline, job, state, lower)
    WHERE state IN ('WAITING', 'RUNNING', 'FAILED');
CREATE INDEX interval_of_run ON intervals (run) WHERE run IS NOT NULL;
CREATE TABLE holds (
    topic TEXT NOT NULL, name TEXT NOT NULL, since TEXT, second INTEGER NOT NULL, PRIMARY KEY (topic, name)
) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, pipeline TEXT NOT NULL, job TEXT, what TEXT NOT NULL,
    state TEXT, detail TEXT NOT NULL, fields TEXT NOT NULL
) STRICT;
CREATE TABLE alerted (event INTEGER NOT NULL) STRICT;
CREATE TABLE alerts (
    event INTEGER NOT NULL, webhook INTEGER NOT NULL, since REAL NOT NULL, PRIMARY KEY (event, webhook)
) STRICT;
CREATE TABLE chores (
    id INTEGER PRIMARY KEY AUTOINCREMENT, pipeline TEXT NOT NULL, job TEXT NOT NULL, topic TEXT, subscription TEXT
) STRICT;
"""
    + f"{_MOVES};{_EARLIER_MOVE}"
)
_UPGRADES = {  # from that format to the next one
    3: (
        "ALTER TABLE definitions ADD COLUMN submitted REAL NOT NULL DEFAULT 0",
        "ALTER TABLE definitions ADD COLUMN submitter TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE definitions ADD COLUMN changes TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE pipelines ADD COLUMN born REAL NOT NULL DEFAULT 0",
        "UPDATE schedules SET spec = json_remove(spec, '$.\"max-active-runs\"')",
        "UPDATE definitions SET submitted = coalesce((SELECT pipelines.submitted FROM pipelines "
        "WHERE pipelines.name = pipeline AND pipelines.version = definitions.version), 0)",
    ),
    4: (
        "CREATE TABLE alerted (event INTEGER NOT NULL) STRICT",
        "CREATE TABLE alerts (event INTEGER NOT NULL, webhook INTEGER NOT NULL, since REAL NOT NULL, "
        "PRIMARY KEY (event, webhook)) STRICT",
    ),
    5: (_MOVES,),
    6: (_EARLIER_MOVE,),
}


class ControlDatabase:
    """One connection, of all threads in turn.

    Raises:
        StoreError: the file cannot be opened, is none of ours, or of a newer version; the disk is full or fails.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path or Path(":memory:")
        self._lock = threading.RLock()
        self._depth = 0
        with self._mapped():
            if path is not None:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.parent.chmod(0o700)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            self._connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
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
            self._connection.execute("PRAGMA foreign_keys = ON")
        with self.write():
            found = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            if found == 0:
                for statement in _TABLES.split(";"):
                    self._connection.execute(statement)
                # Ids of events go on where another file ended that was moved away: readers of them remember the last.
                first = int(time.time() * 1000)
                self._connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?)", (first,))
                self._connection.execute(f"PRAGMA user_version = {FORMAT}")
                return
            while found in _UPGRADES:
                for statement in _UPGRADES[found]:
                    self._connection.execute(statement)
                found += 1
                self._connection.execute(f"PRAGMA user_version = {found}")
            if found != FORMAT:
                raise StoreError(
                    f"{self.path} has format {found}, this version of jobpipe knows {FORMAT}: run the version that "
                    "wrote it; or stop all pipelines with that version, move the file away, and submit them again",
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

    def execute(self, query: str, *values: Any) -> int:
        """Change something inside :meth:`write`; return how many rows."""
        with self._lock, self._mapped():
            return self._connection.execute(query, values).rowcount

    def insert(self, table: str, values: dict[str, Any]) -> None:
        """Add a row; names of tables and columns are ours."""
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        self.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", *values.values())  # noqa: S608

    def one(self, query: str, *values: Any) -> sqlite3.Row | None:
        """Return the first row, None without one."""
        with self._lock, self._mapped():
            row: sqlite3.Row | None = self._connection.execute(query, values).fetchone()
            return row

    def all(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """Return all rows; the query bounds them."""
        with self._lock, self._mapped():
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"the server's store {self.path}: {error}", file=str(self.path)) from error
