"""Rows and bytes per second, from counts that are polled now and then."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_SECONDS = 10.0  # rates are averages over this time


@dataclass
class Throughput:
    """Rates from (time, rows, bytes) samples: of the last seconds, or of the whole time in which rows came."""

    samples: deque[tuple[float, int, int]] = field(default_factory=deque)
    first: tuple[float, int, int] | None = None
    grown: tuple[float, int, int] | None = None

    def add(self, now: float, rows: int, size: int = 0) -> tuple[float, float]:
        """Add a sample; return rows and bytes per second of the last seconds."""
        sample = (now, rows, size)
        if self.first is None or rows == self.first[1]:
            self.first = sample  # the wait for the first rows does not count
        elif self.grown is None or rows > self.grown[1]:
            self.grown = sample
        self.samples.append(sample)
        while len(self.samples) > 2 and now - self.samples[1][0] >= WINDOW_SECONDS:
            self.samples.popleft()
        return _slope(self.samples[0], sample)

    def overall(self) -> tuple[float, float]:
        """Return rows and bytes per second of the whole time."""
        return _slope(self.first, self.grown) if self.first is not None and self.grown is not None else (0.0, 0.0)


def _slope(a: tuple[float, int, int], b: tuple[float, int, int]) -> tuple[float, float]:
    seconds = b[0] - a[0]
    return ((b[1] - a[1]) / seconds, (b[2] - a[2]) / seconds) if seconds > 0 else (0.0, 0.0)
