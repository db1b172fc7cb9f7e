"""What every registry must do, whatever it is made of."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jobpipe_registry.registry_errors import BadRecord, InvalidName, NotStarted, RegistryError, TopicOwned
from jobpipe_registry.topic_records import MAX_EPOCH, RegisterRecord
from tests.registry.worlds import DEADLINE, Recorder, World, eventually, owner, record


class TestTopics:
    def test_a_topic_exists_once_it_is_made(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        assert not b.is_exist("orders")
        a.create_topic_node("orders")
        a.create_topic_node("orders")
        b.create_topic_node("orders")
        a.create_topic_node("clicks")
        assert b.is_exist("orders")
        assert b.topics() == ["clicks", "orders"]

    def test_deleting_a_missing_topic_is_success(self, world: World) -> None:
        handler = world.handler()
        assert handler.delete_topic_node("orders")
        assert handler.epoch("orders") == 0

    def test_a_topic_with_others_in_it_stays(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        a.register("orders", record(1))
        b.register("orders", record(2))
        assert not a.delete_topic_node("orders")
        assert a.records("orders") == [record(1), record(2)]
        b.unregister("orders", 2)
        assert a.delete_topic_node("orders")
        assert not b.is_exist("orders")

    def test_a_deleted_topic_is_not_made_again(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        a.register("orders", record(1))
        assert a.delete_topic_node("orders")
        a.register("other", record(1))
        world.expire(a)
        eventually(lambda: b.query("other", 1))
        assert not b.is_exist("orders")

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a" * 129, "ä", "a\n", "a b"])
    def test_bad_names_are_refused(self, world: World, name: str) -> None:
        handler = world.handler()
        calls: list[Any] = [
            lambda: handler.create_topic_node(name),
            lambda: handler.delete_topic_node(name),
            lambda: handler.register(name, record()),
            lambda: handler.unregister(name, 1),
            lambda: handler.query(name, 1),
            lambda: handler.is_exist(name),
            lambda: handler.records(name),
            lambda: handler.watch(name, Recorder()),
            lambda: handler.claim(name, owner()),
            lambda: handler.owner(name),
            lambda: handler.evict(name, "a"),
            lambda: handler.release(name),
            lambda: handler.forget(name),
            lambda: handler.next_epoch(name, 1),
            lambda: handler.epoch(name),
            lambda: handler.recovery_point(name),
            lambda: handler.set_recovery_point(name, 1, "here"),
        ]
        for call in calls:
            with pytest.raises(InvalidName) as caught:
                call()
            assert caught.value.name == name
        assert handler.topics() == []

    def test_a_topic_that_was_published_is_known(self, world: World) -> None:
        """U4: also while nobody serves it; until it is forgotten, with its epoch and all."""
        a, b = world.handler(), world.handler()
        a.create_topic_node("clicks")
        for _ in range(3):
            a.next_epoch("orders", 1)
        a.set_recovery_point("orders", 3, "here")
        assert b.topics() == ["clicks"]
        assert b.known_topics() == ["clicks", "orders"]
        b.claim("orders", owner())
        b.forget("orders")
        b.release("orders")
        assert a.known_topics() == ["clicks"]
        assert (a.epoch("orders"), a.recovery_point("orders"), a.owner("orders")) == (0, None, None)
        assert a.next_epoch("orders", 1) == 1

    def test_a_topic_of_others_is_not_forgotten(self, world: World) -> None:
        """U4: neither one that is claimed, nor one that somebody is registered in."""
        a, b = world.handler(), world.handler()
        a.next_epoch("orders", 1)
        a.claim("orders", owner())
        with pytest.raises(TopicOwned):
            b.forget("orders")
        a.register("orders", record(1))
        a.release("orders")
        with pytest.raises(TopicOwned):
            b.forget("orders")
        assert (a.epoch("orders"), a.records("orders")) == (1, [record(1)])

    def test_foreign_nodes_in_the_namespace_are_no_topics(self, world: World) -> None:
        handler = world.handler()
        handler.create_topic_node("orders")
        world.put(f"{world.namespace}/-rubbish", b"")
        assert handler.topics() == ["orders"]


class TestRegistrations:
    def test_others_see_what_is_registered(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        for index in (3, 1, 2):
            a.register("orders", record(index))
        assert b.query("orders", 2) == record(2)
        assert b.query("orders", 4) is None
        assert b.records("orders") == [record(1), record(2), record(3)]
        a.unregister("orders", 2)
        a.unregister("orders", 2)
        assert b.query("orders", 2) is None
        assert b.records("nothing") == []
        assert b.query("nothing", 1) is None

    def test_indexes_sort_as_numbers(self, world: World) -> None:
        handler = world.handler()
        for index in (10, 9, 1):
            handler.register("orders", record(index, parallelism=10))
        assert [found.index for found in handler.records("orders")] == [1, 9, 10]

    @pytest.mark.parametrize("index", [0, -1, 4097])
    def test_an_impossible_index_is_refused(self, world: World, index: int) -> None:
        handler = world.handler()
        with pytest.raises(InvalidName):
            handler.query("orders", index)
        with pytest.raises(InvalidName):
            handler.unregister("orders", index)

    def test_registering_again_replaces_the_data(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        a.register("orders", record(1))
        a.register("orders", record(1, epoch=2, port=30000))
        assert b.records("orders") == [record(1, epoch=2, port=30000)]

    def test_a_higher_epoch_replaces_a_lower_one(self, world: World) -> None:
        old, new = world.handler(), world.handler()
        old.register("orders", record(1, epoch=1, instance="old"))
        new.register("orders", record(1, epoch=2, instance="new"))
        assert old.query("orders", 1) == record(1, epoch=2, instance="new")
        old.unregister("orders", 1)
        assert old.query("orders", 1) == record(1, epoch=2, instance="new")

    @pytest.mark.parametrize("epoch", [2, 3])
    def test_an_equal_or_higher_epoch_stays(self, world: World, epoch: int) -> None:
        first, second = world.handler(), world.handler()
        first.claim("orders", owner("first"))
        first.register("orders", record(1, epoch=epoch, instance="first"))
        with pytest.raises(TopicOwned) as caught:
            second.register("orders", record(1, epoch=2, instance="second"))
        assert caught.value.topic == "orders"
        assert caught.value.owner == owner("first")
        assert caught.value.rival == record(1, epoch=epoch, instance="first")
        assert second.records("orders") == [record(1, epoch=epoch, instance="first")]

    def test_the_same_instance_takes_its_own_place(self, world: World) -> None:
        ghost, again = world.handler(), world.handler()
        ghost.register("orders", record(1))
        again.register("orders", record(1, port=30000))
        ghost.shutdown()
        assert again.records("orders") == [record(1, port=30000)]

    def test_unregister_leaves_what_others_registered(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        a.register("orders", record(1))
        b.unregister("orders", 1)
        assert b.query("orders", 1) == record(1)


class TestForeignNodes:
    GOOD = record(3).to_bytes()

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\xff\xfe",
            b"null",
            b"[" * 4000,
            b"9" * 4000,
            GOOD + b" " * 4096,
            GOOD.replace(b'"version":1', b'"version":2'),
            GOOD.replace(b'"port":28444', b'"port":"28444"'),
            GOOD.replace(b'"ssl":true', b'"ssl":1'),
            GOOD.replace(b'"index":3', b'"index":2'),
            GOOD.replace(b'"epoch":1', b'"epoch":NaN'),
        ],
    )
    def test_what_cannot_be_read_is_skipped(self, world: World, data: bytes) -> None:
        assert data != self.GOOD
        handler, seen = world.handler(), Recorder()
        handler.register("orders", record(1))
        world.put(f"{world.topic_path('orders')}/parallel-3", data)
        assert handler.query("orders", 3) is None
        assert handler.records("orders") == [record(1)]
        handler.watch("orders", seen)
        seen.wait([record(1)])

    def test_unknown_fields_are_ignored(self, world: World) -> None:
        handler = world.handler()
        handler.create_topic_node("orders")
        path = f"{world.topic_path('orders')}/parallel-3"
        world.put(path, self.GOOD.replace(b"{", b'{"zone":{"a":[1]},', 1))
        assert handler.query("orders", 3) == record(3)

    def test_other_children_are_no_registrations(self, world: World) -> None:
        handler = world.handler()
        handler.register("orders", record(3))
        for name in ("parallel-03", "parallel-0", "parallel-", "parallel-99999", "x"):
            world.put(f"{world.topic_path('orders')}/{name}", self.GOOD)
        assert handler.records("orders") == [record(3)]
        assert not handler.delete_topic_node("orders")
        assert handler.records("orders") == [record(3)]

    def test_a_registration_replaces_what_cannot_be_read(self, world: World) -> None:
        handler = world.handler()
        handler.create_topic_node("orders")
        world.put(f"{world.topic_path('orders')}/parallel-1", b"rubbish")
        handler.register("orders", record(1))
        assert handler.records("orders") == [record(1)]

    def test_rubbish_in_place_of_an_owner_does_not_hold_the_topic(self, world: World) -> None:
        handler = world.handler()
        world.put(f"{world.namespace}.owners/orders", b"rubbish")
        assert handler.owner("orders") is None
        handler.claim("orders", owner())
        assert handler.owner("orders") == owner()

    @pytest.mark.parametrize("data", [b"", b"-1", b"1e3", b"9" * 19, b"1" * 50, "٣".encode()])
    def test_an_epoch_that_cannot_be_read_is_an_error(self, world: World, data: bytes) -> None:
        handler = world.handler()
        world.put(f"{world.namespace}.epochs/orders", data)
        with pytest.raises(BadRecord):
            handler.epoch("orders")
        with pytest.raises(BadRecord):
            handler.next_epoch("orders", 1)


class TestClaims:
    def test_the_second_claim_names_the_first(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        assert a.owner("orders") is None
        a.claim("orders", owner("a", name="first"))
        with pytest.raises(TopicOwned) as caught:
            b.claim("orders", owner("b", epoch=9))
        assert caught.value.owner == owner("a", name="first")
        assert b.owner("orders") == owner("a", name="first")
        b.release("orders")
        assert b.owner("orders") == owner("a", name="first")
        a.release("orders")
        a.release("orders")
        b.claim("orders", owner("b"))
        assert a.owner("orders") == owner("b")

    def test_one_session_cannot_claim_for_two_instances(self, world: World) -> None:
        handler = world.handler()
        handler.claim("orders", owner("a"))
        with pytest.raises(TopicOwned):
            handler.claim("orders", owner("b"))

    def test_the_same_instance_replaces_its_claim(self, world: World) -> None:
        ghost, again = world.handler(), world.handler()
        ghost.claim("orders", owner("a"))
        ghost.claim("orders", owner("a", epoch=2))
        again.claim("orders", owner("a", epoch=3))
        ghost.shutdown()
        assert again.owner("orders") == owner("a", epoch=3)

    def test_a_claim_does_not_hold_the_topic_node(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        a.claim("orders", owner())
        b.create_topic_node("orders")
        assert b.delete_topic_node("orders")
        assert b.owner("orders") == owner()

    def test_one_of_many_claims_wins(self, world: World) -> None:
        handlers = [world.handler() for _ in range(4)]

        def attempt(number: int) -> bool:
            try:
                handlers[number].claim("orders", owner(f"i{number}"))
            except TopicOwned:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(attempt, range(4)))
        assert won.count(True) == 1
        assert handlers[0].owner("orders") == owner(f"i{won.index(True)}")

    def test_evict_removes_one_instance_only(self, world: World) -> None:
        a, b, c = world.handler(), world.handler(), world.handler()
        a.claim("orders", owner("a"))
        a.register("orders", record(1, instance="a"))
        b.register("orders", record(2, instance="b"))
        c.evict("orders", "b2")
        assert c.records("orders") == [record(1, instance="a"), record(2, instance="b")]
        c.evict("orders", "a")
        assert c.owner("orders") is None
        assert c.records("orders") == [record(2, instance="b")]
        c.evict("nothing", "a")

    def test_evict_never_hits_a_successor(self, world: World) -> None:
        """Two newcomers prove the same owner dead at the same time: the slower must not remove the faster."""
        newcomers = [world.handler(), world.handler()]
        for number in range(8):
            topic = f"t{number}"
            dead = world.handler()
            dead.claim(topic, owner("dead"))
            dead.register(topic, record(1, instance="dead"))
            start = threading.Barrier(2)

            def take_over(which: int, topic: str = topic, start: threading.Barrier = start) -> bool:
                start.wait(DEADLINE)
                newcomers[which].evict(topic, "dead")
                try:
                    newcomers[which].claim(topic, owner(f"new{which}"))
                except TopicOwned:
                    return False
                return True

            with ThreadPoolExecutor(2) as pool:
                won = list(pool.map(take_over, range(2)))
            assert sorted(won) == [False, True]
            assert dead.owner(topic) == owner(f"new{won.index(True)}")


class TestEpochs:
    def test_they_only_rise(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        assert a.epoch("orders") == 0
        assert a.next_epoch("orders", 0) == 1
        assert b.next_epoch("orders", 7) == 7
        assert a.next_epoch("orders", 3) == 8
        assert b.epoch("orders") == 8
        assert b.epoch("other") == 0

    def test_claims_and_registrations_do_not_change_them(self, world: World) -> None:
        handler = world.handler()
        assert handler.next_epoch("orders", 5) == 5
        handler.claim("orders", owner())
        handler.register("orders", record())
        handler.shutdown()
        assert world.handler().epoch("orders") == 5

    def test_no_two_calls_get_the_same_one(self, world: World) -> None:
        handlers = [world.handler() for _ in range(4)]
        with ThreadPoolExecutor(8) as pool:
            given = list(pool.map(lambda n: handlers[n % 4].next_epoch("orders", 1), range(40)))
        assert len(set(given)) == 40
        assert handlers[0].epoch("orders") == max(given)

    def test_the_end_of_the_numbers_is_an_error(self, world: World) -> None:
        handler = world.handler()
        assert handler.next_epoch("orders", MAX_EPOCH) == MAX_EPOCH
        with pytest.raises(BadRecord):
            handler.next_epoch("orders", 1)


class TestRecoveryPoint:
    def test_it_outlives_its_writer(self, world: World) -> None:
        handler, other = world.handler(), world.handler()
        assert handler.recovery_point("orders") is None
        epoch = handler.next_epoch("orders", 1)
        for text in ("here", "dort: ä", "dort: ä"):
            handler.set_recovery_point("orders", epoch, text)
            assert other.recovery_point("orders") == text
        handler.shutdown()
        assert other.recovery_point("orders") == "dort: ä"
        assert other.recovery_point("other") is None
        other.set_recovery_point("orders", epoch, None)
        other.set_recovery_point("orders", epoch, None)
        assert other.recovery_point("orders") is None

    def test_a_newer_epoch_fences_older_writers(self, world: World) -> None:
        zombie, newer = world.handler(), world.handler()
        old = zombie.next_epoch("orders", 1)
        zombie.set_recovery_point("orders", old, "old")
        epoch = newer.next_epoch("orders", 1)
        for text in ("late", None):
            with pytest.raises(TopicOwned):
                zombie.set_recovery_point("orders", old, text)
        assert newer.recovery_point("orders") == "old"
        newer.set_recovery_point("orders", epoch, "new")
        assert zombie.recovery_point("orders") == "new"

    def test_it_is_bounded(self, world: World) -> None:
        handler = world.handler()
        epoch = handler.next_epoch("orders", 1)
        handler.set_recovery_point("orders", epoch, "a" * 4096)
        with pytest.raises(BadRecord, match="4096 bytes"):
            handler.set_recovery_point("orders", epoch, "ä" * 2049)
        assert handler.recovery_point("orders") == "a" * 4096

    def test_it_survives_writes_of_two_handlers_of_one_job(self, world: World) -> None:
        handlers = [world.handler() for _ in range(3)]
        epoch = handlers[0].next_epoch("orders", 1)
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda n: handlers[n % 3].set_recovery_point("orders", epoch, str(n)), range(30)))
        assert handlers[0].recovery_point("orders") in {str(n) for n in range(30)}
        assert handlers[0].epoch("orders") == epoch


class TestWatch:
    def test_it_follows_each_change(self, world: World) -> None:
        a, b, seen = world.handler(), world.handler(), Recorder()
        b.create_topic_node("orders")
        b.watch("orders", seen)
        seen.wait([])
        a.register("orders", record(1))
        seen.wait([record(1)])
        a.register("orders", record(2))
        seen.wait([record(1), record(2)])
        a.unregister("orders", 1)
        seen.wait([record(2)])
        assert seen.overlaps == 0

    def test_it_sees_data_that_change_in_place(self, world: World) -> None:
        a, b, seen = world.handler(), world.handler(), Recorder()
        a.register("orders", record(1))
        b.watch("orders", seen)
        seen.wait([record(1)])
        for port in (30000, 30001, 30002):
            a.register("orders", record(1, port=port))
            seen.wait([record(1, port=port)])

    def test_it_sees_a_replaced_registration(self, world: World) -> None:
        a, b, c, seen = world.handler(), world.handler(), world.handler(), Recorder()
        a.register("orders", record(1, instance="old"))
        c.watch("orders", seen)
        seen.wait([record(1, instance="old")])
        b.register("orders", record(1, epoch=2, instance="new"))
        seen.wait([record(1, epoch=2, instance="new")])

    def test_the_topic_may_come_go_and_come_again(self, world: World) -> None:
        a, b, seen = world.handler(), world.handler(), Recorder()
        b.watch("orders", seen)
        seen.wait([])
        for port in (30000, 30001, 30002):
            a.register("orders", record(1, port=port))
            seen.wait([record(1, port=port)])
            assert a.delete_topic_node("orders")
            seen.wait([])

    def test_it_survives_the_loss_of_its_own_session(self, world: World) -> None:
        a, b, seen = world.handler(), world.handler(), Recorder()
        a.register("orders", record(1))
        b.watch("orders", seen)
        seen.wait([record(1)])
        world.expire(b)
        a.register("orders", record(2))
        seen.wait([record(1), record(2)])
        a.unregister("orders", 1)
        seen.wait([record(2)])

    def test_a_callback_that_fails_is_called_again(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        a, b, seen = world.handler(), world.handler(), Recorder()

        def fail(records: list[RegisterRecord]) -> None:
            seen(records)
            raise ValueError("no")

        b.watch("orders", fail)
        seen.wait([])
        a.register("orders", record(1))
        seen.wait([record(1)])
        eventually(lambda: sum(entry.exc_info is not None for entry in caplog.records) >= 2)

    def test_a_closed_watch_is_silent(self, world: World) -> None:
        a, b, closed, seen = world.handler(), world.handler(), Recorder(), Recorder()
        watch = b.watch("orders", closed)
        b.watch("orders", seen)
        closed.wait([])
        watch.close()
        watch.close()
        a.register("orders", record(1))
        seen.wait([record(1)])
        assert closed.lists == [[]]

    def test_it_may_be_closed_from_its_callback(self, world: World) -> None:
        handler, done = world.handler(), threading.Event()
        watches: list[Any] = []
        made = threading.Event()

        def close(_: list[RegisterRecord]) -> None:
            assert made.wait(DEADLINE)
            watches[0].close()
            done.set()

        watches.append(handler.watch("orders", close))
        made.set()
        assert done.wait(DEADLINE)

    def test_the_callback_may_use_the_handler(self, world: World) -> None:
        handler, seen = world.handler(), Recorder()

        def look(records: list[RegisterRecord]) -> None:
            assert handler.records("orders") == records
            handler.create_topic_node("seen")
            seen(records)

        handler.watch("orders", look)
        seen.wait([])
        assert handler.is_exist("seen")


class TestExpiry:
    def test_registrations_and_claims_come_back(self, world: World) -> None:
        a, b, seen = world.handler(), world.handler(), Recorder()
        a.claim("orders", owner())
        a.register("orders", record(1))
        a.register("orders", record(2))
        b.watch("orders", seen)
        seen.wait([record(1), record(2)])
        count = len(seen.lists)
        world.expire(a)
        seen.wait_count(count + 1)
        seen.wait([record(1), record(2)])
        eventually(lambda: b.owner("orders") == owner())

    def test_twice(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        a.register("orders", record(1))
        for _ in range(2):
            former = {a._started.nodes.session}
            world.expire(a)
            eventually(lambda former=former: a._started.nodes.session not in former)  # type: ignore[misc]
            eventually(lambda: b.records("orders") == [record(1)])

    def test_what_was_given_up_does_not_come_back(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        a.claim("orders", owner())
        a.register("orders", record(1))
        a.register("orders", record(2))
        a.release("orders")
        a.unregister("orders", 1)
        world.expire(a)
        eventually(lambda: not b.records("orders") or a._started.nodes.ready)
        eventually(lambda: b.records("orders") == [record(2)])
        assert b.owner("orders") is None

    def test_a_topic_node_that_was_deleted_is_made_again(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        a.register("orders", record(1))
        world.delete(world.topic_path("orders"))
        world.expire(a)
        eventually(lambda: b.records("orders") == [record(1)])

    def test_a_claim_taken_meanwhile_is_lost_and_told(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        lost: list[str] = []
        told = threading.Event()

        def on_lost(topic: str) -> None:
            lost.append(topic)
            told.set()

        a.on_lost = on_lost
        a.claim("orders", owner("a"))
        a.register("orders", record(1, instance="a"))
        a.register("other", record(1, instance="a"))
        b.evict("orders", "a")
        b.claim("orders", owner("b", epoch=2))
        b.register("orders", record(1, epoch=2, instance="b"))
        world.expire(a)
        assert told.wait(DEADLINE)
        eventually(lambda: b.records("other") == [record(1, instance="a")])
        assert lost == ["orders"]
        assert b.owner("orders") == owner("b", epoch=2)
        assert b.records("orders") == [record(1, epoch=2, instance="b")]
        a.shutdown()
        assert b.owner("orders") == owner("b", epoch=2)
        assert b.records("orders") == [record(1, epoch=2, instance="b")]


class TestLife:
    def test_shutdown_removes_what_is_ours_and_the_empty_topic(self, world: World) -> None:
        a, b = world.handler(), world.handler()
        a.create_topic_node("empty")
        a.claim("orders", owner())
        a.register("orders", record(1))
        a.register("shared", record(1))
        b.register("shared", record(2))
        a.shutdown()
        a.shutdown()
        assert b.topics() == ["shared"]
        assert b.records("shared") == [record(2)]
        assert b.owner("orders") is None

    def test_the_last_one_removes_the_topic(self, world: World) -> None:
        a, b, c = world.handler(), world.handler(), world.handler()
        a.create_topic_node("orders")
        a.register("orders", record(1))
        b.create_topic_node("orders")
        b.register("orders", record(2))
        a.shutdown()
        assert c.is_exist("orders")
        b.shutdown()
        assert not c.is_exist("orders")

    @pytest.mark.slow
    def test_shutdown_is_quick_and_ends_all_threads(self, world: World) -> None:
        before = set(threading.enumerate())
        handler, seen = world.handler(), Recorder()
        for number in range(5):
            handler.watch(f"t{number}", seen)
        begun = time.monotonic()
        handler.shutdown()
        assert time.monotonic() - begun < 3.0
        eventually(lambda: not {t for t in threading.enumerate() if t.name.startswith("registry-")} - before)

    def test_shutdown_may_come_from_a_callback(self, world: World) -> None:
        handler, done = world.handler(), threading.Event()

        def end(_: list[RegisterRecord]) -> None:
            handler.shutdown()
            done.set()

        handler.watch("orders", end)
        assert done.wait(DEADLINE)

    def test_nothing_works_before_start_and_after_shutdown(self, world: World) -> None:
        handler = world.handler(start=False)
        for _ in range(2):
            calls: list[Any] = [
                lambda: handler.create_topic_node("t"),
                lambda: handler.register("t", record()),
                lambda: handler.delete_topic_node("t"),
                lambda: handler.unregister("t", 1),
                lambda: handler.query("t", 1),
                lambda: handler.is_exist("t"),
                handler.topics,
                lambda: handler.records("t"),
                lambda: handler.watch("t", Recorder()),
                lambda: handler.claim("t", owner()),
                lambda: handler.owner("t"),
                lambda: handler.evict("t", "a"),
                lambda: handler.release("t"),
                lambda: handler.next_epoch("t", 1),
                lambda: handler.epoch("t"),
                lambda: handler.recovery_point("t"),
                lambda: handler.set_recovery_point("t", 1, "here"),
            ]
            for call in calls:
                with pytest.raises(NotStarted):
                    call()
            handler.shutdown()
        with pytest.raises(RegistryError):
            handler.start(world.options())

    def test_a_second_start_is_refused(self, world: World) -> None:
        handler = world.handler()
        with pytest.raises(RegistryError):
            handler.start(world.options())
        assert handler.topics() == []

    @pytest.mark.parametrize("namespace", ["", "/", "topics", "/a/", "//a", "/a/../b", "/a b"])
    def test_a_bad_namespace_is_refused(self, world: World, namespace: str) -> None:
        with pytest.raises(InvalidName):
            world.handler(start=False).start({**world.options(), "topic.storage": namespace})

    @pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "1e9"])
    def test_a_bad_time_is_refused(self, world: World, value: str) -> None:
        with pytest.raises(RegistryError):
            world.handler(start=False).start({**world.options(), "connect.timeout": value})

    def test_another_process_is_told_so(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        handler = world.handler()
        with monkeypatch.context() as patch:
            patch.setattr("jobpipe_registry.tree.tree_handler.os.getpid", lambda: -1)
            with pytest.raises(NotStarted):
                handler.topics()
            handler.shutdown()
        assert handler.topics() == []
