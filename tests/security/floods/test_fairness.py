"""What one identity asks for delays no other: expensive requests of one, many at once, and cheap ones of another.

"Delay" is how much longer a cheap request takes than on an idle coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobpipe.config import load
from jobpipe.errors import JobpipeError
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link, connect
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.net.tls.tls_context import Credentials, client_context
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import EARLIEST
from jobpipe.wire import Hello
from tests.security.kit import TIMING, TOPIC, World, full, settings
from tests.store.build import open_log, seal

pytestmark = pytest.mark.zookeeper

BATCHES = 200_000
AT_ONCE = 64
DELAY = 0.5  # seconds; it was 10 to 20
PROBES = 12


@dataclass(frozen=True)
class Long:
    """A topic with a long log, at a coordinator and a data process of its own."""

    world: World
    log: str
    control: Endpoint
    data: Endpoint

    def at(self, n: int) -> dict[str, Any]:
        return Position(self.log, 1 if n else 0, n).to_json()

    @property
    def whole(self) -> dict[str, Any]:
        return {"start": self.at(0), "end": self.at(BATCHES)}


def make_long(spool: Path) -> str:
    """Seal one batch, and enter it again and again; only the first one has bytes. Return the log's id."""
    log = open_log(spool)
    seal(log, 0, ((1,), (1,)))
    with log._db.write():
        log._db.execute(
            "WITH RECURSIVE more(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM more WHERE k + 1 < ?) "
            "INSERT INTO batches SELECT k, epoch, query_id, k, run_id, NULL, rows, bytes, rows * (k + 1), "
            "bytes * (k + 1), sealed_ms, sealed_up, 0 FROM more JOIN batches b ON b.n = 0",
            BATCHES,
        )
        log._db.execute(
            "INSERT INTO segments SELECT b.n, partition, ordinal, s.file, s.offset, s.length, s.rows, record_batches, "
            "x'', x'', host FROM batches b JOIN segments s ON s.n = 0 WHERE b.n > 0"
        )
        log._db.execute("UPDATE meta SET next_n = ?, total_rows = total_rows * ?, total_bytes = total_bytes * ?", *(
            BATCHES, BATCHES, BATCHES
        ))  # fmt: skip
    log.close()
    return log.log_id


@pytest.fixture(scope="module")
def served(world: World, base: dict[str, str]) -> Iterator[Long]:
    """The topic."""
    log = make_long(Path(base["jobpipe.spool.dir"]))
    config = load(overrides={**base, **full(settings(world.orders, world.access))}, environ={})
    publisher = Publisher(TOPIC, config=config)
    yield Long(world, log, publisher.coordinator.endpoint, publisher.coordinator.data)
    publisher.close()
    end_coordinators()


Asking = Callable[[Link], Any]


@contextlib.asynccontextmanager
async def dialled(endpoint: Endpoint, files: Credentials, role: str) -> AsyncIterator[Link]:
    hello = Hello(TOPIC, role, instance=f"hostile-{role}")
    name = topic_server_name(TOPIC)
    link = await connect(endpoint, hello, tls=client_context(files), server_hostname=name, timing=TIMING)
    try:
        yield link
    finally:
        link.abort()


async def ask_for_ever(
    endpoint: Endpoint, files: Credentials, op: str, args: dict[str, Any], *, links: int, begun: threading.Event
) -> None:
    """Have so many requests open all the time, over so many links."""

    async def ask(link: Link) -> None:
        while True:
            with contextlib.suppress(JobpipeError):
                await link.call(op, args, timeout=300.0)
            await asyncio.sleep(0.001)

    async with contextlib.AsyncExitStack() as stack:
        made = [await stack.enter_async_context(dialled(endpoint, files, "reader")) for _ in range(links)]
        asking = [asyncio.create_task(ask(made[number % links])) for number in range(AT_ONCE)]
        await asyncio.sleep(0.2)  # until they are under way
        begun.set()
        try:
            await asyncio.gather(*asking)
        finally:
            for task in asking:
                task.cancel()


@contextlib.contextmanager
def hostile(endpoint: Endpoint, files: Credentials, op: str, args: dict[str, Any], *, links: int) -> Iterator[None]:
    """Let an identity ask for the length of the block."""
    begun, loop = threading.Event(), asyncio.new_event_loop()
    task = loop.create_task(ask_for_ever(endpoint, files, op, args, links=links, begun=begun))

    def work() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(60.0)
        yield
        assert not task.done(), "nobody was hostile"
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(30.0)


def slowest(ask: Callable[[], object]) -> float:
    """Return the longest of some requests, one after the other."""
    longest, end = 0.0, time.monotonic() + 60.0
    for _ in range(PROBES):
        began = time.monotonic()
        ask()
        longest = max(longest, time.monotonic() - began)
        if time.monotonic() > end:
            break
    return longest


@contextlib.contextmanager
def subscriber(served: Long) -> Iterator[Callable[[], object]]:
    """Another identity, which polls and plans."""
    hello = Hello(TOPIC, "subscriber", "billing", instance="good")
    tls, name = client_context(served.world.billing), topic_server_name(TOPIC)
    with BlockingLink.connect(served.control, hello, tls=tls, server_hostname=name, timing=TIMING) as link:
        grant = link.call("grant", {"host": "h", "pid": 1}, timeout=20).result["grant"]
        start = link.call("first", {"start": EARLIEST.to_json(), "grant": grant}, timeout=20).result["position"]

        def ask() -> None:
            link.call("poll", {}, timeout=60)
            found = link.call("plan", {"start": start, "grant": grant, "max_rows": 100}, timeout=60).result
            assert found["rows"] == 100

        yield ask


def fetches(served: Long) -> Callable[[], object]:
    """Another identity, which reads one batch, each time over a link of its own."""
    tls, name = client_context(served.world.billing), topic_server_name(TOPIC)

    def ask() -> None:
        hello = Hello(TOPIC, "reader", instance="good")
        with BlockingLink.connect(served.data, hello, tls=tls, server_hostname=name, timing=TIMING) as link:
            link.start_stream("fetch", {"start": served.at(0), "end": served.at(1), "partition": 0}, timeout=60)
            part = link.next_part()
            assert part is not None
            assert part.header["rows"] == 1

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("op", ["cut", "status"])
def test_planning_goes_on(served: Long, op: str) -> None:
    """While another identity has long ranges cut, or asks what each process has served."""
    args = {"cut": {**served.whole, "partitions": [0, 1], "at_least": 3}, "status": {"served": True}}[op]
    with subscriber(served) as ask:
        alone = slowest(ask)
        with hostile(served.control, served.world.audit, op, args, links=1):
            among = slowest(ask)
    print(f"{op}: alone {alone:.3f} s, among {AT_ONCE} of another identity {among:.3f} s")
    assert among - alone < DELAY


@pytest.mark.slow
@pytest.mark.parametrize("partition", [0, 60_000])
def test_fetching_goes_on(served: Long, partition: int) -> None:
    """While another identity fetches what lies behind many record batches, or in a partition that has none."""
    args = {**served.whole, "partition": partition, "skip": 10**9}
    ask = fetches(served)
    alone = slowest(ask)
    with hostile(served.data, served.world.audit, "fetch", args, links=AT_ONCE):
        among = slowest(ask)
    print(f"fetch of {partition}: alone {alone:.3f} s, among {AT_ONCE} of another identity {among:.3f} s")
    assert among - alone < DELAY
