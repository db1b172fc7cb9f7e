"""Holds at a coordinator: whom a full spool names, where a hold may stand, what the publisher's settings limit."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from jobpipe.coordinator.coordinator import Coordinator
from jobpipe.coordinator.topic import topic_subscribers
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.errors import ConfigError, SpoolError, TopicNotFound
from jobpipe.operations.admin_operations import HoldReply, HoldRequest
from jobpipe.store.reading.boundary import COMMITTED, EARLIEST, LATEST, Boundary
from tests.coordinator.kit import DEADLINE, World, run, seal


async def hold(topic: ServedTopic, to: Boundary, name: str = "night", max_time: float | None = None) -> HoldReply:
    return await topic.holds.take("control", HoldRequest(name, to, max_time), others=False)


async def opened(host: Coordinator, world: World, batches: int = 4, **changes: str) -> ServedTopic:
    topic = await host.open_topic("orders", world.order(retention__time="1h", **changes))
    for number in range(batches):
        await seal(topic, number)
    return topic


async def read_to(topic: ServedTopic, n: int) -> None:
    """Let a subscription acknowledge what lies before an offset."""

    def work() -> None:
        subscriptions = topic.store.subscriptions
        subscriptions.subscribe("billing")
        grant = subscriptions.grant("billing", {})
        subscriptions.first_position("billing", topic.store.batches.tail())
        subscriptions.acknowledge("billing", grant, topic.store.batches.at(n))

    await topic.run(work)


def test_who_keeps_a_spool_full(world: World) -> None:
    """The one that holds most: a lease, a hold, or a subscription; and nobody, while too few subscriptions exist."""

    async def work() -> None:
        host = world.host()
        topic = await opened(host, world)
        slowest = topic._slowest
        assert (await topic.run(slowest)).startswith("no subscription exists;")
        await hold(topic, Boundary("offset", 1))
        assert "hold 'night' of control keeps batches from offset 1 on" in await topic.run(slowest)
        await read_to(topic, 1)
        assert "'billing' is slowest" in await topic.run(slowest)
        await read_to(topic, 3)
        assert "hold 'night'" in await topic.run(slowest)
        await topic.run(topic.store.leases.hold, "read", 2, 3, 60.0)
        assert "hold 'night'" in await topic.run(slowest)
        await topic.run(topic.store.leases.hold, "read", 0, 3, 60.0)
        assert "lease read" in await topic.run(slowest)
        await topic.run(topic.store.leases.release, "read")
        await topic.holds.release("night", "control", others=False, dry_run=False)
        assert "'billing' is slowest" in await topic.run(slowest)
        await host.close()

    run(work())


def test_only_a_lease_makes_a_publisher_wait_that_drops_the_oldest(world: World) -> None:
    """What is being read stays; the spool does not grow beyond its cap meanwhile."""

    async def work() -> None:
        host = world.host()
        topic = await opened(
            host, world, spool__max_bytes="1KiB", segment__max_bytes="1KiB", spool__on_full="drop_oldest"
        )
        await hold(topic, EARLIEST)
        await read_to(topic, 0)
        await topic.run(topic.store.leases.hold, "read", 1, 3, 60.0)
        assert not await topic.run(topic.has_room)
        why = await topic.room(0.01, has_room=False)
        assert why is not None
        assert "lease read of an earlier reader keeps batches from offset 1 on" in why
        assert (await topic.status()).tail == 1
        await topic.run(topic.store.leases.release, "read")
        assert await topic.room(0.01, has_room=False) is None
        assert (await topic.status()).tail > 1
        await host.close()

    run(work())


def test_the_publisher_limits_their_time(world: World) -> None:
    async def work() -> None:
        host = world.host()
        topic = await opened(host, world, hold__max_time="60s")
        assert [(await hold(topic, LATEST, max_time=asked)).max_time for asked in (None, 30.0, 1e6)] == [
            60.0,
            30.0,
            60.0,
        ]
        await host.close_publisher(topic, final=False)
        again = await opened(host, world, batches=0, hold__max_time="10s")
        (line,) = (await again.status()).holds
        assert line.max_time == 10.0, "also that of one that is there"
        await host.close()

    run(work())


def test_where_one_may_stand(world: World) -> None:
    async def work() -> None:
        host = world.host()
        topic = await opened(host, world)
        assert (await hold(topic, COMMITTED)).offset == 0
        inside = await topic.run(topic.store.batches.at, 2)
        assert (await hold(topic, Boundary("position", inside))).offset == 2
        assert (await hold(topic, COMMITTED)).offset == 2
        assert (await hold(topic, EARLIEST)).offset == 2
        assert (await hold(topic, LATEST)).offset == 4
        await host.close()

    run(work())


def test_after_the_loss_of_the_spool_it_waits_for_where_the_topic_goes_on(world: World) -> None:
    """Holds are lost with it. Where one may stand is known once the publisher has sealed its next batch."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order(acks="all", required=("billing",)))
        await seal(topic, 0)
        await hold(topic, EARLIEST)
        after = await seal(topic, 1)
        await host.close()
        shutil.rmtree(world.folder / "spool")
        host = world.host("two")
        topic = await host.open_topic("orders", world.order(acks="all", required=("billing",)))
        assert (await topic.status()).holds == ()
        for to in (EARLIEST, LATEST, Boundary("offset", 1), Boundary("position", after)):
            with pytest.raises(TopicNotFound, match="its spool was lost"):
                await hold(topic, to)
        await seal(topic, 1)
        assert (await hold(topic, Boundary("position", after))).offset == 2
        await host.close()

    run(work())


