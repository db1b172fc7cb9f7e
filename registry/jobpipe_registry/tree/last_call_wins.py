"""Of two calls that contradict each other the last one wins, whichever runs first."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class LastCallWins(Generic[K]):
    """Numbers of calls, by what they are about.

    A lock does not keep the order of calls, and a call that is no longer waited for still runs to its end. So a call
    takes a number when it is made, and looks whether it is still the newest one when it gets its turn.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = itertools.count(1)
        self._newest: dict[K, int] = {}

    def begin(self, key: K) -> int:
        """Note a call; return its number."""
        with self._lock:
            call = self._newest[key] = next(self._calls)
            return call

    def is_newest(self, key: K, call: int) -> bool:
        """Tell whether no other call about this was made since, and none has ended it."""
        with self._lock:
            return self._newest.get(key) == call

    def end(self, key: K, call: int) -> None:
        """Keep nothing of a call that leaves nothing; those before it find themselves overtaken all the same."""
        with self._lock:
            if self._newest.get(key) == call:
                del self._newest[key]

    def clear(self) -> None:
        """Let all calls that still wait for their turn come too late."""
        with self._lock:
            self._newest.clear()
