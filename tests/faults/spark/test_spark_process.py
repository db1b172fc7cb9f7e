"""Two Spark applications over one topic, killed, stopped and ended in turn; the oracle judges after each."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.faults.rig import SESSION, chance, conclude, gone, more
from tests.faults.spark.spark_rig import (
    OPTIONS,
    PAUSE,
    SPARK_PATIENCE,
    SparkHarness,
    arrival,
    slowness,
    spark_pair,
    unused,
    verdict_now,
)

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(600)]

FIRST_ROW_SECONDS = 10.0  # from the construction of a new publisher's sink to its first row at the subscriber
GOES_ON_SECONDS = 5.0  # from the publisher's return, its first sealed batch
END_SECONDS = 10.0
# What Spark logs of a task that is killed while it hands rows to Arrow: memory is counted before it is freed.
OF_A_KILLED_TASK = re.compile(r" ERROR (BaseAllocator: Memory was leaked|TaskContextImpl: Error in TaskCompletionList)")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHarness]:
    """The pair; nothing is lost or doubled over all that the tests did."""
    with spark_pair(tmp_path_factory.mktemp("process")) as rig:
        yield rig
        conclude(rig)


@pytest.fixture(autouse=True)
def both_run(rig: SparkHarness) -> None:
    """Start what a failed test left dead, and wait until it is at work."""
    dead = [program for program in (rig.publisher, rig.consumer()) if not program.alive]
    for program in dead:
        program.start(**({"pause": PAUSE} if program is rig.publisher else {}))
    if dead:
        more(rig, timeout=SPARK_PATIENCE)


def started_again(rig: SparkHarness) -> tuple[float, float]:
    """Start the publisher again; return the age of its sink, and of its first seal, when the first row of it came."""
    fresh, since = unused(rig.journal), time.monotonic()
    rig.publisher.start(pause=PAUSE)
    rig.wait_until(lambda: arrival(rig, fresh) is not None, "a row of the new publisher", SPARK_PATIENCE)
    came = arrival(rig, fresh)
    assert came is not None
    sealed = [event["at"] for event in rig.events.read("sealed", since) if event["batch"] * rig.rows.rows >= fresh]
    return came - rig.events.read("constructing", since)[0]["at"], came - sealed[0]


def test_publisher_killed(rig: SparkHarness) -> None:
    """Cases 1, 23 and 45: kill -9 of Python, Java and workers at a random moment; from its checkpoint it goes on."""
    time.sleep(chance().uniform(0.0, 1.0))
    rig.publisher.kill()
    verdict_now(rig)  # the backlog is readable in between
    slow = slowness()
    since_made, since_sealed = started_again(rig)
    slow = max(slow, slowness())
    print(f"first row {since_made:.1f} s after construction, {since_sealed:.1f} s after its seal; slowness {slow:.1f}")
    assert since_made < FIRST_ROW_SECONDS * slow
    assert since_sealed < GOES_ON_SECONDS * slow
    verdict_now(rig)


def test_subscriber_killed(rig: SparkHarness) -> None:
    """Case 3: kill -9 at a random moment; from its checkpoint it goes on, and a batch that comes again is as it was.

    Then the same with ``readAhead``, which its restart switches on: tasks wait or read when it is killed.
    """
    options = rig.folder / OPTIONS
    options.write_text(json.dumps({"readAhead": "true"}))
    try:
        for _ in range(2):
            time.sleep(chance().uniform(0.0, 1.0))
            rig.consumer().kill()
            rig.consumer().start()
            more(rig, timeout=SPARK_PATIENCE)
            verdict_now(rig)
    finally:
        options.unlink()  # from its next start on


@pytest.mark.slow
def test_java_of_both_killed(rig: SparkHarness) -> None:
    """Cases 1 and 3: the JVMs alone, as a cluster manager does: nobody is left who has the topic, or the subscription.

    The coordinator serves the backlog to the new subscriber before there is a new publisher.
    """
    for program in (rig.spark_consumer(), rig.publisher):
        family = program.family()
        sealed = rig.journal.batches
        rig.wait_until(lambda: rig.journal.batches > sealed + 3, "a backlog", SPARK_PATIENCE)  # noqa: B023
        program.java().kill()
        program.end_is_expected()
        gone(family, SPARK_PATIENCE)
    assert rig.received() < rig.journal.rows
    rig.consumer().start()
    verdict_now(rig)
    assert not rig.publisher.alive
    started_again(rig)
    verdict_now(rig)


@pytest.mark.slow
def test_coordinator_killed(rig: SparkHarness) -> None:
    """Cases 1 and 23: with its data process; the publisher starts another one, and both queries go on."""
    data, coordinator = rig.data_process(), rig.coordinator()
    before, starts = rig.link()["epoch"], rig.publisher.starts
    coordinator.kill()
    gone([data, coordinator])
    more(rig, timeout=SPARK_PATIENCE)
    verdict_now(rig)
    rig.wait_until(lambda: rig.link()["epoch"] > before, "progress that shows the new epoch", SPARK_PATIENCE)
    assert rig.link()["state"] == "connected"
    assert rig.publisher.starts == starts


@pytest.mark.slow
def test_stopped_for_longer_than_a_session(rig: SparkHarness) -> None:
    """Cases 5 and 6: Python, Java and workers stand still, on one side, then on the other; then the same runs go on."""
    starts, sealed = (rig.publisher.starts, rig.consumer().starts), rig.journal.batches
    rig.consumer().suspend()
    time.sleep(2 * SESSION)
    assert rig.journal.batches > sealed
    rig.consumer().resume()
    more(rig, timeout=SPARK_PATIENCE)
    rig.publisher.suspend()  # its coordinator serves on, and the topic stays its own
    time.sleep(2 * SESSION)
    verdict_now(rig)
    rig.publisher.resume()
    more(rig, timeout=SPARK_PATIENCE)
    verdict_now(rig)
    assert (rig.publisher.starts, rig.consumer().starts) == starts


def test_terminated(rig: SparkHarness) -> None:
    """Cases 7 and 59: SIGTERM, on which jobs stop their queries in the middle of batches, and close: they end in time.

    No stop is taken for a failure, and the subscriber, which stops first, misses nothing.
    """
    for program in (rig.consumer(), rig.publisher):
        logged, began, slow = len(program.log.read_text()), time.monotonic(), slowness()
        assert program.terminate(END_SECONDS * slow) == 0
        print(f"{program} ended in {time.monotonic() - began:.1f} s; slowness {slow:.1f}")
        said = program.log.read_text()[logged:]
        assert "StackOverflowError" not in said
        assert [line for line in said.splitlines() if " ERROR " in line and not OF_A_KILLED_TASK.search(line)] == []
    rig.consumer().start()
    verdict_now(rig)
    started_again(rig)
    verdict_now(rig)
