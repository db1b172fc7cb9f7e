"""SIGSTOP for longer than the registry session, somebody else meanwhile, then SIGCONT: exactly one of them lives."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from jobpipe.testing.consume import Received
from jobpipe.testing.processes import Harness, Program
from tests.faults.rig import (
    FILES,
    OWN_ZOOKEEPER,
    PAUSE,
    SESSION,
    another_publisher,
    conclude,
    gone,
    more,
    processes_of,
    running,
)

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]


def stop(processes: list[psutil.Process]) -> None:
    """SIGSTOP, the first one first."""
    for process in processes:
        process.suspend()


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
        stop(asleep)
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


def test_a_stopped_subscriber_whose_name_is_taken(tmp_path: Path) -> None:
    """Cases 16 and 51: the newcomer gets the name of one that does not answer; the zombie is fenced, and ends.

    Both have one state, as two drivers on one checkpoint: only one of them may move it.
    """
    with running(tmp_path) as rig:
        zombie = rig.consumer()
        zombie.suspend()
        time.sleep(SESSION)
        heir = rig._program("jobpipe.testing.consume", "consumer-heir", zombie._make_order)
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
