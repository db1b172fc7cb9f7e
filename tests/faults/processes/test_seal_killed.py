"""kill -9 at each step of the seal, through a whole pair: what was sealed is there once, and the pair goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pytest

from tests.faults.points import COORDINATOR_POINTS, PUBLISHER_POINTS, FaultPoints
from tests.faults.rig import FILES, PAUSE, conclude, later_rows, running, sound_so_far
from tests.harness.processes import Harness

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

Pair: TypeAlias = tuple[Harness, FaultPoints]


@contextmanager
def pair(tmp_path_factory: pytest.TempPathFactory, size: dict[str, int]) -> Iterator[Pair]:
    """Run a pair that is hurt at one point after the other; judge it in the end."""
    folder = tmp_path_factory.mktemp("points")
    with pytest.MonkeyPatch.context() as patch:
        points = FaultPoints(folder, patch)
        with running(folder, **size) as rig:
            yield rig, points
            conclude(rig)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair whose batches lie in files."""
    with pair(tmp_path_factory, FILES) as made:
        yield made


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair whose batches lie in the catalog, which takes fewer steps."""
    with pair(tmp_path_factory, {"rows": 20}) as made:
        yield made


def kill_publisher(pair: Pair, point: str) -> None:
    """Let the publisher die there: whatever is visible then, the replay does not publish it twice."""
    rig, points = pair
    points.arm(point)
    points.wait_used()
    assert rig.publisher.wait(20.0) == -9
    rig.publisher.kill()  # noted as hurt
    sealed = rig.journal.batches
    rig.publisher.start(pause=PAUSE)
    rig.wait_until(lambda: rig.journal.batches > sealed + 1, "the replay and another batch")
    later_rows(rig)
    sound_so_far(rig)


def kill_coordinator(pair: Pair, point: str) -> None:
    """Let the coordinator die there: the publisher lives, and repeats the seal at another one."""
    rig, points = pair
    before, starts = rig.coordinator().pid, rig.publisher.starts
    points.arm(point)
    points.wait_used()
    later_rows(rig)
    assert rig.coordinator().pid != before
    assert rig.publisher.starts == starts
    sound_so_far(rig)


@pytest.mark.parametrize("point", [*PUBLISHER_POINTS[:-1], pytest.param(PUBLISHER_POINTS[-1], marks=pytest.mark.core)])
def test_publisher(files: Pair, point: str) -> None:
    """Cases 2 and 45: before the seal nothing is visible; after it, the replay of the batch publishes nothing."""
    kill_publisher(files, point)


@pytest.mark.core
@pytest.mark.parametrize("point", COORDINATOR_POINTS)
def test_coordinator(files: Pair, point: str) -> None:
    """Cases 2 and 45: the publisher lives, starts another coordinator, and repeats the seal with the same write id."""
    kill_coordinator(files, point)


@pytest.mark.slow
@pytest.mark.parametrize("point", PUBLISHER_POINTS[-2:])
def test_publisher_inline(inline: Pair, point: str) -> None:
    """Cases 2 and 45: the same, without files."""
    kill_publisher(inline, point)


@pytest.mark.slow
@pytest.mark.parametrize("point", COORDINATOR_POINTS[-3:])
def test_coordinator_inline(inline: Pair, point: str) -> None:
    """Cases 2 and 45: the same, without files."""
    kill_coordinator(inline, point)
