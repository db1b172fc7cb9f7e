"""The short part of explorer 1: operations that are cancelled (``make explore`` for the long one)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.explore.cancel import Case, draw, run_case
from tests.explore.cancel_clients import MODES, publish, subscribe
from tests.explore.cancel_runs import explore
from tests.explore.world_operations import OPERATIONS

SEEDS = 10  # a test


@pytest.mark.parametrize("first", range(0, 40, SEEDS))
def test_an_operation_that_is_cancelled_may_be_done_again(first: int) -> None:
    found = explore(SEEDS, first, print)
    assert not found.failures, "\n".join(found.failures.values())
    assert found.steps > 0
    assert found.rows > 0


@pytest.mark.parametrize("name", ["close", "handover", "open elsewhere"])
def test_a_case_is_the_same_each_time(name: str) -> None:
    """Else a failing seed would show nothing."""
    case = Case(name, OPERATIONS[name].acks[0], "driver", 0, "late")
    first, second = run_case(case), run_case(case)
    assert first == second
    assert len(first[0]) > 3


def test_a_case_can_be_named() -> None:
    case = draw(1)
    assert Case.parse(str(case)) == case


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("work", [publish, subscribe])
def test_a_client_that_is_interrupted_at_any_request(work: Callable[[int, str], int], mode: str) -> None:
    requests = work(0, mode)
    assert requests >= 4
    for at in range(1, requests + 1):
        work(at, mode)
