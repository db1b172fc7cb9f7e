"""Retry policy: exponential back-off with full jitter, attempts, deadlines. Pure: nothing in here sleeps.

Fetches of data and the tasks of flows use :class:`Attempts`. A subscriber's control link does not end, and has its own
back-off: ``TopicFollower._follow`` (subscribing/topic_follower.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from jobpipe.errors import LinkEnded, LinkError, PeerNotTrusted, RegistryUnavailable, RemoteProtocolError, TopicNotFound

RETRYABLE = (LinkError, RegistryUnavailable, RemoteProtocolError, TopicNotFound)
"""What another attempt may mend: a cut, a publisher or registry that is away, a damaged frame, a port that another
server has taken. Not: a permission, and everything that says that the data are not as they should be."""

PROTOCOL_TRIES = 8
"""RemoteProtocolErrors in a row, without any progress, after which the peer is taken to speak another language."""

RENEW = "renew the link"
"""Reason of a goodbye to a link that is old, or made before other certificates were trusted: dial again, at once."""

TRUST_TRIES = 3
"""How often the registry must lead to a server we do not trust before that is final: see :class:`TrustRetries`."""


def is_renewal(error: BaseException) -> bool:
    """Whether a link ended for no other reason than to be renewed."""
    return isinstance(error, LinkEnded) and error.fields.get("reason") == RENEW


class TrustRetries:
    """Decides when PeerNotTrusted is final.

    A registration outlives its server by up to a registry session, and by half of one more: ZooKeeper ends sessions
    once a tick, and a session is two ticks at least. Meanwhile anybody may listen on its port. Only an entry that stays
    in the registry longer, and still leads to a certificate we do not trust, is no accident.

    Args:
        session: seconds that a registry session lives without its owner.
    """

    def __init__(self, session: float) -> None:
        self._longest = 2 * session  # with room for a busy registry
        self._place: object = None
        self._looks = 0
        self._since = 0.0

    def is_final(self, error: BaseException, place: object, now: float) -> bool:
        """Note how an attempt ended, ``place`` being what the registry said, None for a mere hint."""
        if not isinstance(error, PeerNotTrusted) or place is None or place != self._place:
            self._place, self._looks, self._since = place, 0, now
        self._looks += isinstance(error, PeerNotTrusted)
        return place is not None and self._looks >= TRUST_TRIES and now - self._since > self._longest


def backoff(base: float = 0.05, cap: float = 5.0, *, rng: random.Random | None = None) -> Iterator[float]:
    """Give the seconds to wait before each further attempt, without end: full jitter.

    The n-th, from 0, lies between 0 and min(cap, base * 2**n), so that peers that lost the same server do not all
    return at the same moment.
    """
    pick = (rng or random.SystemRandom()).uniform
    ceiling = base
    while True:
        yield pick(0, ceiling)
        ceiling = min(cap, ceiling * 2)


class Deadline:
    """A moment on the monotonic clock.

    Args:
        seconds: from now; None never comes.
    """

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        """True from that moment on."""
        return self._at is not None and time.monotonic() >= self._at

    def left(self, most: float | None = None, *, least: float = 0.0) -> float:
        """Return the seconds until then, at most ``most``, and not less than ``least``."""
        left = float("inf") if self._at is None else self._at - time.monotonic()
        return max(left if most is None else min(left, most), least)


class Attempts:
    """Attempts at one thing with a peer that may be away, or not the right one: how long to wait, when to give up.

    Args:
        seconds: that may pass from the first failure on, without any progress.
        session: that a registry session lives without its owner; see :class:`TrustRetries`.
        cap: the longest pause.
        deadline: counts from the start, instead of ``seconds``.
        protocol_tries: RemoteProtocolErrors after which to give up; None where each attempt may meet another server.
    """

    ERRORS = (*RETRYABLE, PeerNotTrusted)
    """What :meth:`failed` judges; any other error is final."""

    def __init__(
        self,
        seconds: float,
        *,
        session: float,
        cap: float = 2.0,
        deadline: Deadline | None = None,
        protocol_tries: int | None = PROTOCOL_TRIES,
    ) -> None:
        self._seconds = seconds
        self._cap = cap
        self._given = deadline
        self._protocol_tries = protocol_tries
        self._trust_retries = TrustRetries(session)
        self.progressed()

    def progressed(self) -> None:
        """Note that the peer did what it was asked for: all failures before are forgotten."""
        self._delays = backoff(cap=self._cap)
        self._garbled = 0
        self._deadline = self._given
        self.failures = 0

    @property
    def deadline(self) -> Deadline:
        return Deadline(self._seconds) if self._deadline is None else self._deadline

    def failed(self, error: Exception, place: object) -> float:
        """Return how long to wait before the next attempt; to be called while ``error`` is handled.

        Args:
            error: one of :attr:`ERRORS`.
            place: where the registry led to, None for a mere hint.

        Raises:
            Exception: ``error``, when no other attempt is to be made.
        """
        self.failures += 1
        self._garbled += isinstance(error, RemoteProtocolError)
        self._deadline = self.deadline
        final = self._trust_retries.is_final(error, place, time.monotonic())
        garbled = self._protocol_tries is not None and self._garbled >= self._protocol_tries
        if self._deadline.passed or garbled or final:
            raise error
        return next(self._delays)
