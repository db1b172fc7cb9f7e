"""What the registry is asked for when a session has many topics: requests of a topic do not grow with the others."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobpipe.discovery.registry_handler import map_registry_errors
from jobpipe.errors import ConfigError
from jobpipe_registry.handler import RegisterServerHandler
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree, _MemoryNodes
from jobpipe_registry.node_watch import PolledWatch
from jobpipe_registry.nodes import Folder, Node, Nodes, Notify, Operation
from jobpipe_registry.registry_errors import TooManyTopics, TopicOwned, Unavailable
from jobpipe_registry.registry_options import RegistryOptions
from tests.docs.troubleshooting import on_page
from tests.registry.worlds import Recorder, World, eventually, owner, record


class _CountedNodes(_MemoryNodes):
    """Counts requests, as ZooKeeper would: each node that is read is one, and each commit."""

    def __init__(self, tree: MemoryTree, asked: Counter[str], steps: list[int]) -> None:
        super().__init__(tree)
        self._asked = asked
        self._steps = steps

    def get(self, path: str, notify: Notify | None = None) -> Node | None:
        self._asked["get"] += 1
        return super().get(path, notify)

    def get_all(self, paths: Sequence[str], notify: Notify | None = None) -> list[Node | None]:
        self._asked["get"] += len(paths)
        return super().get_all(paths, notify)

    def folder(self, path: str, notify: Notify | None = None) -> Folder | None:
        self._asked["folder"] += 1
        return super().folder(path, notify)

    def ensure(self, path: str) -> None:
        self._asked["ensure"] += 1
        super().ensure(path)

    def commit(self, operations: Sequence[Operation]) -> None:
        self._asked["commit"] += 1
        self._steps.append(len(operations))
        super().commit(operations)


class CountedHandler(MemoryRegisterServerHandler):
    """A registry in memory whose requests are counted."""

    def __init__(self, tree: MemoryTree | None = None) -> None:
        self.tree = MemoryTree() if tree is None else tree
        super().__init__(self.tree)
        self.asked: Counter[str] = Counter()
        self.steps: list[int] = []

    def _open(self, options: RegistryOptions) -> Nodes:
        self._memory_nodes = _CountedNodes(self.tree, self.asked, self.steps)
        return self._memory_nodes

    def cost(self, *calls: Any) -> Counter[str]:
        """Return what calls ask for."""
        self.asked.clear()
        for call in calls:
            call()
        return Counter(self.asked)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedHandler]:
    """A handler whose keeper looks only when the test lets it."""
    handler = CountedHandler()
    handler.start({"topic.storage": "/test/topics"})
    keeper = handler._parts().keeper
    keeper.stop()
    keeper.join(10.0)
    keeper._stop.clear()
    yield handler
    handler.shutdown()


def publish(handler: RegisterServerHandler, topic: str, parallelism: int = 4) -> None:
    """Do what a coordinator does."""
    handler.create_topic_node(topic)
    handler.claim(topic, owner())
    handler.next_epoch(topic, 1)
    handler.claim(topic, owner(epoch=1, name="published"))
    handler.register_all(topic, [record(index, parallelism=parallelism) for index in range(1, parallelism + 1)])


def look(handler: CountedHandler) -> None:
    """Let the keeper look at what it was told of."""
    keeper = handler._parts().keeper
    noticed, keeper._noticed = keeper._noticed, set()
    keeper._repair(set(), noticed)


def test_a_topic_costs_the_same_whatever_else_is_there(counted: CountedHandler) -> None:
    publish(counted, "first")
    look(counted)
    second = counted.cost(lambda: publish(counted, "second"), lambda: look(counted))
    for number in range(50):
        publish(counted, f"other-{number}")
    look(counted)
    last = counted.cost(lambda: publish(counted, "last"), lambda: look(counted))
    assert last == second
    assert last.total() < 25
    nothing = counted.cost(lambda: look(counted))
    assert nothing.total() == 0


def test_a_regular_look_reads_each_node_once(counted: CountedHandler) -> None:
    for number in range(70):  # more than one pass takes at once
        publish(counted, f"t{number}")
    assert counted.cost(lambda: counted._parts().keeper._repair(set())) == {"get": 70 * 5}


def test_the_end_of_a_session_takes_few_steps(counted: CountedHandler) -> None:
    for number in range(100):
        publish(counted, f"t{number}")
    publish(counted, "shared")
    other = CountedHandler(counted.tree)
    other.start({"topic.storage": "/test/topics"})
    other.register("shared", record(5, parallelism=5))
    counted.steps.clear()
    counted.shutdown()
    assert len(counted.steps) < 20  # all at once, but for the halves with the topic that stays
    assert max(counted.steps) <= 500
    assert other.topics() == ["shared"]
    assert other.records("shared") == [record(5, parallelism=5)]
    assert other.owner("shared") is None
    other.shutdown()


def test_many_partitions_are_registered_in_steps(counted: CountedHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe_registry.tree.topic_changes._STEP_OPERATIONS", 10)
    counted.steps.clear()
    counted.register_all("orders", [record(index, parallelism=12) for index in range(1, 13)])
    assert sorted(counted.steps) == [1, 3, 6, 6]  # the guard; two operations a record may be needed, and the guard's
    assert [each.index for each in counted.records("orders")] == list(range(1, 13))
    counted.withdraw("orders", 12)
    assert max(counted.steps) <= 11
    assert not counted.is_exist("orders")


def test_places_of_earlier_steps_are_given_up_when_a_later_one_is_refused(
    counted: CountedHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobpipe_registry.tree.topic_changes._STEP_OPERATIONS", 4)
    other = CountedHandler(counted.tree)
    other.start({"topic.storage": "/test/topics"})
    other.register("orders", record(4, epoch=9, instance="b"))
    with pytest.raises(TopicOwned):
        counted.register_all("orders", [record(index) for index in range(1, 5)])
    assert [each.index for each in counted.records("orders")] == [1, 2, 4]
    look(counted)
    counted._parts().keeper._repair(set())
    assert counted.records("orders") == [record(4, epoch=9, instance="b")]
    other.shutdown()


def test_a_reader_reads_one_record_of_a_publisher(counted: CountedHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    """And, while nothing changes, none."""
    monkeypatch.setattr("jobpipe_registry.node_watch._RELIST_SECONDS", 0.02)
    publish(counted, "orders", 12)
    counted.asked.clear()
    seen = Recorder()
    watch = counted.watch("orders", seen)
    seen.wait([record(index, parallelism=12) for index in range(1, 13)])
    eventually(lambda: counted.asked["folder"] >= 5)
    watch.close()
    assert counted.asked["get"] == 1


def test_records_of_two_publishers_are_all_read(counted: CountedHandler) -> None:
    """A number that fits the first record does not make the others its own: names that do not fit, or an older log."""
    publish(counted, "orders", 2)
    counted.tree.put("/test/topics/orders/parallel-3", record(3, epoch=9, instance="b", parallelism=3).to_bytes())
    seen = Recorder()
    watch = counted.watch("orders", seen)
    two = [record(index, parallelism=2) for index in (1, 2)]
    three = [*two, record(3, epoch=9, instance="b", parallelism=3)]
    seen.wait(three)
    watch.close()
    assert counted.records_of(["orders"]) == {"orders": three}


def test_a_look_at_many_topics_reads_one_registration_of_each(counted: CountedHandler) -> None:
    publish(counted, "orders", 12)
    publish(counted, "trades", 2)
    counted.tree.put("/test/topics/trades/parallel-1", b"rubbish")
    before = counted.asked["get"]
    found = counted.records_of(["orders", "trades", "missing"])
    assert [each.index for each in found["orders"]] == list(range(1, 13))
    assert found["trades"] == [record(2, parallelism=2)]
    assert found["missing"] == []
    assert counted.asked["get"] == before + 3


def test_readers_hear_of_all_partitions_at_once(world: World) -> None:
    handler, seen = world.handler(), Recorder()
    world.handler().watch("orders", seen)
    seen.wait([])
    records = [record(index, parallelism=8) for index in range(1, 9)]
    handler.register_all("orders", records)
    seen.wait(records)
    handler.withdraw("orders", 8)
    seen.wait([])
    assert seen.lists == [[], records, []]
    assert not handler.is_exist("orders")


def test_withdrawing_leaves_what_is_of_others(world: World) -> None:
    handler, other = world.handler(), world.handler()
    handler.claim("orders", owner())
    handler.register_all("orders", [record(1), record(2)])
    other.register("orders", record(3))
    handler.withdraw("orders", 4)
    assert other.records("orders") == [record(3)]
    assert other.owner("orders") is None
    world.expire(handler)
    handler.register("beacon", record(1))
    assert other.records("orders") == [record(3)]


def test_what_could_not_be_withdrawn_goes_when_the_registry_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe_registry.tree.registration_keeper._KEEP_SECONDS", 0.1)
    handler = CountedHandler()
    handler.start({"topic.storage": "/test/topics"})
    publish(handler, "orders")
    nodes = handler.memory_nodes()
    with monkeypatch.context() as patch:
        patch.setattr(nodes, "commit", _unavailable)
        with pytest.raises(Unavailable):
            handler.withdraw("orders", 4)
    eventually(lambda: handler.owner("orders") is None and not handler.records("orders"))
    handler.shutdown()
    assert handler.tree.folder("/test/topics", None) == Folder((), handler.tree._changed["/test/topics"])


def _unavailable(operations: Sequence[Operation]) -> None:
    raise Unavailable("memory", "no answer")


def test_the_registrations_of_many_topics(world: World) -> None:
    handler = world.handler()
    handler.register_all("a", [record(1, parallelism=2), record(2, parallelism=2)])
    handler.create_topic_node("b")
    world.put(f"{world.topic_path('b')}/parallel-1", b"rubbish")
    found = handler.records_of(["a", "b", "missing"])
    assert found == {"a": handler.records("a"), "b": [], "missing": []}
    assert len(found["a"]) == 2


def test_topics_that_come_and_go_are_told(world: World) -> None:
    handler, told, changed = world.handler(), list[list[str]](), threading.Event()

    def on_topics(names: list[str]) -> None:
        told.append(names)
        changed.set()

    watch = world.handler().watch_topics(on_topics)
    eventually(lambda: told == [[]])
    handler.create_topic_node("orders")
    eventually(lambda: told[-1] == ["orders"])
    world.put(f"{world.namespace}/-rubbish", b"")
    handler.create_topic_node("clicks")
    eventually(lambda: told[-1] == ["clicks", "orders"])
    handler.delete_topic_node("orders")
    eventually(lambda: told[-1] == ["clicks"])
    watch.close()
    count = len(told)
    handler.create_topic_node("late")
    assert handler.is_exist("late")
    assert len(told) == count


def test_a_registry_that_cannot_tell_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe_registry.node_watch._POLL_SECONDS", 0.02)
    handler, told = CountedHandler(), list[list[str]]()
    handler.start({"topic.storage": "/test/topics"})
    watch = RegisterServerHandler.watch_topics(handler, told.append)
    eventually(lambda: told == [[]])
    handler.create_topic_node("orders")
    eventually(lambda: told == [[], ["orders"]])
    watch.close()
    handler.shutdown()


def test_the_end_of_a_claim_is_told(world: World) -> None:
    handler, other, told = world.handler(), world.handler(), threading.Event()
    handler.claim("orders", owner())
    other.notify_of_owner("orders", lambda _: told.set())
    assert other.is_claimed("orders")
    assert not told.is_set()
    handler.release("orders")
    assert told.wait(10.0)


def test_a_session_has_a_limited_number_of_topics(counted: CountedHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe_registry.tree.registration_keeper.MAX_TOPICS", 2)
    for topic in ("a", "b"):
        publish(counted, topic)
    for refused in (
        lambda: counted.create_topic_node("c"),
        lambda: counted.claim("c", owner()),
        lambda: counted.register("c", record(1)),
    ):
        with pytest.raises(TooManyTopics, match=r"'c' is one too many .* 3 topics, of at most 2"):
            refused()
    with pytest.raises(ConfigError) as caught, map_registry_errors():
        counted.create_topic_node("c")
    on_page(caught.value, "ConfigError: topic '…' is one too many for one job")
    assert counted.topics() == ["a", "b"]
    publish(counted, "a")  # one that is there
    counted.withdraw("b", 4)
    publish(counted, "c")
    assert counted.topics() == ["a", "c"]


def test_a_session_has_a_limited_length_of_paths(counted: CountedHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe_registry.tree.registration_keeper.MAX_PATH_BYTES", 400)
    publish(counted, "a", 4)
    with pytest.raises(TooManyTopics, match=r"nodes with paths of .* bytes, of at most 400"):
        publish(counted, "b", 40)
    assert counted.records("b") == []


@pytest.mark.slow
@pytest.mark.zookeeper
def test_a_thousand_topics_of_one_session(zookeeper_world: World, tmp_path: Path) -> None:
    """They are registered, kept and withdrawn within the time that the end of a session has."""
    handler, other = zookeeper_world.handler(), zookeeper_world.handler()
    for number in range(1000):
        publish(handler, f"orders-{number}", 2)
    with pytest.raises(TooManyTopics, match="1001 topics, of at most 1000"):
        handler.create_topic_node("one-more")
    found = other.records_of(other.topics())
    assert [len(records) for records in found.values()] == [2] * 1000
    began = time.monotonic()
    handler.shutdown()
    assert other.topics() == []  # all went before the session's end: the topics' nodes are persistent
    assert time.monotonic() - began < 10.0


def test_what_is_wanted_again_outlives_a_withdrawal_that_comes_late(
    counted: CountedHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A withdrawal waits for its turn, and meanwhile one partition is registered again."""
    publish(counted, "orders")
    keeper = counted._parts().keeper
    begin = keeper._asked.begin
    last = counted._parts().paths.registration("orders", 4)

    def again(path: str) -> int:
        call = begin(path)
        if path == last:  # the last one of the withdrawal's
            monkeypatch.undo()
            counted.register("orders", record(2))
        return call

    monkeypatch.setattr(keeper._asked, "begin", again)
    counted.withdraw("orders", 4)
    assert counted.records("orders") == [record(2)]
    assert counted.owner("orders") is None
    look(counted)
    assert counted.records("orders") == [record(2)]


