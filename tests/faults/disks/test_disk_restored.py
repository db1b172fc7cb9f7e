"""A spool, or a subscriber's checkpoint, that goes back in time: told from the right one, never passed over."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rig import PAUSE, conclude, gone, later_rows, more, processes_of, running
from tests.harness.jobs.consume import Received
from tests.harness.processes import Harness

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]


def stop_all(rig: Harness) -> None:
    """Kill the publisher job with its coordinator, and the subscriber; its checkpoint holds what it has."""
    rig.wait_until(rig.caught_up, "all that is sealed")
    processes = processes_of(rig.publisher)
    rig.publisher.kill()
    rig.consumer().kill()
    for process in reversed(processes):
        with contextlib.suppress(Exception):
            process.kill()
    gone(processes)


def loss_of(rig: Harness) -> str:
    """Start the subscriber, which must end by a loss of data; return the end of its log."""
    rig.consumer().start()
    assert rig.consumer().wait(60.0) == 1
    text = rig.consumer().log_end(60)
    rig.consumer().kill()  # its end was no surprise
    assert "DataLoss" in text
    return text


def sealed(rig: Harness, more_than: int) -> None:
    """Wait until the publisher has sealed more batches than that."""
    rig.wait_until(lambda: rig.journal.batches > more_than, f"more than {more_than} batches")


def test_spool_wiped(tmp_path: Path) -> None:
    """Cases 34 and 55: the subscriber does not wait for ever, nor take the new log's offsets for the old one's."""
    with running(tmp_path) as rig:
        stop_all(rig)
        shutil.rmtree(tmp_path / "rig" / "spool")
        before = rig.received()
        rig.publisher.start(pause=PAUSE)
        sealed(rig, rig.journal.batches + 1)
        text = loss_of(rig)
        assert "it is of log" in text
        assert "topic 'orders'" in text
        assert rig.received() == before


def test_spool_restored_from_an_old_copy(tmp_path: Path) -> None:
    """Cases 34 and 55: beyond the head at first; once the offsets are sealed again, the epoch tells old from new."""
    with running(tmp_path) as rig:
        spool, copy = tmp_path / "rig" / "spool", tmp_path / "copy"
        stop_all(rig)
        shutil.copytree(spool, copy)
        rig.publisher.start(pause=PAUSE)
        rig.consumer().start()
        more(rig, rows=1000)
        stop_all(rig)
        shutil.rmtree(spool)
        shutil.copytree(copy, spool)
        before, n = rig.received(), position_of(rig)
        rig.publisher.start(batches=0)  # serves, and seals an end mark only
        assert rig.publisher.wait(60.0) == 0
        text = loss_of(rig)
        assert f"position {n} does not fit: the log ends at offset" in text
        rig.publisher.start(pause=0.0)
        rig.wait_until(lambda: head(rig) > n, "as many batches as before")
        assert "sealed the batch before it, not epoch" in loss_of(rig)
        assert rig.received() == before


def position_of(rig: Harness) -> int:
    """Return the offset in the subscriber's checkpoint."""
    with contextlib.closing(Received(rig._store("all"))) as received:
        assert received.position is not None
        return received.position.n


@pytest.mark.parametrize("grace", ["60s", "0s"])
def test_subscriber_goes_back(tmp_path: Path, grace: str) -> None:
    """Cases 8 and 54: power loss takes a subscriber's last commits: they are read again within the grace."""
    settings = {"retention.time": "0s", "retention.bytes": "0", "retention.ack_grace": grace}
    with running(tmp_path, settings=settings) as rig:
        rig.consumer().kill()
        store, copy = rig._store("all"), tmp_path / "old"
        with contextlib.closing(sqlite3.connect(store)) as now, contextlib.closing(sqlite3.connect(copy)) as old:
            now.backup(old)
        n = position_of(rig)
        rig.consumer().start()
        more(rig)
        if grace == "0s":
            rig.wait_until(lambda: tail(rig) > n, "retention to pass the copy")
        rig.consumer().kill()
        for path in (store, store.with_name(f"{store.name}-wal"), store.with_name(f"{store.name}-shm")):
            path.unlink(missing_ok=True)
        shutil.copy(copy, store)
        if grace == "0s":
            assert f"batches {n} to " in loss_of(rig)
            return
        rig.consumer().start()
        later_rows(rig)
        assert tail(rig) <= n
        conclude(rig)


def tail(rig: Harness) -> int:
    """Return the lowest offset that the catalog still has."""
    return asked(rig, "SELECT coalesce(min(n), (SELECT next_n FROM meta)) FROM batches")


def head(rig: Harness) -> int:
    """Return the offset at which the catalog ends."""
    return asked(rig, "SELECT next_n FROM meta")


def asked(rig: Harness, question: str) -> int:
    """Return the number that the catalog answers."""
    catalog: Any = rig.config.spool_dir / rig.topic / "catalog.db"
    with contextlib.closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True)) as database:
        return int(database.execute(question).fetchone()[0])
