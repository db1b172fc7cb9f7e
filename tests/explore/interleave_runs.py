"""Runs of :mod:`tests.explore.interleave` by seeds; that module itself also tries all switches one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.explore.found import Found, run_seeds
from tests.explore.interleave import Explorer, Spec, draw

__all__ = ["again", "explore"]

RUNS = 8  # of a seed: each takes milliseconds


def explore(seeds: int, first: int, say: Callable[[str], object]) -> Found:
    """Run so many seeds."""
    with Explorer() as explorer:

        def run(seed: int, found: Found) -> None:
            rng = random.Random(seed)
            for number in range(RUNS):
                spec = draw(rng, seed * RUNS + number)
                outcome = explorer.run(spec)
                found.steps += len(outcome.trace)
                found.faults += 1 + (1 if spec.fail else 0)
                found.rows += outcome.rows
                assert not outcome.faults, f"{spec}: {'; '.join(outcome.faults)}"

        return run_seeds("interleave", seeds, first, say, run)


def again(case: str) -> str | None:
    """Run one case; return what does not hold."""
    with Explorer() as explorer:
        faults = explorer.run(Spec.parse(case)).faults
    return f"{case}: {'; '.join(faults)}" if faults else None
