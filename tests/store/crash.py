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
from jobpipe.store import CatalogReader, PartitionedWriter, Retention, SegmentFile, database, retention
from jobpipe.store.database import Database
from jobpipe.store.files import file_name, new_write_id
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
    log.sweep(set())
    log.subscribe("s")
    grant = log.grant("s", {})
    log.first_position("s", log.tail())
    last = log.last_sealed("q")
    batch_id = 0 if last is None else last.batch_id + 1
    if where == "seal":
        _arm(failpoint)
    seal(log, batch_id, [[5, 5], [5]], inline=batch_id % 2 == 1, run=str(os.getpid()))
    said.send(("sealed", batch_id))
    log.acknowledge("s", grant, log._batches.at(log.head().n - 1))
    if where == "acknowledge":
        _arm(failpoint)
    log.flush()
    said.send(("acknowledged", log.head().n - 1))
    if where == "retain":
        _arm(failpoint)
    log.retain(ALL)
    said.send(("removed", log.tail().n))
    log.close()


def publish_for_ever(said: Connection, home: Path) -> None:
    """Go on until killed; send the head after each seal."""
    log = open_log(home, fsync=True)
    log.sweep(set())
    grant = log.grant("s", {})
    said.send(log.head().n)
    while True:
        n = log.head().n
        seal(log, n, [[5, 5], [5]], inline=n % 2 == 1)
        said.send(n + 1)
        log.acknowledge("s", grant, log._batches.at(n))
        log.retain(ALL)


def watch(said: Connection, home: Path) -> None:
    """Send the epoch and what can be read, each time it is asked."""
    reader = CatalogReader.open(home / TOPIC, TOPIC)
    while said.recv():
        said.send((reader.epoch, read(reader, reader.tail(), reader.head(), 0)))
    reader.close()


def fill_the_disk(said: Connection, home: Path) -> None:
    """Write against a limit on the size of files, then without it."""
    log = open_log(home, fsync=True)
    log.subscribe("s", required=True)
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
    database._BUSY_SECONDS = 0.0
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
            last = log.last_sealed("q")
            assert last is not None
            for batch_id in range(last.batch_id, 6):
                seal(log, batch_id, [[5, 5], [5]], inline=batch_id % 2 == 1, run=new_write_id())
        except JobpipeError as error:
            said.send("locked" if "locked" in str(error) else repr(error))
        else:
            said.send("sealed")
