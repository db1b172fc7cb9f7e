"""The harness with real processes: kill -9 and SIGSTOP of each side; nothing lost, nothing twice, in order, progress.

Each test prints its seed; ``JOBPIPE_SEED`` plays it again.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from jobpipe.testing.processes import Harness, Program

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

PAUSE = 0.005  # seconds between two batches
PROGRESS = 20.0  # seconds without a row that the slowest recovery may take on a busy machine
Rig = Callable[..., Harness]


@pytest.fixture
def chance() -> random.Random:
    """Where moments come from."""
    seed = int(os.environ.get("JOBPIPE_SEED", random.randrange(2**32)))
    print(f"JOBPIPE_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Return a starter of a harness whose publisher and subscriber run."""
    made: list[Harness] = []

    def start(**options: object) -> Harness:
        harness = Harness(tmp_path / "rig", **options)  # type: ignore[arg-type]
        made.append(harness)
        harness.publisher.start(pause=PAUSE)
        harness.consumer().start()
        more(harness)
        return harness

    yield start
    for harness in made:
        harness.close()
        assert harness._marked() == []
        assert harness.zookeeper._server.status() is None


def more(rig: Harness, rows: int = 1000) -> None:
    """Wait until so many more rows have arrived."""
    target = rig.received() + rows
    rig.wait_until(lambda: rig.received() >= target, f"{rows} more rows")


def hurt(rig: Harness, program: Program, chance: random.Random) -> None:
    """Kill a program at a random moment, every second time while it starts, and start it again."""
    if chance.random() < 0.5:
        more(rig)
    time.sleep(chance.uniform(0.0, 1.5))
    program.kill()
    time.sleep(chance.uniform(0.0, 0.5))
    program.start(**({"pause": PAUSE} if program is rig.publisher else {}))


def test_quiet_run(rig: Rig) -> None:
    """Without a fault everything arrives, and all programs end by themselves."""
    quiet = rig(rows=30, partitions=3)
    quiet.consumer("late").start(max_rows=50)
    quiet.wait_until(lambda: quiet.received("late") > 0, "rows of the second subscriber")
    quiet.finish()
    for name in ("all", "late"):
        report = quiet.verdict(name, max_pause=PROGRESS)
        assert report.rows == quiet.journal.rows >= 1000
    assert [quiet.publisher.process.returncode, quiet.consumer().process.returncode] == [0, 0]
    quiet.wait_until(lambda: quiet.coordinators() == [], "the coordinator ends: all was read")


def test_publisher_killed_and_stopped(rig: Rig, chance: random.Random) -> None:
    """Cases 1 and 5: kill -9 three times, at any moment; SIGSTOP of the driver, then SIGCONT."""
    hit = rig()
    for _ in range(3):
        hurt(hit, hit.publisher, chance)
    more(hit)
    hit.publisher.suspend()
    before = hit.journal.rows
    time.sleep(chance.uniform(0.3, 1.5))
    hit.wait_until(hit.caught_up, "all that is sealed, while the publisher stands still")
    assert hit.journal.rows - before <= 200  # at most the batch in progress
    hit.publisher.resume()
    more(hit)
    hit.finish()
    assert hit.verdict(max_pause=PROGRESS).rows == hit.journal.rows


def test_consumer_killed(rig: Rig, chance: random.Random) -> None:
    """Case 3: kill -9 three times; each time it goes on from its own position."""
    hit = rig()
    for _ in range(3):
        hurt(hit, hit.consumer(), chance)
    more(hit)
    hit.finish()
    assert hit.verdict(max_pause=PROGRESS).rows == hit.journal.rows


def test_coordinator_and_data_process_killed(rig: Rig, chance: random.Random) -> None:
    """The publisher starts another coordinator, the coordinator another data process; nobody else notices."""
    hit = rig()
    for _ in range(2):
        coordinator = hit.coordinator()
        time.sleep(chance.uniform(0.0, 0.5))
        coordinator.kill()
        psutil.wait_procs([coordinator], 10.0)
        more(hit)
        assert hit.coordinator() != coordinator
    hit.data_process().kill()
    more(hit)
    hit.finish()
    assert hit.verdict(max_pause=PROGRESS).rows == hit.journal.rows


def test_proxies_and_zookeeper(rig: Rig) -> None:
    """The bus can be cut from its subscribers, and ZooKeeper taken away while data flow."""
    hit = rig(proxied=True)
    hit.zookeeper.kill()
    more(hit)
    for proxy in hit.proxies:
        proxy.reset()
    more(hit)
    hit.zookeeper.start()
    hit.finish()
    assert hit.verdict(max_pause=PROGRESS).rows == hit.journal.rows
    assert sum(proxy.passed("down") for proxy in hit.proxies) > hit.journal.rows


def test_program_that_fails_is_told(tmp_path: Path) -> None:
    """A wait ends with the log of a program that ended by an error of its own."""
    failing = Program("jobpipe.testing.no_such_program", lambda: _Nothing(), tmp_path / "log")
    failing.start()
    assert failing.wait() != 0
    assert failing.failure is not None
    assert "no_such_program" in failing.failure
    assert sys.executable in failing.failure


class _Nothing:
    def line(self) -> bytes:
        return b"{}\n"
