"""Two Spark applications and a small cap, or a small disk: the publisher waits, or fails, and goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from jobpipe.admin import Admin
from tests.faults.disks.test_disk_full import grow, mounted
from tests.faults.rig import conclude, later_rows, more
from tests.faults.spark.spark_rig import PAUSE, SPARK_PATIENCE, spark_pair, verdict_now

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(600)]

ROWS = {"rows": 1000, "payload": 200}
BATCH = 512 * 1024  # bytes, a little more than one has
CAP = 8 * BATCH


def test_full_spool_and_a_slow_subscriber(tmp_path: Path) -> None:
    """Cases 36, 56 and 57: at the cap the publisher waits, and says for whom; then it goes on by itself.

    In the end the same publisher, and the same run of its query, have published more than the spool ever held.
    """
    cap = {
        "spool.max_bytes": str(CAP),
        "segment.max_bytes": "1MiB",
        "write_path": "collect",
        "retention.time": "10min",
        "retention.ack_grace": "0s",
    }
    with spark_pair(tmp_path, settings=cap, **ROWS) as rig, Admin(rig.config) as admin:
        rig.consumer().suspend()
        waits = rig.wait_until(lambda: admin.status(rig.topic).waiting, "the publisher waits", SPARK_PATIENCE)
        assert "all" in str(waits)
        held = rig.journal.batches
        time.sleep(2.0)
        assert rig.journal.batches <= held + 1
        assert admin.status(rig.topic).stored_bytes < CAP + BATCH
        rig.consumer().resume()
        rig.wait_until(lambda: rig.journal.batches > held + 15, "the publisher goes on", SPARK_PATIENCE)
        verdict_now(rig)
        assert rig.publisher.starts == rig.consumer().starts == 1
        conclude(rig)


@pytest.mark.slow
def test_full_disk(tmp_path: Path) -> None:
    """Case 36: no room on the disk fails the batch and its query; with room again it goes on where it was."""
    with (
        mounted(tmp_path / "small", "512m") as disk,
        spark_pair(tmp_path, settings={"spool.dir": str(disk), "retention.time": "10min"}, **ROWS) as rig,
    ):
        rig.publisher.end_is_expected()
        shrink(disk)
        rig.wait_until(lambda: not rig.publisher.alive, "the batch that finds no room", SPARK_PATIENCE)
        said = rig.publisher.log_end(400)
        assert "SpoolFull" in said
        assert str(disk) in said
        verdict_now(rig)  # what was sealed is served
        grow(disk, "512m")
        rig.publisher.start(pause=PAUSE)
        later_rows(rig, timeout=SPARK_PATIENCE)
        more(rig, timeout=SPARK_PATIENCE)
        verdict_now(rig)
        conclude(rig)


def shrink(disk: Path) -> None:
    """Leave room for a few batches."""
    found = os.statvfs(disk)
    grow(disk, str((found.f_blocks - found.f_bfree) * found.f_frsize + 6 * BATCH))
