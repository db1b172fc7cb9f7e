"""A registry that is away: who waits for it, and who does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.jobs.supervision.circuit_breaker import AWAY_SECONDS, CircuitBreaker
from jobpipe_registry.registry_errors import OrderChanged, Unavailable


def test_only_one_question_in_a_while_waits() -> None:
    now, asked = [0.0], []
    error: list[Exception | None] = [Unavailable("zk", "away")]

    def state(*key: str) -> Any:
        asked.append(now[0])
        if error[0] is not None:
            raise error[0]
        return "answer"

    jobs = CircuitBreaker(SimpleNamespace(state=state), lambda: now[0])  # type: ignore[arg-type]
    for _ in range(5):
        with pytest.raises(Unavailable, match="away"):
            jobs.state("p", "j")
    assert asked == [0.0]
    now[0] = AWAY_SECONDS
    error[0] = OrderChanged("p", "j")
    for _ in range(2):  # it answers again
        with pytest.raises(OrderChanged):
            jobs.state("p", "j")
    error[0] = None
    assert jobs.state("p", "j") == "answer"  # type: ignore[comparison-overlap]
    assert len(asked) == 4
