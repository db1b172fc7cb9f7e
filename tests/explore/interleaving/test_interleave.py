"""A short part of the interleavings of two coordinators, and that a run can be played again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.explore.interleaving.interleave import Explorer, Spec, run
from tests.explore.interleaving.interleave_registry import PAIRS, explore_pair


@pytest.fixture(scope="module")
def explorer() -> Iterator[Explorer]:
    with Explorer() as made:
        yield made


@pytest.mark.parametrize(
    "spec",
    [
        "driver/seal/seal/1/old@24",  # R1: a commit whose write-ahead log cannot be forced to the disk
        "shared/ack/seal/1/old@20",  # R1: the same of a rollback journal
        "driver/files/sweep/0/old@5",
        "host/files/sweep/0/old@5",
        "driver/restore/restore/0/old@54",
    ],
)
def test_around_one_switch(explorer: Explorer, spec: str) -> None:
    """Some switches about the one where faults were found once."""
    known = Spec.parse(spec)
    for tried, outcome in explorer.near(known, 4):
        again = f"python -m tests.explore.interleaving.interleave --only {tried}"
        assert not outcome.faults, f"{tried}: {outcome.faults}; {again}"


def test_a_run_can_be_played_again(explorer: Explorer) -> None:
    """The same run has the same trace."""
    spec = Spec.parse("driver/seal/retain/2/seed@7")
    assert explorer.run(spec).trace == explorer.run(spec).trace


@pytest.mark.parametrize(("first", "last"), PAIRS)
def test_calls_of_a_registry_handler(first: str, last: str) -> None:
    """R11: what was asked last holds, also while the call before it is under way."""
    assert explore_pair(first, last) == {}


def test_random_switches() -> None:
    """A few seeds of all pairs."""
    report = run(40, seed=1, chosen=[])
    assert not report.found, str(report)
