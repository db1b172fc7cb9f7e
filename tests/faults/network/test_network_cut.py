"""A link cut after each byte of a seal, a plan, a fetch, in each direction, with TLS and without.

Whatever the byte: the other side discards what is not whole, the exchange is made again, and its outcome is the same.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jobpipe.config import Config, load
from jobpipe.discovery.configured_tls import client_tls
from jobpipe.discovery.topic_lookup import locate
from jobpipe.errors import LinkError
from jobpipe.net.address import Endpoint
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.links.event_loop_thread import EventLoopThread
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.catalog.position import Position
from jobpipe.subscribing.fetching import part_fetch as fetching
from jobpipe.testing import Checker, Journal, NumberedRows
from jobpipe.wire.wire_messages import Hello
from tests.bus.kit import PATIENCE, Bus, publish
from tests.faults.rig import chance
from tests.harness.proxies.lanes import BOTH, Direction
from tests.harness.proxies.proxy import FaultProxy

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]


@pytest.fixture(
    scope="module",
    params=[pytest.param("true", id="tls", marks=pytest.mark.slow), pytest.param("false", id="plaintext")],
)
def bus(request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """A topic whose links are, or are not, encrypted."""
    settings = {
        "jobpipe.home": str(home),
        "jobpipe.registerserver.topic.storage": f"/cut-{uuid.uuid4().hex[:12]}/topics",
        "jobpipe.sinkserver.subnet": "127.0.0.0/8",
        "jobpipe.spool.dir": str(tmp_path_factory.mktemp("spool")),
        "jobpipe.spool.fsync": "false",
        "jobpipe.ssl.enabled": request.param,
    }
    made = Bus("orders", lambda changes: load(overrides={**settings, **changes}, environ={}))
    yield made
    made.close()
    end_coordinators()


def each_byte(
    proxy: FaultProxy, way: Direction, exchange: Callable[[], object], *, open_ones: bool, step: int = 1
) -> int:
    """Do the exchange once for each byte after which its link may be cut; return how many cuts there were.

    With ``step`` only for each so many bytes, from a random one on.
    """
    exchange()  # makes the link
    if not open_ones:
        proxy.reset()  # and the greeting belongs to what is cut
    before = proxy.passed(way)
    exchange()
    length = proxy.passed(way) - before
    places = range(chance().randrange(step), length, step)
    for at in places:
        if not open_ones:
            proxy.reset()
        proxy.cut(way, at, reset=at // step % 2 == 0, open_ones=open_ones)
        exchange()
        proxy.heal()
    return len(places)


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait before he tries again: the way is whole at once."""
    monkeypatch.setattr(random.SystemRandom, "uniform", lambda _self, _low, _high: 0.0)


def encrypted(config: Config) -> bool:
    """Tell whether a link begins with a handshake of thousands of bytes, each cut in which costs another one."""
    return client_tls(config) is not None


def opened(bus: Bus, way: Direction, what: str) -> tuple[Publisher, NumberedRows, Journal]:
    """Return a publisher of a topic of its own, also when the test is run again."""
    rows = NumberedRows(f"{what}-{way}-{uuid.uuid4().hex[:8]}", rows=1, payload=1)
    return bus.publisher(topic=rows.topic), rows, Journal()


@pytest.mark.parametrize("way", BOTH)
def test_seal(bus: Bus, way: Direction) -> None:
    """Case 14: every batch is sealed, and none of them twice, wherever the link to the coordinator is cut."""
    publisher, rows, journal = opened(bus, way, "seal")
    coordinator, link, numbers = publisher._channel.coordinator, publisher._channel._link, itertools.count()
    assert coordinator is not None
    assert link is not None
    direct, step = coordinator.endpoint, 3 if encrypted(publisher.config) else 1
    with FaultProxy(str(direct)) as proxy:
        coordinator.endpoint = Endpoint.parse(proxy.endpoint)
        try:
            EventLoopThread.get().run(link.close, 5.0, doing="closing")  # the next one passes the proxy
            cuts = each_byte(
                proxy, way, lambda: publish(publisher, rows, journal, [next(numbers)]), open_ones=True, step=step
            )
        finally:
            coordinator.endpoint = direct
    publisher.close(final=True)
    checker = Checker(rows, journal).take_all(bus.subscribe("all", topic=rows.topic).batches(timeout=30))
    assert checker.check().rows == cuts + 2


@pytest.mark.parametrize("way", BOTH)
def test_plan_and_acknowledgement(bus: Bus, way: Direction) -> None:
    """Case 14: the plan is the same after every cut, and the acknowledgement in it moves the position once."""
    publisher, rows, journal = opened(bus, way, "plan")
    first, _ = publish(publisher, rows, journal, range(2))
    config = bus.config()
    control, tls = locate(config, rows.topic, PATIENCE).control, client_tls(config)
    hello = Hello(topic=rows.topic, role="subscriber", name="all", instance="one")
    plans: list[dict[str, Any]] = []
    name = topic_server_name(rows.topic)

    with FaultProxy(str(control)) as proxy:
        start = {"start": first.position.to_json(), "max_rows": 1, "max_bytes": None}

        way_in = Endpoint.parse(proxy.endpoint)

        def exchange() -> None:
            while True:
                try:
                    with closing(BlockingLink.connect(way_in, hello, tls=tls, server_hostname=name)) as link:
                        grant = link.call("grant", {"host": "a", "pid": 1}, timeout=10.0).result["grant"]
                        plans.append(link.call("plan", {**start, "grant": grant}, timeout=10.0).result)
                    return
                except LinkError:
                    continue

        cuts = each_byte(proxy, way, exchange, open_ones=False, step=7 if encrypted(config) else 1)
        proxy.reset()
    assert cuts > 50
    assert [plan for plan in plans if plan != plans[0]] == []
    (subscription,) = publisher.status()["subscriptions"]
    assert (subscription["position"], plans[0]["end"]["n"]) == (1, 2)


@pytest.mark.core
@pytest.mark.parametrize("way", BOTH)
def test_fetch(bus: Bus, way: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 14: the rows are the same after every cut, each once."""
    publisher, rows, journal = opened(bus, way, "fetch")
    (batch,) = publish(publisher, rows, journal, [0])
    config, end = bus.config(), batch.position
    data = locate(config, rows.topic, PATIENCE).data
    with FaultProxy(str(data)) as proxy:
        monkeypatch.setattr(fetching, "refresh_location", lambda *_: None)  # go on where it was
        wanted = fetching.FetchRange(rows.topic, Position(end.log, 0, 0), end, 0, proxy.endpoint)

        def exchange() -> None:
            checker = Checker(rows, journal)
            for fetched in fetching.fetch(wanted, config):
                checker.take(fetched.batch)
            assert checker.check().rows == 1

        assert each_byte(proxy, way, exchange, open_ones=False, step=17 if encrypted(config) else 5) > 50
