"""The jobs of the seeded runs: drivers that publish, and subscribers that read, commit and acknowledge.

A driver does over an asynchronous link what ``publisher/core.py`` and ``publisher/channel.py`` do over a blocking one:
the same operations, repeats and new coordinators. A subscriber holds its position and the rows it has as one, as
Spark's checkpoint does; it reads segments with the reader that the data process uses.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobpipe.errors import (
    Fenced,
    JobpipeError,
    LinkClosed,
    LinkEnded,
    LinkError,
    NameTaken,
    RegistryUnavailable,
    SpoolError,
    SpoolFull,
    TopicNotFound,
    TopicOwned,
)
from jobpipe.net.address import Endpoint
from jobpipe.net.link import Link, connect
from jobpipe.net.retry import RETRYABLE
from jobpipe.store import INLINE_MAX, Boundary, CatalogReader, Position, SegmentFile
from jobpipe.store.files import file_name
from jobpipe.testing import Checker
from jobpipe.testing.rows import SCHEMA
from jobpipe.wire.messages import Hello
from tests.explore.scheduled_parts import HOST, CoordinatorProcess
from tests.explore.scheduled_process import Process
from tests.store.build import decode, pieces_of

if TYPE_CHECKING:
    from tests.explore.scheduled_world import Topic, World

__all__ = ["Driver", "Subscriber"]

QUERY = "q"
CALL_TRIES = 3
CALL_SECONDS = 60.0
OPEN_SECONDS = 90.0
SURVIVED = (LinkError, RegistryUnavailable, TopicNotFound, TopicOwned, Fenced, SpoolFull, SpoolError)
"""What a driver may end by while faults happen; its next one goes on."""


class Driver:
    """One Spark application: a process, its coordinator, and the topics that it publishes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.process = Process(name, world.loop)
        world.processes[self.process.pid] = self.process
        self.coordinator: CoordinatorProcess | None = None
        self._attaching = asyncio.Lock()

    def publish(self, topic: Topic, upto: int, *, final: bool) -> None:
        """Publish up to a batch id, exclusive; then close."""
        self.process.spawn(self._publish(topic, upto, final=final), f"publish-{topic.name}")

    async def attach(self) -> CoordinatorProcess:
        """Return the coordinator; start one if there is none."""
        async with self._attaching:
            if self.coordinator is None or not self.coordinator.alive:
                await asyncio.sleep(self.world.rng.uniform(0.05, 0.3))
                self.coordinator = self.world.start_coordinator(self.process)
                await asyncio.wait({self.coordinator.ready})
                if self.coordinator.ready.cancelled():
                    raise LinkClosed("the coordinator has ended before it was ready")
            return self.coordinator

    async def _publish(self, topic: Topic, upto: int, *, final: bool) -> None:
        channel, rng = Channel(self, topic), self.world.rng
        topic.driver = self
        try:
            while topic.committed + 1 < upto:
                await asyncio.sleep(rng.uniform(0.0, 1.5))
                await self._batch(channel, topic, topic.committed + 1)
            if final:
                topic.finals += 1
            if final or upto < self.world.batches or rng.random() < 0.5:
                await channel.call("close", {"final": final})
                topic.closed(self, final=final)
            else:
                topic.idle = True
            while not self.world.over:  # as its guard does
                await asyncio.sleep(2.0)
                if topic.driver is self and topic.idle and not (await self.attach()).ended.is_set():
                    await channel.call("status")
        except SURVIVED as error:
            self.world.note(f"{self.process} {topic.name} ends: {type(error).__name__}: {error}"[:160])
            self.world.driver_died(self)
        except JobpipeError as error:
            self.world.fail(f"{self.process} {topic.name}: {error!r}"[:300])

    async def _batch(self, channel: Channel, topic: Topic, batch_id: int) -> None:
        world, run_id = self.world, f"{self.process}-{topic.name}"
        world.journals[topic.name].intend(batch_id, topic.rows.ranges(batch_id))
        while True:
            order = {"query_id": QUERY, "batch_id": batch_id, "run_id": run_id, "wait": 0.1}
            result = (await channel.call("begin", order)).result
            last = result["last"]
            if last is not None and batch_id <= last["batch_id"]:
                if batch_id < last["batch_id"] or run_id == last["run_id"]:
                    world.fail(f"batch {batch_id} of {topic.name}: sealed already is {last}, to {run_id}")
                position = Position.from_json(last["position"])
                break
            if result["full"] is None:
                position = await self._write(channel, topic, batch_id, run_id, result["admitted"]["write_id"])
                break
        if topic.config.acks == "all":
            missing = True
            while missing:
                missing = (await channel.call("acked", {"n": position.n, "wait": 0.2})).result["missing"]
        world.journals[topic.name].seal(batch_id)
        topic.committed = batch_id

    async def _write(self, channel: Channel, topic: Topic, batch_id: int, run_id: str, write_id: str) -> Position:
        channel.writing = write_id
        rng = self.world.rng
        folder = topic.host_folder or topic.directory / "segments"
        file = SegmentFile.create(
            folder, file_name(write_id, rng.randrange(10**9)), inline_max=0 if rng.random() < 0.3 else INLINE_MAX
        )
        for part, table in enumerate(topic.rows.tables(batch_id)):
            for batch in table.to_batches():
                file.begin(part, SCHEMA).write(batch)
        await asyncio.sleep(rng.uniform(0.0, 0.1))
        segments = file.finish(fsync=False)
        if topic.host_folder is not None:
            segments = [info if info.file is None else replace(info, host=HOST) for info in segments]
        order = {
            "query_id": QUERY,
            "batch_id": batch_id,
            "run_id": run_id,
            "write_id": write_id,
            "schema": {"arrow": base64.b64encode(SCHEMA.serialize().to_pybytes()).decode(), "spark": None},
            "partitions": topic.rows.partitions,
            "partitioner": "rr",
            "segments": [
                {**info.to_json(), "inline": None if info.data is None else len(info.data)} for info in segments
            ],
        }
        blob = b"".join(info.data for info in segments if info.data is not None)
        return Position.from_json((await channel.call("seal", order, blob)).result["position"])


