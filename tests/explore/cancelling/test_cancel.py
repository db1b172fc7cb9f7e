"""The short part of explorer 1: operations that are cancelled (``make explore`` for the long one)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from jobpipe.errors import JobpipeError
from jobpipe.operations.coordinator_operations import CONTROL
from tests.docs.pages import ROOT
from tests.explore.cancelling.cancel import Case, draw, run_case, turn_of
from tests.explore.cancelling.cancel_clients import MODES, publish, subscribe
from tests.explore.cancelling.cancel_runs import explore
from tests.explore.worlds.world import Coordinator, FakeLink
from tests.explore.worlds.world_operations import FIRST, OPERATIONS, staged

SEEDS = 10  # a test


def test_the_first_seeds_have_what_outlives_its_request() -> None:
    """T7: forty seeds never drew a hand-over, a fence, an opening elsewhere or a shutting down."""
    assert {turn_of(seed) for seed in range(len(FIRST))} == set(FIRST)
    assert {turn_of(seed) for seed in range(len(OPERATIONS))} == OPERATIONS.keys()
    assert draw(0).operation == turn_of(0)


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (SEEDS, 2 * SEEDS))])
def test_an_operation_that_is_cancelled_may_be_done_again(first: int) -> None:
    found = explore(SEEDS, first, print)
    assert not found.failures, "\n".join(found.failures.values())
    assert found.steps > 0
    assert found.rows > 0


def test_each_operation_is_explored(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, where its every step may be cut, not only on the way to another one: else a new one would be left out.

    Explorers 1 and 3 take their operations from the same list.
    """
    asked: set[str] = set()
    answer = Coordinator.answer

    def noted(self: Coordinator, link: FakeLink, op: str, args: dict[str, Any], blob: bytes = b"") -> Any:
        asked.add(op)
        return answer(self, link, op, args, blob)

    for operation in OPERATIONS.values():
        with staged(operation, operation.acks[0], operation.placements[0]) as stage, monkeypatch.context() as patch:
            patch.setattr(Coordinator, "answer", noted)
            with contextlib.suppress(JobpipeError):
                stage.world.run(operation.act(stage))  # type: ignore[arg-type]
    assert CONTROL.keys() == asked


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_that_takes_too_long_is_ended() -> None:
    """It shows where it was, and does not keep a machine for days."""
    asked = [sys.executable, "-m", "tests.explore", "cancel", "--seeds", "1000000", "--minutes", "0.02"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Timeout (0:00:01" in done.stderr
    assert "run_seeds" in done.stderr


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
