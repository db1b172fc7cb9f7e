"""Whether to try again, and when. Pure: nothing in here sleeps."""

from __future__ import annotations

import random
from collections.abc import Iterator

from jobpipe.errors import LinkError

__all__ = ["backoff", "is_retryable"]


def is_retryable(error: BaseException) -> bool:
    """Whether another attempt may work: LinkError yes; TLS, protocol and all other errors no."""
    return isinstance(error, LinkError)


def backoff(base: float = 0.05, cap: float = 5.0, *, rng: random.Random | None = None) -> Iterator[float]:
    """Give the seconds to wait before each further attempt, without end: full jitter.

    The n-th lies between 0 and min(cap, base * 2**n), so that peers who lost the same server do not return at once.
    """
    pick = (rng or random.SystemRandom()).uniform
    ceiling = base
    while True:
        yield pick(0, ceiling)
        ceiling = min(cap, ceiling * 2)
