"""Speed of the catalog with 1,000 and with 1,000,000 batches: seal, plan, pieces, acknowledge, status, open, removal.

Run: python benchmarks/catalog.py [batches ...]
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from jobpipe.store.log.retention import Retention
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.store.spool.partition_writer import PartitionedWriter
from jobpipe.store.spool.segment import SegmentFile
from jobpipe.store.spool.spool_files import file_name, new_write_id

PARTITIONS = 8
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = pa.record_batch([pa.array(range(2_000)), pa.array([f"row-{n}" for n in range(2_000)])], schema=SCHEMA)


def write(log: TopicLog, *, inline: bool) -> tuple[NewBatch, list]:
    write_id = new_write_id()
    file = SegmentFile.create(log.segments, file_name(write_id, 0), inline_max=64 * 1024 if inline else 0)
    writer = PartitionedWriter(SCHEMA, file, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        writer.write(ROWS.slice(0, 100) if inline else ROWS, partition)
    schema_id = log.schemas.newest()[0]
    return NewBatch("", 0, "", write_id, schema_id, PARTITIONS, "rr"), writer.finish()


def fill(directory: Path, count: int) -> None:
    """Copy batch 0 ``count`` times by bulk insert."""
    db = sqlite3.connect(directory / "catalog.db", isolation_level=None)
    rows, size = db.execute("SELECT rows, bytes FROM batches WHERE n = 0").fetchone()
    numbers = f"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {count - 1})"
    db.execute("BEGIN")
    db.execute(
        f"INSERT INTO batches {numbers} SELECT x, epoch, '', 0, '', 'w' || x, rows, bytes, rows * (x + 1), "
        "bytes * (x + 1), sealed_ms, sealed_up, 0 FROM c, batches WHERE n = 0"
    )
    db.execute(
        f"INSERT INTO segments {numbers} SELECT x, partition, ordinal, file, offset, length, rows, record_batches, "
        "idx, data, host FROM c, segments WHERE n = 0 ORDER BY x, partition"
    )
    db.execute("UPDATE meta SET next_n = ?, total_rows = ?, total_bytes = ?", (count, rows * count, size * count))
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def timed(name: str, work: Callable[[], object], times: int = 200) -> dict[str, float]:
    """Print, and return, the milliseconds that it takes."""
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append((time.perf_counter() - start) * 1000)
    print(f"  {name:42} median {statistics.median(spent):8.3f} ms   max {max(spent):8.3f} ms")
    return {
        "p50": statistics.median(spent),
        "p99": statistics.quantiles(spent, n=100, method="inclusive")[98],
        "max": max(spent),
    }


def run(count: int, work: Path | None = None) -> dict[str, dict[str, float]]:
    """Measure a catalog of so many batches, in a folder below ``work``; return start, seal and plan in milliseconds."""
    print(f"{count:,} batches x {PARTITIONS} segments")
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir=work) as home:
        directory = Path(home) / "topic"
        log = TopicLog.open(directory, "topic")
        log.take_over(1, "benchmark")
        log.schemas.add(SCHEMA.serialize().to_pybytes(), None)
        log.seal(*write(log, inline=False))
        log.close()
        fill(directory, count)
        found["start"] = timed("open + take over + sweep", lambda: reopen(directory), 5)
        log = reopen(directory)
        for inline in (False, True):
            ready = [write(log, inline=inline) for _ in range(100)]
            source = iter(ready)
            name = f"seal, {'inline' if inline else 'file'} (writing not counted)"
            found["seal, inline" if inline else "seal"] = timed(
                name, lambda source=source: log.seal(*next(source)), 100
            )
        head = log.batches.head()
        tail, near = log.batches.tail(), log.batches.at(head.n - 4)
        found["plan"] = timed("plan of 4 batches", lambda: log.planner.plan(near, max_bytes=1 << 40))
        size = log.status().total_bytes // count
        timed("plan from the tail, limit in the middle", lambda: log.planner.plan(tail, max_bytes=size * count // 2))
        timed("plan from the tail, no limit", lambda: log.planner.plan(tail))
        timed("describe the whole log", lambda: log.planner.describe(tail, head))
        timed("status", log.status)
        reader = CatalogReader.open(directory, "topic")
        timed("pieces, first page of 64, whole log", lambda: reader.segments(tail, head, 3))
        _, cursor = reader.segments(tail, head, 3)
        timed("pieces, next page of 64", lambda: reader.segments(tail, head, 3, cursor=cursor))
        timed("pieces, skip half of the log", lambda: reader.segments(tail, head, 3, skip=count // 2), 3)
        reader.close()
        log.subscriptions.subscribe("s")
        grant = log.subscriptions.grant("s", {})
        log.subscriptions.first_position("s", tail)
        steps = iter(range(1, 201))
        timed("acknowledge", lambda: log.subscriptions.acknowledge("s", grant, log.batches.at(next(steps))))
        steps = iter(range(201, 401))
        timed(
            "acknowledge + flush",
            lambda: (log.subscriptions.acknowledge("s", grant, log.batches.at(next(steps))), log.subscriptions.flush()),
        )
        log.subscriptions.acknowledge("s", grant, log.batches.at(min(count, 10_000)))
        start = time.perf_counter()
        removed = log.cleaner.retain(Retention(time=0, bytes=0, ack_grace=0, subscription_expiry=1e9))
        spent = (time.perf_counter() - start) * 1000
        print(
            f"  retain: {removed.batches} batches in {spent:.0f} ms, {spent / (removed.batches / 1000):.1f} ms a 1,000"
        )
        log.close()
    return found


def reopen(directory: Path) -> TopicLog:
    log = TopicLog.open(directory, "topic")
    log.take_over(log.epoch + 1, "benchmark")
    log.cleaner.sweep(set())
    return log


if __name__ == "__main__":
    for batches in [int(arg) for arg in sys.argv[1:]] or [1_000, 1_000_000]:
        run(batches)
