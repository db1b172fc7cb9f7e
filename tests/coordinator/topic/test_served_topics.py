"""The coordinator's life in one process: requests that are cancelled, topics that fail, owners that cannot be known."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.coordinator import coordinator as host_module
from jobpipe.coordinator.registration import topic_claim, topic_registration
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.coordinator.topic_liveness import WatchedParent
from jobpipe.errors import Fenced, LinkEnded, SpoolError, TopicNotFound, TopicOwned
from jobpipe.net.address import Endpoint
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.log.retention import RetentionCleaner
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.subscriptions.positions import Subscriptions
from jobpipe.wire.wire_messages import Reply
from jobpipe_registry.host.process_identity import PidScope
from jobpipe_registry.nodes import Create
from jobpipe_registry.topic_records import OwnerRecord
from tests.coordinator.kit import NAMESPACE, Gate, World, run, seal, until
from tests.docs.troubleshooting import on_page

GONE = WatchedParent(2**22 + 1, 1.0)  # no process has that id


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, as the end of its link does, and see it end."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def is_free(world: World) -> bool:
    """Tell whether another coordinator may take the topic, and no registration is left."""
    other = world.handlers[-1]
    return other.owner("orders") is None and other.records("orders") == []


@pytest.mark.parametrize("callers", [1, 2])
@pytest.mark.parametrize("how", ["hand-over", "fence"])
def test_a_drop_outlives_who_asked_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str, callers: int
) -> None:
    """R6: cancelled between forgetting the topic and releasing its claim, it would block the topic for good."""

    async def work() -> None:
        host, gate = world.host(parent=GONE), Gate()
        topic = await host.open_topic("orders", world.order())
        world.handler()
        monkeypatch.setattr(TopicLog, "close", gate.wrap(TopicLog.close))
        if how == "fence":
            world.handlers[0].next_epoch("orders", 7)

        def call() -> asyncio.Task[Any]:
            return asyncio.create_task(
                host.hand_over(topic, "newcomer") if how == "hand-over" else host.refuse_epoch(topic, 7)
            )

        calls = [call() for _ in range(callers)]
        await gate.arrived()
        await cancelled(calls[0])
        gate.go_on.set()
        for asked in calls[1:]:  # at the same time: told when it is done
            answer = await asked
            assert answer is True if how == "hand-over" else "7 exists" in answer.message
            assert is_free(world)
        await until(lambda: is_free(world))
        assert gate.calls == 1
        assert host.topics == {}
        await host.close()

    run(work())


def test_a_lost_claim_is_dropped_to_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: the log of a topic that another publisher has claimed is closed, and nothing of ours stays registered."""

    async def work() -> None:
        host = world.host(parent=GONE)
        topic = await host.open_topic("orders", world.order())
        world.handler()
        on_lost = world.handlers[0].on_lost
        assert on_lost is not None
        on_lost("orders")
        on_lost("orders")
        await until(lambda: topic.closed and is_free(world))
        await host.close()

    run(work())


def test_a_disk_that_hangs_does_not_keep_the_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: the claim is released though the log's thread does not answer; the epoch fences what it is about to do."""

    async def work() -> None:
        monkeypatch.setattr(host_module, "CLOSE_SECONDS", 0.1)
        host, gate = world.host(parent=GONE), Gate()
        topic = await host.open_topic("orders", world.order())
        world.handler()
        hanging = asyncio.create_task(topic.run(gate.wrap(lambda: None)))
        await gate.arrived()
        assert await host.hand_over(topic, "newcomer")
        assert is_free(world)
        with pytest.raises(TopicNotFound):
            await topic.run(lambda: None)
        gate.go_on.set()
        await hanging
        await host.close()

    run(work())


