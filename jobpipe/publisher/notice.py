"""Says what a publisher waits for: back-pressure in silence looks like a job that hangs."""

from __future__ import annotations

import logging
import time

__all__ = ["Notice"]

log = logging.getLogger(__name__)

FIRST_SECONDS = 2.0
AGAIN_SECONDS = 60.0


class Notice:
    """One wait's; logs at WARNING once it has taken two seconds, and then each minute."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._began = time.monotonic()
        self._next = self._began + FIRST_SECONDS

    def tell(self, why: str) -> None:
        """Say what is waited for now; to be called again and again while the wait lasts."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + AGAIN_SECONDS
            log.warning("topic %r: waiting since %.0f s: %s", self._topic, now - self._began, why)
