"""A Spark application that publishes by ``writeStream.format("jobpipe")``, killed; the oracle judges."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.rig import FILES, chance, conclude, gone, more
from tests.faults.spark.spark_rig import REQUIRED, SPARK_PATIENCE, spark_pair, verdict_now

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(600)]

BY_FORMAT = {**REQUIRED, "way": "format"}


@pytest.mark.parametrize("shape", [{}, FILES], ids=["in the catalog", "in files"])
def test_publisher_killed(tmp_path: Path, shape: dict[str, int]) -> None:
    """Cases 1 and 45: kill -9 of Python, Java and workers at a random moment; from its checkpoint it goes on.

    It publishes without a pause, so that the moment lies in a batch: planned, written or about to be committed.
    """
    moments = chance()
    with spark_pair(tmp_path, pause=0.0, options=BY_FORMAT, **shape) as rig:
        for _ in range(2):
            time.sleep(moments.uniform(0.0, 1.0))
            rig.publisher.kill()
            verdict_now(rig)  # the backlog is readable in between
            rig.publisher.start(pause=0.0, options=BY_FORMAT)
            more(rig, timeout=SPARK_PATIENCE)
        conclude(rig)


def test_coordinator_killed(tmp_path: Path) -> None:
    """Cases 1 and 23: with its data process; one of Spark's processes starts another one, and the query goes on.

    The rows of a batch travel with its seal here: there are no files that a new coordinator could sweep.
    """
    with spark_pair(tmp_path, pause=0.0, options=BY_FORMAT) as rig:
        data, coordinator = rig.data_process(), rig.coordinator()
        before, starts = rig.link()["epoch"], rig.publisher.starts
        coordinator.kill()
        gone([data, coordinator])
        more(rig, timeout=SPARK_PATIENCE)
        verdict_now(rig)
        rig.wait_until(lambda: rig.link()["epoch"] > before, "progress that shows the new epoch", SPARK_PATIENCE)
        assert rig.publisher.starts == starts
        assert rig.publisher.terminate(SPARK_PATIENCE) == 0
        rig.publisher.start(pause=0.0, options=BY_FORMAT)
        conclude(rig)
