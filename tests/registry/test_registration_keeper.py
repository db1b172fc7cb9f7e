"""What the handler's own threads mend when notices, answers or nodes get lost. In memory: faults at will."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from jobpipe_registry.memory import MemoryRegisterServerHandler
from jobpipe_registry.nodes import Operation
from jobpipe_registry.registry_errors import Unavailable
from tests.registry.worlds import MemoryWorld, Recorder, World, eventually, owner, record


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryWorld:
    monkeypatch.setattr("jobpipe_registry.node_watch._RELIST_SECONDS", 0.1)
    monkeypatch.setattr("jobpipe_registry.tree.registration_keeper._KEEP_SECONDS", 0.1)
    return MemoryWorld("/test/topics")


def lose_answer(handler: MemoryRegisterServerHandler, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    nodes = handler.memory_nodes()
    commit = nodes.commit

    def commit_and_fail(operations: Sequence[Operation]) -> None:
        commit(operations)
        monkeypatch.undo()
        raise Unavailable("memory", "the answer was lost")

    monkeypatch.setattr(nodes, "commit", commit_and_fail)
    return monkeypatch


def test_a_lost_notice_is_made_up_for(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    handler, seen = memory.handler(), Recorder()
    handler.watch("orders", seen)
    seen.wait([])
    monkeypatch.setattr(memory.tree, "_waiting", type(memory.tree._waiting)())
    handler.register("orders", record(1))
    seen.wait([record(1)])
    memory.close()


def test_a_node_that_somebody_deleted_is_made_again(memory: MemoryWorld) -> None:
    handler = memory.handler()
    handler.claim("orders", owner())
    handler.register("orders", record(1))
    memory.delete(memory.topic_path("orders"))
    memory.delete(f"{memory.namespace}.owners/orders")
    eventually(lambda: handler.records("orders") == [record(1)])
    eventually(lambda: handler.owner("orders") == owner())
    memory.close()


def test_what_failed_does_not_stay(memory: MemoryWorld) -> None:
    """A create whose answer is lost was reported as failed: the node must go."""
    handler = memory.handler()
    handler.register("orders", record(1))
    attempts: list[Callable[[], None]] = [
        lambda: handler.register("orders", record(2)),
        lambda: handler.claim("orders", owner()),
    ]
    for attempt in attempts:
        with pytest.MonkeyPatch.context() as patch:
            lose_answer(handler, patch)
            with pytest.raises(Unavailable):
                attempt()
    eventually(lambda: handler.records("orders") == [record(1)])
    eventually(lambda: handler.owner("orders") is None)
    handler.claim("orders", owner("b"))
    handler.register("orders", record(2))
    memory.expire(handler)
    eventually(lambda: handler.records("orders") == [record(1), record(2)])
    eventually(lambda: handler.owner("orders") == owner("b"))
    memory.close()


def test_an_unchanged_list_is_told_once(memory: MemoryWorld) -> None:
    handler, seen, later = memory.handler(), Recorder(), Recorder()
    handler.register("orders", record(1))
    handler.watch("orders", seen)
    seen.wait([record(1)])
    for number in range(3):  # relists pass in the meantime
        handler.watch(f"t{number}", later)
        later.wait_count(number + 1)
        memory.put(f"{memory.topic_path('orders')}/foreign", b"%d" % number)
    handler.register("orders", record(2))
    seen.wait([record(1), record(2)])
    assert seen.lists == [[record(1)], [record(1), record(2)]]
    memory.close()


@pytest.mark.slow
def test_a_deleted_namespace_is_made_again_at_once(world: World) -> None:
    """Case 25: somebody removes all of it by hand; the sessions live, so nobody else would tell. The epoch is kept."""
    handler = world.handler()
    handler.create_topic_node("orders")
    epoch = handler.next_epoch("orders", 7)
    handler.claim("orders", owner(epoch=epoch))
    handler.register("orders", record(1, epoch=epoch))
    handler.register("orders", record(2, epoch=epoch))
    newcomer, seen = world.handler(), Recorder()
    newcomer.watch("orders", seen)
    for _ in range(2):
        seen.wait([record(1, epoch=epoch), record(2, epoch=epoch)])
        began = time.monotonic()
        for root in ("", ".owners", ".epochs"):
            world.delete(f"{world.namespace}{root}")
        eventually(lambda: handler.records("orders") == [record(1, epoch=epoch), record(2, epoch=epoch)])
        eventually(lambda: newcomer.owner("orders") == owner(epoch=epoch))
        assert time.monotonic() - began < 5.0
        assert newcomer.epoch("orders") == epoch
    assert newcomer.next_epoch("orders", 0) == epoch + 1


def test_a_registration_in_our_place_goes_while_the_claim_is_ours(world: World) -> None:
    """Cases 26, 30: somebody writes a better one by hand; only who took the claim as well has taken the topic."""
    handler, lost = world.handler(), list[str]()
    handler.on_lost = lost.append
    handler.claim("orders", owner(epoch=2))
    handler.register("orders", record(1, epoch=2))
    path = f"{world.topic_path('orders')}/parallel-1"
    for made_up in (record(1, epoch=99, instance="b", port=1), record(1, epoch=2)):
        world.delete(path)
        world.put(path, made_up.to_bytes())
        eventually(lambda: world.is_ephemeral(path) and handler.query("orders", 1) == record(1, epoch=2))
    handler.register("orders", record(1, epoch=2))  # at the start, too
    assert lost == []


@pytest.mark.parametrize("what", ["claim", "registration"])
@pytest.mark.parametrize("order", ["under way", "waiting for its turn"])
def test_giving_up_wins_over_an_earlier_call(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch, what: str, order: str
) -> None:
    """R11: what was taken back while a call that makes it was under way, or had not begun, stays away."""
    handler = memory.handler()
    handler.register("beacon", record(1))
    nodes, inside, go_on = handler.memory_nodes(), threading.Event(), threading.Event()
    commit, held = type(nodes).commit, "other" if order == "waiting for its turn" else "orders"

    def slow_commit(self: Any, operations: Sequence[Operation]) -> None:
        if any(operation.path.endswith(f"epochs/{held}") for operation in operations) and not inside.is_set():
            inside.set()
            assert go_on.wait(10)
        commit(self, operations)

    monkeypatch.setattr(type(nodes), "commit", slow_commit)
    make = {
        "claim": lambda: handler.claim("orders", owner()),
        "registration": lambda: handler.register("orders", record(1)),
    }[what]
    give_up = {
        "claim": lambda: handler.release("orders"),
        "registration": lambda: handler.unregister("orders", 1),
    }[what]
    calls: list[Callable[[], None]] = [make, give_up]
    if order == "waiting for its turn":
        calls.insert(0, lambda: handler.claim("other", owner()))
    threads = []
    for call in calls:
        threads.append(threading.Thread(target=call))
        threads[-1].start()
        assert inside.wait(10)
        threads[-1].join(0.1)  # so that each has begun before the next one
    go_on.set()
    for thread in threads:
        thread.join(10)
    memory.expire(handler)
    eventually(lambda: handler.records("beacon") == [record(1)])  # made again by the same pass
    assert handler.owner("orders") is None
    assert handler.records("orders") == []
    memory.close()