class Channel:
    """A driver's link for one topic; see :class:`jobpipe.publisher.channel.Channel`."""

    def __init__(self, driver: Driver, topic: Topic) -> None:
        self.driver = driver
        self.topic = topic
        self.writing = ""
        self.link: Link | None = None
        self._opened: CoordinatorProcess | None = None
        self._lock = asyncio.Lock()

    async def call(self, op: str, args: dict[str, Any] | None = None, blob: bytes = b"") -> Any:
        async with self._lock:
            for attempt in itertools.count(1):
                link = self.link if self.link is not None and self.link.ended is None else await self._open()
                assert self._opened is not None
                if op in ("seal", "close"):
                    self.driver.world.strike(link)
                try:
                    return await link.call(op, {**(args or {}), "job": self._opened.secret}, blob, timeout=CALL_SECONDS)
                except RETRYABLE as error:
                    if attempt == CALL_TRIES:
                        raise
                    await link.close()
                    self.link = None
                    if isinstance(error, LinkEnded):
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._opened.ended.wait(), 8.0)
        raise AssertionError("unreachable")

    async def _open(self) -> Link:
        loop = self.driver.world.loop
        deadline = loop.time() + CALL_SECONDS
        while True:
            coordinator = await self.driver.attach()
            try:
                return await self._join(coordinator)
            except RETRYABLE:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(coordinator.ended.wait(), 1.0)
                if coordinator.alive and loop.time() > deadline:
                    raise

    async def _join(self, coordinator: CoordinatorProcess) -> Link:
        topic, world = self.topic, self.driver.world
        hello = Hello(topic=topic.name, role="publisher", name=str(self.driver.process), instance=world.new_id())
        link = await connect(coordinator.endpoint, hello, tls=None, server_hostname=None)
        try:
            if self._opened is not coordinator:
                order = {
                    "name": str(self.driver.process),
                    "parallelism": 1,
                    "required": list(world.names),
                    "min_subscribers": 0,
                    "application": "explorer",
                    "writing": self.writing,
                    "config": topic.config.to_dict(),
                }
                await link.call("open", {**order, "job": coordinator.secret}, timeout=OPEN_SECONDS)
        except BaseException:
            await link.close()
            raise
        self.link, self._opened = link, coordinator
        return link


