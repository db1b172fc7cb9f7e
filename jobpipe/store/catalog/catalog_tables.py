"""The tables of a catalog, and the marks that tell its file from others: made and checked."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any, Protocol

from jobpipe.errors import SpoolError

APPLICATION = 0x4A504950  # "JPIP"
FORMAT = 11
OLDER = (9, 10)
"""What :func:`prepare_catalog` brings up to date: 9 has no ledger, and its cursors count no rows; 10 has no notes."""
_TABLES = """
-- superseded: the registry knew a higher epoch when the log was last served without a publisher; see take_over.
CREATE TABLE meta(
    one INTEGER PRIMARY KEY CHECK (one = 1), log_id TEXT NOT NULL, topic TEXT NOT NULL, created REAL NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0, uptime REAL NOT NULL DEFAULT 0,
    next_n INTEGER NOT NULL DEFAULT 0, total_rows INTEGER NOT NULL DEFAULT 0, total_bytes INTEGER NOT NULL DEFAULT 0,
    sealed_ms INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0, schema_id INTEGER,
    namespace TEXT, removed_ms INTEGER NOT NULL DEFAULT 0, superseded INTEGER NOT NULL DEFAULT 0);
CREATE TABLE epochs(
    epoch INTEGER PRIMARY KEY, first_n INTEGER NOT NULL, publisher TEXT NOT NULL, started REAL NOT NULL);
CREATE INDEX epochs_by_n ON epochs(first_n, epoch);
CREATE TABLE schemas(id INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL UNIQUE, arrow BLOB NOT NULL, spark TEXT);
-- A new shape begins where partitions, partitioner or schema change, and after an end mark: plans stop there.
CREATE TABLE shapes(
    first_n INTEGER PRIMARY KEY, partitions INTEGER NOT NULL, partitioner TEXT NOT NULL, schema_id INTEGER);
-- cum_rows and cum_bytes include the batch itself and all before it, removed ones too.
CREATE TABLE batches(
    n INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, query_id TEXT NOT NULL, batch_id INTEGER NOT NULL,
    run_id TEXT NOT NULL, write_id TEXT, rows INTEGER NOT NULL, bytes INTEGER NOT NULL,
    cum_rows INTEGER NOT NULL, cum_bytes INTEGER NOT NULL, sealed_ms INTEGER NOT NULL, sealed_up REAL NOT NULL,
    is_end INTEGER NOT NULL);
CREATE UNIQUE INDEX batches_by_write ON batches(write_id);
CREATE TABLE segments(
    n INTEGER NOT NULL, partition INTEGER NOT NULL, ordinal INTEGER NOT NULL, file TEXT, offset INTEGER NOT NULL,
    length INTEGER NOT NULL, rows INTEGER NOT NULL, record_batches INTEGER NOT NULL, idx BLOB NOT NULL, data BLOB,
    host TEXT, PRIMARY KEY (n, partition, ordinal));
CREATE INDEX segments_by_host ON segments(host, n) WHERE host IS NOT NULL;
-- What host servers keep, with placement "host".
CREATE TABLE kept(host TEXT PRIMARY KEY, segments INTEGER NOT NULL, bytes INTEGER NOT NULL);
-- The last batch of each query, and the note that came with it. One that does not come again has once_up, its time,
-- and is forgotten later.
CREATE TABLE queries(
    query_id TEXT PRIMARY KEY, batch_id INTEGER NOT NULL, n INTEGER NOT NULL, run_id TEXT NOT NULL, write_id TEXT,
    once_up REAL, note BLOB);
CREATE INDEX queries_by_age ON queries(once_up) WHERE once_up IS NOT NULL;
CREATE TABLE subscriptions(
    name TEXT PRIMARY KEY, acked_n INTEGER NOT NULL, positioned INTEGER NOT NULL, first TEXT,
    grant_no INTEGER NOT NULL, holder TEXT, required INTEGER NOT NULL, created_up REAL NOT NULL, seen_up REAL NOT NULL,
    acked_row INTEGER);
-- A log made again after the loss of its spool, see recovery.py: the batch it waits for, and what came of that.
CREATE TABLE restored(
    one INTEGER PRIMARY KEY CHECK (one = 1), start_n INTEGER NOT NULL, end_epoch INTEGER NOT NULL,
    end_n INTEGER NOT NULL, point TEXT NOT NULL, outcome TEXT);
-- Ranges that a subscriber named before their data existed; bound once they have an end.
CREATE TABLE slots(
    name TEXT NOT NULL, slot TEXT NOT NULL, number INTEGER NOT NULL, epoch INTEGER NOT NULL, "start" TEXT NOT NULL,
    "end" TEXT, bound_up REAL, PRIMARY KEY (name, slot));
