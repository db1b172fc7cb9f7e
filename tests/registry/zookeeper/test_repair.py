"""What others write into a topic's nodes: refused without harm, and mended."""

from __future__ import annotations

import time

import pytest

from jobpipe_registry.registry_errors import BadRecord, TopicOwned
from jobpipe_registry.topic_records import MAX_EPOCH
from tests.registry.worlds import World, owner, record

MEGABYTE = b"x" * 1_000_000


def epoch_path(world: World) -> str:
    return f"{world.namespace}.epochs/orders"


@pytest.mark.slow
@pytest.mark.parametrize("data", [MEGABYTE, b"garbage", b"", b"9223372036854775807"], ids=len)
def test_an_epoch_that_cannot_be_read(world: World, data: bytes) -> None:
    """S6: whoever has the topic keeps it; nothing is written back, cut short or whole."""
    handler, other = world.handler(), world.handler()
    handler.next_epoch("orders", 7)
    handler.claim("orders", owner(epoch=7))
    handler.register("orders", record(1, epoch=7))
    world.put(epoch_path(world), data)
    assert other.epoch_data("orders") == data[:4097]
    began = time.monotonic()
    for call in (lambda: other.epoch("orders"), lambda: other.next_epoch("orders", 8)):
        with pytest.raises(BadRecord):
            call()
    assert time.monotonic() - began < 4  # refused, not tried until the time is up
    assert other.epoch_data("orders") == data[:4097]
    assert other.owner("orders") == owner(epoch=7)
    assert other.records("orders") == [record(1, epoch=7)]
    with pytest.raises(TopicOwned):
        other.repair_epoch("orders", 7)
    handler.release("orders")
    handler.unregister("orders", 1)
    assert other.owner("orders") is None
    assert other.records("orders") == []
    other.repair_epoch("orders", 7)
    assert other.next_epoch("orders", 1) == 8


def test_an_epoch_is_lowered_only_while_nobody_has_the_topic(world: World) -> None:
    """S6: a claim that is made meanwhile is seen; it moves the same node."""
    handler, other = world.handler(), world.handler()
    assert handler.epoch_data("orders") is None
    handler.repair_epoch("orders", 3)
    assert handler.next_epoch("orders", MAX_EPOCH) == MAX_EPOCH
    other.claim("orders", owner("b"))
    with pytest.raises(TopicOwned) as caught:
        handler.repair_epoch("orders", 3)
    assert caught.value.owner == owner("b")
    assert handler.epoch("orders") == MAX_EPOCH
    other.release("orders")
    handler.repair_epoch("orders", 3)
    assert handler.epoch("orders") == 3


def test_a_claim_that_no_session_holds_keeps_nobody_out(world: World) -> None:
    """S6: a persistent node would never go away, however well its record reads."""
    handler = world.handler()
    world.put(f"{world.namespace}.owners/orders", owner("nobody").to_bytes())
    handler.repair_epoch("orders", 3)
    assert handler.owner("orders") is None
    world.put(f"{world.namespace}.owners/orders", owner("nobody").to_bytes())
    handler.claim("orders", owner("a"))
    assert handler.owner("orders") == owner("a")


def test_large_registrations_are_passed_over(world: World) -> None:
    """S6: no more of them is kept than shows that they are none of ours."""
    handler = world.handler()
    handler.register("orders", record(1))
    for index in range(2, 6):
        world.put(f"{world.topic_path('orders')}/parallel-{index}", MEGABYTE)
    assert handler.records("orders") == [record(1)]
