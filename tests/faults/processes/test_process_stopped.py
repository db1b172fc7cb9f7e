"""SIGSTOP for longer than the registry session, somebody else meanwhile, then SIGCONT: exactly one of them lives."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.faults.rig import (
    FILES,
    OWN_ZOOKEEPER,
    PAUSE,
    SESSION,
    another_publisher,
    chance,
    conclude,
    gone,
    more,
    processes_of,
    running,
    suspend_between_transactions,
)
from tests.harness.jobs.consume import Received
from tests.harness.processes import Harness
from tests.harness.program import Program

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]


def stop(processes: list[psutil.Process]) -> None:
    """SIGSTOP, the first one first; all stand still on return."""
    for process in processes:
        process.suspend()
    deadline = time.monotonic() + 30.0
    while any(process.status() != psutil.STATUS_STOPPED for process in processes):
        assert time.monotonic() < deadline


def catalog_is_free(rig: Harness) -> bool:
    """Tell whether nobody is in the middle of a change of the catalog."""
    path = rig.folder / "spool" / "orders" / "catalog.db"
    with closing(sqlite3.connect(path, timeout=0.0, isolation_level=None)) as catalog:
        try:
            catalog.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            return False
        catalog.execute("ROLLBACK")
        return True


def stop_while(rig: Harness, processes: list[psutil.Process], *, free: bool) -> None:
    """SIGSTOP, in the middle of a change of the catalog or between two."""
    draw = chance()
    deadline = time.monotonic() + 30.0
    stop(processes)
    while catalog_is_free(rig) != free:
        assert time.monotonic() < deadline
        go_on(processes)
        time.sleep(draw.uniform(0.0, 2 * PAUSE))
        stop(processes)


def go_on(processes: list[psutil.Process]) -> None:
    """SIGCONT."""
    for process in processes:
        process.resume()


def has_ended_fenced(rig: Harness, zombie: Program) -> None:
    """See that a publisher finds out that it was replaced, says so, and ends."""
    rig.wait_until(lambda: not zombie.alive, "the zombie ends", 30.0)
    assert zombie.process.returncode not in (0, None)
    assert "errors.Fenced" in zombie.log_end(), zombie.log_end()


def test_the_publishers_host_with_a_second_publisher(tmp_path: Path) -> None:
    """Cases 5 and 50: driver, coordinator and data process stand still; the newcomer waits for their session only."""
    with running(tmp_path) as rig:
        zombie, asleep = rig.publisher, processes_of(rig.publisher)
        stop_while(rig, asleep, free=True)
        rig.publisher = another_publisher(rig)
        began = time.monotonic()
        rig.publisher.start(pause=PAUSE)
        more(rig)
        assert time.monotonic() - began < 30.0
        time.sleep(max(0.0, began + 2 * SESSION - time.monotonic()))
        go_on(asleep)
        has_ended_fenced(rig, zombie)
        gone(asleep, 40.0)  # its coordinator serves nothing any more
        more(rig)
        conclude(rig)


@pytest.mark.slow
def test_the_publishers_host_in_the_middle_of_a_change(tmp_path: Path) -> None:
    """As before, but its coordinator keeps the catalog locked: the newcomer names it, and goes on when it has ended."""
    with running(tmp_path) as rig:
        first, asleep = rig.publisher, processes_of(rig.publisher)
        stop_while(rig, asleep, free=False)
        rig.publisher = another_publisher(rig)
        rig.publisher.start(pause=PAUSE)
        assert rig.publisher.wait(60.0) != 0
        assert f"database is locked by process {asleep[1].pid} (stopped)" in rig.publisher.log_end()
        for process in asleep:
            process.kill()
        assert first.wait(30.0) == -signal.SIGKILL
        gone(asleep)
        rig.publisher.start(pause=PAUSE)
        more(rig)
        conclude(rig)


def test_the_driver_alone_keeps_its_topic(tmp_path: Path) -> None:
    """Cases 5 and 50: a stopped driver lives, and its coordinator says so: the newcomer is refused by name."""
    with running(tmp_path) as rig:
        rig.publisher.suspend()
        began = time.monotonic()
        rival = another_publisher(rig)
        rival.start()
        assert rival.wait(30.0) != 0
        assert "TopicOwned" in rival.log_end()
        time.sleep(max(0.0, began + 1.5 * SESSION - time.monotonic()))
        rig.wait_until(rig.caught_up, "all that is sealed")
        rig.publisher.resume()
        more(rig)
        conclude(rig)


@pytest.mark.slow
def test_a_stopped_subscriber(tmp_path: Path) -> None:
    """Case 6: it holds up nobody, the coordinator stays small, and awake again it misses nothing."""
    with running(tmp_path, consumers=("all", "sleeper"), **FILES) as rig:
        before = rig.coordinator().memory_info().rss + rig.data_process().memory_info().rss
        rig.consumer("sleeper").suspend()
        slept = rig.received("sleeper")
        began = time.monotonic()
        while time.monotonic() - began < 2 * SESSION:
            more(rig)
        assert rig.received("sleeper") == slept
        after = rig.coordinator().memory_info().rss + rig.data_process().memory_info().rss
        assert after - before < 64 * 1024 * 1024
        rig.consumer("sleeper").resume()
        more(rig, "sleeper", 2000)
        conclude(rig, "all", "sleeper")


@pytest.mark.core
def test_a_stopped_subscriber_whose_name_is_taken(tmp_path: Path) -> None:
    """Cases 16 and 51: the newcomer gets the name of one that does not answer; the zombie is fenced, and ends.

    Both have one state, as two drivers on one checkpoint: only one of them may move it.
    """
    with running(tmp_path) as rig:
        zombie = rig.consumer()
        suspend_between_transactions(rig)
        time.sleep(SESSION)
        heir = rig._program("tests.harness.jobs.consume", "consumer-heir", zombie._make_order)
        rig._consumers["all"] = heir
        heir.start()
        more(rig)
        os.kill(zombie.pid, signal.SIGCONT)
        rig.wait_until(lambda: not zombie.alive, "the zombie ends", 30.0)
        assert "Fenced" in zombie.log_end() or "who moved it" in zombie.log_end(), zombie.log_end()
        more(rig)
        conclude(rig)


@pytest.mark.slow
def test_zookeeper_and_everybody_stopped_for_a_while(tmp_path: Path) -> None:
    """Case 10: the whole machine stands still, as a laptop does; nobody takes his own sleep for another's death."""
    with running(tmp_path, **OWN_ZOOKEEPER) as rig:
        everybody = [*processes_of(rig.publisher), *processes_of(rig.consumer())]
        stop(everybody)
        rig.zookeeper.suspend()
        time.sleep(2 * SESSION)
        rig.zookeeper.resume()
        go_on(everybody)
        more(rig, timeout=30.0)
        assert (rig.publisher.starts, rig.consumer().starts) == (1, 1)
        conclude(rig)
        assert Received(rig._store("all")).position is not None
