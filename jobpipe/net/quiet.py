"""A bounded rate of log lines, for what a stranger can make happen as often as he likes."""

from __future__ import annotations

import logging
import time

__all__ = ["Quiet"]


class Quiet:
    """Logs at most ``burst`` lines at once and ``rate`` a second; those left out are told with the next that is not."""

    def __init__(self, log: logging.Logger, *, rate: float = 1.0, burst: int = 20) -> None:
        self._log = log
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._then = time.monotonic()
        self.left_out = 0

    def log(self, level: int, text: str, *args: object, error: BaseException | None = None) -> None:
        """Log a line, with a traceback if there is an ``error``, or leave it out."""
        if not self._log.isEnabledFor(level):
            return
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._then) * self._rate)
        self._then = now
        if self._tokens < 1.0:
            self.left_out += 1
            return
        self._tokens -= 1.0
        if self.left_out:
            text, args = f"{text} (%d lines of this kind were left out before)", (*args, self.left_out)
            self.left_out = 0
        self._log.log(level, text, *args, exc_info=error)
