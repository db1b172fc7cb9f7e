"""Each job by itself: first job A writes a pile of batches, then job B reads it."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.side_by_side.pair import Pair, Setting, pair
from benchmarks.side_by_side.shapes import SHAPES
from benchmarks.side_by_side.throughput import BULK_SECONDS, WARM_BATCHES, require_rows, warm_up


def alone(
    contestant: str, setting: Setting, *, cores: list[int], shapes: list[str], batches: int
) -> list[dict[str, Any]]:
    """Measure one run: with each number of cores, as many partitions and tasks, each shape."""
    found = []
    for each in cores:
        with pair(contestant, dataclasses.replace(setting, cores=each)) as jobs:
            found += [
                {"case": f"{shape}, local[{each}]", **_one_after_the_other(jobs, shape, batches)} for shape in shapes
            ]
    return found


def _one_after_the_other(jobs: Pair, shape: str, batches: int) -> dict[str, Any]:
    size = SHAPES[shape].rows_per_batch
    (b,) = jobs.readers.values()
    jobs.a.ask("prepare", stream=shape, shape=shape)
    jobs.a.ask("pile", stream=shape, shape=shape)

    def group(number: int) -> float:
        a = jobs.a.ask("bulk", BULK_SECONDS, stream=shape, first=number * WARM_BATCHES, batches=WARM_BATCHES)
        return float(a["ended"] - a["began"])

    warmed, _ = warm_up(group)
    rows, warm = batches * size, warmed * size
    a = jobs.a.ask("bulk", BULK_SECONDS, stream=shape, first=warmed, batches=batches)
    jobs.a.ask("stop", stream=shape)
    b.ask("bulk", stream=shape, shape=shape, pace={"rows_per_batch": size})
    taken = b.ask("taken", BULK_SECONDS, rows=rows + warm, within=BULK_SECONDS)
    b.ask("stop", stream=shape)
    require_rows(jobs, taken, 0, rows + warm)
    counted, seen = [], 0
    for began, ended, number in taken["spans"]:
        if seen >= warm:
            counted.append((began, ended))
        seen += number
    return {
        "rows": rows,
        "warm_batches": warmed,
        "a_seconds": a["ended"] - a["began"],
        "b_seconds": counted[-1][1] - counted[0][0],
        "b_batches": len(counted),
    }
