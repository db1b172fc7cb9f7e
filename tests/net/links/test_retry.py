"""What is tried again, and when."""

from __future__ import annotations

import itertools
import random

import pytest

from jobpipe import errors
from jobpipe.net.retry import RETRYABLE, TrustRetries, backoff


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name[0].isupper()])
def test_what_the_way_may_cause_is_retried_and_nothing_else(name: str) -> None:
    """Permissions, fences and lost or damaged data are fatal at once; foreign errors were mapped at the border."""
    passing = (
        "LinkError",
        "LinkClosed",
        "LinkEnded",
        "LinkBroken",
        "LinkTimeout",
        "HostAway",
        "TopicNotFound",
        "TopicAway",
    )
    damaged = ("RemoteProtocolError", "FrameTooLarge", "ChecksumMismatch")
    expected = name in (*passing, *damaged, "RegistryUnavailable")
    assert isinstance(getattr(errors, name)("x"), RETRYABLE) is expected


def test_backoff_doubles_up_to_its_cap() -> None:
    """Full jitter: anything between 0 and the ceiling."""

    class Highest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0
            return b

    waits = list(itertools.islice(backoff(0.05, 5.0, rng=Highest()), 10))
    assert waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
    assert all(0 <= wait <= 0.2 for wait in itertools.islice(backoff(0.05, 0.2), 50))


def test_a_stranger_is_final_after_three_looks_over_two_sessions() -> None:
    """Case 20: a registration outlives its server by a session and a half; any other end, hint or place begins anew."""
    stranger, distrust = errors.PeerNotTrusted("x"), TrustRetries(5.0)
    looks = [(stranger, "a", 0.0), (stranger, "a", 1.0), (stranger, "a", 9.9), (stranger, "a", 10.1)]
    assert [distrust.is_final(*look) for look in looks] == [False, False, False, True]
    for between in ((errors.LinkBroken("x"), "a", 11.0), (stranger, None, 11.0), (stranger, "b", 11.0)):
        assert not distrust.is_final(*between)
        assert not distrust.is_final(stranger, "a", 12.0)
        assert not distrust.is_final(stranger, "a", 23.0)
        assert distrust.is_final(stranger, "a", 23.5)
    assert not distrust.is_final(errors.NotAuthorized("it refuses us"), "a", 40.0)
