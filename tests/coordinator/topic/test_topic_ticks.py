"""How time passes for many topics of one coordinator: few at a time, none waits for ever for another one."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from jobpipe.coordinator import coordinator as host_module
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.errors import SpoolFull
from jobpipe.net.servers.identity_quota import asking
from tests.coordinator.kit import World, run, seal, until

DEADLINE = 10.0
TOPICS = [f"t{number}" for number in range(8)]


def test_few_tick_at_a_time_and_those_that_hang_hold_up_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of many logs at once take the interpreter from each other; two whose disks hang count no more."""

    async def work() -> None:
        host = world.host()
        for name in TOPICS:
            await host.open_topic(name, world.order())
        hanging = asyncio.Event()
        running, most, ticked = set[str](), [0], Counter[str]()

        async def tick(self: ServedTopic, *, retain: bool) -> None:
            if self.topic in TOPICS[:2]:
                await hanging.wait()
                return
            running.add(self.topic)
            most[0] = max(most[0], len(running))
            await asyncio.sleep(0)
            running.discard(self.topic)
            ticked[self.topic] += 1

        monkeypatch.setattr(ServedTopic, "tick", tick)
        monkeypatch.setattr(ServedTopic, "tick_idle", lambda self: False)
        monkeypatch.setattr(host_module, "TICK_SECONDS", 0.05)
        living = asyncio.create_task(host.live())
        await until(lambda: len(ticked) == len(TOPICS) - 2 and min(ticked.values()) >= 3)
        assert most[0] == host_module.TICKS_AT_ONCE
        hanging.set()
        host.finished.set()
        await living
        await host.close()

    run(work())


def test_retention_takes_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One topic a tick here: each gets its turn, the one that waited longest first."""

    async def work() -> None:
        host = world.host()
        for name in TOPICS:
            await host.open_topic(name, world.order())
        retained: list[str] = []
        tick = ServedTopic.tick

        async def noted(self: ServedTopic, *, retain: bool) -> None:
            if retain:
                retained.append(self.topic)
            await tick(self, retain=retain)

        monkeypatch.setattr(ServedTopic, "tick", noted)
        monkeypatch.setattr(host_module, "TICK_SECONDS", 0.01)
        monkeypatch.setattr(host_module, "RETAIN_SECONDS", 0.01)
        monkeypatch.setattr(host_module, "RETAINS_A_TICK", 1)
        living = asyncio.create_task(host.live())
        await until(lambda: len(retained) >= 3 * len(TOPICS))
        host.finished.set()
        await living
        rounds = [retained[first : first + len(TOPICS)] for first in (0, len(TOPICS), 2 * len(TOPICS))]
        assert all(sorted(names) == TOPICS for names in rounds)
        assert rounds[0] == rounds[1] == rounds[2]
        await host.close()

    run(work())


def test_disks_that_hang_take_no_turns_of_retention(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as have one a tick: the others have theirs all the same."""

    async def work() -> None:
        host = world.host()
        for name in TOPICS:
            await host.open_topic(name, world.order())
        hanging = TOPICS[: len(TOPICS) // 2]
        gate = threading.Event()
        for name in hanging:
            monkeypatch.setattr(host.topics[name].store.subscriptions, "flush", lambda **_: gate.wait(DEADLINE))
        retained = Counter[str]()
        tick = ServedTopic.tick

        async def noted(self: ServedTopic, *, retain: bool) -> None:
            retained[self.topic] += retain
            await tick(self, retain=retain)

        monkeypatch.setattr(ServedTopic, "tick", noted)
        monkeypatch.setattr(host_module, "TICK_SECONDS", 0.01)
        monkeypatch.setattr(host_module, "RETAIN_SECONDS", 0.01)
        monkeypatch.setattr(host_module, "RETAINS_A_TICK", len(hanging))
        living = asyncio.create_task(host.live())
        await until(lambda: all(retained[name] >= 3 for name in TOPICS if name not in hanging))
        gate.set()
        host.finished.set()
        await living
        await host.close()

    run(work())


def test_work_that_a_tick_overtakes_has_the_next_one(world: World) -> None:
    """The thread is fair, not first come, first served: an acknowledgement that came before a tick runs after it."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        store = topic.store
        await topic.run(store.subscriptions.subscribe, "s")
        grant = await topic.run(store.subscriptions.grant, "s", {})
        head = await seal(topic, 0)
        await topic.tick(retain=False)
        gate = threading.Event()

        async def ask() -> None:
            asking.set("reader")
            before = [asyncio.create_task(topic.run(gate.wait)) for _ in range(3)]
            await asyncio.sleep(0)
            await topic.run(lambda: store.subscriptions.acknowledge("s", grant, head))
            await asyncio.gather(*before)

        reader = asyncio.create_task(ask())
        await until(lambda: not topic._thread.idle)
        await asyncio.sleep(0.05)  # for the acknowledgement to stand in its queue
        tick = asyncio.create_task(topic.tick(retain=False))
        await asyncio.sleep(0.05)
        assert not topic.tick_idle()
        gate.set()
        await asyncio.gather(reader, tick)
        assert not topic.tick_idle()
        await topic.tick(retain=False)
        assert topic.tick_idle()
        assert [each.acked for each in store.subscriptions.all()] == [head]
        await host.close()

    run(work())


def test_a_tick_that_is_repeated_counts_its_time_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the log's thread runs it again."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        await topic.tick(retain=False)
        flush, calls = topic.store.subscriptions.flush, list[int]()

        def full_at_first(**given: bool) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise SpoolFull("the disk is full", file="x")
            flush(**given)

        monkeypatch.setattr(topic.store.subscriptions, "flush", full_at_first)
        topic.ticked_at -= 100.0
        before = topic.store.clock.uptime
        await topic.tick(retain=False)
        assert len(calls) == 2
        assert 100.0 <= topic.store.clock.uptime - before < 150.0
        await host.close()

    run(work())


def test_time_passes_for_a_log_without_work(world: World) -> None:
    """Its thread is not asked; after work it is, and writes what waits."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        assert not topic.tick_idle(), "it has had no tick yet"
        await topic.tick(retain=False)
        before = topic.store.clock.uptime
        await asyncio.sleep(0.01)
        assert topic.tick_idle()
        assert topic.store.clock.uptime > before
        await seal(topic, 0)
        assert not topic.tick_idle()
        await topic.tick(retain=False)
        assert topic.tick_idle()
        await topic.status()
        assert not topic.tick_idle(), "it may have been an acknowledgement"
        await host.close()

    run(work())
