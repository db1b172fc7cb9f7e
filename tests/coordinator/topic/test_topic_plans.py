"""Plans that wait, and that are made in groups in the log's thread: who is answered when, and with what."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.coordinator.coordinator import Coordinator
from jobpipe.coordinator.handlers.dispatch import Context
from jobpipe.coordinator.handlers.reader_handlers import ReaderHandlers
from jobpipe.coordinator.topic import topic_plans as module
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.errors import DataLoss, Fenced, JobpipeError, SpoolError, TopicNotFound
from jobpipe.net.servers.identity_quota import asking
from jobpipe.operations.subscriber_operations import PlanReply, PlanRequest
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary
from jobpipe.store.reading.shared_plans import PlanQuery, SharedPlans
from jobpipe.subscribing.fetching.part_fetch import decode
from tests.coordinator.kit import World, run, seal, until

EARLIEST = Boundary("earliest")
WAIT = 20.0


class Silent:
    """A link that answers no ping, so that its name may pass on."""

    ended = None
    silence = 0.0
    peer_names = ()

    async def ping(self, timeout: float) -> None:
        raise TimeoutError


class Topic:
    """A served topic with subscribers that plan, without links and rights."""

    def __init__(self, host: Coordinator, topic: ServedTopic) -> None:
        self.host = host
        self.topic = topic
        self.grants: dict[str, int] = {}
        self._answers = ReaderHandlers(host).answers()

    @classmethod
    async def open(cls, world: World, *names: str, **changes: str) -> Topic:
        """Serve the topic to some subscribers that begin at its first batch."""
        host = world.host(**changes)
        made = cls(host, await host.open_topic("orders", world.order(**changes)))
        for name in names:
            await made.grant(name)
            await made.topic.subscribers.first_position(name, EARLIEST, None, skip_removed=False)
        return made

    async def grant(self, name: str, instance: str = "i") -> None:
        where = {"host": "a", "pid": 1}
        holder = await self.topic.subscribers.grant(name, instance, cast("Any", Silent()), where)
        self.grants[name] = holder.grant

    def plan(self, name: str, n: int, *, whose: str = "", **more: Any) -> asyncio.Task[PlanReply]:
        """Begin to ask for what comes after batch ``n``; the request and its reply travel as JSON."""
        link = cast("Any", SimpleNamespace(hello=SimpleNamespace(role="subscriber", name=name)))
        request = PlanRequest(more.pop("grant", self.grants[name]), self.place(n), **more)

        async def ask() -> PlanReply:
            asking.set(whose)
            asked = PlanRequest.from_json(request.to_json())
            reply = await self._answers[PlanRequest](Context(link, self.topic), asked)
            return PlanReply.from_json(reply.to_json(), reply.blob)

        return asyncio.create_task(ask())

    def place(self, n: int) -> Position:
        return Position(self.topic.log_id, 1 if n else 0, n)

    async def acked(self, name: str) -> int:
        known = await self.topic.run(self.topic.store.subscriptions.get, name)
        assert known.acked is not None
        return known.acked.n

    async def waiting(self, count: int) -> None:
        """Wait until so many requests wait."""
        plans = self.topic.subscribers.plans
        await until(lambda: sum(len(group.waiting) for group in plans._groups.values()) == count)

    def is_at_rest(self) -> bool:
        """Nobody waits, and nothing is kept of anybody."""
        plans = self.topic.subscribers.plans
        return not (plans._groups or plans._waits or plans._asked)


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_a_seal_wakes_all_who_wait_and_brings_their_rows(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a", "b")
        tasks = [topic.plan(name, 0, wait=WAIT, held=True) for name in ("a", "b")]
        await topic.waiting(2)
        await seal(topic.topic, 0, count=3)
        for reply in await asyncio.gather(*tasks):
            assert (reply.end.n, reply.rows, reply.ends) == (1, 3, False)
            assert reply.news is not None
            assert reply.news.head == reply.end
            assert reply.held is not None
            assert sum(fetched.batch.num_rows for part in reply.held for fetched in decode(part, "orders")) == 3
        assert topic.is_at_rest()

    run(scenario())


def test_what_is_there_is_answered_at_once(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a")
        await seal(topic.topic, 0)
        assert (await topic.plan("a", 0, wait=WAIT)).end.n == 1

    run(scenario())


def test_it_acknowledges_before_it_waits(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a")
        await seal(topic.topic, 0)
        task = topic.plan("a", 1, wait=WAIT)
        await topic.waiting(1)
        assert await topic.acked("a") == 1
        task.cancel()

    run(scenario())


def test_without_news_it_is_answered_when_its_time_is_over(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a")
        reply = await topic.plan("a", 0, wait=0.05)
        assert reply.start == reply.end == topic.place(0)
        assert reply.news is not None
        assert topic.is_at_rest()

    run(scenario())


def test_an_end_mark_wakes_and_what_ended_waits_no_more(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a")
        task = topic.plan("a", 0, wait=WAIT, held=True)
        await topic.waiting(1)
        await topic.topic.seal_end()
        reply = await task
        assert (reply.end.n, reply.rows, reply.ends, reply.held) == (1, 0, True, ())
        reply = await topic.plan("a", 1, wait=WAIT)
        assert (reply.start, reply.ends) == (reply.end, True)
        assert reply.news is not None
        assert reply.news.ended

    run(scenario())


def test_a_drop_ends_the_wait(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a")
        task = topic.plan("a", 0, wait=WAIT)
        await topic.waiting(1)
        await topic.topic.subscribers.drop("a", dry_run=False)
        with pytest.raises(Fenced):
            await task
        assert topic.is_at_rest()

    run(scenario())


def test_a_higher_grant_ends_the_wait(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a")
        task = topic.plan("a", 0, wait=WAIT)
        await topic.waiting(1)
        await topic.grant("a", "another")
        with pytest.raises(Fenced):
            await task

    run(scenario())


def test_a_seek_is_not_undone_by_one_that_waits(world: World) -> None:
    """Its link is silent: it is answered, but acknowledges nothing more."""

    async def scenario() -> None:
        topic = await Topic.open(world, "a")
        await seal(topic.topic, 0)
        task = topic.plan("a", 1, wait=WAIT)
        await topic.waiting(1)
        await topic.topic.subscribers.seek("a", EARLIEST, dry_run=False)
        await seal(topic.topic, 1)
        assert (await task).end.n == 2
        assert await topic.acked("a") == 0

    run(scenario())


def test_the_end_of_the_topic_ends_the_wait(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a")
        task = topic.plan("a", 0, wait=WAIT)
        await topic.waiting(1)
        await topic.topic.close(1.0)
        with pytest.raises(TopicNotFound):
            await task
        assert topic.is_at_rest()

    run(scenario())


def test_what_is_cancelled_leaves_nothing(world: World) -> None:
    """The others of its group wait on."""

    async def scenario() -> None:
        topic = await Topic.open(world, "a", "b")
        gone, stays = topic.plan("a", 0, wait=WAIT), topic.plan("b", 0, wait=WAIT)
        await topic.waiting(2)
        gone.cancel()
        await topic.waiting(1)
        await seal(topic.topic, 0)
        assert (await stays).end.n == 1
        again = topic.plan("a", 1, wait=WAIT)
        await topic.waiting(1)
        again.cancel()
        await until(topic.is_at_rest)

    run(scenario())


def test_a_seal_between_the_plan_and_the_wait_is_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a", "b")
        plans = topic.topic.subscribers.plans
        wait, late = plans._wait, []

        async def sealed_before(*args: Any) -> None:
            await seal(topic.topic, 0)
            wait(*args)

        monkeypatch.setattr(plans, "_wait", lambda *args: late.append(asyncio.create_task(sealed_before(*args))))
        assert (await topic.plan("a", 0, wait=WAIT)).end.n == 1
        assert len(late) == 1

    run(scenario())


def test_news_of_other_things_wake_nobody(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a")
        task = topic.plan("a", 0, wait=WAIT)
        await topic.waiting(1)
        group = next(iter(topic.topic.subscribers.plans._groups.values()))
        topic.topic.mark_ack_wait(["b"])
        await until(lambda: group.notifications == topic.topic.news.notifications)
        await topic.waiting(1)
        assert not task.done()
        task.cancel()

    run(scenario())


def test_many_are_woken_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WOKEN", 2)

    async def scenario() -> None:
        names = [f"s{number}" for number in range(7)]
        topic = await Topic.open(world, *names)
        tasks = [topic.plan(name, 0, wait=WAIT) for name in names]
        await topic.waiting(7)
        await seal(topic.topic, 0)
        assert [reply.end.n for reply in await asyncio.gather(*tasks)] == [1] * 7

    run(scenario())


# -- shared turns ------------------------------------------------------------------------------------------------------


def hold_thread(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many were planned in each turn, as they come; no turn ends for its time, however slow the disk."""
    monkeypatch.setattr(module, "RUN_SECONDS", 60.0)
    turns: list[int] = []
    plans = topic.topic.subscribers.plans
    run_group = plans._run_group

    async def noted(group: list[Any]) -> None:
        turns.append(len(group))
        await run_group(group)

    monkeypatch.setattr(plans, "_run_group", noted)
    return turns


