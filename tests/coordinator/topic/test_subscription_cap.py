"""S10: how many subscriptions a topic takes; 1,200 of them made a seal 37 ms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.coordinator.topic.topic_subscribers import UNDECIDED_SECONDS
from jobpipe.errors import ConfigError
from tests.coordinator.kit import Gate, World, run

WHERE = {"host": "a", "pid": 1}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


async def grant(topic: ServedTopic, name: str, instance: str, owner: str = "") -> int:
    """Take a name, over a link that is gone by the next time."""
    link = cast("Any", SimpleNamespace(ended=None, peer_names=()))
    given = (await topic.subscribers.grant(name, instance, link, WHERE, owner)).grant
    topic.subscribers.disconnected(link, ConfigError("gone"))
    return given


def test_a_topic_takes_no_more_names_than_its_publisher_allows(world: World) -> None:
    """S10: a new one is refused, and nothing of it stays; the others are granted as before."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order(subscription__max="2"))
        assert [await grant(topic, name, "i") for name in ("billing", "audit")] == [1, 1]
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"has 2 subscriptions, .*jobpipe\.subscription\.max is 2") as caught:
                await grant(topic, "third", "i")
            assert caught.value.fields == {"topic": "orders", "name": "third", "limit": 2}
        assert set(await topic.run(topic.store.subscriptions.names)) == {"billing", "audit"}
        assert await grant(topic, "billing", "another") == 2
        await topic.subscribers.drop("audit", dry_run=False)
        assert await grant(topic, "third", "i")
        await host.close()

    run(work())


def test_an_identity_takes_half_of_the_names(world: World) -> None:
    """S10: else one that may read under a pattern keeps others out. A restart forgets no owner."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order(subscription__max="4"))
        for name in ("billing-1", "billing-2"):
            await grant(topic, name, "i", "billing")
        await host.close()
        host = world.host("two")
        topic = await host.open_topic("orders", world.order(subscription__max="4"))
        with pytest.raises(ConfigError, match="billing holds 2 subscriptions, and gets no new one") as caught:
            await grant(topic, "billing-3", "i", "billing")
        assert caught.value.fields["limit"] == 2
        assert await grant(topic, "billing-1", "j", "billing") == 2
        await grant(topic, "audit", "i", "audit")
        assert await grant(topic, "billing-2", "k", "audit") == 2, "it may read under that name too: no new one"
        await grant(topic, "billing-3", "i", "billing")
        assert await topic.run(topic.store.subscriptions.owners) == {"billing": 2, "audit": 2}
        await topic.subscribers.drop("billing-3", dry_run=False)
        await grant(topic, "own", "i")
        assert await topic.run(topic.store.subscriptions.owners) == {"billing": 1, "audit": 2}
        await host.close()

    run(work())


def test_one_that_is_just_required_is_not_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that never began is gone, and an administrator asks for its name while it is about to be dropped."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        await grant(topic, "billing", "i")
        topic.subscribers._session_owners["billing"].seen -= 2 * UNDECIDED_SECONDS
        gate = Gate()
        monkeypatch.setattr(topic.store.subscriptions, "all", gate.wrap(topic.store.subscriptions.all, after=True))
        forgetting = asyncio.ensure_future(topic.subscribers.forget_undecided())
        await gate.arrived()
        requiring = asyncio.ensure_future(topic.subscribers.require("billing", required=True, dry_run=False))
        await asyncio.sleep(0)
        gate.go_on.set()
        await asyncio.gather(forgetting, requiring)
        assert [(each.name, each.required) for each in await topic.run(topic.store.subscriptions.all)] == [
            ("billing", True)
        ]
        await host.close()

    run(work())
