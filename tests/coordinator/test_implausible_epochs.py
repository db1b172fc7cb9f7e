"""Epochs in the registry that no take-over can have led to."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace

import pytest

from jobpipe.discovery import epoch_repair
from jobpipe.discovery.epoch_repair import repair_epoch
from jobpipe.errors import ConfigError, TopicOwned
from jobpipe.store.catalog.recovery import RecoveryPoint
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.wire.codec import MAX_ID
from jobpipe_registry.topic_records import MAX_EPOCH, MAX_STEP
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


POINT = RecoveryPoint("0123456789abcdef", 1, 3, 1, 4, "q", 3)
NO_POINTS = {
    "2^53-1": replace(POINT, end_epoch=2**53 - 1).to_text(),
    "a step too far": replace(POINT, start_epoch=MAX_STEP + 1).to_text(),
    "an alias": replace(POINT, start_aliases=(2**53 - 1,)).to_text(),
    "2^63-1": replace(POINT, end_epoch=2**63 - 1).to_text(),
    "garbage": "garbage",
    "nothing": "",
    "a list": "[]",
    "deep lists": "[" * 100_000,
    "long": "x" * 900_000,
    "infinity": POINT.to_text().replace('"queries": []', '"queries": [["q", 1e999]]'),
    "a large batch id": replace(POINT, batch_id=2**63).to_text(),
    "a lone surrogate": replace(POINT, query_id="\ud800").to_text(),
}


@pytest.mark.parametrize("text", NO_POINTS.values(), ids=NO_POINTS)
def test_of_a_recovery_point(world: World, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """S6: a log that is made again does not take it over either; the repair that the error names mends it."""
    order = world.order(acks="all", required=("billing",))

    async def work() -> None:
        host = world.host()
        world.tree.put(f"{NAMESPACE}.recovery/orders", text.encode())
        for _ in range(2):
            with pytest.raises(ConfigError, match="jobpipe registry repair orders --dry-run") as caught:
                await host.open_topic("orders", order)
            assert len(caught.value.message) < 1000
            assert world.handlers[0].owner("orders") is None
        monkeypatch.setattr(epoch_repair, "open_handler", lambda _: world.handler())
        wiped = world.config(spool__dir=str(world.folder / "other"))
        shown = await asyncio.to_thread(repair_epoch, wiped, "orders", epoch=0, dry_run=True)
        assert shown.recovery_point is not None
        assert not shown.done
        assert len(shown.recovery_point) < 200
        mended = await asyncio.to_thread(repair_epoch, wiped, "orders", epoch=0)
        assert mended.done
        assert world.handlers[0].recovery_point("orders") is None
        assert not (await asyncio.to_thread(repair_epoch, wiped, "orders", epoch=0)).wrong
        shutil.rmtree(world.folder / "spool")
        assert (await host.open_topic("orders", order)).head.n == 0
        await host.close()

    run(work())


def test_a_recovery_point_that_is_right_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: also where the epoch is repaired; and none goes while a publisher has the topic."""

    async def work() -> None:
        monkeypatch.setattr(epoch_repair, "open_handler", lambda _: world.handler())
        wiped = world.config(spool__dir=str(world.folder / "other"))
        world.tree.put(f"{NAMESPACE}.recovery/orders", POINT.to_text().encode())
        world.tree.put(f"{NAMESPACE}.epochs/orders", b"garbage")
        mended = await asyncio.to_thread(repair_epoch, wiped, "orders", epoch=1)
        assert (mended.done, mended.recovery_point, mended.to_registered) == (True, None, 1)
        host = world.host()
        topic = await host.open_topic("orders", world.order(acks="all", required=("billing",)))
        assert (topic.log_id, topic.head.n) == (POINT.log, POINT.start_n)
        world.tree.put(f"{NAMESPACE}.recovery/orders", b"garbage")
        with pytest.raises(TopicOwned):
            await asyncio.to_thread(repair_epoch, wiped, "orders", epoch=2)
        assert host._handler.recovery_point("orders") == "garbage"
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
