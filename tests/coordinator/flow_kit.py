"""Topics that flow jobs read and publish, asked as their drivers and tasks ask, without links."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.coordinator.coordinator import Coordinator
from jobpipe.coordinator.handlers.dispatch import Context
from jobpipe.coordinator.handlers.flow_handlers import FlowHandlers
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.operations import flow_operations
from jobpipe.operations.messages.message_fields import Fields
from jobpipe.operations.publisher_operations import Schema
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.flow_cursors import FlowKey
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.reading.boundary import Boundary
from tests.coordinator.kit import World, run
from tests.store.build import SCHEMA, rows, written

LOG = "00112233445566aa"
TOKEN = "ab" * 16
KEY = FlowKey("alerts", "orders", LOG)
LINK = cast("Any", SimpleNamespace(ended=None, silence=0.0, peer_names=()))
SOON = 0.3  # seconds in which what comes at once has come
ARROW = SCHEMA.serialize().to_pybytes()


def at(n: int, r: int = 0) -> Position:
    """Return a position in the source."""
    return Position(LOG, 1, n, r)


class Asking:
    """Asks the coordinator of one topic as drivers and tasks do, without a link and rights."""

    def __init__(self, host: Coordinator, topic: ServedTopic) -> None:
        self.host = host
        self.topic = topic
        self._answers = FlowHandlers(host, "secret").answers()

    async def ask(self, request: Fields, role: str, name: str | None = None) -> Any:
        """Return the reply, having travelled."""
        link = cast(
            "Any", SimpleNamespace(hello=SimpleNamespace(role=role, name=name), ended=None, silence=0.0, peer_names=())
        )
        asked = type(request).from_json(request.to_json(), request.blob)
        reply = await self._answers[type(request)](Context(link, self.topic), asked)
        return type(reply).from_json(reply.to_json(), reply.blob)


class Source(Asking):
    """A topic that a flow reads."""

    grant = 0

    @classmethod
    async def open(cls, world: World, **changes: str) -> Source:
        """Serve the topic, with the flow's subscription."""
        host = world.host(**changes)
        source = cls(host, await host.open_topic("orders", world.order(**changes)))
        subscribers = source.topic.subscribers
        source.grant = (await subscribers.grant("alerts", "i", LINK, {"host": "a", "pid": 1})).grant
        await subscribers.first_position("alerts", Boundary("earliest"), None, skip_removed=False)
        return source

    async def put(self, number: int, partition: int, partitions: int = 2, count: int = 1) -> Position:
        """Seal a batch with rows of one partition."""
        topic = self.topic
        parts = [(partition, rows(partition, number * 100, count))]
        write_id, segments = await topic.run(lambda: written(topic.store, parts, partitions=partitions))
        batch = NewBatch("q", number, f"run-{number}", write_id, None, partitions, "as they come")
        return (await topic.seal(batch, segments, (ARROW, None)))[0]

    async def put_all(self, number: int, partitions: int) -> Position:
        """Seal a batch with a row of each partition."""
        topic = self.topic
        parts = [(partition, rows(partition, number * 100, 1)) for partition in range(partitions)]
        write_id, segments = await topic.run(lambda: written(topic.store, parts, partitions=partitions))
        batch = NewBatch("q", number, f"run-{number}", write_id, None, partitions, "as they come")
        return (await topic.seal(batch, segments, (ARROW, None)))[0]

    def follow(
        self, *places: tuple[int, Position], wait: float = 5.0, partitions: int = 2, hurries: bool = False
    ) -> asyncio.Task[flow_operations.FollowReply]:
        """Begin to wait for rows of some partitions."""
        parts = tuple(flow_operations.PartAt(partition, place) for partition, place in places)
        asked = flow_operations.FollowRequest("alerts", self.grant, parts, partitions, wait=wait, hurries=hurries)
        return asyncio.create_task(self.ask(asked, "reader"))

    def place(self, n: int) -> Position:
        """Return the position before batch ``n``, of its only epoch."""
        return Position(self.topic.log_id, 1 if n else 0, n)


