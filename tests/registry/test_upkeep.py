"""What the handler's own threads mend when notices, answers or nodes get lost. In memory: faults at will."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from registry.errors import Unavailable
from registry.memory import MemoryRegisterServerHandler
from registry.nodes import Operation
from tests.registry.worlds import MemoryWorld, Recorder, eventually, owner, record


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryWorld:
    monkeypatch.setattr("registry.watch._RELIST_SECONDS", 0.1)
    monkeypatch.setattr("registry.keeper._KEEP_SECONDS", 0.1)
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
