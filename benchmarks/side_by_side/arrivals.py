"""Which rows arrived, and when: latencies from the time that each row carries."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrivals", "sum_of"]

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
            ids = np.concatenate(self._ids or [np.empty(0, np.int64)])
            made = np.concatenate(self._made or [np.empty(0, np.int64)])
            late = np.concatenate(self._late or [np.empty(0, np.int64)])
        inside = (made >= since) & (made < until)
        chosen, ids = late[inside] / 1e3, np.sort(ids[inside])
        if not len(chosen):
            return {"rows": 0}
        found = {name: float(np.quantile(chosen, share)) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
        once = bool((np.diff(ids) == 1).all())
        return {"rows": len(chosen), "once": once, **found, "curve": np.quantile(chosen, CURVE).round(3).tolist()}


def sum_of(first: list[float], second: list[float]) -> dict[str, float]:
    """Return the quantiles of the sum of two independent delays, each given by its curve."""
    both = np.add.outer(np.array(first), np.array(second)).ravel()
    return {name: float(np.quantile(both, share)) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
