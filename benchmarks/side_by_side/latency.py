"""From an event in job A to the callback in job B, and on the way: one to several jobs B."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.side_by_side.pair import Pair, Setting, pair
from benchmarks.side_by_side.processes import RunFailed

__all__ = ["fanout", "latency"]

WARM_RATE = 5_000.0


def latency(
    contestant: str, setting: Setting, *, rates: list[float], warm: float, seconds: float
) -> list[dict[str, Any]]:
    """Measure one run at each rate, one after another, with the same two applications.

    Args:
        warm: Seconds before each window; and as long, at a high rate, before the first.
        seconds: Of each window: the rows made in it count.
    """
    found = []
    with pair(contestant, setting) as jobs:
        with jobs.flowing("warm-up", "narrow", WARM_RATE):
            time.sleep(warm)
        for rate in rates:
            with jobs.flowing(f"rate-{rate:g}", "narrow", rate):
                time.sleep(warm)
                found.append({"rate": rate, "shape": "narrow", **_window(jobs, rate, seconds)})
    return found


def fanout(
    contestant: str, setting: Setting, *, readers: int, rate: float, trigger: float, warm: float, seconds: float
) -> list[dict[str, Any]]:
    """Measure one run with so many jobs B; they are warmed up as for :func:`latency`.

    Args:
        trigger: Of job A, in seconds: without one, many jobs on few cores leave it no time, and its cost falls.
    """
    with pair(contestant, setting, readers) as jobs:
        with jobs.flowing("warm-up", "narrow", WARM_RATE):
            time.sleep(warm)
        with jobs.flowing("fan-out", "narrow", rate, trigger):
            time.sleep(warm)
            return [{"readers": readers, "rate": rate, "shape": "narrow", **_window(jobs, rate, seconds)}]


def _window(jobs: Pair, rate: float, seconds: float) -> dict[str, Any]:
    """Return latencies and cost of the rows that are made from now on, so many seconds long.

    Raises:
        RunFailed: a job B has not each of them once.
    """
    jobs.run.forget_peaks()
    before, since = jobs.cost(), time.time_ns() // 1_000
    time.sleep(seconds)
    after, until = jobs.cost(), time.time_ns() // 1_000
    jobs.arrived(until)
    each = jobs.all("latencies", since=since, until=until)
    if jobs.chained:
        for found in each:
            if not found.get("once"):
                raise RunFailed(f"{jobs.contestant}: job B has not each row once: {found}")
            found.pop("curve")  # only two delays that are to be added need it
    at_a = jobs.a.ask("latencies", since=since, until=until) if not jobs.chained else None
    million = rate * (until - since) / 1e6 / 1e6
    return {
        "readers_latency": each,
        "a_latency": at_a,
        "cpu_share": {
            role: (spent - before.cpu.get(role, 0.0)) / (until - since) * 1e6 for role, spent in after.cpu.items()
        },
        "cpu_per_million": {role: (spent - before.cpu.get(role, 0.0)) / million for role, spent in after.cpu.items()},
        "peak_mb": after.peak_mb,
    }
