"""A short part of the seeded runs, and that a run can be played again."""

from __future__ import annotations

import pytest

from tests.explore.scheduling.scheduled import playing, run


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run() -> None:
    """A failing seed can be looked at."""
    with playing() as player:
        first, second = player.play(3), player.play(3)
    assert first.trace == second.trace
    assert (first.jobs, first.rows, first.seconds) == (second.jobs, second.rows, second.seconds)


@pytest.mark.parametrize("seeds", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_some_seeds(seeds: int) -> None:
    """Nothing is lost, twice, out of order or stuck."""
    report = run(seeds, seed=1)
    assert not report.found, str(report)