class Target(Asking):
    """A topic that a flow publishes."""

    @classmethod
    async def open(cls, world: World, partitions: int = 4, **changes: str) -> Target:
        """Serve the topic, and begin the flow."""
        host = world.host(**changes)
        target = cls(host, await host.open_topic("alerts", world.order(**changes)))
        await target.begin(partitions=partitions)
        return target

    async def begin(self, flow: str = "alerts", *, token: str = TOKEN, partitions: int = 4) -> Any:
        """Begin a flow as its driver does."""
        asked = flow_operations.BeginFlowRequest(
            flow, "orders", at(0), partitions, token=token, schema=schema(), parallelism=2
        )
        return await self.ask(asked, "publisher")

    async def claim(self, *partitions: int, token: str = TOKEN, flow: str = "alerts") -> list[int]:
        """Claim as a task does; return the numbers of the claims."""
        asked = flow_operations.ClaimRequest(flow, "orders", LOG, partitions, token=token)
        return [each.claim for each in (await self.ask(asked, "publisher")).cursors]

    async def admit(self, partition: int, claim: int, *, token: str = TOKEN) -> flow_operations.AdmitPartReply:
        """Ask for a write id."""
        asked = flow_operations.AdmitPartRequest("alerts", token, partition, claim)
        reply: flow_operations.AdmitPartReply = await self.ask(asked, "publisher")
        return reply

    def part(self, partition: int, claim: int, start: int, *, write_id: str | None = None, count: int = 2) -> Any:
        """Write a part of the source's batch ``start``; with a write id into a file."""
        parts = [(0, rows(0, start * 100 + partition * 10, count))] if count else []
        inline = write_id is None
        write_id, segments = written(self.topic.store, parts, inline=inline, write_id=write_id)
        return flow_operations.PartSeal(partition, claim, at(start), at(start + 1), write_id, len(segments)), segments

    def seal(self, *parts: Any, token: str = TOKEN) -> asyncio.Task[flow_operations.SealPartsReply]:
        """Begin to seal parts in one request."""
        segments = tuple(info for _, infos in parts for info in infos)
        asked = flow_operations.SealPartsRequest(
            "alerts", "orders", LOG, tuple(part for part, _ in parts), segments, token=token
        )
        return asyncio.create_task(self.ask(asked, "publisher"))

    async def places(self) -> list[int]:
        """Return where the cursors are."""
        return [cursor.position.n for cursor in await self.topic.run(self.topic.store.cursors.all, KEY)]

    async def agree(self) -> list[int]:
        """Return where the cursors are, having seen that as many batches are sealed, and memory knows of it."""
        places, topic = await self.places(), self.topic
        assert sum(places) == await topic.run(topic.store.batches.next_n)
        assert topic.head == await topic.run(topic.store.batches.head)
        return places


def schema() -> Schema:
    return Schema.from_json({"arrow": base64.b64encode(ARROW).decode(), "spark": None})


def scenario(kind: Any, world: World, work: Callable[[Any], Awaitable[None]], **changes: Any) -> None:
    """Run ``work`` with a topic that is served."""

    async def whole() -> None:
        asking = await kind.open(world, **changes)
        try:
            await work(asking)
        finally:
            await asking.host.close()

    run(whole())


async def answered(task: asyncio.Task[Any], within: float = SOON) -> Any:
    """Return what a task is answered with, in time."""
    return await asyncio.wait_for(task, within)


async def waits(*tasks: asyncio.Task[Any], seconds: float = 0.15) -> None:
    """See that nobody is answered for so long."""
    done, _ = await asyncio.wait(tasks, timeout=seconds)
    assert not done


class Counted:
    """Counts the calls of a method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> None:
        self.calls = 0
        call = getattr(kind, method)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return call(*args, **kwargs)

        monkeypatch.setattr(kind, method, counted)
