"""A pile of rows from job A into job B, as fast as it goes, in four shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.side_by_side.latency import stands_still
from benchmarks.side_by_side.pair import Pair, Setting, pair
from benchmarks.side_by_side.processes import RunFailed
from benchmarks.side_by_side.shapes import SHAPES

WARM_BATCHES = 5  # a group; as many groups as it takes until their time has stopped falling
MOST_GROUPS = 20
GROUPS = 3  # the time of so many is compared with that of the same number before them
BULK_SECONDS = 600.0


def throughput(contestant: str, setting: Setting, *, shapes: list[str], batches: int) -> list[dict[str, Any]]:
    """Measure one run of each shape, one after another, with the same two applications."""
    with pair(contestant, setting) as jobs:
        return [{"shape": shape, **_pile(jobs, shape, batches)} for shape in shapes]


def _pile(jobs: Pair, shape: str, batches: int) -> dict[str, Any]:
    """Send batches to warm up, then those that count."""
    size = SHAPES[shape].rows_per_batch
    (b,) = jobs.readers.values()
    jobs.a.ask("prepare", stream=shape, shape=shape)
    b.ask("bulk", stream=shape, shape=shape, pace={"rows_per_batch": size})
    jobs.a.ask("pile", stream=shape, shape=shape)

    def group(number: int) -> float:
        a = jobs.a.ask("bulk", BULK_SECONDS, stream=shape, first=number * WARM_BATCHES, batches=WARM_BATCHES)
        taken = b.ask("taken", BULK_SECONDS, rows=WARM_BATCHES * size, within=BULK_SECONDS)
        return float(taken["ended"] - a["began"])

    warm, curve = warm_up(group)
    rows, first = batches * size, warm * size
    jobs.run.forget_peaks()
    before = jobs.cost()
    b.tell("taken", rows=rows, within=BULK_SECONDS)
    a = jobs.a.ask("bulk", BULK_SECONDS, stream=shape, first=warm, batches=batches)
    taken = b.answer(BULK_SECONDS)
    after = jobs.cost()
    require_rows(jobs, taken, first, rows)
    for job in (jobs.a, b):
        job.ask("stop", stream=shape)
    a_seconds, b_seconds = a["ended"] - a["began"], taken["ended"] - taken["began"]
    return {
        "rows": rows,
        "warm_batches": warm,
        "warm_curve": curve,
        "seconds": taken["ended"] - a["began"] if jobs.chained else max(a_seconds, b_seconds),
        "a_seconds": a_seconds,
        "b_seconds": b_seconds,
        "b_batches": taken["batches"],
        "cpu_per_million": {
            role: (spent - before.cpu.get(role, 0.0)) / rows * 1e6 for role, spent in after.cpu.items()
        },
        "peak_mb": after.peak_mb,
    }


def warm_up(group: Callable[[int], float]) -> tuple[int, list[float]]:
    """Run groups of batches until their time stands still; return how many batches that were, and the seconds of each.

    Args:
        group: Runs the group of this number, and returns its seconds.
    """
    curve: list[float] = []
    while not stands_still(curve, GROUPS) and len(curve) < MOST_GROUPS:
        curve.append(group(len(curve)))
    return len(curve) * WARM_BATCHES, curve


def require_rows(jobs: Pair, taken: dict[str, Any], first: int, rows: int) -> None:
    """Check the count and the sum of ids of so many rows from ``first`` on; a floor's job B makes rows of its own.

    Raises:
        RunFailed: job B has others.
    """
    if jobs.chained and (taken["rows"], taken["sum"]) != (rows, sum(range(first, first + rows))):
        raise RunFailed(f"{jobs.contestant}: job B has other rows than job A made: {taken}")
