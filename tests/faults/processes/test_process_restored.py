"""A subscriber that comes back with an older state, or late: it reads what is there, or is told exactly what is not."""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.rig import PAUSE, conclude, gone, more, processes_of, running
from tests.harness.jobs.consume import Received
from tests.harness.processes import Harness

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

KEEP_NOTHING = {"retention.time": "0s", "retention.bytes": "1", "retention.ack_grace": "1s"}


def copy_state(rig: Harness, name: str, to: Path) -> int:
    """Copy a stopped subscriber's state, as a backup does; return its offset."""
    store = rig._store(name)
    with closing(sqlite3.connect(store)) as database, closing(sqlite3.connect(to)) as copy:
        database.backup(copy)
    with closing(Received(to)) as received:
        assert received.position is not None
        return received.position.n


def restore(rig: Harness, name: str, copy: Path) -> None:
    """Put a copy in the state's place."""
    store = rig._store(name)
    for suffix in ("-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, store)


def leave(rig: Harness, seconds: float) -> None:
    """Let nobody of the publisher's host live for a while."""
    dead = processes_of(rig.publisher)
    for process in reversed(dead):
        process.kill()
    rig.publisher.kill()
    gone(dead)
    time.sleep(seconds)
    rig.publisher.start(pause=PAUSE)


def test_an_old_copy_is_read_again_while_retention_runs(tmp_path: Path) -> None:
    """Case 54: all of it was acknowledged once; from the first plan on, the declared position keeps what is re-read."""
    settings = {"retention.time": "0s", "retention.bytes": "1", "retention.ack_grace": "5s"}
    with running(tmp_path, settings=settings) as rig:
        rig.consumer().kill()
        copy_state(rig, "all", tmp_path / "copy")
        rig.consumer().start()
        more(rig)
        rig.consumer().kill()
        restore(rig, "all", tmp_path / "copy")
        rig.consumer().start(max_rows=30, pause=0.3)  # slower than the publisher, and than the grace
        time.sleep(7.0)  # the grace and more
        rig.consumer().kill()
        rig.consumer().start()
        conclude(rig)


def test_a_subscription_does_not_expire_while_the_publisher_is_down(tmp_path: Path) -> None:
    """Expiry counts seconds in which a coordinator was up: a long outage costs nobody his subscription."""
    with running(tmp_path, settings={**KEEP_NOTHING, "subscription.expiry": "6s"}) as rig:
        rig.consumer().kill()
        leave(rig, 6.5)
        more_sealed(rig)
        rig.consumer().start()
        more(rig)
        conclude(rig)


@pytest.mark.core
def test_an_expired_subscription_is_told_what_it_missed(tmp_path: Path) -> None:
    """Case 54: away for longer than the expiry, with the coordinator up: no wait, no skip, the exact range."""
    settings = {**KEEP_NOTHING, "subscription.expiry": "2s", "read.timeout": "2s"}
    with running(tmp_path, consumers=("all", "away"), settings=settings) as rig:
        away = rig.consumer("away")
        away.kill()
        with closing(Received(rig._store("away"))) as received:
            left = received.position
        assert left is not None
        rig.wait_until(lambda: oldest(rig) > left.n, "expiry, and retention after it", 30.0)
        away.start()
        assert away.wait(30.0) != 0
        said = away.log_end()
        found = re.search(r"DataLoss: .*'orders'.* batches (\d+) to (\d+)", said)
        assert found, said
        assert int(found[1]) == left.n <= int(found[2])
        del rig._consumers["away"]  # it has told
        more(rig)
        conclude(rig)


def oldest(rig: Harness) -> int:
    """Return the lowest offset that the catalog still has."""
    catalog = rig.config.spool_dir / rig.topic / "catalog.db"
    with closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT coalesce(min(n), 0) FROM batches").fetchone()[0])


def more_sealed(rig: Harness) -> None:
    """Wait for batches of the new publisher."""
    sealed = rig.journal.batches
    rig.wait_until(lambda: rig.journal.batches > sealed + 5, "the publisher is back")