async def outcomes(tasks: list[asyncio.Task[PlanReply]]) -> list[Any]:
    """Return the end of each reply, or the type of its error."""
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [type(each) if isinstance(each, BaseException) else each.end.n for each in found]


def test_a_bad_acknowledgement_fails_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a", "b", "c", "d")
        await seal(topic.topic, 0)
        await seal(topic.topic, 1)
        turns = hold_thread(topic, monkeypatch)
        tasks = [topic.plan("a", 1), topic.plan("b", 7), topic.plan("c", 1), topic.plan("d", 0)]
        assert await outcomes(tasks) == [2, DataLoss, 2, 2]
        assert turns == [4]
        assert [await topic.acked(name) for name in "abcd"] == [1, 0, 1, 0]

    run(scenario())


def test_a_subscription_that_was_granted_again_acknowledges_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog's grant counts, not that of the coordinator's memory."""

    async def scenario() -> None:
        topic = await Topic.open(world, "a", "b")
        await seal(topic.topic, 0)
        await topic.topic.run(topic.topic.store.subscriptions.grant, "a", {"instance": "z"})
        assert await outcomes([topic.plan("a", 1), topic.plan("b", 1)]) == [Fenced, 1]
        assert await topic.acked("a") == 0

    run(scenario())


def test_a_disk_that_recovers_fails_nobody_and_one_that_does_not_the_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done before is not done again, what comes after is tried by itself."""
    calls: list[str] = []
    failures = {"b": 1, "d": 9}
    acknowledge = SharedPlans.acknowledge

    def failing(plans: SharedPlans, name: str, grant: int, start: Position, **more: Any) -> bool:
        calls.append(name)
        if failures.get(name, 0):
            failures[name] -= 1
            raise SpoolError("the disk fails", reopen=True)
        return acknowledge(plans, name, grant, start, **more)

    async def scenario() -> None:
        topic = await Topic.open(world, "a", "b", "c", "d", "e")
        await seal(topic.topic, 0)
        monkeypatch.setattr(SharedPlans, "acknowledge", failing)
        turns = hold_thread(topic, monkeypatch)
        assert await outcomes([topic.plan(name, 1) for name in "abcde"]) == [1, 1, 1, SpoolError, 1]
        assert turns == [5]
        assert calls == ["a", "b", "b", "c", "d", "e"]

    run(scenario())


