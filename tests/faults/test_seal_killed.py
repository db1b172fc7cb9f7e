"""kill -9 at each step of the seal, through a whole pair: what was sealed is there once, and the pair goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.points import COORDINATOR_POINTS, PUBLISHER_POINTS, FaultPoints
from tests.faults.rig import PAUSE, conclude, later_rows, more, running

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

FILES = {"rows": 400, "payload": 200}  # batches too large for the catalog itself
SMALL = {"rows": 20}  # batches inside the catalog


def test_publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases 2 and 45: before the seal nothing is visible; after it, the replay of the batch publishes nothing."""
    points = FaultPoints(tmp_path, monkeypatch)
    with running(tmp_path, **FILES) as rig:
        for point in PUBLISHER_POINTS:
            points.arm(point)
            points.wait_used()
            assert rig.publisher.wait(20.0) == -9, point
            rig.publisher.kill()  # noted as hurt
            sealed = rig.journal.batches
            rig.publisher.start(pause=PAUSE)
            rig.wait_until(lambda: rig.journal.batches > sealed + 1, "the replay and another batch")  # noqa: B023
            later_rows(rig)
        conclude(rig)


@pytest.mark.parametrize("size", [FILES, SMALL], ids=["files", "inline"])
def test_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: dict[str, int]) -> None:
    """Cases 2 and 45: the publisher lives, starts another coordinator, and repeats the seal with the same write id."""
    points = FaultPoints(tmp_path, monkeypatch)
    with running(tmp_path, **size) as rig:
        for point in COORDINATOR_POINTS if size is FILES else COORDINATOR_POINTS[2:]:
            before = rig.coordinator().pid
            points.arm(point)
            points.wait_used()
            later_rows(rig)
            assert rig.coordinator().pid != before, point
        more(rig)
        assert rig.publisher.starts == 1
        conclude(rig)
