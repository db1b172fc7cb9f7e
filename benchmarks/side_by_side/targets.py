"""The targets that the project has set itself, beside what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.side_by_side import summary

Rounds = Sequence[dict[str, Any]]
JOBPIPE, AHEAD, PLAIN, FLOOR = "jobpipe", "jobpipe-ahead", "jobpipe-plain", "floor"
FLOW = "flow"
MS_RATE = 1_000
JSON, ARROW = "kafka-json", "kafka-arrow"
Bounds = Sequence[tuple[str, str, float]]  # a contestant, a figure, what it is at most
LATENCY_TO_JSON: Bounds = ((JOBPIPE, "p50", 0.7), (JOBPIPE, "p99", 0.8), (AHEAD, "p50", 0.65))
LATENCY_MS: Bounds = ((JOBPIPE, "p50", 100.0), (AHEAD, "p50", 80.0))
FLOWS_TO_JSON: Bounds = ((FLOW, "p50", 0.55), (FLOW, "p99", 0.6))
FLOWS_MS: Bounds = (
    ("plain-flow", "p50", 6.0), ("plain-flow", "p99", 25.0), ("plain-flow-8", "p50", 10.0),
    ("plain-flow-8", "p99", 40.0), ("plain-flow-flow", "p50", 20.0), ("plain-flow-flow", "p99", 60.0),
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A bound of a figure.

    Attributes:
        of: What the figure is.
        bound, at_least: It is to be at most ``bound``, or at least.
        each: What it is in each run; empty if it was not measured.
    """

    of: str
    bound: float
    each: Sequence[float]
    at_least: bool = False

    @property
    def found(self) -> float | None:
        """The median of the runs."""
        return statistics.median(self.each) if self.each else None

    @property
    def is_kept(self) -> bool | None:
        """Tell whether the median is within the bound; None if there is none."""
        if self.found is None:
            return None
        return self.found >= self.bound if self.at_least else self.found <= self.bound


def targets(measure: str, rounds: Rounds) -> list[Target]:
    """Return the targets of a measure; empty if it has none."""
    find: dict[str, Callable[[Rounds], Iterator[Target]]] = {
        "latency": partial(_latency, "latency", LATENCY_TO_JSON, LATENCY_MS),
        "flows": partial(_latency, "flows", FLOWS_TO_JSON, FLOWS_MS),
        "throughput": _throughput,
        "alone": _alone,
        "fanout": _fanout,
        "transport": _transport,
        "growth": _growth,
    }
    return list(find[measure](rounds))


def _latency(measure: str, to_json: Bounds, ms: Bounds, rounds: Rounds) -> Iterator[Target]:
    """On the plateau; in ms at 1,000 rows a second only."""
    for rate in summary.sizes(rounds, "rate"):
        for name, figure, bound in to_json:
            found = summary.ratios(measure, rounds, figure, {"contestant": JSON}, contestant=name, rate=rate)
            yield Target(f"{figure} of {name} to {JSON}'s, {rate:,.0f} rows a second", bound, found)
        for name, figure, bound in ms if rate == MS_RATE else ():
            found = list(summary.runs(measure, rounds, figure, contestant=name, rate=rate).values())
            yield Target(f"{figure} ms of {name}, {rate:,.0f} rows a second", bound, found)


def _throughput(rounds: Rounds) -> Iterator[Target]:
    for shape in summary.sizes(rounds, "shape"):
        for other, bound in ((JSON, 3.0), (ARROW, 1.2)):
            found = summary.ratios(
                "throughput", rounds, "rows/s", {"contestant": other}, contestant=JOBPIPE, shape=shape
            )
            yield Target(f"rows a second of {JOBPIPE} to {other}'s, {shape}", bound, found, at_least=True)


def _alone(rounds: Rounds) -> Iterator[Target]:
    """Where Spark has one core of two, one is free for the bus."""
    bounds = {"local[1]": {JOBPIPE: 1.15, PLAIN: 1.15}, "local[2]": {JOBPIPE: 1.6, PLAIN: 1.3}}
    for case in summary.sizes(rounds, "case"):
        for name, reads in bounds.get(case.rpartition(" ")[2], {}).items():
            for job, bound in (("a", 1.2), ("b", reads)):
                which = {"contestant": name, "case": case}
                found = summary.ratios("alone", rounds, f"{job}_seconds", {"contestant": FLOOR}, **which)
                yield Target(f"time of job {job.upper()} of {name} to the {FLOOR}'s, {case}", bound, found)


def _fanout(rounds: Rounds) -> Iterator[Target]:
    found = summary.ratios("fanout", rounds, "cpu a", {"readers": 1}, contestant=JOBPIPE, readers=2)
    yield Target(f"CPU of job A of {JOBPIPE} with two jobs B to that with one", 1.15, found)


def _transport(rounds: Rounds) -> Iterator[Target]:
    for streams in (0, 4):
        for figure, bound in (("p50", 1.0), ("p99", 5.0)):
            which = {"contestant": JOBPIPE, "what": "news", "streams": streams}
            found = list(summary.runs("transport", rounds, f"since_return {figure}", **which).values())
            of = f"{figure} ms from the return of a seal to a subscriber's knowledge, {streams} readers streaming"
            yield Target(of, bound, found)
    found = list(summary.runs("transport", rounds, "since_call p50", contestant=JOBPIPE, what="rows").values())
    yield Target("p50 ms from the call of a seal to its rows: the bus's own share", 5.0, found)


def _growth(rounds: Rounds) -> Iterator[Target]:
    for what, few, many, figures in (
        ("subscribers", 1, 64, ["seal"]),
        ("catalog", 1_000, 1_000_000, ["seal", "plan", "start"]),
    ):
        for figure in figures:
            found = summary.ratios("growth", rounds, f"{figure} p50", {"size": few}, what=what, size=many)
            things = "batches in the catalog" if what == "catalog" else what
            spent = "to open the log" if figure == "start" else f"of a {figure}"
            yield Target(f"time {spent} with {many:,} {things} to that with {few:,}", 2.0, found)
