"""Who comes in: by rate, by address, by identity; and how much of it is logged."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.net.servers import audit_log
from jobpipe.net.servers.audit_log import RateLimitedLog
from jobpipe.net.servers.connection_limits import (
    FAILURE_COST,
    MAX_SOURCES,
    ConnectionLimiter,
    ConnectionLimits,
    ConnectionRefusal,
    source_of,
)

SMALL = ConnectionLimits(connections=10, per_address=4, per_identity=2, rate=10.0)


def test_an_address_above_its_rate_is_dropped_and_others_are_not() -> None:
    """Case 73."""
    limiter = ConnectionLimiter(SMALL)
    answers = [limiter.arrive("flood", 0.0) for _ in range(100)]
    assert answers == [None] * 20 + [ConnectionRefusal.RATE] * 80
    assert limiter.refused == {ConnectionRefusal.RATE: 80}
    assert limiter.arrive("good", 0.0) is None
    assert [limiter.arrive("flood", 0.1) for _ in range(2)] == [None, ConnectionRefusal.RATE]


def test_a_failure_costs_what_eleven_good_ones_do() -> None:
    """Case 73: whoever is never welcomed may try once in so many."""
    limiter = ConnectionLimiter(SMALL)
    let_in = 0
    for tick in range(60_000):  # 60 s, a thousand attempts a second
        now = tick / 1000
        if limiter.arrive("flood", now) is None:
            let_in += 1
            limiter.failed("flood", now)
            limiter.leave("flood")
    assert 60 * SMALL.rate / (1 + FAILURE_COST) == pytest.approx(let_in, rel=0.1)
    assert limiter.open == 0


def test_a_bucket_is_full_again_after_twice_its_burst_at_most() -> None:
    """An address is never shut out for longer than that."""
    limiter = ConnectionLimiter(SMALL)
    limiter.arrive("x", 0.0)
    for _ in range(1000):
        limiter.failed("x", 0.0)
    assert limiter.arrive("x", 1.9) is ConnectionRefusal.RATE
    assert limiter.arrive("x", 2.2) is None


def test_caps_by_address_and_in_total() -> None:
    limiter = ConnectionLimiter(SMALL)
    for number in range(10):
        assert limiter.arrive(f"host-{number // 4}", 0.0) is None
        assert limiter.over(f"host-{number // 4}") is None
    limiter.arrive("host-0", 0.0)
    assert limiter.over("host-0") is ConnectionRefusal.ADDRESS
    assert limiter.over("host-2") is ConnectionRefusal.TOTAL
    limiter.leave("host-0")
    assert limiter.over("host-2") is None


def test_caps_by_identity() -> None:
    limiter = ConnectionLimiter(SMALL)
    assert [limiter.identify(("a",)) for _ in range(3)] == [True, True, False]
    assert limiter.identify(("b",))
    limiter.forget(("a",))
    assert limiter.identify(("a",))


def test_what_is_remembered_is_bounded_and_counts_are_kept() -> None:
    """A scan from many addresses takes no memory, and does not make it forget who is connected."""
    limiter = ConnectionLimiter(SMALL)
    for _ in range(4):
        limiter.arrive("resident", 0.0)
    for number in range(3 * MAX_SOURCES):
        limiter.arrive(f"10.{number}", 1.0)
        limiter.leave(f"10.{number}")
    assert len(limiter._sources) <= MAX_SOURCES
    limiter.arrive("resident", 1.0)
    assert limiter.over("resident") is ConnectionRefusal.ADDRESS


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["arrive", "leave", "failed"])), max_size=60))
def test_the_total_is_the_sum_of_the_addresses(steps: list[tuple[str, str]]) -> None:
    limiter = ConnectionLimiter(SMALL)
    for now, (source, step) in enumerate(steps):
        if step == "leave":
            limiter.leave(source)
        else:
            getattr(limiter, step)(source, now / 100)
    assert limiter.open == sum(found.open for found in limiter._sources.values()) >= 0


@pytest.mark.parametrize(
    ("address", "source"),
    [
        (("10.0.0.7", 5), "10.0.0.7"),
        (("::ffff:10.0.0.7", 5, 0, 0), "10.0.0.7"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::1", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        ("", "unknown"),
    ],
)
def test_one_network_is_one_source(address: object, source: str) -> None:
    """Who has IPv6 has 2^64 addresses."""
    assert source_of(address) == source


def test_logging_is_bounded_and_says_what_it_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 73."""
    now = 0.0
    monkeypatch.setattr(audit_log.time, "monotonic", lambda: now)
    log = RateLimitedLog(logging.getLogger("jobpipe.test"), rate=1.0, burst=5)
    with caplog.at_level(logging.INFO, "jobpipe.test"):
        for number in range(1000):
            log.log(logging.INFO, "dropped %d", number)
        now = 2.0
        log.log(logging.INFO, "dropped %d", 1000)
    assert len(caplog.messages) == 6
    assert caplog.messages[-1] == "dropped 1000 (995 lines of this kind were left out before)"
