"""A chain of three Spark applications: a sink's job, a flow job, a streaming query; the middle, and all, are killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.rig import SHARED, conclude, more
from tests.faults.spark.spark_rig import LINGER, PAUSE, SPARK_PATIENCE, SparkHarness, SparkProgram, verdict_now

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.zookeeper, pytest.mark.timeout(900)]

FLOW, FLOWED, QUERY = "passes", "passed-on", "query"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHarness]:
    """The chain; nothing is lost or doubled over all that the tests did."""
    folder = tmp_path_factory.mktemp("chain") / "rig"
    with SparkHarness(folder, settings={"coordinator.linger": LINGER}, zookeeper=SHARED.zookeeper) as rig:
        rig.publisher.start(pause=PAUSE, options={"required_subscribers": [FLOW]})
        rig.wait_until(lambda: rig.journal.batches, "the first batch", SPARK_PATIENCE)
        flow_job(rig).start()
        rig.wait_until(lambda: rig.flow_coordinators(FLOW), "the flow publishes", SPARK_PATIENCE)
        query(rig).start()
        more(rig, QUERY, timeout=SPARK_PATIENCE)
        yield rig
        conclude(rig, QUERY)


def flow_job(rig: SparkHarness) -> SparkProgram:
    """The one in the middle."""
    program = rig.flow(FLOW, FLOWED)
    assert isinstance(program, SparkProgram)
    return program


def query(rig: SparkHarness) -> SparkProgram:
    """The last one."""
    program = rig.consumer(QUERY, FLOWED)
    assert isinstance(program, SparkProgram)
    return program


def test_the_middle_is_killed(rig: SparkHarness) -> None:
    """``kill -9`` of Python, Java and workers while rows flow; started again, it goes on, and so do the others."""
    flow_job(rig).kill()
    flow_job(rig).start()
    sealed = rig.journal.rows
    rig.wait_until(lambda: rig.journal.rows > sealed, "a batch of the sink", SPARK_PATIENCE)
    verdict_now(rig, QUERY)


def test_both_ends_and_the_middle_are_killed(rig: SparkHarness) -> None:
    """At once; all three are started again."""
    programs = (query(rig), flow_job(rig), rig.publisher)
    for program in programs:
        program.kill()
    for program in reversed(programs):
        program.start(**({"pause": PAUSE} if program is rig.publisher else {}))
    sealed = rig.journal.rows
    rig.wait_until(lambda: rig.journal.rows > sealed, "a batch of the sink", SPARK_PATIENCE)
    verdict_now(rig, QUERY)
