"""The harness with real processes; what it is for, faults, is in ``tests/faults``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from tests.harness.jobs import publish
from tests.harness.processes import Harness
from tests.harness.program import Program

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

PAUSE = 0.005  # seconds between two batches
PROGRESS = 20.0  # seconds without a row that the slowest recovery may take on a busy machine
Rig = Callable[..., Harness]


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
        assert not harness.zookeeper.left


def more(rig: Harness, rows: int = 1000) -> None:
    """Wait until so many more rows have arrived."""
    target = rig.received() + rows
    rig.wait_until(lambda: rig.received() >= target, f"{rows} more rows")


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_shared_zookeeper(rig: Rig, home: Path) -> None:
    """It may not be hurt, is left behind, and a topic there is nobody else's; only the proxy before it is one's own."""
    shared = rig(zookeeper=home)
    with pytest.raises(RuntimeError, match="others' too"):
        shared.zookeeper.kill()
    assert shared.config.namespace != "/jobpipe/topics"
    shared.zookeeper.proxy.reset()
    more(shared)
    shared.consumer().kill()
    shared.consumer().start(parallel=4)
    more(shared)
    shared.finish()
    assert shared.verdict().rows == shared.journal.rows
    shared.close()
    assert EmbeddedZooKeeper(home).status() is not None


@pytest.mark.slow
def test_proxies_and_zookeeper(rig: Rig) -> None:
    """The bus can be cut from its subscribers, and ZooKeeper taken away while data flow."""
    payload = 200
    hit = rig(proxied=True, payload=payload)
    hit.zookeeper.kill()
    more(hit)
    for proxy in hit.proxies:
        proxy.reset()
    more(hit)
    hit.zookeeper.start()
    hit.finish()
    assert hit.verdict(max_pause=PROGRESS).rows == hit.journal.rows
    assert (
        sum(proxy.passed("down") for proxy in hit.proxies) > hit.journal.rows * payload
    )  # the rows, not only the plans


def test_program_that_fails_is_told(tmp_path: Path) -> None:
    """A wait ends with the log of a program that ended by an error of its own."""
    failing = Program("tests.harness.no_such_program", lambda: _Nothing(), tmp_path / "log")
    failing.start()
    assert failing.wait() != 0
    assert failing.failure is not None
    assert "no_such_program" in failing.failure
    assert sys.executable in failing.failure


class _Nothing:
    def line(self) -> bytes:
        return b"{}\n"


@pytest.mark.slow
def test_an_open_batch_is_repeated_before_the_end_mark(rig: Rig) -> None:
    """A publisher that is killed in a batch, and is to finish then, repeats that batch first, as Spark."""
    killed = rig(rows=30)
    killed.publisher.kill()
    journal = killed.journal
    batch_id = journal.batches
    if not journal.is_open(batch_id):
        order = killed._publish_order()
        publish._note(order.checkpoint, batch_id - 1)  # the kill may have come before that
        journal.intend(batch_id, killed.rows.ranges(batch_id))
    killed.finish()
    assert killed.journal.batches == batch_id + 1
    assert killed.verdict().rows == killed.journal.rows
