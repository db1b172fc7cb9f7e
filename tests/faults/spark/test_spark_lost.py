"""``acks=all`` with Spark on both sides: the publisher's host is lost with its spool, again and again; no row is."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import psutil
import pytest

from tests.faults.rig import chance, conclude, gone
from tests.faults.spark.spark_rig import LINGER, SPARK_PATIENCE, SparkHarness

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.timeout(420)]

REQUIRED = {"options": {"required_subscribers": ["all"]}, "pause": 0.05}
ROUNDS = 2


def lose_host(rig: SparkHarness) -> None:
    dead = rig.coordinators()
    for coordinator in list(dead):
        dead += coordinator.children()
    rig.publisher.kill()
    for process in dead:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    gone(dead)
    shutil.rmtree(rig.folder / "spool")


def later_rows(rig: SparkHarness) -> None:
    """Wait for rows sealed from now on. A query that was in the middle of the batch says so, and is started again."""
    target, deadline = rig.journal.rows, time.monotonic() + 2 * SPARK_PATIENCE
    while rig.received() <= target:
        assert time.monotonic() < deadline, rig.state()
        subscriber = rig.spark_consumer()
        if not subscriber.alive:
            assert "start the query again" in subscriber.log_end(400), subscriber.log_end(60)
            subscriber.start()
        time.sleep(0.05)


def test_spool_lost(tmp_path: Path) -> None:
    """Cases 45, 55: at random moments, the subscriber running or killed with it; each micro-batch stays what it was."""
    moments = chance()
    with SparkHarness(
        tmp_path / "rig", settings={"coordinator.linger": LINGER, "acks": "all"}, zookeeper=None, partitions=2, rows=20
    ) as rig:
        rig.publisher.start(**REQUIRED)
        rig.wait_until(lambda: rig.events.read("constructed"), "the sink", SPARK_PATIENCE)
        rig.consumer().start()
        for number in range(ROUNDS):
            target = rig.received() + moments.randrange(40, 200)
            rig.wait_until(lambda target=target: rig.received() >= target, "rows", SPARK_PATIENCE)
            if number % 2:
                rig.consumer().kill()
            lose_host(rig)
            rig.publisher.start(**REQUIRED)
            if number % 2:
                rig.consumer().start()
            later_rows(rig)
        conclude(rig)
    assert rig._marked() == []
