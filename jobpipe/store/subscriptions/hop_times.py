"""How long batches take from being sealed to being acknowledged, for each subscription, since the log was opened."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds; one more has what takes longer."""
KEPT = 1_000  # seals of which the time is known; what is acknowledged later counts as longer than all bounds


@dataclass
class TimeHistogram:
    """Counts of spans of time by :data:`BUCKETS`, each bucket without those before it, and the sum of their seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


class HopTimes:
    """When the newest batches were sealed.

    Args:
        clock: seconds; one that never goes back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first: int | None = None  # sealed by this process; what lies before was sealed by another one
        self._heads = array("q")  # the offset after each batch, growing
        self._times = array("d")

    def sealed(self, first: int, head: int) -> None:
        """Note that the batches from ``first`` to before ``head`` were sealed just now."""
        known = bisect_right(self._heads, first)  # what lies further was taken back
        del self._heads[known:], self._times[known:]
        self._first = first if self._first is None else min(self._first, first)
        new = range(max(first, head - KEPT) + 1, head + 1)
        self._heads.extend(new)
        self._times.extend([self._clock()] * len(new))
        if len(self._heads) >= 2 * KEPT:
            del self._heads[:-KEPT], self._times[:-KEPT]

    def acknowledged(self, histogram: TimeHistogram, before: int, now: int) -> None:
        """Count the batches between two positions of a subscription, the latter of which it acknowledges now."""
        if self._first is None or not self._heads:
            return
        time = self._clock()
        first, end = bisect_right(self._heads, before), bisect_right(self._heads, now)
        for sealed in self._times[first:end]:
            histogram.observe(max(0.0, time - sealed))
        late = min(now, self._heads[0] - 1) - max(before, self._first)
        if late > 0:  # sealed before those whose time is known
            histogram.counts[-1] += late
            histogram.seconds += late * max(0.0, time - self._times[0])
