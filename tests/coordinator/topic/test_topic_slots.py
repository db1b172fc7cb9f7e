"""R13: a committed slot that no task has bound, and what may be known of it in a later epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.coordinator.coordinator import Coordinator
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.errors import DataLoss, LinkBroken, LinkEnded
from jobpipe.store.catalog.position import Position
from tests.coordinator.kit import World, run, seal
from tests.docs.troubleshooting import on_page

WHERE = {"host": "a", "pid": 1}
SLOTS = ("a" * 32, "b" * 32, "c" * 32)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def link() -> Any:
    return cast("Any", SimpleNamespace(ended=None, silence=0.0, peer_names=()))


async def taken(topic: ServedTopic, instance: str, over: Any) -> int:
    """Let a query have its name; return the grant."""
    return (await topic.subscribers.grant("billing", instance, over, WHERE)).grant


async def planned(topic: ServedTopic, grant: int, start: Position, last: str | None, slot: str) -> Position:
    """Make the next slot, as a query that was started again; return where it begins."""
    found = await topic.slots.next("billing", grant, start=start, last=last, slot=slot, end=None, witnessed=False)
    return found.plan.start


async def opened(world: World, instance: str = "one") -> tuple[Coordinator, ServedTopic]:
    """Start a coordinator, the next one of the same spool, with the topic."""
    host = world.host(instance)
    return host, await host.open_topic("orders", world.order())


@pytest.mark.parametrize("why", [LinkEnded("stopped"), LinkBroken("killed")])
def test_the_query_ends_then_the_coordinator(world: World, why: LinkEnded | LinkBroken) -> None:
    """Its slot is settled when its link ends: it has no row, also for a task that comes late, and in each epoch."""

    async def work() -> None:
        (host, topic), over = await opened(world), link()
        grant = await taken(topic, "first", over)
        start = await planned(topic, grant, topic.head, None, SLOTS[0])
        over.ended = why
        topic.subscribers.disconnected(over, why)
        await topic.tick(retain=True)
        await seal(topic, 0)
        await host.close()
        host, topic = await opened(world, "two")
        grant = await taken(topic, "second", link())
        assert await planned(topic, grant, start, SLOTS[0], SLOTS[1]) == topic.store.batches.at(0)
        await host.close()

    run(work())


def test_the_coordinator_ends_then_the_query(world: World) -> None:
    """The query has come back to the new coordinator, and so is a witness that this is no older copy."""

    async def work() -> None:
        host, topic = await opened(world)
        start = await planned(topic, await taken(topic, "first", link()), topic.head, None, SLOTS[0])
        await host.close()
        host, topic = await opened(world, "two")
        await taken(topic, "first", link())
        await seal(topic, 0)
        topic.subscribers._session_owners["billing"].link = None
        grant = await taken(topic, "second", link())
        assert await planned(topic, grant, start, SLOTS[0], SLOTS[1]) == topic.store.batches.at(0)
        await host.close()

    run(work())


def test_what_a_new_query_finds_is_settled_before_the_coordinator_ends(world: World) -> None:
    """It took the name, and asked nothing yet."""

    async def work() -> None:
        host, topic = await opened(world)
        start = await planned(topic, await taken(topic, "first", link()), topic.head, None, SLOTS[0])
        topic.subscribers._session_owners["billing"].link = None
        await taken(topic, "second", link())
        await seal(topic, 0)
        await host.close()
        host, topic = await opened(world, "two")
        grant = await taken(topic, "third", link())
        assert await planned(topic, grant, start, SLOTS[0], SLOTS[1]) == topic.store.batches.at(0)
        await host.close()

    run(work())


def test_a_slot_that_is_bound_stays_so(world: World) -> None:
    async def work() -> None:
        (host, topic), over = await opened(world), link()
        grant = await taken(topic, "first", over)
        start = await planned(topic, grant, topic.head, None, SLOTS[0])
        await seal(topic, 0)
        end = await topic.run(topic.store.slots.bind, "billing", grant, SLOTS[0], topic.head)
        topic.subscribers.disconnected(over, LinkEnded("stopped"))
        await topic.tick(retain=True)
        grant = await taken(topic, "second", link())
        assert await planned(topic, grant, start, SLOTS[0], SLOTS[1]) == end.end == topic.head
        await host.close()

    run(work())


def test_coordinator_and_query_end_at_once(world: World) -> None:
    """Nobody can tell whether the catalog is an older copy, which lacks what tasks went by: nothing is guessed."""

    async def work() -> None:
        host, topic = await opened(world)
        start = await planned(topic, await taken(topic, "first", link()), topic.head, None, SLOTS[0])
        await host.close()
        host, topic = await opened(world, "two")
        grant = await taken(topic, "second", link())
        for slot in SLOTS[1:]:
            with pytest.raises(DataLoss, match="older copy") as caught:
                await planned(topic, grant, start, SLOTS[0], slot)
        on_page(caught.value, "DataLoss: topic '…': slot")
        await host.close()

    run(work())
