"""The tables of a catalog, and the marks that tell its file from others."""

from __future__ import annotations

__all__ = ["APPLICATION", "FORMAT", "TABLES"]

APPLICATION = 0x4A504950  # "JPIP"
FORMAT = 4
TABLES = """
CREATE TABLE meta(
    one INTEGER PRIMARY KEY CHECK (one = 1), log_id TEXT NOT NULL, topic TEXT NOT NULL, created REAL NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0, uptime REAL NOT NULL DEFAULT 0,
    next_n INTEGER NOT NULL DEFAULT 0, total_rows INTEGER NOT NULL DEFAULT 0, total_bytes INTEGER NOT NULL DEFAULT 0,
    sealed_ms INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0, schema_id INTEGER,
    namespace TEXT);
CREATE TABLE epochs(
    epoch INTEGER PRIMARY KEY, first_n INTEGER NOT NULL, publisher TEXT NOT NULL, started REAL NOT NULL);
CREATE INDEX epochs_by_n ON epochs(first_n, epoch);
CREATE TABLE schemas(id INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL UNIQUE, arrow BLOB NOT NULL, spark TEXT);
-- A new shape begins where partitions, partitioner or schema change, and behind an end mark: plans stop there.
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
CREATE TABLE queries(
    query_id TEXT PRIMARY KEY, batch_id INTEGER NOT NULL, n INTEGER NOT NULL, run_id TEXT NOT NULL, write_id TEXT);
CREATE TABLE subscriptions(
    name TEXT PRIMARY KEY, acked_n INTEGER NOT NULL, positioned INTEGER NOT NULL, first TEXT,
    grant_no INTEGER NOT NULL, holder TEXT, required INTEGER NOT NULL, created_up REAL NOT NULL, seen_up REAL NOT NULL);
-- A log made anew after the loss of its spool, see recovery.py: the batch it waits for, and what came of that.
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
"""
