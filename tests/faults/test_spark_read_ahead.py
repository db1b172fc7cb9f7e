"""A Spark application that reads ahead, killed while its tasks wait or read; the oracle judges."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.rig import chance, conclude, more
from tests.faults.spark_rig import SPARK_PATIENCE, spark_pair, verdict_now

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(600)]


def test_subscriber_killed(tmp_path: Path) -> None:
    """Case 3: kill -9 at random moments; a batch that comes again is as it was, nothing is lost, and it ends."""
    with spark_pair(tmp_path, options={"readAhead": "true"}) as rig:
        for _ in range(2):
            time.sleep(chance().uniform(0.0, 1.0))
            rig.consumer().kill()
            rig.consumer().start()
            more(rig, timeout=SPARK_PATIENCE)
        verdict_now(rig)
        conclude(rig)
