"""From an event in job A to the callback in job B, and on the way: one to several jobs B."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.side_by_side.pair import Pair, Setting, pair
from benchmarks.side_by_side.processes import RunFailed

PIECE_SECONDS = 10.0  # of which the latencies are compared, to find the plateau
PIECES = 6  # so many, to the same number before them: with 30 s of each, one slow moment passed for a plateau
LATE_SECONDS = 10.0  # for the last rows of a window, after a later row has come
POLL_SECONDS = 0.1
FALLING = 0.95  # below this share of the earlier latency, it still falls


def latency(
    contestant: str,
    setting: Setting,
    *,
    rates: list[float],
    first: float,
    most: float,
    seconds: float,
    trigger: float = 0.0,
) -> list[dict[str, Any]]:
    """Measure one run at each rate, one after another, with the same two applications.

    Each window begins on the plateau: when latency has stopped falling.

    Args:
        first: Seconds from the first row on, of young applications: measured by themselves, at the first rate.
        most: Seconds after which a window begins although latency still falls; the round says so.
        seconds: Of each window: the rows made in it count.
        trigger: Of job A, in seconds; 0 lets one micro-batch follow another.
    """
    found = []
    with pair(contestant, setting) as jobs:
        for number, rate in enumerate(rates):
            with jobs.flowing(f"rate-{rate:g}", "narrow", rate, trigger):
                began = time.time_ns() // 1_000
                if number == 0:
                    time.sleep(first)
                warmed = _warm(jobs, began, most)
                about = {"rate": rate, "shape": "narrow", **warmed, **_window(jobs, rate, seconds)}
                if number == 0 and jobs.chained:
                    about["first"] = jobs.slowest(began, began + round(first * 1e6))
                found.append(about)
    return found


def fanout(
    contestant: str, setting: Setting, *, readers: int, rate: float, trigger: float, most: float, seconds: float
) -> list[dict[str, Any]]:
    """Measure one run with so many jobs B; they are warmed up as for :func:`latency`.

    Args:
        trigger: Of job A, in seconds: without one, many jobs on few cores leave it no time, and its cost falls.
    """
    with pair(contestant, setting, readers) as jobs, jobs.flowing("fan-out", "narrow", rate, trigger):
        warmed = _warm(jobs, time.time_ns() // 1_000, most)
        return [{"readers": readers, "rate": rate, "shape": "narrow", **warmed, **_window(jobs, rate, seconds)}]


def _warm(jobs: Pair, began: int, most: float) -> dict[str, Any]:
    """Wait for the plateau; return after how many seconds it was there, and the p50 (ms) of each piece until then."""
    curve: list[float] = []
    while not stands_still(curve, PIECES) and len(curve) * PIECE_SECONDS < most:
        since = began + round(len(curve) * PIECE_SECONDS * 1e6)
        until = since + round(PIECE_SECONDS * 1e6)
        time.sleep(max(0.0, until / 1e6 - time.time()))
        jobs.arrived(until)
        curve.append(jobs.slowest(since, until)["p50"])
    return {"warm_seconds": len(curve) * PIECE_SECONDS, "warm_p50": curve, "plateau": stands_still(curve, PIECES)}


def stands_still(curve: list[float], pieces: int) -> bool:
    """Tell whether so many last pieces took about as long as those before them."""
    last, before = curve[-pieces:], curve[-2 * pieces : -pieces]
    return len(before) == pieces and statistics.median(last) >= FALLING * statistics.median(before)


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
        deadline = time.monotonic() + LATE_SECONDS
        while not all(found.get("once") for found in each):  # partitions are not equally far
            if time.monotonic() > deadline:
                rows = [(found["rows"], found.get("once")) for found in each]
                raise RunFailed(f"{jobs.contestant}: jobs B have these rows of the window, each once or not: {rows}")
            time.sleep(POLL_SECONDS)
            each = jobs.all("latencies", since=since, until=until)
        for found in each:
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
