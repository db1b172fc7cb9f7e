"""The catalog's write-ahead log stays small, whoever reads, and its bytes are counted."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.store.spool.spool_files import Reserve
from tests.store.build import TOPIC, open_log, seal

MIB = 1024 * 1024
ROWS = [[900], [900]]  # nearly 64 KiB a batch: as much as goes into the catalog


def log_bytes(log: TopicLog) -> int:
    return log._db.log_bytes()


@contextlib.contextmanager
def overlapping_readers(directory: Path, topic: str = TOPIC) -> Iterator[None]:
    """Let two readers read a catalog, each beginning before the other one ends."""
    stop = threading.Event()
    began = [threading.Event(), threading.Event()]

    def read(mine: threading.Event, other: threading.Event) -> None:
        reader = CatalogReader.open(directory, topic)
        while not stop.is_set():
            with reader._db.read():
                reader.batches.head()
                mine.set()
                other.wait(0.05)  # the other one has begun before this one ends
                other.clear()
        reader.close()

    readers = [threading.Thread(target=read, args=args) for args in (began, began[::-1])]
    for reader in readers:
        reader.start()
    try:
        yield
    finally:
        stop.set()
        for reader in readers:
            reader.join()


@pytest.mark.slow
def test_steady_readers_let_the_log_be_started_from_the_front(tmp_path: Path) -> None:
    """R8: two readers that overlap all the time, and 12 MiB sealed."""
    log = open_log(tmp_path)
    seal(log, 0, ROWS)
    largest = batch_id = 0
    with overlapping_readers(tmp_path / TOPIC):
        while log.batches.used_bytes() < 12 * MIB:
            batch_id += 1
            seal(log, batch_id, ROWS)
            if batch_id % 5 == 0:
                log.shorten()
                log._shorten_at = 0.0
            largest = max(largest, log_bytes(log))
    assert largest < Reserve.BYTES + 2 * MIB, largest
    log.close()


@pytest.mark.slow
def test_a_reader_that_stands_still_is_not_waited_for(tmp_path: Path) -> None:
    """R8: a seal waits a tenth of a second at most, once a second; the bytes count until they are given back."""
    log = open_log(tmp_path)
    seal(log, 0, ROWS)
    reader = CatalogReader.open(tmp_path / TOPIC, TOPIC)
    with reader._db.read():
        reader.batches.head()
        for batch_id in range(1, 120):
            seal(log, batch_id, ROWS)
        began = time.monotonic()
        for _ in range(20):
            log.shorten()
        assert time.monotonic() - began < 5.0  # with the ordinary time-out of a lock: 200 s
        size = log_bytes(log)
        assert size > Reserve.BYTES
        assert log.used_bytes() == log.batches.used_bytes() + size - Reserve.BYTES
        assert log.status().catalog_bytes > size
    log._shorten_at = 0.0
    log.shorten()
    assert log_bytes(log) == 0
    assert log.used_bytes() == log.batches.used_bytes()
    assert seal(log, 120, ROWS).n == 121
    reader.close()
    log.close()