def test_an_open_that_is_cancelled_leaves_nothing_half_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: it goes on to its end, and the topic counts as closed by its publisher: the job may open it again."""

    async def work() -> None:
        host, gate = world.host(), Gate()
        monkeypatch.setattr(TopicLog, "take_over", gate.wrap(TopicLog.take_over))
        opening = asyncio.create_task(host.open_topic("orders", world.order("first")))
        await gate.arrived()
        await cancelled(opening)
        gate.go_on.set()
        topic = await host.open_topic("orders", world.order("second"))
        assert (topic.asked.name, topic.epoch) == ("second", 2)
        owner = world.handler().owner("orders")
        assert owner is not None
        assert (owner.name, owner.epoch) == ("second", 2)
        with pytest.raises(TopicOwned, match="'second'"):
            await host.open_topic("orders", world.order("third"))
        await host.close()

    run(work())


@pytest.mark.parametrize(("kind", "step"), [(RetentionCleaner, "sweep"), (Subscriptions, "require")])
def test_a_take_over_that_fails_leaves_the_topic_free(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: type, step: str
) -> None:
    """R6: also when closing the log fails, and with registrations that were made already."""

    async def work() -> None:
        def fail(*_: Any) -> None:
            raise SpoolError("the disk is on fire")

        host = world.host()
        world.handler()
        close = TopicLog.close
        with monkeypatch.context() as patch:
            patch.setattr(kind, step, fail)
            patch.setattr(TopicLog, "close", lambda self: (close(self), fail()))
            with pytest.raises(SpoolError, match="on fire"):
                await host.open_topic("orders", world.order())
        assert is_free(world)
        register = world.handlers[0].register

        def second_fails(topic: str, records: Any) -> None:
            register(topic, records[0])
            fail()

        monkeypatch.setattr(world.handlers[0], "register_all", second_fails)
        with pytest.raises(SpoolError):
            await host.open_topic("orders", world.order())
        assert is_free(world)
        await host.close()

    run(work())


def test_a_topic_that_is_given_up_is_not_released_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: opened again while it is being given up; the end of the old one must not release the new one's claim."""

    async def work() -> None:
        host, gate = world.host(parent=GONE), Gate()
        topic = await host.open_topic("orders", world.order())
        withdraw = world.handlers[0].withdraw
        monkeypatch.setattr(world.handlers[0], "withdraw", gate.wrap(withdraw))
        dropping = asyncio.create_task(host.hand_over(topic, "newcomer"))
        await gate.arrived()
        opening = asyncio.create_task(host.open_topic("orders", world.order("again")))
        await asyncio.wait({opening}, timeout=0.3)  # it must wait; what does not has claimed the topic by then
        gate.go_on.set()
        await dropping
        assert (await opening).epoch == 2
        owner = world.handler().owner("orders")
        assert owner is not None
        assert owner.name == "again"
        await host.close()

    run(work())


@pytest.mark.parametrize("error", [TopicNotFound("gone"), SpoolError("a passing fault")])
def test_a_topic_that_cannot_tell_who_lags_ends_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """R7: the question belongs to one topic; the coordinator serves others."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        await host.open_topic("other", world.order())
        await host.close_publisher(topic, final=False)
        asked = asyncio.Event()

        async def lagging(self: ServedTopic) -> dict[str, int]:
            asked.set()
            raise error

        monkeypatch.setattr(ServedTopic, "lagging", lagging)
        living = asyncio.create_task(host.live())
        await asked.wait()
        await asyncio.sleep(0.3)  # a tick and a half: what ends it would have ended it
        assert not living.done()
        host.finished.set()
        await living
        await host.close()

    run(work())


def test_a_topic_whose_disk_hangs_holds_up_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: each topic's time passes by itself; the end of the coordinator waits for the one that cannot tell."""

    async def work() -> None:
        host, gate = world.host(), Gate()
        slow = await host.open_topic("orders", world.order())
        other = await host.open_topic("other", world.order())
        hanging = asyncio.create_task(slow.run(gate.wrap(lambda: None)))
        await gate.arrived()
        living = asyncio.create_task(host.live())
        ticked: list[float] = []
        tick = other.store.clock.tick
        monkeypatch.setattr(other.store.clock, "tick", lambda seconds: (ticked.append(seconds), tick(seconds)))
        await until(lambda: len(ticked) >= 4)
        assert not living.done()
        gate.go_on.set()
        await hanging
        host.finished.set()
        await living
        await host.close()

    run(work())


