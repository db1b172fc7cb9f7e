"""Epochs in the registry that no take-over can have led to."""

from __future__ import annotations

import asyncio
import json

import pytest
from jobpipe_registry.records import MAX_EPOCH, MAX_STEP

from jobpipe.errors import ConfigError
from jobpipe.store.recovery import RecoveryPoint
from jobpipe.store.topic_log import TopicLog
from jobpipe.wire.codec import MAX_ID
from tests.coordinator.kit import NAMESPACE, World, run, seal

WRITTEN = [b"9223372036854775807", b"9007199254740991", b"1000003", b"-1", b"", b"garbage", b"x" * 1_000_000]


def test_one_maximum() -> None:
    """S6: an epoch that the registry takes can be told to a subscriber."""
    assert MAX_EPOCH == MAX_ID


@pytest.mark.parametrize("data", WRITTEN, ids=lambda data: data[:20].decode() or "nothing")
def test_they_are_refused_before_anything_is_taken_over(world: World, data: bytes) -> None:
    """S6: the error says what to do, log and topic stay as they were, and nobody is kept out afterwards."""

    async def work() -> None:
        first, second = world.host(), world.host("two")
        topic = await first.open_topic("orders", world.order())
        await seal(topic, 0)
        epoch = topic.epoch
        await first.close()
        path = f"{NAMESPACE}.epochs/orders"
        world.tree.put(path, data)
        for _ in range(3):
            with pytest.raises(ConfigError, match="jobpipe registry repair orders --dry-run") as caught:
                await second.open_topic("orders", world.order())
            assert len(caught.value.message) < 1000
            assert world.handlers[1].owner("orders") is None
        node = world.tree.get(path, None)
        assert node is not None
        assert node.data == data
        log = await asyncio.to_thread(TopicLog.open, world.folder / "spool" / "orders", "orders")
        assert log.epoch == epoch
        await asyncio.to_thread(log.close)
        world.tree.put(path, b"%d" % (epoch + MAX_STEP))
        assert (await second.open_topic("orders", world.order())).epoch == epoch + MAX_STEP + 1
        await second.close()

    run(work())


def test_one_that_is_written_in_the_last_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: after the look, before the number is drawn."""

    async def work() -> None:
        host = world.host()
        world.tree.put(f"{NAMESPACE}.epochs/orders", b"9007199254740000")
        monkeypatch.setattr(world.handlers[0], "epoch", lambda topic: 0)
        with pytest.raises(ConfigError, match="9007199254740001"):
            await host.open_topic("orders", world.order())
        log = await asyncio.to_thread(TopicLog.open, world.folder / "spool" / "orders", "orders")
        assert log.epoch == 0
        await asyncio.to_thread(log.close)
        await host.close()

    run(work())


@pytest.mark.parametrize("epoch", [2**53 - 1, 2**63 - 1, MAX_STEP + 1])
def test_of_a_recovery_point(world: World, epoch: int) -> None:
    """S6: a log that is made again does not take it over either."""

    async def work() -> None:
        host = world.host()
        point = RecoveryPoint("0123456789abcdef", 1, 3, epoch, 4, "q", 3)
        world.tree.put(f"{NAMESPACE}.recovery/orders", point.to_text().encode())
        with pytest.raises(ConfigError, match=str(epoch)):
            await host.open_topic("orders", world.order(acks="all", required=("billing",)))
        await host.close()

    run(work())


@pytest.mark.parametrize("data", WRITTEN, ids=lambda data: data[:20].decode() or "nothing")
def test_they_end_no_live_publisher(world: World, data: bytes) -> None:
    """S6: with acks=all each seal leaves a recovery point, which an epoch above ours fences if it can be one."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order(acks="all", required=("billing",)))
        world.tree.put(f"{NAMESPACE}.epochs/orders", data)
        assert (await seal(topic, 0)).n == 1
        assert json.loads(world.handlers[0].recovery_point("orders") or "{}")["batch_id"] == -1
        await host.close()

    run(work())
