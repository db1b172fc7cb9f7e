"""Liveness, without a clock."""

from __future__ import annotations

import pytest

from jobpipe.errors import ConfigError
from jobpipe.net.links.keepalive import Keepalive, LinkHealth
from jobpipe.net.links.link_timeouts import LinkTimeouts

TIMING = LinkTimeouts(heartbeat=5, silence=15, write=60, idle=60)


def verdicts(monitor: Keepalive, until: float, *, start: float = 0.0, waiting: bool = False) -> dict[float, LinkHealth]:
    """All verdicts that are not FINE, checked as often as the monitor wants."""
    got: dict[float, LinkHealth] = {}
    now = start
    while now < until:
        now += monitor.interval
        verdict = monitor.check(now, waiting=waiting)
        if verdict is not LinkHealth.FINE:
            got[now] = verdict
    return got


def test_silence_is_pinged_then_fatal() -> None:
    """Every heartbeat a ping; after three without a byte, dead."""
    assert verdicts(Keepalive(TIMING, 0, beats=True), 15) == {
        5.0: LinkHealth.PING,
        10.0: LinkHealth.PING,
        15.0: LinkHealth.SILENT,
    }


def test_traffic_needs_no_pings() -> None:
    """Any byte counts."""
    monitor = Keepalive(TIMING, 0, beats=True)
    now = 0.0
    while now < 100:
        now += monitor.interval
        monitor.heard(now)
        assert monitor.check(now, waiting=False) is LinkHealth.FINE


def test_our_own_standstill_is_not_the_peers() -> None:
    """SIGSTOP, suspend: what came meanwhile may lie unread in the socket."""
    monitor = Keepalive(TIMING, 0, beats=True)
    assert monitor.check(2.5, waiting=False) is LinkHealth.FINE
    assert monitor.check(1000.0, waiting=False) is LinkHealth.FINE
    assert set(verdicts(monitor, 1010, start=1000.0).values()) == {LinkHealth.PING}
    assert LinkHealth.SILENT in verdicts(monitor, 1020, start=1010.0).values()


def test_a_stall_in_writing_is_fatal() -> None:
    """Also for peers that answer no pings; room in between resets it."""
    for beats in (True, False):
        monitor = Keepalive(TIMING, 0, beats=beats)
        now, verdict = 0.0, LinkHealth.FINE
        monitor.writing(now, stalled=True)
        while verdict is LinkHealth.FINE:
            now += monitor.interval
            if now == 45:
                monitor.writing(now, stalled=False)
                monitor.writing(now, stalled=True)
            monitor.heard(now)
            verdict = monitor.check(now, waiting=True)
        assert (verdict, now) == (LinkHealth.STALLED, 105)


def test_a_blocking_client_is_cut_when_idle_but_not_while_it_waits() -> None:
    """It cannot answer pings."""
    assert verdicts(Keepalive(TIMING, 0, beats=False), 60) == {60.0: LinkHealth.IDLE}
    assert verdicts(Keepalive(TIMING, 0, beats=False), 600, waiting=True) == {}


def test_while_we_do_not_read_silence_is_ours() -> None:
    """But the peer must hear from us, since we answer none of its pings."""
    monitor = Keepalive(TIMING, 0, beats=True)
    monitor.reading(0, paused=True)
    assert set(verdicts(monitor, 100).values()) == {LinkHealth.PING}
    monitor.reading(100, paused=False)
    assert list(verdicts(monitor, 115, start=100).values())[-1] is LinkHealth.SILENT
    blocking = Keepalive(TIMING, 0, beats=False)
    blocking.reading(0, paused=True)
    assert verdicts(blocking, 600) == {}


@pytest.mark.parametrize("wrong", [{"connect": 0}, {"write": -1}, {"silence": 5}])
def test_timing_is_checked(wrong: dict[str, float]) -> None:
    """A deadline that is none would hang."""
    with pytest.raises(ConfigError):
        LinkTimeouts(**wrong)