def test_more_registrations_than_said_are_withdrawn(counted: CountedHandler) -> None:
    publish(counted, "orders", 4)
    counted.withdraw("orders", 2)
    assert not counted.is_exist("orders")
    counted._parts().keeper._repair(set())
    assert not counted.is_exist("orders")


def test_the_end_of_a_session_with_many_partitions_takes_several_steps(
    counted: CountedHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobpipe_registry.tree.topic_changes._STEP_OPERATIONS", 10)
    for topic in ("a", "b"):
        publish(counted, topic, 25)
    counted.steps.clear()
    counted.shutdown()
    assert max(counted.steps) <= 12  # ten, the guard and the topic's own node
    assert counted.tree.folder("/test/topics", None) == Folder((), counted.tree._changed["/test/topics"])


def test_a_topic_that_cannot_be_written_keeps_no_other_from_coming_back(
    counted: CountedHandler, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("a", "b"):
        publish(counted, topic)
    counted.tree.put("/test/topics.epochs/a", b"x" * 5000)  # an operator's
    counted.tree.expire(counted)
    keeper = counted._parts().keeper
    keeper._noticed.clear()
    keeper._repair(set())
    assert len(counted.records("b")) == 4
    assert counted.owner("b") is not None
    assert counted.records("a") == []
    assert caplog.text.count("topic a: cannot look after its registrations") == 1
    assert "a" not in keeper._noticed  # the next regular look tries it again


def test_notices_of_a_lost_connection_wait_until_it_is_back(
    counted: CountedHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo gives all notices when the connection is lost; to wait for it with each of them is to come back at once."""
    publish(counted, "orders")
    keeper, passes = counted._parts().keeper, list[object]()
    monkeypatch.setattr(keeper, "_repair", lambda lost, topics=None: passes.append(topics))
    monkeypatch.setattr("jobpipe_registry.tree.registration_keeper._SETTLE_SECONDS", 0.0)
    monkeypatch.setattr("jobpipe_registry.tree.registration_keeper._RETURN_SECONDS", 0.01)
    away = threading.Event()
    monkeypatch.setattr(_CountedNodes, "ready", property(lambda _: not away.is_set()))
    thread = threading.Thread(target=keeper._keep)
    thread.start()
    eventually(lambda: passes == [{"orders"}])
    away.set()
    keeper._look_at("orders")
    eventually(lambda: not keeper._wake.is_set())
    assert passes == [{"orders"}]
    away.clear()
    keeper._on_return()
    eventually(lambda: passes == [{"orders"}, None])
    keeper.stop()
    thread.join(10.0)
    keeper._stop.clear()


def test_topics_that_others_publish_do_not_count(counted: CountedHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic's own node outlives the session, so that it is not in the record of its end."""
    monkeypatch.setattr("jobpipe_registry.tree.registration_keeper.MAX_TOPICS", 2)
    for number in range(5):
        counted.create_topic_node(f"refused-{number}")
    publish(counted, "a")
    publish(counted, "b")
    with pytest.raises(TooManyTopics):
        counted.claim("c", owner())


def test_a_poll_ends_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe_registry.node_watch._POLL_SECONDS", 0.02)
    handler, told = CountedHandler(), list[list[str]]()
    handler.start({"topic.storage": "/test/topics"})
    watch = PolledWatch("the topics", handler.topics, told.append)
    eventually(lambda: told == [[]])
    handler.shutdown()
    watch._thread.join(10.0)
    assert not watch._thread.is_alive()
