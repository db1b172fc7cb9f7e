"""Which rows arrived, and when: latencies from the time that each row carries."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

CURVE = np.linspace(0.0, 1.0, 401)


class Arrivals:
    """Rows that came: numbers, the time when they were made and when they were there (µs of the wall clock)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: list[NDArray[np.int64]] = []
        self._made: list[NDArray[np.int64]] = []
        self._late: list[NDArray[np.int64]] = []
        self.rows = 0
        self.newest = 0  # the latest time when a row was made

    def add(self, ids: NDArray[np.int64], made: NDArray[np.int64], at: int) -> None:
        """Note rows that are there since ``at``."""
        if not len(made):
            return
        with self._lock:
            self._ids.append(ids)
            self._made.append(made)
            self._late.append(at - made)
            self.rows += len(made)
            self.newest = max(self.newest, int(made.max()))

    def window(self, since: int, until: int) -> dict[str, Any]:
        """Return what became of the rows that were made in a window: count, quantiles in ms, and their curve.

        ``once`` tells whether their numbers follow on each other, each there once.
        """
        with self._lock:
            near = [n for n, made in enumerate(self._made) if made.max() >= since and made.min() < until]
            ids = np.concatenate([self._ids[n] for n in near] or [np.empty(0, np.int64)])
            made = np.concatenate([self._made[n] for n in near] or [np.empty(0, np.int64)])
            late = np.concatenate([self._late[n] for n in near] or [np.empty(0, np.int64)])
        inside = (made >= since) & (made < until)
        chosen, ids = late[inside] / 1e3, np.sort(ids[inside])
        if not len(chosen):
            return {"rows": 0}
        found = {name: float(np.quantile(chosen, share)) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
        once = bool((np.diff(ids) == 1).all())
        return {"rows": len(chosen), "once": once, **found, "curve": np.quantile(chosen, CURVE).round(3).tolist()}


class Counting:
    """What every job answers of the rows that came to it."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()

    def check(self) -> None:
        """Raise the error of what runs here, if it failed."""

    def seen(self) -> dict[str, int]:
        """Return how far the paced stream is."""
        self.check()
        return {"rows": self.arrivals.rows, "newest": self.arrivals.newest}

    def latencies(self, since: int, until: int) -> dict[str, Any]:
        """Return the latencies of the rows made in a window that ended here."""
        return self.arrivals.window(since, until)


def sum_of(first: list[float], second: list[float]) -> dict[str, float]:
    """Return the quantiles of the sum of two independent delays, each given by its curve."""
    both = np.add.outer(np.array(first), np.array(second)).ravel()
    return {name: float(np.quantile(both, share)) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
