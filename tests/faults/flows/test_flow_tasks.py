"""Tasks of a flow job that are processes of their own, as on a cluster: killed, and standing still to seal late."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.rig import FILES, chance, conclude, later_rows, running
from tests.harness.processes import Harness

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

FLOW, FLOWED = "passes", "passed-on"
SIZES = pytest.mark.parametrize("size", [{}, pytest.param(FILES, marks=pytest.mark.slow)], ids=["small", "files"])


@contextmanager
def flowing(folder: Path, size: dict[str, int]) -> Iterator[Harness]:
    """Run a publisher, a flow of two tasks, and a subscriber of what it publishes; each row came once, in order."""
    with running(folder, consumers=(), **size) as rig:
        rig.flow(FLOW, FLOWED).start()
        rig.consumer("flow", FLOWED).start()
        later_rows(rig, "flow")
        yield rig
        conclude(rig, "flow")


@pytest.mark.slow
@SIZES
def test_tasks_are_killed(tmp_path: Path, size: dict[str, int]) -> None:
    """``kill -9``, one after the other: another attempt goes on by the cursors."""
    moments = chance()
    with flowing(tmp_path, size) as rig:
        for _ in range(3):
            moments.choice(rig.wait_until(lambda: rig.flow_tasks(FLOW), "a task")).kill()
            later_rows(rig, "flow")


@SIZES
def test_tasks_stand_still_and_seal_late(tmp_path: Path, size: dict[str, int]) -> None:
    """Other attempts take their partitions meanwhile; what the first ones still had is refused."""
    with flowing(tmp_path, size) as rig:
        first = rig.wait_until(lambda: found if len(found := rig.flow_tasks(FLOW)) == 2 else [], "two tasks")
        later_rows(rig, "flow")
        for process in first:
            process.suspend()
        rig.flow(FLOW, FLOWED).signal(signal.SIGUSR1)
        later_rows(rig, "flow")
        for process in first:
            process.resume()
        log = rig.flow(FLOW, FLOWED).log
        rig.wait_until(lambda: log.read_text().count("waiting for the end") == 2, "both are refused")
        later_rows(rig, "flow")
