"""Runs of :mod:`tests.explore.cancelling.cancel`."""

from __future__ import annotations

from collections.abc import Callable

from tests.explore.cancelling.cancel import Case, draw, run_case
from tests.explore.found import Found, run_again, run_seeds


def explore(seeds: int, first: int, say: Callable[[str], object]) -> Found:
    """Run so many seeds."""
    return run_seeds("cancel", seeds, first, say, _run)


def _run(seed: int, found: Found) -> None:
    case = draw(seed)
    jobs, rows, _ = run_case(case)
    found.steps += len(jobs)
    found.faults += 1 if case.step else 0
    found.rows += rows


def again(case: str) -> str | None:
    """Run one case; return what does not hold."""
    return run_again(lambda: run_case(Case.parse(case)))
