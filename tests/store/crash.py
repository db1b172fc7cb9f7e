"""What child processes do in the crash tests: publishers that die where they are told to, and a reader.

Each function gets one end of a pipe and sends what it was durably answered.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jobpipe.errors import JobpipeError, SpoolError, SpoolFull
from jobpipe.store.catalog import catalog_file
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.log import retention
from jobpipe.store.log.retention import Retention
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.store.spool.partition_writer import PartitionedWriter
from jobpipe.store.spool.segment import SegmentFile
from jobpipe.store.spool.spool_files import file_name, new_write_id
from tests.store.build import SCHEMA, TOPIC, open_log, read, rows, seal

rows(0, 0, 1)  # pyarrow imports pandas for its first array: the fork server pays for it, once
ALL = Retention(time=0, bytes=0, ack_grace=0, subscription_expiry=1e9)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dying(real: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if after:
            real(*args, **kwargs)
        _die()

    return call


def _half(real: Callable[[int, memoryview], int]) -> Callable[[int, memoryview], int]:
    def call(fd: int, data: memoryview) -> int:
        real(fd, data[: len(data) // 2])
        _die()
        return 0

    return call


def _arm(failpoint: str) -> None:
    """Let the next call of something kill this process."""
    if failpoint == "before-fsync":
        os.fsync = _dying(os.fsync)
    elif failpoint == "before-commit":
        Database._commit = _dying(Database._commit)  # type: ignore[method-assign]
    elif failpoint == "after-commit":
        Database._commit = _dying(Database._commit, after=True)  # type: ignore[method-assign]
    elif failpoint == "before-unlink":
        retention.remove_files = _dying(retention.remove_files)
    elif failpoint == "short-write":
        os.write = _half(os.write)
    else:
        raise AssertionError(failpoint)


def publish(said: Connection, home: Path, where: str, failpoint: str) -> None:
    """Seal the next batch, acknowledge all but that one, remove what is acknowledged. Odd batches are inline."""
    log = open_log(home, fsync=True)
    log.cleaner.sweep(set())
    log.subscriptions.subscribe("s")
    grant = log.subscriptions.grant("s", {})
    log.subscriptions.first_position("s", log.batches.tail())
    last = log.batches.last_sealed("q")
    batch_id = 0 if last is None else last.batch_id + 1
    if where == "seal":
        _arm(failpoint)
    seal(log, batch_id, [[5, 5], [5]], inline=batch_id % 2 == 1, run=str(os.getpid()))
    said.send(("sealed", batch_id))
    log.subscriptions.acknowledge("s", grant, log.batches.at(log.batches.head().n - 1))
    if where == "acknowledge":
        _arm(failpoint)
    log.subscriptions.flush()
    said.send(("acknowledged", log.batches.head().n - 1))
    if where == "retain":
        _arm(failpoint)
    log.cleaner.retain(ALL)
    said.send(("removed", log.batches.tail().n))
    log.close()


def publish_for_ever(said: Connection, home: Path) -> None:
    """Go on until killed; send the head after each seal."""
    log = open_log(home, fsync=True)
    log.cleaner.sweep(set())
    grant = log.subscriptions.grant("s", {})
    said.send(log.batches.head().n)
    while True:
        n = log.batches.head().n
        seal(log, n, [[5, 5], [5]], inline=n % 2 == 1)
        said.send(n + 1)
        log.subscriptions.acknowledge("s", grant, log.batches.at(n))
        log.cleaner.retain(ALL)


def watch(said: Connection, home: Path) -> None:
    """Send the epoch and what can be read, each time it is asked."""
    reader = CatalogReader.open(home / TOPIC, TOPIC)
    while said.recv():
        said.send((reader.epoch, read(reader, reader.batches.tail(), reader.batches.head(), 0)))
    reader.close()


def fill_the_disk(said: Connection, home: Path) -> None:
    """Write against a limit on the size of files, then without it."""
    log = open_log(home, fsync=True)
    log.subscriptions.subscribe("s", required=True)
    seal(log, 0, [[5, 5], [5]])
    size = (log.directory / "catalog.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, resource.RLIM_INFINITY))
    writer = PartitionedWriter(SCHEMA, SegmentFile.create(log.segments, file_name(new_write_id(), 0)), partitions=1)
    try:
        for number in range(100):
            writer.write(rows(0, number * 10_000, 10_000), 0)
    except SpoolFull:
        writer.abort()
        said.send(("file", len(list(log.segments.iterdir()))))
    for _ in range(3):
        try:
            seal(log, 1, [[500], [500]])
        except SpoolError as error:
            said.send(("catalog", error.fields["reopen"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    said.send(("sealed", seal(log, 1, [[5, 5], [5]]).n))
    log.close()


def succeed(said: Connection) -> None:
    """Take over each log that it gets the home of, repeat its last batch, and seal all up to the sixth.

    It starts the write-ahead log from the front first, with which bytes of before would do the most harm. It waits for
    no lock, but says "locked". Asked to do it slowly, it says "begun" in the middle of its first seal, and goes on at
    the next message.
    """
    catalog_file._BUSY_SECONDS = 0.0
    commit = Database._commit
    slowly = False

    def committing(self: Database) -> None:
        nonlocal slowly
        if slowly and self.value("SELECT count(*) FROM batches WHERE n = 3"):
            slowly = False
            said.send("begun")
            said.recv()
        commit(self)

    Database._commit = committing  # type: ignore[method-assign]
    while (task := said.recv()) is not None:
        home, slowly = task
        try:
            log = open_log(home, fsync=True)
            log._db.make_room()
            log._db._connection.execute("PRAGMA cache_size = 1")  # a rollback journal counts its records before COMMIT
            last = log.batches.last_sealed("q")
            assert last is not None
            for batch_id in range(last.batch_id, 6):
                seal(log, batch_id, [[5, 5], [5]], inline=batch_id % 2 == 1, run=new_write_id())
        except JobpipeError as error:
            said.send("locked" if "locked" in str(error) else repr(error))
        else:
            said.send("sealed")


def hold(said: Connection, home: Path, what: str, failpoint: str) -> None:
    """Have a hold at offset 2 of a log whose six batches are acknowledged, and die while something of it changes."""
    log = open_log(home, fsync=True)
    for batch_id in range(6):
        seal(log, batch_id)
    if what != "take":
        log.holds.take("h", "control", log.batches.at(2), 60.0)
    log.clock.tick(60.0 if what == "expire" else 1.0)
    log.subscriptions.flush(force=True)
    said.send("ready")
    _arm(failpoint)
    match what:
        case "take" | "move":
            log.holds.take("h", "control", log.batches.at(2 if what == "take" else 4), 60.0)
        case "release":
            log.holds.release("h", "control")
        case "expire":
            log.cleaner.retain(ALL)
        case "overtake":
            log.cleaner.drop_oldest(3 * log.used_bytes() // 6)
        case "require":
            log.required.change("late", required=True)