def test_a_turn_that_fails_fails_for_all_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a", "b")

        def look(plans: SharedPlans) -> None:
            raise JobpipeError("the catalog cannot be read")

        monkeypatch.setattr(SharedPlans, "drop_stale", look)
        assert await outcomes([topic.plan("a", 0), topic.plan("b", 0)]) == [JobpipeError, JobpipeError]
        assert topic.is_at_rest()

    run(scenario())


def test_identities_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that asks for much does not keep others waiting, however few fit into a turn."""
    monkeypatch.setattr(module, "GROUP", 3)
    monkeypatch.setattr(module, "RUN_SECONDS", 0.0)  # one a turn: the others come first in the next

    async def scenario() -> None:
        topic = await Topic.open(world, "a", "b", "c")
        for name, whose in (("a", "much"), ("b", "b"), ("c", "c")):
            topic.topic.subscribers._session_owners[name].identity = whose
        done: list[str] = []
        tasks = []
        for number in range(4):
            tasks.append(topic.plan("a", 0, whose="much"))
            tasks[-1].add_done_callback(lambda _, number=number: done.append(f"a{number}"))
        for name in ("b", "c"):
            tasks.append(topic.plan(name, 0, whose=name))
            tasks[-1].add_done_callback(lambda _, name=name: done.append(name))
        assert await outcomes(tasks) == [0] * 6
        assert done == ["a0", "b", "c", "a1", "a2", "a3"]

    run(scenario())


def test_what_was_cancelled_before_its_turn_acknowledges_nothing(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a", "b")
        await seal(topic.topic, 0)
        gone, stays = topic.plan("a", 1), topic.plan("b", 1)
        await asyncio.sleep(0)  # it has asked, and its turn has not come
        gone.cancel()
        assert (await stays).end.n == 1
        assert await topic.acked("a") == 0

    run(scenario())


# -- answers made once -------------------------------------------------------------------------------------------------


def test_those_who_stand_at_one_place_get_one_answer(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a", "b")
        await seal(topic.topic, 0)
        order = PlanQuery(topic.place(0), PlanRequest(1, topic.place(0)).limits, held=True)
        plans = topic.topic.subscribers.plans
        first = await plans.next("a", topic.grants["a"], order)
        assert await plans.next("b", topic.grants["b"], order) is first
        a, b = await asyncio.gather(topic.plan("a", 0, held=True), topic.plan("b", 0, held=True))
        assert a == b
        assert len(first.replies) == 1
        later = await topic.plan("a", 0, held=True, wait=1.0)  # the same with news
        assert later.news is not None
        assert a.news is None

    run(scenario())


def test_a_change_of_what_the_publisher_waits_for_is_told(world: World) -> None:
    async def scenario() -> None:
        topic = await Topic.open(world, "a")
        await seal(topic.topic, 0)
        told = []
        for why in ([], ["b"], ["c"], []):
            topic.topic.mark_ack_wait(why)
            news = (await topic.plan("a", 0, wait=1.0)).news
            assert news is not None
            told.append(news.waiting)
        assert told == [None, "acks=all: b", "acks=all: c", None]

    run(scenario())
