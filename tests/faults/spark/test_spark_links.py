"""Two Spark applications and a bad network between them, or no ZooKeeper; the query's progress tells of the link."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.faults.rig import OWN_ZOOKEEPER, SESSION, chance, conclude, later_rows, more
from tests.faults.spark.spark_rig import (
    PAUSE,
    SPARK_PATIENCE,
    SparkHarness,
    events_of,
    slowness,
    spark_pair,
    verdict_now,
)
from tests.harness.proxies.lanes import BOTH
from tests.harness.proxies.proxy import FaultProxy

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHarness]:
    """The pair, the subscriber's links behind proxies; nothing is lost or doubled over all that the tests did."""
    folder = tmp_path_factory.mktemp("links")
    patient = {"registerserver.connect.timeout": "30s"}
    with spark_pair(folder, proxied=True, settings=patient, **OWN_ZOOKEEPER) as rig:
        yield rig
        conclude(rig)


@pytest.fixture(autouse=True)
def healed(rig: SparkHarness) -> Iterator[None]:
    """End the faults of all links, whatever the test did."""
    yield
    for proxy in rig.proxies:
        proxy.heal()


def states(rig: SparkHarness, since: float) -> list[str]:
    """Return the states of the link that the query's progress showed since then."""
    return [event["state"] for event in events_of(rig.folder, "all").read("link", since)]


def control(rig: SparkHarness) -> FaultProxy:
    """Return the proxy before the coordinator; the others stand before the data process, or nobody."""
    ports = {line.laddr.port for line in rig.coordinator().net_connections("tcp") if line.status == psutil.CONN_LISTEN}
    [proxy] = [proxy for proxy in rig.proxies if int(proxy.upstream.rpartition(":")[2]) in ports]
    return proxy


def settled(rig: SparkHarness) -> dict[str, Any]:
    """Return what progress says of the link, once it has heard that the test before is over."""
    for _ in range(2):  # progress of a micro-batch tells of the link as it was at its beginning
        more(rig, rows=200, timeout=SPARK_PATIENCE)
    rig.wait_until(lambda: rig.link()["state"] == "connected", "progress of a connected link", SPARK_PATIENCE)
    return rig.link()


@pytest.mark.slow
def test_refused_and_back(rig: SparkHarness) -> None:
    """Case 11: RST of all links, and nobody listens: progress says so and counts; rows come soon after."""
    before, began = rig.link(), time.monotonic()
    link = control(rig)
    link.refuse()
    link.reset()  # the data links may stay: a batch that waits for them makes no progress that could tell of it
    rig.wait_until(lambda: "reconnecting" in states(rig, began), "progress that shows the link", SPARK_PATIENCE)
    for proxy in rig.proxies:
        proxy.refuse()
        proxy.reset()
    sealed = rig.journal.batches
    rig.wait_until(lambda: rig.journal.batches > sealed + 5, "the publisher goes on", SPARK_PATIENCE)
    slow = slowness()
    for proxy in rig.proxies:
        proxy.heal()
    assert later_rows(rig, timeout=SPARK_PATIENCE) < 5.0 * slow
    rig.wait_until(lambda: states(rig, began)[-1] == "connected", "progress that shows the link", SPARK_PATIENCE)
    assert rig.link()["reconnects"] > before["reconnects"]
    verdict_now(rig)


def test_cut_at_random_bytes(rig: SparkHarness) -> None:
    """Case 14: while data flow, links end after a random number of bytes of either direction, new and open ones."""
    moments = chance()
    for _ in range(6):
        for proxy in rig.proxies:
            for way in BOTH:
                hard = moments.random() < 0.5
                proxy.cut(way, moments.randrange(20_000 if way == "down" else 1_500), reset=hard, open_ones=True)
                proxy.cut(way, moments.randrange(6_000), reset=hard, times=2)
        time.sleep(moments.uniform(0.3, 1.5))
    for proxy in rig.proxies:
        proxy.heal()
    more(rig, timeout=SPARK_PATIENCE)
    verdict_now(rig)
    assert rig.consumer().starts == 1


def test_zookeeper_killed_and_back(rig: SparkHarness) -> None:
    """Case 21: for longer than a session; both queries go on, and neither links nor epoch change."""
    before = settled(rig)
    rig.zookeeper.kill()
    began = time.monotonic()
    while time.monotonic() - began < 2 * SESSION:
        more(rig, rows=200, timeout=SPARK_PATIENCE)
    rig.zookeeper.start()
    more(rig, rows=1000, timeout=SPARK_PATIENCE)
    verdict_now(rig)
    assert rig.link() == before
    assert rig.publisher.starts == rig.consumer().starts == 1


@pytest.mark.slow
def test_publisher_killed_while_zookeeper_is_away(rig: SparkHarness) -> None:
    """Cases 1 and 21: the backlog is read meanwhile; the new one waits for ZooKeeper, and both go on."""
    rig.zookeeper.kill()
    rig.publisher.kill()
    verdict_now(rig)
    since = time.monotonic()
    rig.publisher.start(pause=PAUSE)
    rig.wait_until(lambda: rig.events.read("constructing", since), "the new sink", SPARK_PATIENCE)
    rig.zookeeper.start()
    later_rows(rig, timeout=SPARK_PATIENCE)
    more(rig, timeout=SPARK_PATIENCE)
    verdict_now(rig)
    assert rig.publisher.starts == 2
