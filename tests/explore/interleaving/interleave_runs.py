"""Runs of :mod:`tests.explore.interleaving.interleave` by seeds; that module itself also tries all switches."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.explore.found import Found, run_seeds
from tests.explore.interleaving.interleave import Explorer, Spec, draw
from tests.explore.interleaving.interleave_registry import PAIRS, explore_pair

RUNS = 8  # of a seed: each takes milliseconds


def explore(seeds: int, first: int, say: Callable[[str], object]) -> Found:
    """Run so many seeds."""
    with Explorer() as explorer:

        def run(seed: int, found: Found) -> None:
            first, last = PAIRS[seed % len(PAIRS)]
            wrong = explore_pair(first, last)
            assert not wrong, f"{first}+{last}: {wrong}"
            rng = random.Random(seed)
            for number in range(RUNS):
                spec = draw(rng, seed * RUNS + number)
                if spec.fail:
                    spec = explorer.aimed(spec, rng)
                outcome = explorer.run(spec)
                found.steps += len(outcome.trace)
                found.faults += 1 + (1 if spec.fail else 0)
                found.rows += outcome.rows
                assert not outcome.faults, f"{spec}: {'; '.join(outcome.faults)}"

        return run_seeds("interleave", seeds, first, say, run)


def again(case: str) -> str | None:
    """Run one case; return what does not hold."""
    if "+" in case.partition("/")[0]:
        first, _, last = case.partition("+")
        wrong = explore_pair(first, last)
        return f"{case}: {wrong}" if wrong else None
    with Explorer() as explorer:
        faults = explorer.run(Spec.parse(case)).faults
    return f"{case}: {'; '.join(faults)}" if faults else None
