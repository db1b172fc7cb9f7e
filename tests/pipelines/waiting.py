"""Waits of the tests, each with a deadline; the machine may be slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

DEADLINE = 60.0


def eventually(question: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """Return the first true answer; fail after the deadline."""
    until = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.01)
    return answer