def test_a_fenced_topic_is_given_up_by_its_tick(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: and only that one."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        await host.open_topic("other", world.order())
        living = asyncio.create_task(host.live())

        async def tick(self: ServedTopic, *args: Any, retain: bool) -> None:
            if self is topic:
                raise Fenced("a higher epoch")

        monkeypatch.setattr(ServedTopic, "tick", tick)
        await until(lambda: list(host.topics) == ["other"])
        assert not living.done()
        host.finished.set()
        await living
        await host.close()

    run(work())


def test_the_event_loop_opens_no_catalog(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R12: each question to SQLite may wait for a disk, so none is asked in the loop's thread."""
    loops_thread = threading.current_thread()
    query = Database.one

    def checked(self: Database, *args: Any) -> Any:
        assert threading.current_thread() is not loops_thread, "SQLite on the event loop"
        return query(self, *args)

    async def work() -> None:
        monkeypatch.setattr(Database, "one", checked)
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        await seal(topic, 0)
        await topic.status()
        await topic.tick(retain=True)
        await host.close_publisher(topic, final=True)
        await host.close()

    run(work())


def test_an_owner_in_another_pid_namespace_is_not_evicted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3: its host name is ours, and what has its pid here is dead, or nobody: that says nothing."""

    async def work() -> None:
        host = world.host("newcomer")
        here, owner = PidScope.here(), world.handler()
        record = OwnerRecord(
            host=here.host,
            pid=GONE.pid,
            started=1.0,
            endpoint="127.0.0.1:9",
            epoch=1,
            instance="in-a-container",
            name="container",
            boot=here.boot,
            pid_namespace=here.pid_namespace + 1,
        )
        owner.claim("orders", record)

        async def silent(*_: Any) -> None:
            return None

        monkeypatch.setattr(topic_claim, "_ask", silent)
        monkeypatch.setattr(host._registration, "_config", world.config(registerserver__session__timeout="2s"))
        monkeypatch.setattr("jobpipe.coordinator.registration.topic_registration.HANDOVER_EXTRA_SECONDS", -1.5)
        with pytest.raises(TopicOwned, match="'container'"):
            await host.open_topic("orders", world.order())
        assert owner.owner("orders") == record
        await host.close()

    run(work())


def test_a_host_server_that_hangs_holds_up_its_topic_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: the others are tidied, and the coordinator goes on looking which host servers are lost."""

    async def work() -> None:
        host = world.host(spool__placement="host")
        hosts, hanging, tidied = host.host_servers, asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(hosts, "_ask", lambda: {"h1": "127.0.0.1:9"})

        async def sweep(topic: ServedTopic, name: str, endpoint: str) -> None:
            if topic.topic == "orders":
                hanging.set()
                await asyncio.Event().wait()
            if topic.topic == "strange":
                raise KeyError("files")
            tidied.set()

        monkeypatch.setattr(hosts, "_sweep", sweep)
        topics = [
            await host.open_topic(name, world.order(spool__placement="host")) for name in ("orders", "strange", "other")
        ]
        await hanging.wait()
        await tidied.wait()
        await asyncio.wait_for(hosts.refresh_and_tidy(topics), 5)
        await host.close()

    run(work())


def test_host_servers_are_shown_that_a_log_is_in_use(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is only served on; it removes nothing there, since its next publisher may be at work."""
    asked: list[str] = []
    replies: dict[str, dict[str, Any]] = {"files": {"files": []}, "forget_logs": {"forgotten": []}}

    async def call(op: str, *_: object, **__: object) -> Reply:
        asked.append(op)
        return Reply(1, replies[op])

    async def close() -> None:
        pass

    async def connect(*_: object) -> Any:
        return SimpleNamespace(call=call, close=close)

    async def work() -> None:
        host = world.host(spool__placement="host")
        hosts = host.host_servers
        monkeypatch.setattr(hosts, "_ask", lambda: {"h1": "127.0.0.1:9"})
        monkeypatch.setattr(hosts, "_connect", connect)
        monkeypatch.setattr(hosts, "is_due", lambda topics: False)
        topic = await host.open_topic("orders", world.order(spool__placement="host"))
        await until(lambda: asked == ["files", "forget_logs"] and not hosts._tidying)  # a topic that opens is tidied
        asked.clear()
        for publishing, expected in ((True, ["files", "forget_logs"]), (False, ["files"])):
            topic.publishing = publishing
            hosts._swept_at.clear()
            await hosts.refresh_and_tidy([topic])
            assert asked == expected
            await hosts.refresh_and_tidy([topic])
            assert asked == expected, "not again so soon"
            asked.clear()
        await host.close()

    run(work())


def test_a_publisher_that_asks_again_has_the_topic(world: World) -> None:
    """The answer to ``open`` may be lost with its link: who repeats it is the same publisher, another is not."""

    async def work() -> None:
        host = world.host()
        order = replace(world.order(), opener="ab")
        topic = await host.open_topic("orders", order)
        assert await host.open_topic("orders", order) is topic
        for other in (replace(order, opener="cd"), world.order()):
            with pytest.raises(TopicOwned):
                await host.open_topic("orders", other)
        await host.close_publisher(topic, final=False)
        assert await host.open_topic("orders", order) is not topic

    run(work())


LATER = b'{"version":2,"host":"h","pid":1,"started":1.0,"endpoint":"h:1","epoch":3,"instance":"i","name":"job"}'


def claim_unreadably(world: World, data: bytes) -> str:
    """Claim the topic in a living session, with a record that cannot be read; return its path."""
    handler, path = world.handler(), f"{NAMESPACE}.owners/orders"
    handler.memory_nodes().ensure(f"{NAMESPACE}.owners")
    handler.memory_nodes().commit([Create(path, data)])
    return path


@pytest.mark.parametrize("data", [b"garbage", b"", b"[]", LATER], ids=["garbage", "nothing", "a list", "later"])
def test_an_owner_that_cannot_be_read_is_named(world: World, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """T2: a living session has claimed the topic; the newcomer asked again without a pause, and for ever."""

    async def work() -> None:
        monkeypatch.setattr(topic_registration, "HANDOVER_EXTRA_SECONDS", 0.3 - world.config().registry_session_timeout)
        host, attempts = world.host(), 0
        path = claim_unreadably(world, data)
        claim = world.handlers[0].claim

        def counted(*args: Any) -> None:
            nonlocal attempts
            attempts += 1
            claim(*args)

        monkeypatch.setattr(world.handlers[0], "claim", counted)
        with pytest.raises(TopicOwned, match="whose record") as caught:
            await host.open_topic("orders", world.order())
        on_page(caught.value, "TopicOwned: topic '…' already has a publisher, whose record")
        assert 2 <= attempts < 10, "with a pause, and once more after the deadline"
        assert world.handler().is_claimed("orders")
        world.tree.delete(path)
        await host.open_topic("orders", world.order())
        await host.close()

    run(work())


def test_a_topic_that_is_waited_for_holds_up_no_other(world: World) -> None:
    """T2: other topics of the job open meanwhile; and the waiting ends with the request that asked for it."""

    async def work() -> None:
        host = world.host()
        path = claim_unreadably(world, b"garbage")
        opening = asyncio.create_task(host.open_topic("orders", world.order()))
        await until(lambda: host.opening)
        await host.open_topic("other", world.order())
        assert not opening.done()
        await cancelled(opening)
        await until(lambda: not host.opening)
        world.tree.delete(path)
        assert not world.handler().is_claimed("orders")
        assert list(host.topics) == ["other"]
        claim_unreadably(world, b"garbage")
        opening = asyncio.create_task(host.open_topic("orders", world.order()))
        await until(lambda: host.opening)
        host.finished.set()
        with pytest.raises(LinkEnded):
            await opening
        await host.close()

    run(work())


def test_a_dead_owner_that_comes_back_ends_the_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: a claim of a dead process that its session makes again each time it is evicted."""

    async def work() -> None:
        monkeypatch.setattr(topic_registration, "HANDOVER_EXTRA_SECONDS", 0.3 - world.config().registry_session_timeout)
        host, there = world.host(), PidScope.here()
        dead = OwnerRecord(
            *(there.host, 2**22 + 1, 1.0, "127.0.0.1:1", 1, "dead", "ghost", there.boot, there.pid_namespace)
        )
        rival, evict = world.handler(), world.handlers[0].evict
        rival.claim("orders", dead)
        evictions = 0

        def again(topic: str, instance: str) -> None:
            nonlocal evictions
            evictions += 1
            evict(topic, instance)
            rival.claim(topic, dead)

        monkeypatch.setattr(world.handlers[0], "evict", again)
        with pytest.raises(TopicOwned, match="its claim comes back"):
            await host.open_topic("orders", world.order())
        assert 2 <= evictions < 10
        await host.close()

    run(work())


@pytest.mark.parametrize("registry", ["slow", "quick"])
def test_a_topic_that_is_given_up_is_not_registered_again(
    world: World, monkeypatch: pytest.MonkeyPatch, registry: str
) -> None:
    """T5: the data process was started again, and the registry is told of it while the topic is handed over."""

    async def work() -> None:
        host, gate = world.host(parent=GONE), Gate()
        topic = await host.open_topic("orders", world.order())
        world.handler()
        monkeypatch.setattr(host._data, "start", lambda: None, raising=False)
        if registry == "slow":
            monkeypatch.setattr(world.handlers[0], "register_all", gate.wrap(world.handlers[0].register_all))
        else:
            monkeypatch.setattr(host._data, "start", gate.wrap(host._data.start))
        mending = asyncio.create_task(host._restart_data_process())
        await gate.arrived()
        handing = asyncio.create_task(host.hand_over(topic, "newcomer"))
        await until(lambda: topic.closed)
        gate.go_on.set()
        assert await handing
        await mending
        assert is_free(world)
        await host.close()

    run(work())


@pytest.mark.parametrize("where", ["next_epoch", "claim", "register_all", "take_over"])
def test_a_topic_that_is_given_up_takes_nothing_back(world: World, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """T5: a batch is to be sealed again, and meanwhile the topic is handed over: it stays so."""

    async def work() -> None:
        monkeypatch.setattr(host_module, "CLOSE_SECONDS", 0.1)
        host, gate = world.host(parent=GONE), Gate()
        topic = await host.open_topic("orders", world.order())
        other = world.handler()

        async def yes(*_: Any) -> bool:
            return True

        monkeypatch.setattr(ServedTopic, "must_be_sealed_again", yes)
        kind: Any = TopicLog if where == "take_over" else world.handlers[0]
        monkeypatch.setattr(kind, where, gate.wrap(getattr(kind, where)))
        taking = asyncio.create_task(host.take_back(topic, "q", 0))
        await gate.arrived()
        handing = asyncio.create_task(host.hand_over(topic, "newcomer"))
        await until(lambda: topic.closed)
        if where == "take_over":  # the disk hangs: the claim does not wait for it
            assert await handing
            assert is_free(world)
        gate.go_on.set()
        assert await handing
        with pytest.raises(TopicNotFound):
            await taking
        assert is_free(world)
        epoch = other.epoch("orders")
        with pytest.raises(TopicNotFound):
            await host.take_back(topic, "q", 0)
        assert other.epoch("orders") == epoch, "it would fence who serves the topic now"
        await host.close()

    run(work())


def test_a_data_process_that_dies_while_a_topic_is_opened(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5: registered with the endpoint of the dead one, the topic could not be read, and nobody told the registry."""

    async def work() -> None:
        host, gate = world.host(), Gate()
        monkeypatch.setattr(world.handlers[0], "register_all", gate.wrap(world.handlers[0].register_all))
        opening = asyncio.create_task(host.open_topic("orders", world.order()))
        await gate.arrived()  # the records are made

        def start() -> None:
            host._data.endpoint = Endpoint("127.0.0.1", 3)  # type: ignore[misc]

        monkeypatch.setattr(host._data, "start", start, raising=False)
        await host._restart_data_process()
        gate.go_on.set()
        await opening
        other = world.handler()
        await until(lambda: [record.data for record in other.records("orders")] == ["127.0.0.1:3"] * 2)
        await host.close()

    run(work())
