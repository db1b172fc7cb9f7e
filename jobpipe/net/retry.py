"""Whether to try again, and when. Pure: nothing in here sleeps."""

from __future__ import annotations

import random
from collections.abc import Iterator

from jobpipe.errors import LinkEnded, LinkError, PeerNotTrusted, RegistryUnavailable, RemoteProtocolError, TopicNotFound

__all__ = ["PROTOCOL_TRIES", "RENEW", "RETRYABLE", "TRUST_TRIES", "Distrust", "backoff", "is_renewal"]

RETRYABLE = (LinkError, RegistryUnavailable, RemoteProtocolError, TopicNotFound)
"""What another attempt may mend: a cut, a publisher or registry that is away, a damaged frame, a port that another
server has taken. Not: a permission, and everything that says that the data are not as they should be."""

PROTOCOL_TRIES = 8
"""RemoteProtocolErrors in a row, without any progress, after which the peer is taken to speak another language."""

RENEW = "renew the link"
"""Reason of a goodbye to a link that is old, or made before other certificates were trusted: dial again, at once."""

TRUST_TRIES = 3
"""Looks at the registry, that lead to a server we do not trust, before it is no stranger at an old address."""


def is_renewal(error: BaseException) -> bool:
    """Whether a link ended for no other reason than to be made anew."""
    return isinstance(error, LinkEnded) and error.fields.get("reason") == RENEW


class Distrust:
    """Decides when PeerNotTrusted is final.

    A registration outlives its server by a registry session, and meanwhile anybody may listen at its port. Only what
    stands in the registry for longer, and still leads to a certificate that we do not trust, is no accident.

    Args:
        session: seconds that a registry session lives without its owner.
    """

    def __init__(self, session: float) -> None:
        self._session = session
        self._place: object = None
        self._looks = 0
        self._since = 0.0

    def is_final(self, error: BaseException, place: object, now: float) -> bool:
        """Note how an attempt ended, ``place`` being what the registry said, None for a mere hint."""
        if not isinstance(error, PeerNotTrusted) or place is None or place != self._place:
            self._place, self._looks, self._since = place, 0, now
        self._looks += isinstance(error, PeerNotTrusted)
        return place is not None and self._looks >= TRUST_TRIES and now - self._since > self._session


def backoff(base: float = 0.05, cap: float = 5.0, *, rng: random.Random | None = None) -> Iterator[float]:
    """Give the seconds to wait before each further attempt, without end: full jitter.

    The n-th lies between 0 and min(cap, base * 2**n), so that peers who lost the same server do not return at once.
    """
    pick = (rng or random.SystemRandom()).uniform
    ceiling = base
    while True:
        yield pick(0, ceiling)
        ceiling = min(cap, ceiling * 2)
