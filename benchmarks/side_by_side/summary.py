"""From rounds to figures: the median of each run's figure, and ratios within runs. Pure: no files, no plots."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.side_by_side.arrivals import sum_of

Rounds = Sequence[dict[str, Any]]


def figures(measure: str, found: dict[str, Any]) -> dict[str, float]:
    """Return the plain numbers of one round."""
    if measure in ("latency", "fanout", "flows"):
        first = {f"first {name}": value for name, value in found.get("first", {}).items()}
        warm = {"warm": found["warm_seconds"]} if "warm_seconds" in found else {}  # not in results of 2026-11-22
        return {**_delays(found), **first, **warm, **by_side(found)}
    if measure == "throughput":
        rate = {"rows/s": found["rows"] / found["seconds"]}
        spans = {name: found[name] for name in ("seconds", "a_seconds", "b_seconds")}
        return {**rate, **spans, **by_side(found)}
    if measure == "alone":
        return {name: found[name] for name in ("a_seconds", "b_seconds")}
    numbers: dict[str, float] = {}
    for key, value in found.items():
        if isinstance(value, dict):
            numbers |= {f"{key} {name}": each for name, each in value.items()}
        elif isinstance(value, int | float) and key not in ("size", "run", "streams"):
            numbers[key] = value
    return numbers


def _delays(found: dict[str, Any]) -> dict[str, float]:
    """Return the quantiles from job A to job B: of several jobs B the slowest; unlinked, the sum of both jobs' own."""
    readers = found["readers_latency"]
    alone = found["a_latency"]
    if alone is not None:
        return sum_of(alone["curve"], readers[0]["curve"])
    return {name: max(reader[name] for reader in readers) for name in ("p50", "p99", "max")}


def by_side(found: dict[str, Any]) -> dict[str, float]:
    """Return CPU and peak memory (MB) of job A, of what stands between, of all jobs B.

    CPU is processors kept busy where rows come at a rate, and seconds per million rows where they come as they can.
    """
    numbers: dict[str, float] = {}
    for kind, source in (("cpu", found.get("cpu_share", found["cpu_per_million"])), ("mb", found["peak_mb"])):
        numbers[f"{kind} a"] = source.get("a", 0.0)
        numbers[f"{kind} between"] = source.get("carrier", 0.0)
        numbers[f"{kind} b"] = sum(value for role, value in source.items() if role.startswith("b"))
    return numbers


def sizes(rounds: Rounds, key: str) -> list[Any]:
    """Return the different values of a key, as they first appear."""
    return list(dict.fromkeys(each[key] for each in rounds))


def those(rounds: Rounds, **wanted: Any) -> list[dict[str, Any]]:
    """Return the rounds that have these values."""
    return [each for each in rounds if all(each.get(key) == value for key, value in wanted.items())]


def runs(measure: str, rounds: Rounds, name: str, **wanted: Any) -> dict[int, float]:
    """Return a figure of each run that has it."""
    numbers = {each["run"]: figures(measure, each).get(name) for each in those(rounds, **wanted)}
    return {run: number for run, number in numbers.items() if number is not None}


def median(measure: str, rounds: Rounds, name: str, **wanted: Any) -> float | None:
    """Return the median over the runs of a figure; None if there is no run."""
    found = runs(measure, rounds, name, **wanted)
    return statistics.median(found.values()) if found else None


def ratio(measure: str, rounds: Rounds, name: str, to: dict[str, Any], **wanted: Any) -> float | None:
    """Return the median over the runs of a figure's ratio to that of another in the same run; as :func:`ratios`."""
    found = ratios(measure, rounds, name, to, **wanted)
    return statistics.median(found) if found else None


def ratios(measure: str, rounds: Rounds, name: str, to: dict[str, Any], **wanted: Any) -> list[float]:
    """Return each run's ratio of a figure to that of another in the same run.

    Args:
        to: What the other is wanted by, where that differs.
    """
    mine, theirs = runs(measure, rounds, name, **wanted), runs(measure, rounds, name, **{**wanted, **to})
    return [mine[run] / theirs[run] for run in sorted(mine.keys() & theirs.keys()) if theirs[run]]
