"""What a publisher logs: what it waits for, and, on closing its topic, who still has to read and for how long."""

from __future__ import annotations

import logging
import time

from jobpipe.config import Config
from jobpipe.errors import SpoolFull
from jobpipe.operations.publisher_operations import CloseReply

log = logging.getLogger(__name__)

FIRST_SECONDS = 2.0
AGAIN_SECONDS = 60.0
_NAMED = 5  # subscriptions


class WaitLogger:
    """Logs one wait at WARNING once it has taken two seconds, and then every minute: a silent job seems to hang."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._began = time.monotonic()
        self._next = self._began + FIRST_SECONDS

    def log(self, why: str) -> None:
        """Say what is waited for now; to be called again and again while the wait lasts."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + AGAIN_SECONDS
            log.warning("topic %r: waiting for %.0f s: %s", self._topic, now - self._began, why)


def spool_full(topic: str, seconds: float, why: str) -> SpoolFull:
    """Return the error of a batch that has waited for room so long, in vain."""
    return SpoolFull(
        f"topic {topic!r}: no room within {seconds:g} s: {why}. Let its reader catch up, drop the subscription, or "
        "raise jobpipe.spool.max_bytes",
        topic=topic,
        reason=why,
    )


def closing_warning(topic: str, reply: CloseReply, config: Config) -> str | None:
    """Return what follows after ``close()``, None where all is read, or nothing was published.

    Args:
        topic: What was closed.
        reply: To ``close``.
        config: The publisher's.
    """
    lagging = reply.lagging
    if lagging is None or not reply.kept:
        return None
    longer = f"`jobpipe topics serve {topic}` on this host"
    slow = {name: count for name, count in lagging.items() if count}
    if slow:
        names = ", ".join(f"{name} ({slow[name]} batches)" for name in sorted(slow)[:_NAMED])
        more = f" and {len(slow) - _NAMED} more" if len(slow) > _NAMED else ""
        return (
            f"topic {topic}: closed, but not yet fully read by {names}{more}. It is served until they have read it, or "
            f"none of them has advanced for {config.linger:g} s (jobpipe.coordinator.linger); {longer} serves it longer"
        )
    if not lagging:
        return (
            f"topic {topic}: closed, and no longer served: it has no subscription, so nothing waits for readers. Its "
            f"batches are in {config.spool_dir / topic}; {longer} serves them. To wait for subscriptions that have not "
            "connected yet, name them in required_subscribers=[...]"
        )
    return None
