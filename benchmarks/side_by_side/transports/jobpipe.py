"""jobpipe's publisher and its subscribers' control and data links: coordinator, catalog, spool, mutual TLS, CRCs."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import jobpipe
from benchmarks.side_by_side.transports.rows import BIG, copies
from jobpipe.config import Config, load
from jobpipe.discovery.configured_tls import client_tls
from jobpipe.discovery.topic_lookup import locate
from jobpipe.net.links.async_link import Link, connect
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary
from jobpipe.subscribing.fetching.part_fetch import FetchRange, fetch
from jobpipe.subscribing.python_client import Subscription
from jobpipe.wire.wire_messages import Hello
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

LOCATE_SECONDS = 60.0
CALL_SECONDS = 120.0
POLL_SECONDS = 15.0
MANY = ("max_connections", "max_connections_per_address", "max_connections_per_identity", "connection_rate")


def _config(folder: Path) -> Config:
    limits = {f"sinkserver.{name}": "5000" for name in MANY}
    sizes = {"spool.max_bytes": "100GiB", "retention.bytes": "100GiB", "retention.time": "24h"}
    return load(overrides={"home": str(folder / "home"), **limits, **sizes}, environ={})


class Server:
    """A publisher's driver."""

    def __init__(self, folder: Path) -> None:
        self._config = _config(folder)
        self._publishers: dict[str, Publisher] = {}
        self._sealed: dict[str, int] = {}
        EmbeddedZooKeeper(self._config.home).ensure()

    def open(self, parts: int, gigabytes: float) -> dict[str, Any]:
        """Take a topic for news, and seal one batch of so many parts, and so many gigabytes, in another."""
        self.topic("news", 1)
        self.topic("bytes", parts)
        return self.fill("bytes", parts, gigabytes)

    def topic(self, name: str, parts: int) -> float:
        """Take a topic; return the seconds that took."""
        began = time.perf_counter()
        self._publishers[name] = Publisher(name, config=self._config, parallelism=parts)
        self._publishers[name].declare(BIG.schema)
        self._sealed.setdefault(name, 0)
        return time.perf_counter() - began

    def fill(self, name: str, parts: int, gigabytes: float) -> dict[str, Any]:
        """Seal a batch of so many gigabytes, as a task on this host does; return where to read it."""
        publisher = self._publishers[name]
        assert publisher.begin(BatchKey("q", self._sealed[name], "r")) is None
        target = publisher.target(parts)
        pairs = ((BIG, number % parts) for number in range(copies(gigabytes)))
        segments = target.write(BIG.schema, pairs, "0")
        sealed = publisher.commit(BatchKey("q", self._sealed[name], "r"), target, BIG.schema, None, segments)
        self._sealed[name] += 1
        end = sealed.position
        start = Position(end.log, end.epoch if end.n > 1 else 0, end.n - 1)
        return {"topic": name, "start": start.to_json(), "end": end.to_json(), "data": str(publisher.coordinator.data)}

    def say(self, count: int, pause: float, topic: str = "news", parts: int = 1) -> list[list[float]]:
        """Seal so many small batches; return when each call began and ended."""
        if topic not in self._publishers:
            self.topic(topic, parts)
        publisher = self._publishers[topic]
        table = pa.Table.from_batches([BIG.slice(0, 10)])
        found = []
        for _ in range(count):
            time.sleep(pause)
            began = time.time()
            publisher.seal("q", self._sealed[topic], [table] * parts, run_id="r")
            self._sealed[topic] += 1
            found.append([began, time.time()])
        return found

    def close(self, topic: str) -> None:
        """Give a topic up."""
        self._publishers.pop(topic).close()

    def restart(self, topic: str, parts: int) -> float:
        """Give all up, end the coordinator, and take the topic again; return the seconds of that."""
        self._close()
        return self.topic(topic, parts)

    def _close(self) -> None:
        for topic in list(self._publishers):
            self.close(topic)
        end_coordinators()

    def end(self) -> None:
        """End all."""
        self._close()
        EmbeddedZooKeeper(self._config.home).stop()


