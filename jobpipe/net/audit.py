"""One line for each refusal and each change by an administrator: who, whence, what, with what result; no payload."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

__all__ = ["audit", "who"]

log = logging.getLogger("jobpipe.audit")

SHOWN = 200  # characters of what a peer says


def audit(
    names: Sequence[str],
    peer: str,
    what: str,
    result: str,
    *,
    topic: str | None = None,
    subscription: str | None = None,
    instance: str = "",
) -> None:
    """Write the line; what the peer says is quoted and shortened, so that it forges no other.

    Args:
        names: of its verified certificate; none before there is one, and in plaintext.
        peer: its address.
        what: the operation, or the right that it wants.
        result: ``refused`` or ``done``, with the reason or what was done behind it.
        instance: what it calls itself, to find it in its own log.
    """
    facts = {"what": what, "topic": topic, "subscription": subscription, "instance": instance or None, "result": result}
    said = " ".join(f"{key}={json.dumps(value[:SHOWN])}" for key, value in facts.items() if value is not None)
    level = logging.WARNING if result.startswith("refused") else logging.INFO
    log.log(level, "principal=%s peer=%s %s", json.dumps(who(names)), peer, said)


def who(names: Sequence[str]) -> str:
    """Return the names of a certificate for people."""
    return ", ".join(names)[:SHOWN] if names else "nobody known"