class Subscriber:
    """One query that reads a topic: what it has committed outlives its process."""

    def __init__(self, world: World, topic: Topic, name: str) -> None:
        self.world = world
        self.topic = topic
        self.name = name
        self.checker = Checker(topic.rows, world.journals[topic.name], clock=world.loop.time)
        self.position: Position | None = None
        self.ended = False
        self.process = Process(f"{name}-of-{topic.name}", world.loop)
        self._life = 0

    def start(self) -> None:
        """Start, or start again what was killed."""
        self._life += 1
        self.process = Process(f"{self.name}-of-{self.topic.name}-{self._life}", self.world.loop)
        self.process.spawn(self._run(), str(self.process))

    def has_all(self) -> bool:
        """Everything that was published has arrived."""
        return self.topic.committed + 1 >= self.world.batches and self.checker.complete

    async def _run(self) -> None:
        instance, seen = self.world.new_id(), [0, ""]
        while not self.world.over:
            try:
                await self._once(instance, seen)
            except (*RETRYABLE, NameTaken, Fenced, SpoolError) as error:
                self.world.note(f"{self.process}: {type(error).__name__}")
            except (JobpipeError, OSError) as error:
                self.world.fail(f"{self.process} at {self.position}: {error!r}"[:400])
                return
            await asyncio.sleep(self.world.rng.uniform(0.02, 0.5))

    async def _once(self, instance: str, seen: list[Any]) -> None:
        world, topic = self.world, self.topic.name
        records = world.registry.records(topic)  # what a watch has told
        if not records:
            raise TopicNotFound(f"{topic} is not registered", topic=topic)
        record = max(records, key=lambda record: record.epoch)
        if world.rng.random() < 0.1:
            record = world.rng.choice(records)
        hello = Hello(topic=topic, role="subscriber", name=self.name, instance=instance, epoch=seen[0], log=seen[1])
        link = await connect(Endpoint.parse(record.coordinator), hello, tls=None, server_hostname=None)
        try:
            if link.welcome.epoch < seen[0] and link.welcome.log == (seen[1] or link.welcome.log):
                raise TopicNotFound("an older publisher", topic=topic)
            where = {"host": "here", "pid": self.process.pid}
            grant = (await link.call("grant", where, timeout=30.0)).result["grant"]
            seen[:] = link.welcome.epoch, link.welcome.log
            if self.position is None:
                order = {"grant": grant, "start": Boundary("earliest").to_json()}
                self.position = Position.from_json((await link.call("first", order, timeout=30.0)).result["position"])
                if self.position.n != 0:
                    world.fail(f"{self.process} begins at {self.position.n}, and nothing may be removed before")
            while not world.over:
                await self._step(link, grant)
        finally:
            await link.close()

    async def _step(self, link: Link, grant: int) -> None:
        rng = self.world.rng
        limit = rng.choice((None, None, 2))
        order = {"grant": grant, "start": self.position.to_json(), "max_rows": limit, "max_bytes": None}
        plan = (await link.call("plan", order, timeout=30.0)).result
        start, end = Position.from_json(plan["start"]), Position.from_json(plan["end"])
        if start.place != end.place:
            await asyncio.sleep(rng.uniform(0.0, 0.3))  # between planning and reading
            self._read(start, end)
            return
        self.position = start
        news = {"head": start.to_json(), "ended": False, "waiting": None, "wait": rng.choice((1.0, 5.0, 15.0))}
        answer = (await link.call("poll", news, timeout=25.0)).result
        self.ended = bool(answer["ended"])
        if answer["head"] == start.to_json():
            await asyncio.sleep(rng.uniform(0.05, 1.0))

    def _read(self, start: Position, end: Position) -> None:
        """Read a range and commit it with the position behind it."""
        reader = CatalogReader.open(self.topic.directory, self.topic.name)
        try:
            for partition in range(self.topic.rows.partitions):
                for piece in pieces_of(reader, start, end, partition):
                    if piece.host is not None and piece.path is not None and self.topic.host_folder is not None:
                        piece = replace(piece, path=self.topic.host_folder / piece.path.name)
                    self.checker.take(decode(piece))
        finally:
            reader.close()
        self.position = end
