"""Answers that cost a question to coordinators, kept for a moment: an open page is made again every other second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from jobpipe.errors import JobpipeError

T = TypeVar("T")

MAX_AGE_SECONDS = 5.0
MOST = 64


class RecentAnswers(Generic[T]):
    """The newest answers, by what was asked. Thread safe; two who ask at once may each let one be made.

    Args:
        ticks: monotonic seconds.
    """

    def __init__(self, ticks: Callable[[], float] = time.monotonic, max_age: float = MAX_AGE_SECONDS) -> None:
        self._ticks = ticks
        self._max_age = max_age
        self._lock = threading.Lock()
        self._generation = 0
        self._kept: dict[Hashable, tuple[float, T | JobpipeError]] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T | JobpipeError:
        """Return the answer, or the error that there was instead; ``make`` is called if there is none that is new."""
        with self._lock:
            generation = self._generation
            known = self._kept.get(key)
            if known is not None and self._ticks() - known[0] <= self._max_age:
                return known[1]
        found: T | JobpipeError
        try:
            found = make()
        except JobpipeError as error:
            found = error
        with self._lock:
            if generation == self._generation:  # else something has happened while it was made
                self._kept.pop(key, None)
                self._kept[key] = (self._ticks(), found)
                while len(self._kept) > MOST:
                    del self._kept[next(iter(self._kept))]
        return found

    def forget(self) -> None:
        """Let all be asked again: something has happened."""
        with self._lock:
            self._generation += 1
            self._kept.clear()
