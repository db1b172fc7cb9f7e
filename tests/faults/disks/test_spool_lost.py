"""``acks=all``: not even the loss of the spool loses a row, or brings one twice. Without it the loss is told."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.rig import FILES, PAUSE, chance, conclude, gone, later_rows, more, processes_of, running
from tests.harness.processes import Harness

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(300)]

ALL: dict[str, Any] = {"settings": {"acks": "all"}}
REQUIRED = {"options": {"required_subscribers": ["a", "b"]}}
ANY_TWO = {"options": {"min_subscribers": 2}}


def lose_host(rig: Harness, *consumers: str) -> None:
    """Kill -9 all of the publisher's host, and some consumers, and delete the spool."""
    dead = processes_of(rig.publisher)
    for name in consumers:
        rig.consumer(name).kill()
    for process in dead:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    rig.publisher.kill()
    gone(dead)
    shutil.rmtree(rig.folder / "spool")


def some(chance: random.Random) -> list[str]:
    return [name for name in ("a", "b") if chance.random() < 0.5]


@pytest.mark.parametrize(
    ("size", "whom"),
    [
        pytest.param({}, REQUIRED, id="in the catalog, required"),
        pytest.param(FILES, ANY_TWO, id="in files, any two"),
        pytest.param({}, ANY_TWO, id="in the catalog, any two", marks=pytest.mark.slow),
        pytest.param(FILES, REQUIRED, id="in files, required", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_lost_with_the_spool(tmp_path: Path, whom: dict[str, Any], size: dict[str, Any]) -> None:
    """Cases 45, 55: killed at any moment; before, between and after the acknowledgements of the batch under way."""
    moments = chance()
    with running(tmp_path, consumers=("a", "b"), start=whom, **ALL, **size) as rig:
        for _ in range(3):
            more(rig, "a", rows=moments.randrange(1, 200))
            killed = some(moments)
            lose_host(rig, *killed)
            if moments.random() < 0.5:
                rig.publisher.start(pause=PAUSE, **whom)
                for name in killed:
                    rig.consumer(name).start()
            else:
                for name in killed:
                    rig.consumer(name).start()
                rig.publisher.start(pause=PAUSE, **whom)
            for name in ("a", "b"):
                later_rows(rig, name)
        conclude(rig, "a", "b")


@pytest.mark.core
def test_one_had_the_batch_and_the_other_not(tmp_path: Path) -> None:
    """The mixed state: N committed here, N+1 there. Both stand still when the host dies."""
    with running(tmp_path, consumers=("a", "b"), start=REQUIRED, **ALL) as rig:
        for _ in range(20):
            rig.consumer("b").kill()
            if rig.received("b") <= rig.journal.rows:
                break
            rig.consumer("b").start()  # it had the batch under way when it died: another moment
            more(rig, "b")
        # The batch under way waits for b; a has it.
        rig.wait_until(lambda: rig.received("a") > rig.journal.rows, "a batch that only a has")
        assert rig.received("b") <= rig.journal.rows
        lose_host(rig)
        rig.publisher.start(pause=PAUSE, **REQUIRED)
        rig.consumer("b").start()
        for name in ("a", "b"):
            more(rig, name)
        conclude(rig, "a", "b")


def ends_with_data_loss(rig: Harness, name: str) -> None:
    consumer = rig.consumer(name).start()
    assert consumer.wait() != 0
    assert "DataLoss" in consumer.log_end(40)
    consumer.kill()  # what it said is what was asked for: no failure of the rig


def test_without_it_the_loss_is_told(tmp_path: Path) -> None:
    """Case 55: ``acks=stored`` promises nothing of a lost spool, but it does not pass over it in silence."""
    with running(tmp_path) as rig:
        sealed = rig.journal.rows
        lose_host(rig, "all")
        rig.publisher.start(pause=PAUSE)
        rig.wait_until(lambda: rig.journal.rows > sealed, "rows of the new log")
        ends_with_data_loss(rig, "all")


def test_a_point_from_before_an_outage_of_the_registry_is_told(tmp_path: Path) -> None:
    """Batches sealed while it was away are not in the point; then the spool is lost. Loud, and nothing comes twice."""
    with running(tmp_path, consumers=("a", "b"), start=REQUIRED, **ALL) as rig:
        proxy = rig.zookeeper.proxy
        proxy.refuse()
        proxy.reset()
        more(rig, "a", rows=300)  # the pair goes on
        lose_host(rig, "a", "b")
        proxy.accept()
        rig.publisher.start(pause=PAUSE, **REQUIRED)
        for name in ("a", "b"):
            ends_with_data_loss(rig, name)
