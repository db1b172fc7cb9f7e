"""The readers of the seeded runs, and an administrator.

A subscriber holds its position and the rows it has as one, as Spark's checkpoint does; it reads segments with the
reader that the data process uses. An auditor is one that nobody requires: its name is moved and dropped.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobpipe.errors import (
    DataLoss,
    Fenced,
    JobpipeError,
    NameTaken,
    SpoolError,
    SubscriptionNotFound,
    TopicNotFound,
)
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link, connect
from jobpipe.net.retry import RETRYABLE
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.testing import Checker
from jobpipe.wire.wire_messages import Hello
from tests.explore.scheduling.scheduled_process import Process
from tests.store.build import decode, pieces_of

if TYPE_CHECKING:
    from tests.explore.scheduling.scheduled_world import Topic, World


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
        instance, seen, failures = self.world.new_id(), [0, ""], 0
        while not self.world.over:
            began = self.world.loop.time()
            try:
                await self._once(instance, seen)
            except (*RETRYABLE, NameTaken, Fenced, SpoolError) as error:
                self.world.note(f"{self.process}: {type(error).__name__}")
            except (JobpipeError, OSError) as error:
                if not self._bears(error):
                    self.world.fail(f"{self.process} at {self.position}: {error!r}"[:400])
                    return
            failures = 0 if self.world.loop.time() > began + 1.0 else min(failures + 1, 4)
            await asyncio.sleep(self.world.rng.uniform(0.02, 0.5) * max(failures, 1))

    def _granted(self, asked: int) -> None:
        """It was given its name."""

    def _is_fenced(self) -> bool:
        """Its name was given to another one, for certain."""
        return False

    def _bears(self, error: Exception) -> bool:
        """Tell whether it goes on after an error that no fault of the world may cause."""
        return False

    def _stays(self) -> bool:
        return not self.world.over

    async def _first(self, link: Link, grant: int) -> Position:
        """Ask where a new checkpoint begins."""
        order = {"grant": grant, "start": Boundary("earliest").to_json()}
        found = Position.from_json((await link.call("first", order, timeout=30.0)).result["position"])
        if found.n != 0:
            self.world.fail(f"{self.process} begins at {found.n}, and nothing may be removed before")
        return found

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
            asked = self.topic.grants
            grant = (await link.call("grant", where, timeout=30.0)).result["grant"]
            self._granted(asked)
            seen[:] = link.welcome.epoch, link.welcome.log
            if self.position is None:
                self.position = await self._first(link, grant)
            while self._stays():
                await self._step(link, grant)
        finally:
            await link.close()

    async def _step(self, link: Link, grant: int) -> None:
        rng = self.world.rng
        limit = rng.choice((None, None, 2))
        order = {"grant": grant, "start": self.position.to_json(), "max_rows": limit, "max_bytes": None}
        waits = rng.random() < 0.5
        if waits:
            order.update(wait=rng.choice((1.0, 5.0, 15.0)), held=rng.random() < 0.5)
        fenced = self._is_fenced()
        plan = (await link.call("plan", order, timeout=30.0)).result
        if fenced:
            self.world.fail(f"{self.process} reads under a name that was given to another one")
        start, end = Position.from_json(plan["start"]), Position.from_json(plan["end"])
        if start.place != end.place:
            await asyncio.sleep(rng.uniform(0.0, 0.3))  # between planning and reading
            self._read(start, end)
            return
        self.position = start
        if waits:
            self.ended = bool(plan["news"]["ended"])
            await asyncio.sleep(rng.uniform(0.05, 1.0))  # at the end it is answered at once
            return
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


class Auditor(Subscriber):
    """A subscriber that nobody requires, which comes and goes, and whose name an administrator moves and drops.

    Its checkpoint goes on where it says, whatever was done to the name. Only rows that its name did not keep meanwhile
    may be missing: then it begins a new checkpoint.

    Args:
        rival: Another one reads under the same name.
    """

    def __init__(self, world: World, topic: Topic, name: str, *, rival: bool) -> None:
        super().__init__(world, topic, name)
        self.touched = rival
        self._until = 0.0

    async def _once(self, instance: str, seen: list[Any]) -> None:
        rng, loop = self.world.rng, self.world.loop
        self._until = loop.time() + rng.expovariate(1.0)
        await super()._once(instance if rng.random() < 0.7 else self.world.new_id(), seen)
        if rng.random() < 0.3:
            self._begin_again()
        await asyncio.sleep(rng.expovariate(1.0))

    def _stays(self) -> bool:
        return super()._stays() and self.world.loop.time() < self._until

    async def _first(self, link: Link, grant: int) -> Position:
        order = {"grant": grant, "start": Boundary("earliest").to_json()}
        answer = (await link.call("first", order, timeout=30.0)).result
        return Position.from_json(answer["position"])

    def _granted(self, asked: int) -> None:
        self.topic.grants += 1
        # If another one was told meanwhile, who was first at the coordinator is not known.
        self.topic.holder = self if self.topic.grants == asked + 1 else None

    def _is_fenced(self) -> bool:
        return self.topic.holder not in (None, self)

    def _begin_again(self) -> None:
        """Judge what has arrived, and begin a new checkpoint."""
        self.judge()
        self.checker = Checker(self.topic.rows, self.world.journals[self.topic.name], clock=self.world.loop.time)
        self.position = None

    def _bears(self, error: Exception) -> bool:
        """Its rows may be gone while it had no name, or one that was moved on."""
        if not isinstance(error, DataLoss) or not self.touched:
            return False
        self.world.note(f"{self.process}: {error}"[:160])
        self._begin_again()
        return True

    def judge(self) -> None:
        """Rows may be missing before the first and after the last, and nowhere else."""
        wrong = {kind: found for kind, found in self.checker.report().faults.items() if kind != "lost"}
        if wrong:
            self.world.fail(f"{self.name} of {self.topic.name}: {wrong}"[:400])


class Administrator:
    """Moves and drops the names of auditors, and looks at what that would do to others."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.done = 0
        self.process = Process("admin", world.loop)

    def start(self) -> None:
        self.process.spawn(self._run(), "admin")

    async def _run(self) -> None:
        world, rng = self.world, self.world.rng
        while not world.over:
            await asyncio.sleep(rng.expovariate(0.5 if world.quiet else 1.0))
            auditor = rng.choice(world.auditors)
            try:
                await self._act(auditor)
            except (*RETRYABLE, NameTaken, Fenced, SpoolError, SubscriptionNotFound, DataLoss) as error:
                world.note(f"admin, {auditor.topic.name}: {type(error).__name__}")
            except JobpipeError as error:
                world.fail(f"admin: {error!r}"[:300])

    async def _act(self, auditor: Auditor) -> None:
        world, rng, topic = self.world, self.world.rng, auditor.topic.name
        records = world.registry.records(topic)
        if not records:
            return
        record = rng.choice(records)
        dry_run = rng.random() < 0.2
        name = rng.choice(world.names) if dry_run else auditor.name
        hello = Hello(topic=topic, role="admin", name="admin", instance=world.new_id())
        link = await connect(Endpoint.parse(record.coordinator), hello, tls=None, server_hostname=None)
        try:
            order: dict[str, Any] = {"name": name, "dry_run": dry_run}
            op = rng.choice(("drop", "seek"))
            if op == "seek":
                order["to"] = Boundary(rng.choice(("earliest", "latest"))).to_json()
            auditor.touched = auditor.touched or not dry_run  # also if the answer is lost
            world.strike(link)
            answer = (await link.call(op, order, timeout=30.0)).result
            self.done += 1
            world.note(f"admin: {op} {topic} {order}: {answer}")
        finally:
            await link.close()
