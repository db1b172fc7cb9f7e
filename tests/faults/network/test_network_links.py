"""The network between subscribers and the bus misbehaves: silence, partition, delay, resets, late and double frames."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.rig import FILES, chance, conclude, later_rows, more, running
from tests.harness.processes import Harness
from tests.harness.proxies.lanes import BOTH, Direction

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

PLAIN = {"ssl.enabled": "false"}


def heal(rig: Harness) -> None:
    """End the faults of all links."""
    for proxy in rig.proxies:
        proxy.heal()


@pytest.mark.slow
@pytest.mark.parametrize("way", BOTH)
def test_one_way_silence_and_late_frames(tmp_path: Path, way: Direction) -> None:
    """Cases 13 and 16: no FIN, no error, only silence in one direction of the links there are; heartbeats notice it.

    What the old links still carried arrives after the same subscriber has gone on over newer ones.
    """
    with running(tmp_path, proxied=True) as rig:
        for proxy in rig.proxies:
            proxy.hold(way)
        later_rows(rig, timeout=50.0)  # a request that is never answered is given up after 30 s
        more(rig)
        for proxy in rig.proxies:
            proxy.release(way)
        more(rig)
        assert rig.consumer().starts == 1
        conclude(rig)


@pytest.mark.slow
def test_partition_and_back(tmp_path: Path) -> None:
    """Case 11: nothing passes, and new connections hear nothing; the publisher goes on, and the subscriber after it."""
    with running(tmp_path, proxied=True) as rig:
        for proxy in rig.proxies:
            proxy.pause()
        sealed = rig.journal.batches
        rig.wait_until(lambda: rig.journal.batches > sealed + 200, "the publisher goes on")
        for proxy in rig.proxies:
            proxy.reset()  # nobody answers any more
            proxy.resume()
        assert later_rows(rig, timeout=30.0) < 10.0
        conclude(rig)


@pytest.mark.slow
def test_refused_and_back(tmp_path: Path) -> None:
    """Cases 11 and 14: RST of all links, and nobody listens for a while; within 5 s of the return rows come."""
    with running(tmp_path, proxied=True) as rig:
        for proxy in rig.proxies:
            proxy.refuse()
            proxy.reset()
        time.sleep(6.0)
        heal(rig)
        assert later_rows(rig, timeout=30.0) < 5.0
        conclude(rig)


@pytest.mark.slow
def test_resets(tmp_path: Path) -> None:
    """Case 14: RST of all links at random moments, faster than they can be used in quiet."""
    moments = chance()
    with running(tmp_path, proxied=True, consumers=("all", "two"), **FILES) as rig:
        for _ in range(20):
            for proxy in rig.proxies:
                proxy.reset()
            time.sleep(moments.uniform(0.0, 0.4))
        more(rig, "two")
        conclude(rig, "all", "two")


@pytest.mark.slow
def test_cuts_and_resets_inside_streams(tmp_path: Path) -> None:
    """Case 14: links end after a random number of bytes of either direction, new ones and open ones."""
    moments = chance()
    with running(tmp_path, proxied=True, **FILES) as rig:
        for _ in range(8):
            for proxy in rig.proxies:
                for way in BOTH:
                    hard = moments.random() < 0.5
                    proxy.cut(way, moments.randrange(60_000 if way == "down" else 600), reset=hard, open_ones=True)
                    proxy.cut(way, moments.randrange(6_000), reset=hard, times=2)
            time.sleep(moments.uniform(0.0, 0.5))
        heal(rig)
        more(rig)
        conclude(rig)


@pytest.mark.slow
def test_slow_and_far(tmp_path: Path) -> None:
    """Case 15: 100 ms each way and 3 Mbit/s: it takes longer, but no link is given up."""
    with running(tmp_path, proxied=True) as rig:
        for proxy in rig.proxies:
            proxy.delay(0.1)
            proxy.limit_rate(3e6 / 8)
        made = sum(proxy.connections for proxy in rig.proxies)
        began = time.monotonic()
        while time.monotonic() - began < 10.0:
            more(rig)
        assert sum(proxy.connections for proxy in rig.proxies) <= made + 2  # a read may want one link more
        heal(rig)
        conclude(rig)


def test_late_frames_of_a_former_holder(tmp_path: Path) -> None:
    """Case 16: a killed subscriber's acknowledgements, held on their way, come when another has its name.

    What they would let go, if they counted, is removed at once; the other one may not have read it yet.
    """
    keep = {"retention.time": "0s", "retention.bytes": "1", "retention.ack_grace": "0s"}
    with running(tmp_path, proxied=True, settings=keep) as rig:
        for _ in range(3):
            for proxy in rig.proxies:
                proxy.hold("up")
            time.sleep(0.2)
            rig.consumer().kill()
            rig.consumer().start()
            more(rig)
            for proxy in rig.proxies:
                proxy.release("up")
            more(rig)
        conclude(rig)


@pytest.mark.parametrize("way", BOTH)
def test_frames_twice(tmp_path: Path, way: Direction) -> None:
    """Case 17: each of the first frames of a link comes twice: requests, acknowledgements, answers, data."""
    with running(tmp_path, proxied=True, settings=PLAIN, **FILES) as rig:
        for number in range(12):
            for proxy in rig.proxies:
                proxy.duplicate_frame(way, number, times=2)
                proxy.reset()
            time.sleep(0.3)
        heal(rig)
        more(rig)
        conclude(rig)
