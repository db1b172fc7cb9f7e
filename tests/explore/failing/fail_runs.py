"""Runs of :mod:`tests.explore.failing.fail`."""

from __future__ import annotations

from collections.abc import Callable

from tests.explore.failing.fail import Case, draw, run_case
from tests.explore.found import Found, run_again, run_seeds


def explore(seeds: int, first: int, say: Callable[[str], object]) -> Found:
    """Run so many seeds."""
    return run_seeds("fail", seeds, first, say, _run)


def _run(seed: int, found: Found) -> None:
    case = draw(seed)
    calls, _, rows = run_case(case)
    found.steps += len(calls)
    found.faults += (1 if case.call else 0) + (1 if case.after else 0)
    found.rows += rows


def again(case: str) -> str | None:
    """Run one case; return what does not hold."""
    return run_again(lambda: run_case(Case.parse(case)))
