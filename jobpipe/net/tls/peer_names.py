"""Logical names: a certificate says by DNS names who a peer is, never where."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_HASHED = re.compile(r"h[0-9a-f]{40}", re.ASCII)


def topic_server_name(topic: str) -> str:
    """Return the DNS name that a publisher of ``topic`` proves by its certificate.

    The topic itself is the first label where it is a plain lower-case DNS label; every other topic is hashed, and so
    is one that looks like such a hash or like IDNA, so that no two topics share a name.
    """
    return f"{label(topic)}.topic.jobpipe"


def bears_topic(names: Collection[str], topic: str) -> bool:
    """Tell whether a certificate with these DNS names proves a topic, as a TLS handshake decides: ``*`` is a label."""
    name = topic_server_name(topic)
    return name in names or f"*.{name.partition('.')[2]}" in names


def subscription_name(subscription: str) -> str:
    """Return the DNS name that a certificate bears whose holder reads as ``subscription``, of whatever topics."""
    return f"{label(subscription)}.subscription.jobpipe"


def label(name: str) -> str:
    """Return ``name`` as one DNS label, hashed where it is none."""
    if LABEL.fullmatch(name) and not _HASHED.fullmatch(name) and not name.startswith("xn--"):
        return name
    return "h" + hashlib.sha256(name.encode()).hexdigest()[:40]
