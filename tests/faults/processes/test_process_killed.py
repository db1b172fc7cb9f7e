"""kill -9 of each process at random moments: nothing lost, nothing twice, and soon going on. Seeds are printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.rig import FILES, PAUSE, chance, conclude, gone, later_rows, more, processes_of, running, sound_so_far
from tests.harness.processes import Harness

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A pair that is hurt by one test after the other; registrations of the dead stay for 40 s."""
    with running(tmp_path_factory.mktemp("killed"), settings={"registerserver.session.timeout": "40s"}) as rig:
        yield rig
        conclude(rig)


@pytest.fixture(autouse=True)
def judged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Judge the module's pair after each test that hurts it."""
    yield
    if "rig" in request.fixturenames:
        sound_so_far(request.getfixturevalue("rig"))


def test_publisher_five_times(rig: Harness) -> None:
    """Case 1: each time the backlog is readable in between, and the next one's first row is there within 10 s."""
    moments = chance()
    for _ in range(5):
        time.sleep(moments.uniform(0.0, 0.5))
        rig.publisher.kill()
        rig.wait_until(rig.caught_up, "the backlog, while nobody publishes", 10.0)
        before = rig.journal.rows + rig.rows.rows * rig.rows.partitions  # the batch in progress may have been sealed
        began = time.monotonic()
        rig.publisher.start(pause=PAUSE)
        rig.wait_until(lambda: rig.received() > before, "a row of the new publisher")  # noqa: B023
        assert time.monotonic() - began < 10.0
        if moments.random() < 0.5:
            more(rig)


@pytest.mark.parametrize("times", [pytest.param(2, marks=pytest.mark.core), 5])
def test_subscriber(rig: Harness, times: int) -> None:
    """Case 3: each time it goes on from its own position, and gets its name back, whatever it was doing."""
    moments = chance()
    for _ in range(times):
        time.sleep(moments.uniform(0.0, 1.0))
        rig.consumer().kill()
        time.sleep(moments.uniform(0.0, 0.3))
        rig.consumer().start(max_rows=moments.choice([None, 30, 70]))  # also inside a batch
        if moments.random() < 0.6:
            more(rig)


def test_the_publishers_host(rig: Harness) -> None:
    """Case 23: driver, coordinator and data process at once; the ghost's registration holds up nobody.

    The registry keeps it for 40 s. Subscribers wait, and go on within 5 s of the publisher's return.
    """
    dead = processes_of(rig.publisher)
    assert len(dead) == 3
    for process in reversed(dead):
        process.kill()
    rig.publisher.kill()
    gone(dead)
    time.sleep(2.0)  # subscribers look for it meanwhile, and back off
    sealed = rig.journal.batches
    began = time.monotonic()
    rig.publisher.start(pause=PAUSE)
    rig.wait_until(lambda: rig.journal.batches > sealed + 1, "the publisher is back")
    back = time.monotonic()
    later_rows(rig)
    assert time.monotonic() - back < 5.0
    assert time.monotonic() - began < 20.0  # far below the 40 s that the ghost stays by itself


@pytest.mark.slow
def test_coordinator_and_data_process_while_files_are_read(tmp_path: Path) -> None:
    """Cases 4 and 14: in the middle of seals and streams; the publisher notices no more than the subscribers."""
    moments = chance()
    with running(tmp_path, consumers=("one", "two"), **FILES) as rig:
        for _ in range(2):
            time.sleep(moments.uniform(0.0, 0.3))
            coordinator = rig.coordinator()
            coordinator.kill()
            gone([coordinator])
            more(rig, "one", 3000)
            time.sleep(moments.uniform(0.0, 0.3))
            rig.data_process().kill()
            more(rig, "two", 3000)
        assert rig.publisher.starts == 1
        conclude(rig, "one", "two")


@pytest.mark.slow
def test_all_at_once(tmp_path: Path) -> None:
    """Cases 1, 3 and 10: publisher, coordinator and subscriber die together; the spool and the positions suffice."""
    moments = chance()
    with running(tmp_path, **FILES) as rig:
        for _ in range(2):
            time.sleep(moments.uniform(0.0, 1.0))
            dead = [*processes_of(rig.publisher), *processes_of(rig.consumer())]
            moments.shuffle(dead)
            for process in dead:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            rig.publisher.kill()
            rig.consumer().kill()
            gone(dead)
            rig.consumer().start()
            rig.publisher.start(pause=PAUSE)
            more(rig, rows=3000)
        conclude(rig)
