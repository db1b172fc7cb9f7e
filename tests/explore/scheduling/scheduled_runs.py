"""Runs of :mod:`tests.explore.scheduling.scheduled` by seeds."""

from __future__ import annotations

from collections.abc import Callable

from tests.explore.found import Found, run_seeds
from tests.explore.scheduling.scheduled import playing


def explore(seeds: int, first: int, say: Callable[[str], object]) -> Found:
    """Run so many seeds."""
    with playing() as player:

        def run(seed: int, found: Found) -> None:
            outcome = player.play(seed)
            found.steps += outcome.jobs
            found.faults += outcome.acts
            found.rows += outcome.rows
            assert not outcome.faults, f"{seed}: {'; '.join(outcome.faults)}"

        return run_seeds("scheduled", seeds, first, say, run)


def again(case: str) -> str | None:
    """Run one case, which is a seed; return what happened if something does not hold."""
    with playing() as player:
        outcome = player.play(int(case))
    return "\n".join([*outcome.trace, *outcome.faults]) if outcome.faults else None
