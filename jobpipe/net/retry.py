"""Whether to try again, and when. Pure: nothing in here sleeps."""

from __future__ import annotations

import random
from collections.abc import Iterator

from jobpipe.errors import LinkError, RegistryUnavailable, RemoteProtocolError, TopicNotFound

__all__ = ["PROTOCOL_TRIES", "RETRYABLE", "backoff"]

RETRYABLE = (LinkError, RegistryUnavailable, RemoteProtocolError, TopicNotFound)
"""What another attempt may mend: a cut, a publisher or registry that is away, a damaged frame, a port that another
server has taken. Not: a permission, and everything that says that the data are not as they should be."""

PROTOCOL_TRIES = 8
"""RemoteProtocolErrors in a row, without any progress, after which the peer is taken to speak another language."""


def backoff(base: float = 0.05, cap: float = 5.0, *, rng: random.Random | None = None) -> Iterator[float]:
    """Give the seconds to wait before each further attempt, without end: full jitter.

    The n-th lies between 0 and min(cap, base * 2**n), so that peers who lost the same server do not return at once.
    """
    pick = (rng or random.SystemRandom()).uniform
    ceiling = base
    while True:
        yield pick(0, ceiling)
        ceiling = min(cap, ceiling * 2)
