"""The low watermark: how far all subscriptions have acknowledged, and for how long."""

from __future__ import annotations

from collections import deque


class LowWatermark:
    """How far all have acknowledged, and since when. Starts from nothing when the log is opened: that errs on keeping.

    Offsets below :meth:`settled` were acknowledged by all, without interruption, for the grace.
    """

    NOTES = 256
    RESOLUTION = 0.5  # seconds between two notes beyond that many; a batch may stay so much longer than its grace

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque()  # (uptime, offset), both growing
        self._settled = 0
        self._settled_grace = -1.0

    def note(self, uptime: float, n: int) -> None:
        """Note that all have acknowledged what lies before ``n``."""
        self.lower(n)
        if self._notes:
            since, known = self._notes[-1]
            if n <= known or (len(self._notes) >= self.NOTES and uptime - since < self.RESOLUTION):
                return
        self._notes.append((uptime, n))

    def lower(self, n: int) -> None:
        """Note that some subscription needs what lies at ``n`` and after it."""
        self._settled = min(self._settled, n)
        last: tuple[float, int] | None = None
        while self._notes and self._notes[-1][1] > n:
            last = self._notes.pop()
        if last is not None and (not self._notes or self._notes[-1][1] < n):
            self._notes.append((last[0], n))

    def settled(self, uptime: float, grace: float) -> int:
        """Return the offset before which all is acknowledged for ``grace`` seconds."""
        if grace != self._settled_grace:
            self._settled, self._settled_grace = (0 if grace > self._settled_grace else self._settled), grace
        while self._notes and self._notes[0][0] + grace <= uptime:
            self._settled = max(self._settled, self._notes.popleft()[1])
        return self._settled
