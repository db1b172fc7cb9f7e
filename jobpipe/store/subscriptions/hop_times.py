"""How long batches take from being sealed to being acknowledged, for each subscription, since the log was opened."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds; one more has what takes longer."""
KEPT = 1_000  # seals of which the time is known; what is acknowledged later is not counted


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
        self._heads: list[int] = []  # the offset after each batch, growing
        self._times: list[float] = []

    def sealed(self, first: int, head: int) -> None:
        """Note that the batches from ``first`` to before ``head`` were sealed just now."""
        last = max(first, self._heads[-1] if self._heads else 0)  # one that was taken back is sealed again
        new = range(max(last, head - KEPT) + 1, head + 1)
        self._heads += new
        self._times += [self._clock()] * len(new)
        if len(self._heads) >= 2 * KEPT:
            del self._heads[:-KEPT], self._times[:-KEPT]

    def acknowledged(self, histogram: TimeHistogram, before: int, now: int) -> None:
        """Count the batches between two positions of a subscription, the latter of which it acknowledges now."""
        time = self._clock()
        first, end = bisect_right(self._heads, before), bisect_right(self._heads, now)
        for sealed in self._times[first:end]:
            histogram.observe(max(0.0, time - sealed))