class Reader:
    """A subscriber's driver, for news; one of its tasks, for bytes."""

    def __init__(self, folder: Path) -> None:
        self._config = _config(folder)
        self._told: dict[str, Any] = {}
        self._heard: dict[int, list[float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread()
        self._subscription: Subscription | None = None

    def connect(self, told: dict[str, Any]) -> None:
        """Learn where the bytes are; reading connects."""
        self._told = told

    def listen(self, topic: str = "news", subscribers: int = 1) -> None:
        """Be so many subscribers of a topic; all poll on return."""
        self._heard, self._stop = {}, threading.Event()
        ready = threading.Barrier(2)
        work = self._follow(topic, subscribers, ready)
        self._thread = threading.Thread(target=lambda: asyncio.run(work), daemon=True)
        self._thread.start()
        ready.wait(CALL_SECONDS)

    def hear(self, count: int, subscribers: int = 1) -> list[float]:
        """Return when the last of them knew of each of the next batches."""
        deadline = time.monotonic() + CALL_SECONDS
        while sum(len(times) >= subscribers for times in list(self._heard.values())) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self._heard)} of {count} batches were heard of")
            time.sleep(0.01)
        self._stop.set()
        self._thread.join(CALL_SECONDS)
        return [max(self._heard[n]) for n in sorted(self._heard)][:count]

    def attend(self) -> None:
        """Be a subscriber that takes the rows of each batch; it stands at the head on return."""
        self._subscription = jobpipe.subscribe("news", name="rows", starting="latest", config=self._config)
        self._subscription.position()

    def take(self, count: int) -> list[float]:
        """Return when the rows of each of the next batches, one record batch each, were there."""
        found: list[float] = []
        assert self._subscription is not None
        with self._subscription as subscription:
            for _ in subscription.batches(timeout=CALL_SECONDS):
                found.append(time.time())
                if len(found) == count:
                    break
        return found

    async def _follow(self, topic: str, subscribers: int, ready: threading.Barrier) -> None:
        endpoint = locate(self._config, topic, LOCATE_SECONDS).control
        tls = client_tls(self._config)
        links: list[Link] = []

        async def one(link: Link, news: dict[str, Any]) -> None:
            known = int(news["head"]["n"])
            while True:
                news = (await link.call("poll", {**news, "wait": POLL_SECONDS}, timeout=CALL_SECONDS)).result
                at = time.time()
                for n in range(known, int(news["head"]["n"])):
                    self._heard.setdefault(n, []).append(at)
                known = int(news["head"]["n"])

        tasks = []
        for name in (f"s{number}" for number in range(subscribers)):
            hello = Hello(topic=topic, role="subscriber", name=name, instance=name)
            link = await connect(endpoint, hello, tls=tls, server_hostname=topic_server_name(topic))
            links.append(link)
            granted = (await link.call("grant", {"host": "bench", "pid": 1}, timeout=CALL_SECONDS)).result
            news = {key: granted[key] for key in ("head", "ended", "waiting")}
            tasks.append(asyncio.create_task(one(link, news)))
        await asyncio.to_thread(ready.wait, CALL_SECONDS)
        while not self._stop.is_set():
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)
        for link in links:
            link.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def plan(self, topic: str, count: int) -> list[float]:
        """Plan everything from the first batch on, so many times; return the seconds of each."""
        return asyncio.run(self._plan(topic, count))

    async def _plan(self, topic: str, count: int) -> list[float]:
        endpoint = locate(self._config, topic, LOCATE_SECONDS).control
        hello = Hello(topic=topic, role="subscriber", name="planner", instance="planner")
        link = await connect(endpoint, hello, tls=client_tls(self._config), server_hostname=topic_server_name(topic))
        grant = (await link.call("grant", {"host": "bench", "pid": 1}, timeout=CALL_SECONDS)).result["grant"]
        asked = {"grant": grant, "start": Boundary("earliest").to_json(), "end": None}
        start = (await link.call("first", asked, timeout=CALL_SECONDS)).result["position"]
        found = []
        for _ in range(count):
            began = time.perf_counter()
            await link.call("plan", {"grant": grant, "start": start}, timeout=CALL_SECONDS)
            found.append(time.perf_counter() - began)
        link.abort()
        return found

    def read(self, part: int, seconds: float) -> dict[str, Any]:
        """Read a part."""
        start, end = Position.from_json(self._told["start"]), Position.from_json(self._told["end"])
        wanted = FetchRange(self._told["topic"], start, end, part, self._told["data"])
        size, began = 0, time.time()
        while True:
            for fetched in fetch(wanted, self._config):
                size += fetched.batch.nbytes
            if time.time() - began >= seconds:
                return {"bytes": size, "began": began, "ended": time.time()}

    def end(self) -> None:
        """Nothing is left."""
