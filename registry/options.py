"""The options of :meth:`RegisterServerHandler.start`, checked. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from registry.errors import RegistryError

__all__ = ["Options"]

_LONGEST_WAIT = 3600.0


@dataclass(frozen=True)
class Options:
    """Where the registry is, and how long to wait for it. Times in seconds."""

    connect: str
    namespace: str
    session_timeout: float
    connect_timeout: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """Read ``connect``, ``topic.storage``, ``session.timeout`` and ``connect.timeout``; ignore all others.

        Raises:
            RegistryError: a time is not a number above 0 and at most 3600.
        """
        return cls(
            connect=options.get("connect", "127.0.0.1:2181").strip(),
            namespace=options.get("topic.storage", "/jobpipe/topics"),
            session_timeout=_seconds(options, "session.timeout", 10.0),
            connect_timeout=_seconds(options, "connect.timeout", 10.0),
        )


def _seconds(options: Mapping[str, str], key: str, default: float) -> float:
    text = options.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _LONGEST_WAIT:  # false for nan, too
        raise RegistryError(f"option {key}={text!r}: expected seconds, above 0 and at most {_LONGEST_WAIT:.0f}")
    return value