def test_a_publisher_that_waits_is_woken(world: World) -> None:
    """By a hold that is moved on or released, and by a name that is required no more."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order(acks="all", required=("billing",)))
        await seal(topic, 0)
        await hold(topic, EARLIEST)
        changes = (
            lambda: hold(topic, LATEST),
            lambda: topic.holds.release("night", "control", others=False, dry_run=False),
            lambda: topic.subscribers.require("billing", required=False, dry_run=False),
        )
        for change in changes:
            waiting = asyncio.ensure_future(topic.acked.wait(DEADLINE))
            await asyncio.sleep(0)
            await change()
            assert await waiting is True
        assert await topic.missing_acks(1) == []
        assert (await topic.subscribers.require("audit", required=True, dry_run=True)).required == ("audit",)
        assert await topic.missing_acks(1) == []
        assert (await topic.subscribers.require("audit", required=True, dry_run=False)).before is False
        assert await topic.missing_acks(1) == ["audit"]
        await host.close()

    run(work())


def test_a_change_counts_whatever_its_answer_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may fail after the commit: what is in the catalog then is what the publisher waits for."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order(acks="all", required=("billing",)))
        await seal(topic, 0)
        change = topic.store.required.change

        def committed(name: str, *, required: bool) -> frozenset[str]:
            change(name, required=required)
            raise SpoolError("injected")

        monkeypatch.setattr(topic.store.required, "change", committed)
        with pytest.raises(SpoolError, match="injected"):
            await topic.subscribers.require("billing", required=False, dry_run=False)
        assert await topic.missing_acks(1) == []
        await host.close()

    run(work())


def test_required_names_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_subscribers, "MAX_REQUIRED", 2)

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order(required=("a", "b"), subscription__max="3"))
        with pytest.raises(ConfigError, match="2 required subscriptions, and accepts no new one"):
            await topic.subscribers.require("c", required=True, dry_run=False)
        monkeypatch.setattr(topic_subscribers, "MAX_REQUIRED", 9)
        await topic.subscribers.require("c", required=True, dry_run=False)
        with pytest.raises(ConfigError, match=r"jobpipe\.subscription\.max is 3"):
            await topic.subscribers.require("d", required=True, dry_run=False)
        await host.close()

    run(work())
