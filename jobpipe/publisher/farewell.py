"""What is said when a publisher closes its topic: who is still waited for, how long, and how to serve it longer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobpipe.config import Config

__all__ = ["farewell"]

_NAMED = 5  # subscriptions


def farewell(topic: str, answer: Mapping[str, Any], config: Config) -> str | None:
    """Return what follows after ``close()``, None where all is read, or nothing was published.

    Args:
        topic: What was closed.
        answer: To ``close``: ``kept``, how many batches there are, and ``lagging``, by subscription the batches that it
            has not acknowledged; None if they could not be told.
        config: The publisher's.
    """
    lagging, kept = answer.get("lagging"), answer.get("kept", 0)
    if not isinstance(lagging, dict) or not kept:
        return None
    longer = f"`jobpipe serve {topic}` on this host"
    slow = {name: count for name, count in lagging.items() if count}
    if slow:
        names = ", ".join(f"{name} ({slow[name]} batches)" for name in sorted(slow)[:_NAMED])
        more = f" and {len(slow) - _NAMED} more" if len(slow) > _NAMED else ""
        return (
            f"topic {topic}: closed, and not read to its end by {names}{more}. It is served until they have, or "
            f"none of them has advanced for {config.linger:g} s (jobpipe.coordinator.linger); {longer} serves it longer"
        )
    if not lagging:
        return (
            f"topic {topic}: closed, and served no longer: it has no subscription, so nobody is waited for. What is "
            f"sealed lies in {config.spool_dir / topic}; {longer} serves it. required_subscribers=[...] names those "
            "that are to be waited for before they come"
        )
    return None
