"""One subscriber of three is slow: the spool takes what it has not read, memory does not, and the others go on."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.harness.processes import Harness

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper, pytest.mark.timeout(180)]

BATCHES = 50  # of 2 MB
MEGABYTE = 1_000_000


def test_one_of_three(tmp_path: Path) -> None:
    """Cases 9 and 57: 100 MB, of which one subscriber takes 1 MB a second, the others what they can."""
    with Harness(tmp_path / "rig", partitions=1, rows=2000, payload=1000) as rig:
        rig.publisher.start(batches=BATCHES)
        rig.consumer("slow").start(max_rows=rig.rows.rows // 2, pause=1.0)
        for name in ("one", "two"):
            rig.consumer(name).start()
        rig.wait_until(lambda: all(map(rig.received, ("one", "two", "slow"))), "the first rows")
        servers = [rig.coordinator(), rig.data_process()]
        first = [process.memory_info().rss for process in servers]
        peak = list(first)

        def others_have_all() -> bool:
            peak[:] = [max(old, rss(process)) for old, process in zip(peak, servers, strict=True)]
            return all(rig.received(name) >= BATCHES * rig.rows.rows for name in ("one", "two"))

        rig.wait_until(others_have_all, "the two quick ones to end")
        assert rig.received("slow") < 0.5 * BATCHES * rig.rows.rows
        growth = [new - old for new, old in zip(peak, first, strict=True)]
        print("growth of coordinator and data process, bytes:", growth)
        assert max(growth) < 50 * MEGABYTE
        rig.consumer("slow").kill()
        rig.consumer("slow").start()  # from where it was, as fast as it can
        rig.finish()
        for name in ("one", "two", "slow"):
            assert rig.verdict(name).rows == BATCHES * rig.rows.rows


def rss(process: psutil.Process) -> int:
    """Return its resident memory; 0 if it ended, as all may once everything was read."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