CREATE INDEX slots_by_age ON slots(name, number);
CREATE TABLE leases(
    id TEXT PRIMARY KEY, first_n INTEGER NOT NULL, last_n INTEGER NOT NULL, until_up REAL NOT NULL);
-- How far flow jobs are in what they read, one row a partition of the source; see flow_cursors.py.
CREATE TABLE cursors(
    flow TEXT NOT NULL, topic TEXT NOT NULL, log TEXT NOT NULL, partition INTEGER NOT NULL, claim INTEGER NOT NULL,
    epoch INTEGER NOT NULL, n INTEGER NOT NULL, r INTEGER NOT NULL, moved_up REAL NOT NULL, rows INTEGER,
    PRIMARY KEY (flow, topic, log, partition));
-- Named positions that keep retention back until scheduled jobs have read them; see holds.py. gap_up is when one was
-- dropped, and gap says why: the row is then a report, and holds nothing.
CREATE TABLE holds(
    name TEXT PRIMARY KEY, owner TEXT NOT NULL, n INTEGER NOT NULL, max_time REAL NOT NULL, moved_up REAL NOT NULL,
    gap_up REAL, gap TEXT);
-- Which subscriptions the publisher declared as required, and what was changed since (1: added, 0: taken away); see
-- required_subscriptions.py.
CREATE TABLE required(name TEXT PRIMARY KEY, declared INTEGER NOT NULL, changed INTEGER);
-- Rows of this topic that were published in it again; see redrive_marks.py.
CREATE TABLE redriven(
    n INTEGER NOT NULL, published_ms INTEGER NOT NULL, partition INTEGER NOT NULL, row INTEGER NOT NULL,
    marked_up REAL NOT NULL, PRIMARY KEY (n, published_ms, partition, row)) WITHOUT ROWID;
CREATE INDEX redriven_by_age ON redriven(marked_up);
"""
_LEDGER = """
-- What the ledger knows of each subscription beyond its position, and what was published in each minute; see
-- topic_ledger.py.
CREATE TABLE ledger_accounts(name TEXT PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE ledger_minutes(
    minute INTEGER PRIMARY KEY, first_n INTEGER NOT NULL, end_n INTEGER NOT NULL, first_row INTEGER NOT NULL,
    end_row INTEGER NOT NULL);
"""


class Catalog(Protocol):
    """What is asked of a :class:`jobpipe.store.catalog.catalog_file.Database` here."""

    path: Path

    def value(self, query: str, *values: Any) -> Any:
        """Return the first value of the first row."""

    def execute(self, statement: str, *values: Any) -> Any:
        """Run a statement."""


def prepare_catalog(db: Catalog, topic: str) -> None:
    """Make the tables of a new catalog, or check those of an existing one, and add what is new. Inside a transaction.

    Raises:
        SpoolError: it is of an unknown format, or another topic's.
    """
    if db.value("SELECT count(*) FROM (SELECT 1 FROM sqlite_master LIMIT 1)"):
        check_format(db, topic)
        version = db.value("PRAGMA user_version")
        if version == 9:
            _run(db, _LEDGER)
            db.execute("ALTER TABLE cursors ADD COLUMN rows INTEGER")
            db.execute("ALTER TABLE subscriptions ADD COLUMN acked_row INTEGER")
        if version in OLDER:
            db.execute("ALTER TABLE queries ADD COLUMN note BLOB")
            db.execute(f"PRAGMA user_version = {FORMAT}")
        return
    _run(db, _TABLES)
    _run(db, _LEDGER)
    db.execute(
        "INSERT INTO meta(one, log_id, topic, created) VALUES (1, ?, ?, ?)",
        *(secrets.token_hex(8), topic, time.time()),
    )
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute(f"PRAGMA user_version = {FORMAT}")


def _run(db: Catalog, statements: str) -> None:
    for statement in statements.split(";\n"):
        if statement.strip():
            db.execute(statement)


def check_format(db: Catalog, topic: str) -> None:
    """See that a catalog is one that this version reads, and the topic's.

    Raises:
        SpoolError: it is not.
    """
    application, version = db.value("PRAGMA application_id"), db.value("PRAGMA user_version")
    if application != APPLICATION or version not in (*OLDER, FORMAT):
        raise SpoolError(
            f"catalog {db.path} has format {version} of application {application:#x}, known is format {FORMAT}; "
            "let the version of jobpipe that wrote it serve it to the end, or remove its directory",
            file=str(db.path),
            format=version,
        )
    stored = db.value("SELECT topic FROM meta")
    if stored != topic:
        raise SpoolError(
            f"catalog {db.path} belongs to topic {stored!r}, not {topic!r}", file=str(db.path), topic=stored
        )
