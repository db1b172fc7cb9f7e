"""The short part of explorer 3: calls that fail, and successors (``make explore`` for the long one)."""

from __future__ import annotations

import pytest

from tests.explore.failing.fail import Case, draw, made_by, run_case
from tests.explore.failing.fail_runs import explore

SEEDS = 10  # a test


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (SEEDS, 2 * SEEDS))])
def test_what_was_answered_outlives_a_call_that_fails(first: int) -> None:
    found = explore(SEEDS, first, print)
    assert not found.failures, "\n".join(found.failures.values())
    assert found.faults > 0
    assert found.rows > 0


def test_sqlite_is_seen() -> None:
    """A commit is made of writes and a sync, whose failure SQLite reports."""
    calls, _ = made_by(Case("seal inline", "stored", "shared", 0, "error", 0))
    names = {(call.layer, call.name) for call in calls}
    assert {("sqlite", "write"), ("sqlite", "sync"), ("sqlite", "truncate"), ("os", "stat")} <= names


def test_a_case_is_the_same_each_time() -> None:
    """Else a failing seed would show nothing."""
    case = Case("seal files", "stored", "driver", 0, "error", 0)
    first, second = run_case(case), run_case(case)
    assert [str(call) for call in first[0]] == [str(call) for call in second[0]]


def test_a_case_can_be_named() -> None:
    case = draw(1)
    assert Case.parse(str(case)) == case
