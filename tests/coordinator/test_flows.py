"""Flow jobs at a coordinator: when a waiting task is answered, and what becomes of parts, whatever is cut or closed."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.coordinator import topic_flows as module
from jobpipe.coordinator.answering import Context
from jobpipe.coordinator.coordinator import Coordinator
from jobpipe.coordinator.flow_answers import QUIET_SECONDS, FlowAnswers, _Waiting
from jobpipe.coordinator.flow_reads import GROUP
from jobpipe.coordinator.log_thread import LogThread
from jobpipe.coordinator.reader_answers import ReaderAnswers
from jobpipe.coordinator.topic import ServedTopic
from jobpipe.coordinator.topic_state import Bell, either
from jobpipe.errors import (
    ConfigError,
    DataLoss,
    Fenced,
    FlowFailed,
    FlowNotFound,
    JobpipeError,
    NotAuthorized,
    RemoteProtocolError,
    SegmentCorrupt,
    SpoolError,
    TopicNotFound,
)
from jobpipe.net.budget import asking
from jobpipe.operations import flows
from jobpipe.operations.fields import Fields
from jobpipe.operations.publishing import Schema
from jobpipe.operations.ranges import News
from jobpipe.operations.subscribing import PollRequest
from jobpipe.store.boundary import Boundary
from jobpipe.store.cursors import Cursors, FlowKey
from jobpipe.store.database import Database
from jobpipe.store.follow import PartReader
from jobpipe.store.position import Position
from jobpipe.store.seal import NewBatch
from jobpipe.store.topic_log import TopicLog
from tests.coordinator.kit import Gate, World, run, until
from tests.store.build import SCHEMA, rows, written

LOG = "00112233445566aa"
TOKEN = "ab" * 16
KEY = FlowKey("alerts", "orders", LOG)
LINK = cast("Any", SimpleNamespace(ended=None, silence=0.0))
SOON = 0.3  # seconds in which what comes at once has come
ARROW = SCHEMA.serialize().to_pybytes()


def at(n: int, r: int = 0) -> Position:
    """Return a position in the source."""
    return Position(LOG, 1, n, r)


class Asking:
    """Asks the coordinator of one topic as drivers and tasks do, without a link and rights."""

    def __init__(self, host: Coordinator, topic: ServedTopic) -> None:
        self.host = host
        self.topic = topic
        self._answers = FlowAnswers(host, "secret").answers()

    async def ask(self, request: Fields, role: str, name: str | None = None) -> Any:
        """Return the reply, having travelled."""
        link = cast("Any", SimpleNamespace(hello=SimpleNamespace(role=role, name=name), ended=None, silence=0.0))
        asked = type(request).from_json(request.to_json(), request.blob)
        reply = await self._answers[type(request)](Context(link, self.topic), asked)
        return type(reply).from_json(reply.to_json(), reply.blob)


class Source(Asking):
    """A topic that a flow reads."""

    grant = 0

    @classmethod
    async def open(cls, world: World, **changes: str) -> Source:
        """Serve the topic, with the flow's subscription."""
        host = world.host(**changes)
        source = cls(host, await host.open_topic("orders", world.order(**changes)))
        subscribers = source.topic.subscribers
        source.grant = (await subscribers.grant("alerts", "i", LINK, {"host": "a", "pid": 1})).grant
        await subscribers.first_position("alerts", Boundary("earliest"), None, skip_removed=False)
        return source

    async def put(self, number: int, partition: int, partitions: int = 2, count: int = 1) -> Position:
        """Seal a batch with rows of one partition."""
        topic = self.topic
        parts = [(partition, rows(partition, number * 100, count))]
        write_id, segments = await topic.run(lambda: written(topic.store, parts, partitions=partitions))
        batch = NewBatch("q", number, f"run-{number}", write_id, None, partitions, "as they come")
        return (await topic.seal(batch, segments, (ARROW, None)))[0]

    async def put_all(self, number: int, partitions: int) -> Position:
        """Seal a batch with a row of each partition."""
        topic = self.topic
        parts = [(partition, rows(partition, number * 100, 1)) for partition in range(partitions)]
        write_id, segments = await topic.run(lambda: written(topic.store, parts, partitions=partitions))
        batch = NewBatch("q", number, f"run-{number}", write_id, None, partitions, "as they come")
        return (await topic.seal(batch, segments, (ARROW, None)))[0]

    def follow(
        self, *places: tuple[int, Position], wait: float = 5.0, partitions: int = 2, hurries: bool = False
    ) -> asyncio.Task[flows.FollowReply]:
        """Begin to wait for rows of some partitions."""
        parts = tuple(flows.PartAt(partition, place) for partition, place in places)
        asked = flows.FollowRequest("alerts", self.grant, parts, partitions, wait=wait, hurries=hurries)
        return asyncio.create_task(self.ask(asked, "reader"))

    def place(self, n: int) -> Position:
        """Return the position before batch ``n``, of its only epoch."""
        return Position(self.topic.log_id, 1 if n else 0, n)


class Target(Asking):
    """A topic that a flow publishes."""

    @classmethod
    async def open(cls, world: World, partitions: int = 4, **changes: str) -> Target:
        """Serve the topic, and begin the flow."""
        host = world.host(**changes)
        target = cls(host, await host.open_topic("alerts", world.order(**changes)))
        await target.begin(partitions=partitions)
        return target

    async def begin(self, flow: str = "alerts", *, token: str = TOKEN, partitions: int = 4) -> Any:
        """Begin a flow as its driver does."""
        asked = flows.BeginFlowRequest(flow, "orders", at(0), partitions, token=token, schema=_schema(), parallelism=2)
        return await self.ask(asked, "publisher")

    async def claim(self, *partitions: int, token: str = TOKEN, flow: str = "alerts") -> list[int]:
        """Claim as a task does; return the numbers of the claims."""
        asked = flows.ClaimRequest(flow, "orders", LOG, partitions, token=token)
        return [each.claim for each in (await self.ask(asked, "publisher")).cursors]

    async def admit(self, partition: int, claim: int, *, token: str = TOKEN) -> flows.AdmitPartReply:
        """Ask for a write id."""
        asked = flows.AdmitPartRequest("alerts", token, partition, claim)
        reply: flows.AdmitPartReply = await self.ask(asked, "publisher")
        return reply

    def part(self, partition: int, claim: int, start: int, *, write_id: str | None = None, count: int = 2) -> Any:
        """Write a part of the source's batch ``start``; with a write id into a file."""
        parts = [(0, rows(0, start * 100 + partition * 10, count))] if count else []
        inline = write_id is None
        write_id, segments = written(self.topic.store, parts, inline=inline, write_id=write_id)
        return flows.PartSeal(partition, claim, at(start), at(start + 1), write_id, len(segments)), segments

    def seal(self, *parts: Any, token: str = TOKEN) -> asyncio.Task[flows.SealPartsReply]:
        """Begin to seal parts in one request."""
        segments = tuple(info for _, infos in parts for info in infos)
        asked = flows.SealPartsRequest("alerts", "orders", LOG, tuple(part for part, _ in parts), segments, token=token)
        return asyncio.create_task(self.ask(asked, "publisher"))

    async def places(self) -> list[int]:
        """Return where the cursors are."""
        return [cursor.position.n for cursor in await self.topic.flows.cursors(KEY)]

    async def agree(self) -> list[int]:
        """Return where the cursors are, having seen that as many batches are sealed, and memory knows of it."""
        places, topic = await self.places(), self.topic
        assert sum(places) == await topic.run(topic.store.batches.next_n)
        assert topic.head == await topic.run(topic.store.batches.head)
        return places


def _schema() -> Schema:
    return Schema.from_json({"arrow": base64.b64encode(ARROW).decode(), "spark": None})


def scenario(kind: Any, world: World, work: Callable[[Any], Awaitable[None]], **changes: Any) -> None:
    """Run ``work`` with a topic that is served."""

    async def whole() -> None:
        asking = await kind.open(world, **changes)
        try:
            await work(asking)
        finally:
            await asking.host.close()

    run(whole())


async def answered(task: asyncio.Task[Any], within: float = SOON) -> Any:
    """Return what a task is answered with, in time."""
    return await asyncio.wait_for(task, within)


async def waits(*tasks: asyncio.Task[Any], seconds: float = 0.15) -> None:
    """See that nobody is answered for so long."""
    done, _ = await asyncio.wait(tasks, timeout=seconds)
    assert not done


class Counted:
    """Counts the calls of a method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> None:
        self.calls = 0
        call = getattr(kind, method)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return call(*args, **kwargs)

        monkeypatch.setattr(kind, method, counted)


# -- the driver --------------------------------------------------------------------------------------------------------


def test_a_driver_that_needs_no_head_is_told_of_it_after_a_while_and_of_the_rest_at_once(world: World) -> None:
    """Batches come hundreds of times a second: each would wake the driver."""

    async def work(source: Source) -> None:
        topic = source.topic
        await source.put(0, partition=0)  # the first one of a process takes long
        poll = ReaderAnswers(source.host)._poll
        context = Context(LINK, topic)

        def ask(wait: float = 20.0, head_wait: float = 20.0) -> asyncio.Task[News]:
            known = PollRequest(topic.head, topic.ended, topic.waiting, wait=wait, head_wait=head_wait)
            return asyncio.create_task(poll(context, PollRequest.from_json(known.to_json())))

        asked, soon, over = ask(), ask(head_wait=0.4), ask(wait=0.4)
        await asyncio.sleep(0)
        head = await source.put(1, partition=0)
        assert (await answered(soon, 5.0)).head == head
        assert (await answered(over, 5.0)).head == head
        await waits(asked)
        topic._set_waiting("the spool is full")
        assert (await answered(asked)).waiting == "the spool is full"
        asked = ask()
        await source.put(2, partition=0)
        await waits(asked)
        await topic.seal_end()
        assert (await answered(asked)).ended

    scenario(Source, world, work)


# -- follow ------------------------------------------------------------------------------------------------------------


def test_rows_of_its_partitions_wake_a_task_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Counted(monkeypatch, PartReader, "read")

    async def work(source: Source) -> None:
        task = source.follow((1, source.place(0)))
        await waits(task)
        await source.put(0, partition=1, count=3)
        (part,) = (await answered(task)).parts
        assert (part.partition, part.start.n, part.end.n, part.fetch) == (1, 0, 1, False)
        assert [piece.header.rows for piece in part.held] == [3]
        assert reads.calls == 1  # none before: at the head there is nothing to read

    scenario(Source, world, work)


@pytest.mark.slow
def test_rows_of_others_wake_no_task_and_are_told_soon(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is not read for each batch of others, and the cursor moves on all the same, or nothing would be freed."""
    reads = Counted(monkeypatch, PartReader, "read")

    async def work(source: Source) -> None:
        task = source.follow((1, source.place(0)), wait=20.0)
        await waits(task)
        began = time.monotonic()
        for number in range(5):
            await source.put(number, partition=0)
        await waits(task)
        assert reads.calls == 0
        (part,) = (await answered(task, QUIET_SECONDS + SOON)).parts
        assert time.monotonic() - began > QUIET_SECONDS * 0.9
        assert (part.end.n, part.held, part.fetch) == (5, (), False)
        assert reads.calls == 1

    scenario(Source, world, work)


def test_tasks_that_the_same_batch_wakes_share_a_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the log's thread costs more than what one of them reads."""
    turns = Counted(monkeypatch, LogThread, "run")

    async def work(source: Source) -> None:
        tasks = [source.follow((partition, source.place(0)), partitions=8) for partition in range(8)]
        await waits(*tasks)
        before = turns.calls
        await source.put_all(0, partitions=8)
        for partition, task in enumerate(tasks):
            (part,) = (await answered(task)).parts
            assert (part.partition, [piece.header.partition for piece in part.held]) == (partition, [partition])
        assert turns.calls - before == 3  # it is written and sealed, and then read by all

    scenario(Source, world, work)


def test_of_tasks_that_share_a_turn_each_has_its_own_answer(world: World) -> None:
    async def work(source: Source) -> None:
        await source.put_all(0, partitions=3)
        elsewhere = replace(source.place(1), log="ffffffffffffffff")
        wrong, gone = source.follow((0, elsewhere), partitions=3), source.follow((1, source.place(0)), partitions=3)
        right = source.follow((2, source.place(0)), partitions=3)
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(DataLoss):
            await answered(wrong)
        (part,) = (await answered(right)).parts
        assert (part.partition, part.end.n, len(part.held)) == (2, 1, 1)
        assert await asyncio.wait({gone}, timeout=SOON)
        assert gone.cancelled()

    scenario(Source, world, work)


def test_what_fails_for_all_is_told_to_each(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise SpoolError("the disk does not answer")

    async def work(source: Source) -> None:
        await source.put_all(0, partitions=2)
        with monkeypatch.context() as patched:
            patched.setattr(PartReader, "read", fails)
            for task in [source.follow((partition, source.place(0))) for partition in range(2)]:
                with pytest.raises(SpoolError):
                    await answered(task)
        assert (await answered(source.follow((1, source.place(0))))).parts

    scenario(Source, world, work)


def test_a_task_that_goes_while_it_is_read_for_leaves_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    monkeypatch.setattr(PartReader, "read", gate.wrap(PartReader.read))

    async def work(source: Source) -> None:
        await source.put_all(0, partitions=2)
        gone, right = (source.follow((partition, source.place(0))) for partition in range(2))
        await gate.arrived()
        gone.cancel()
        await asyncio.wait({gone}, timeout=SOON)
        gate.go_on.set()
        assert (await answered(right)).parts[0].held

    scenario(Source, world, work)


def test_what_is_damaged_is_told_to_those_who_read_it(world: World) -> None:
    async def work(source: Source) -> None:
        topic = source.topic
        await source.put_all(0, partitions=2)
        write_id, segments = await topic.run(lambda: written(topic.store, [(0, rows(0, 100, 1))], inline=False))
        topic.writing.add(write_id)
        batch = NewBatch("q", 1, "run-1", write_id, None, 2, "as they come")
        await topic.seal(batch, segments, (ARROW, None))
        (topic.store.segments / str(segments[0].file)).unlink()
        wrong, right = (source.follow((partition, source.place(0))) for partition in range(2))
        with pytest.raises(SegmentCorrupt, match="partition 0"):
            await answered(wrong)
        assert (await answered(right)).parts[0].held

    scenario(Source, world, work)


def test_many_partitions_are_read_in_several_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn takes longer than the one of a task with as many partitions as it may have."""
    turns = Counted(monkeypatch, LogThread, "run")

    async def work(source: Source) -> None:
        await source.put_all(0, partitions=2)
        before, count = turns.calls, flows.MAX_PARTS // 2
        places = [(partition, source.place(0)) for partition in range(count)]
        tasks = [source.follow(*places, partitions=count) for _ in range(5)]
        for task in tasks:
            assert len((await answered(task, 5.0)).parts) == count
        assert turns.calls - before == 3

    scenario(Source, world, work)


def test_a_task_at_the_head_in_one_partition_gets_what_another_has(world: World) -> None:
    async def work(source: Source) -> None:
        await source.put_all(0, partitions=2)
        reply = await answered(source.follow((0, source.topic.head), (1, source.place(0))))
        assert [(part.partition, len(part.held)) for part in reply.parts] == [(1, 1)]

    scenario(Source, world, work)


def test_a_batch_that_is_sealed_again_wakes_a_task(world: World) -> None:
    """The head has the same number then: what the task had of it may not be what it is given now."""

    async def work(source: Source) -> None:
        topic = source.topic
        head = await source.put(0, partition=0)
        holder = topic.subscribers.held("alerts", source.grant)
        waiting = _Waiting(topic, holder, frozenset({1}), 20.0)
        task = asyncio.create_task(waiting.news(moved=False, at_change=False))
        await waits(task)
        topic.head = replace(head, epoch=head.epoch + 1)
        topic.news.ring()
        assert await answered(task)

    scenario(Source, world, work)


def test_a_ring_is_heard_from_the_moment_of_the_call() -> None:
    async def work() -> None:
        first, second = Bell(), Bell()
        asyncio.get_running_loop().call_soon(second.ring)
        async with asyncio.timeout(5.0):
            await either((first, second), 20.0)

    run(work())


def test_one_identity_waits_for_no_reads_of_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that asks for a thousand, as many as share a turn come before it, and no more."""
    order: list[str] = []
    read = PartReader.read

    def noted(self: PartReader, name: str, parts: Any, **how: Any) -> Any:
        order.append("other" if parts[0][0] else "many")
        return read(self, name, parts, **how)

    async def work(source: Source) -> None:
        await source.put_all(0, partitions=2)
        monkeypatch.setattr(PartReader, "read", noted)
        asking.set("many")
        tasks = [source.follow((0, source.place(0))) for _ in range(5 * GROUP)]
        asking.set("other")
        tasks.append(source.follow((1, source.place(0))))
        for task in tasks:
            assert (await answered(task, 5.0)).parts
        assert order.index("other") <= 2 * GROUP  # of one turn that runs, and one that is next
        assert len(order) == 5 * GROUP + 1

    scenario(Source, world, work)


def test_what_others_got_before_the_task_asked_is_told_soon(world: World) -> None:
    async def work(source: Source) -> None:
        await source.put(0, partition=0)
        task = source.follow((1, source.place(0)), wait=20.0)
        await waits(task)
        await source.put(1, partition=1)
        (part,) = (await answered(task)).parts
        assert (part.end.n, len(part.held)) == (2, 1)

    scenario(Source, world, work)


def test_an_end_mark_is_told_at_once(world: World) -> None:
    async def work(source: Source) -> None:
        tasks = [source.follow((number, source.place(0))) for number in range(2)]
        await waits(*tasks)
        await source.topic.seal_end()
        for task in tasks:
            (part,) = (await answered(task)).parts
            assert (part.end, part.held) == (source.topic.head, ())

    scenario(Source, world, work)


def test_a_publisher_that_waits_is_helped_at_once(world: World) -> None:
    async def work(source: Source) -> None:
        there = source.follow((0, source.place(0)), wait=20.0)
        await source.put(0, partition=1)
        await asyncio.sleep(0.05)
        source.topic._set_waiting("the spool is full")
        reply = await answered(there)
        (part,) = reply.parts
        assert (part.end.n, reply.hurry) == (1, True)
        there = source.follow((0, part.end), wait=0.2, hurries=True)  # has all there is, and knows
        await waits(there, seconds=0.1)
        assert (await answered(there)).parts == ()
        reply = await answered(source.follow((0, part.end), wait=20.0))  # does not know
        assert (reply.parts, reply.hurry) == ((), True)
        source.topic._set_waiting(None)
        there = source.follow((0, part.end), wait=0.2, hurries=True)
        assert not (await answered(there)).hurry

    scenario(Source, world, work)


def test_nothing_beyond_a_change_before_all_is_acknowledged(world: World) -> None:
    """Rows of a key may lie in another partition there: they come when those before are done, and then at once."""

    async def work(source: Source) -> None:
        topic = source.topic
        await source.put(0, partition=0)
        change = await source.put(1, partition=2, partitions=3)
        first = await answered(source.follow((0, source.place(0)), partitions=3))
        assert (first.parts[0].end.n, first.partitions) == (1, 2)
        other = await answered(source.follow((2, source.place(0)), partitions=3))
        assert (other.parts[0].end.n, other.parts[0].held) == (1, ())  # at once: its cursor is waited for
        told, beyond = source.follow((0, source.place(1))), source.follow((2, source.place(1)), partitions=3)
        await waits(told, beyond)
        await source.put(2, partition=2, partitions=3)
        await waits(told, beyond)
        await topic.subscribers.acknowledge("alerts", source.grant, source.place(1))
        assert (await answered(told)).partitions == 3
        (part,) = (await answered(beyond)).parts
        assert [piece.header.n for piece in part.held] == [1, 2]
        assert change.n == 2

    scenario(Source, world, work)


def test_halt_ends_waits(world: World) -> None:
    async def work(source: Source) -> None:
        tasks = [source.follow((number, source.place(0)), wait=20.0) for number in range(2)]
        await waits(*tasks)
        with pytest.raises(Fenced):
            await source.ask(flows.HaltRequest(source.grant + 1), "subscriber", "alerts")
        await waits(*tasks)
        await source.ask(flows.HaltRequest(source.grant), "subscriber", "alerts")
        assert [(await answered(task)).over for task in tasks] == [True, True]
        assert (await answered(source.follow((0, source.place(0))))).over

    scenario(Source, world, work)


def test_a_task_of_an_older_grant_is_refused(world: World) -> None:
    async def work(source: Source) -> None:
        source.topic.subscribers._holders["alerts"].link = None
        before = source.grant
        task = source.follow((0, source.place(0)))
        await waits(task)
        source.grant = (await source.topic.subscribers.grant("alerts", "j", LINK, {"host": "b", "pid": 2})).grant
        assert source.grant > before
        await source.put(0, partition=0)
        with pytest.raises(Fenced):
            await answered(task)

    scenario(Source, world, work)


def test_a_topic_that_is_closed_answers_those_who_follow(world: World) -> None:
    async def work(source: Source) -> None:
        task = source.follow((0, source.place(0)), wait=20.0)
        await waits(task)
        await source.host.close()
        with pytest.raises(TopicNotFound):
            await answered(task)

    scenario(Source, world, work)


def test_an_answer_has_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one task asks for at once is memory, and a turn of the log's thread; the rest it fetches."""
    monkeypatch.setattr("jobpipe.store.follow.ANSWER_BYTES", 10_000)

    async def work(source: Source) -> None:
        for number in range(4):
            await source.put(number, partition=number % 2, count=100)
        reply = await answered(source.follow(*((number % 2, source.place(0)) for number in range(10))))
        assert len(reply.parts) == 10
        assert len(reply.blob) < 20_000
        assert [part.fetch for part in reply.parts][-5:] == [True] * 5
        assert not reply.parts[0].fetch

    scenario(Source, world, work)


def test_cursors_with_a_source_are_of_its_own_log(world: World) -> None:
    """Else one subscriber fills the catalog with the cursors of topics that it invents."""

    async def work(source: Source) -> None:
        def begin(topic: str, start: Position) -> Awaitable[Any]:
            return source.ask(flows.BeginFlowRequest("alerts", topic, start, 2, grant=source.grant), "subscriber")

        for topic, start in (("invented", source.place(0)), ("orders", at(0))):
            with pytest.raises(RemoteProtocolError, match="with its source"):
                await begin(topic, start)
        assert len((await begin("orders", source.place(0))).cursors) == 2
        assert len((await source.topic.status())["flows"]) == 1

    scenario(Source, world, work)


def test_what_a_reader_may_make_in_its_source_is_bounded(world: World) -> None:
    """It holds the right to read, perhaps under many names, and no other."""

    async def work(source: Source) -> None:
        topic, place = source.topic, source.place(0)

        async def begin(flow: str, partitions: int = 2, *, stands: bool = True) -> int:
            grant = (await topic.subscribers.grant(flow, "i", LINK, {"host": "a", "pid": 1})).grant
            if stands:
                await topic.subscribers.first_position(flow, Boundary("earliest"), None, skip_removed=False)
            asked = flows.BeginFlowRequest(flow, "orders", place, partitions, grant=grant)
            return len((await source.ask(asked, "subscriber")).cursors)

        async def drop(flow: str) -> None:
            topic.subscribers._holders[flow].link = None
            await topic.subscribers.drop(flow, dry_run=False)

        with pytest.raises(RemoteProtocolError, match="which is nowhere"):
            await begin("one", stands=False)
        with pytest.raises(RemoteProtocolError, match="has 2 partitions at most"):
            await begin("one", 3)
        assert await begin("one") == 2
        await source.put(0, partition=3, partitions=4)
        assert await begin("one", 4) == 4
        claim = flows.ClaimRequest("one", "orders", topic.log_id, (0,), grant=1)
        await source.ask(claim, "reader")
        await drop("one")
        assert await begin("two") == 2
        await drop("two")
        assert await begin("three") == 2  # the second never had a task
        await drop("alerts")
        with pytest.raises(ConfigError, match="cursors of 2 flows"):
            await begin("four")
        await drop("four")
        assert await begin("one", 4) == 4
        assert len((await topic.status())["flows"]) == 2

    scenario(Source, world, work, subscription__max="2")


def test_a_flow_that_publishes_nothing_moves_its_cursors_by_its_grant(world: World) -> None:
    async def work(source: Source) -> None:
        log = source.topic.log_id
        begin = flows.BeginFlowRequest("alerts", "orders", source.place(0), 2, grant=source.grant)
        await source.ask(begin, "subscriber", "alerts")
        with pytest.raises(Fenced):
            await source.ask(flows.ClaimRequest("alerts", "orders", log, (0,), grant=source.grant + 1), "reader")
        claim = flows.ClaimRequest("alerts", "orders", log, (0,), grant=source.grant)
        (cursor,) = (await source.ask(claim, "reader")).cursors
        head = await source.put(0, partition=0)
        part = flows.PartSeal(0, cursor.claim, source.place(0), head, "00" * 8)
        seal = flows.SealPartsRequest("alerts", "orders", log, (part,), grant=source.grant)
        with pytest.raises(Fenced):
            await source.ask(flows.SealPartsRequest("alerts", "orders", log, (part,), grant=99), "reader")
        (sealed,) = (await source.ask(seal, "reader")).parts
        assert (sealed.position, sealed.code, source.topic.head) == (head, "", head)
        write_id, segments = written(source.topic.store, [(0, rows(0, 1, 1))])
        more = flows.PartSeal(0, cursor.claim, head, Position(log, 1, 2), write_id, len(segments))
        with pytest.raises(RemoteProtocolError, match="publishes nothing"):
            await source.ask(
                flows.SealPartsRequest("alerts", "orders", log, (more,), tuple(segments), grant=source.grant), "reader"
            )

    scenario(Source, world, work)


def test_a_recovery_point_says_how_its_batch_is_divided(world: World) -> None:
    """So that a flow whose source loses its spool is not given rows twice; what was stored before the seal counts."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order(required=("alerts",), acks="all"))
        source = Source(host, topic)
        for number in range(2):
            await source.put(number, partition=number, count=3)
            point = json.loads(world.handlers[0].recovery_point("orders") or "")
            assert (point["batch_id"], point["division"]) == (number, topic.store.batches.division(number))
        await host.close()

    run(work())


# -- sealing -----------------------------------------------------------------------------------------------------------


def test_requests_that_wait_share_a_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(target: Target) -> None:
        claims = await target.claim(*range(4))
        gate, topic = Gate(), target.topic
        monkeypatch.setattr(TopicLog, "seal_parts", gate.wrap(TopicLog.seal_parts))
        first = target.seal(target.part(0, claims[0], 0))
        await gate.arrived()
        rest = [target.seal(target.part(number, claims[number], 0)) for number in range(1, 4)]
        rest += [target.seal(target.part(0, claims[0], 1), target.part(0, claims[0], 2))]
        await waits(first, *rest, seconds=0.05)
        writes = Counted(monkeypatch, Database, "write")
        gate.go_on.set()
        replies = await asyncio.gather(first, *rest)
        assert [part.position.n for reply in replies for part in reply.parts] == [1, 1, 1, 1, 2, 3]
        assert (gate.calls, writes.calls) == (2, 2)
        assert await target.agree() == [3, 1, 1, 1]
        assert topic.flows._waiting == []

    scenario(Target, world, work)


def test_what_is_wrong_with_a_part_is_its_own_outcome(world: World) -> None:
    async def work(target: Target) -> None:
        old, *_ = await target.claim(*range(3))
        (new,) = await target.claim(0)
        reply = await answered(
            target.seal(
                target.part(0, old, 0),
                target.part(0, new, 0),
                target.part(1, 1, 5),
                target.part(2, 1, 0, write_id="ab" * 8),
                (flows.PartSeal(3, 0, at(3), at(2), "00"), []),
            )
        )
        assert [part.code for part in reply.parts] == ["Fenced", "", "", "SpoolError", "RemoteProtocolError"]
        assert [part.again for part in reply.parts] == [False, False, False, True, False]
        assert [part.position and part.position.n for part in reply.parts] == [None, 1, 0, None, None]
        assert await target.agree() == [1, 0, 0, 0]

    scenario(Target, world, work)


def test_what_is_wrong_with_the_whole_is_no_outcome_of_a_part(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that reads Fenced as its part's outcome believes that another task has its partition, and waits."""

    async def work(target: Target) -> None:
        (claim,) = await target.claim(0)
        for error in (Fenced("another publisher"), SpoolError("disk"), ValueError("ours")):

            def fail(*_: Any, error: Exception = error, **__: Any) -> None:
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(TopicLog, "seal_parts", fail)
                with pytest.raises(type(error)):
                    await answered(target.seal(target.part(0, claim, 0)))
        assert await target.agree() == [0, 0, 0, 0]
        assert (await answered(target.seal(target.part(0, claim, 0)))).parts[0].position == at(1)

    scenario(Target, world, work)


def test_a_commit_that_seemed_to_fail_is_heard_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call finds the cursors moved: what it published itself says nothing of the head."""
    seal, calls = TopicLog.seal_parts, []

    def unknown(*args: Any, **kwargs: Any) -> Any:
        calls.append(seal(*args, **kwargs))
        if len(calls) == 1:
            raise SpoolError("outcome unknown", reopen=True)
        return calls[-1]

    async def work(target: Target) -> None:
        (claim,) = await target.claim(0)
        monkeypatch.setattr(TopicLog, "seal_parts", unknown)
        news = asyncio.create_task(target.topic.news.wait(10))
        await asyncio.sleep(0)
        (part,) = (await answered(target.seal(target.part(0, claim, 0)))).parts
        assert (part.position, len(calls)) == (at(1), 2)
        assert await target.agree() == [1, 0, 0, 0]
        assert await news

    scenario(Target, world, work)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_cancelled_request(world: World, monkeypatch: pytest.MonkeyPatch, after: bool, first: bool) -> None:
    """While its transaction runs, or waits for another's: sealed or not, others are answered, and it may ask again."""

    async def work(target: Target) -> None:
        claims = await target.claim(0, 1)
        gate = Gate()
        monkeypatch.setattr(TopicLog, "seal_parts", gate.wrap(TopicLog.seal_parts, after=after))
        tasks = [target.seal(target.part(0, claims[0], 0))]
        await gate.arrived()
        tasks.append(target.seal(target.part(1, claims[1], 0), target.part(1, claims[1], 1)))
        await asyncio.sleep(0.02)
        cancelled = tasks.pop(0 if first else 1)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        assert cancelled.cancelled()
        gate.go_on.set()
        await answered(tasks[0], 5.0)
        await until(lambda: target.topic.flows._sealing is None)
        await target.agree()
        again = [target.seal(target.part(0, claims[0], 0)), target.seal(target.part(1, claims[1], 1))]
        await asyncio.gather(*again)
        assert await target.agree() == [1, 2, 0, 0]

    scenario(Target, world, work)


@pytest.mark.parametrize(("kind", "method"), [(Cursors, "claim"), (Cursors, "held"), (Cursors, "begin")])
def test_other_requests_that_are_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: type, method: str
) -> None:
    async def work(target: Target) -> None:
        await target.claim(0)
        gate = Gate()
        asked = {"claim": target.claim(0, 1), "held": target.admit(0, 1), "begin": target.begin(token="cd")}
        work = asked.pop(method)
        for other in asked.values():
            other.close()  # type: ignore[attr-defined]
        with monkeypatch.context() as patch:
            patch.setattr(kind, method, gate.wrap(getattr(kind, method), after=True))
            task = asyncio.create_task(cast("Any", work))
            await gate.arrived()
            task.cancel()
            await asyncio.wait({task})
            gate.go_on.set()
        await target.topic.run(lambda: None)
        await target.begin()
        (claim,) = await target.claim(0)
        assert target.topic.flows.writing == set()
        assert (await answered(target.seal(target.part(0, claim, 0)))).parts[0].position == at(1)

    scenario(Target, world, work)


@pytest.mark.parametrize("after", [False, True])
def test_a_coordinator_that_closes_answers_all(world: World, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    async def work(target: Target) -> None:
        claims = await target.claim(*range(4))
        gate = Gate()
        monkeypatch.setattr(TopicLog, "seal_parts", gate.wrap(TopicLog.seal_parts, after=after))
        first = target.seal(target.part(0, claims[0], 0))
        await gate.arrived()
        rest = [target.seal(target.part(number, claims[number], 0)) for number in range(1, 4)]
        await asyncio.sleep(0.02)
        closing = asyncio.create_task(target.host.close())
        await until(lambda: target.topic.closed)
        gate.go_on.set()
        found = await asyncio.wait_for(asyncio.gather(first, *rest, return_exceptions=True), 5.0)
        await closing
        for each in found[1:]:  # which may go on at the next coordinator
            assert isinstance(each, (TopicNotFound, Fenced)), each
            assert not each.fields.keys() & {"claim", "partition", "grant"}
        again = await world.host("two").open_topic("alerts", world.order())
        places = [cursor.position.n for cursor in await again.flows.cursors(KEY)]
        assert places == [1, 0, 0, 0]
        assert again.head.n == 1
        await again.close(1.0)

    scenario(Target, world, work)


def test_a_large_group_is_more_than_one_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of one request keep their order over two transactions."""
    monkeypatch.setattr(module, "GROUP", 3)
    seals = Counted(monkeypatch, TopicLog, "seal_parts")

    async def work(target: Target) -> None:
        (claim,) = await target.claim(0)
        reply = await answered(target.seal(*(target.part(0, claim, number, count=0) for number in range(7))), 5.0)
        assert [part.position.n for part in reply.parts] == list(range(1, 8))
        assert seals.calls == 3
        assert target.topic.head.n == 0

    scenario(Target, world, work)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_sweep_keeps_what_a_live_claim_writes(world: World) -> None:
    async def work(target: Target) -> None:
        topic = target.topic
        old, other = await target.claim(0, 1)
        ids = [(await target.admit(*place)).admitted.write_id for place in ((0, old), (1, other))]  # type: ignore[union-attr]
        parts = [target.part(number, 1, 0, write_id=write_id) for number, write_id in enumerate(ids)]

        async def sweep() -> int:
            return await topic.run(topic.store.retirer.sweep, topic.being_written)

        assert await sweep() == 0
        (new,) = await target.claim(0)
        assert await sweep() == 1
        fenced, sealed = (await answered(target.seal(*parts))).parts
        assert (fenced.code, fenced.again, sealed.position) == ("Fenced", False, at(1))
        assert await sweep() == 0
        assert topic.flows.writing == set()
        with pytest.raises(Fenced):
            await target.admit(0, old)
        write_id = (await target.admit(0, new)).admitted.write_id  # type: ignore[union-attr]
        assert (await answered(target.seal(target.part(0, new, 0, write_id=write_id)))).parts[0].position == at(1)
        await target.agree()

    scenario(Target, world, work)


def test_a_claim_during_an_admission_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older task's write id must not be kept once the claim is over: nobody would take it back."""

    async def work(target: Target) -> None:
        (old,) = await target.claim(0)
        gate = Gate()
        with monkeypatch.context() as patch:
            patch.setattr(Cursors, "held", gate.wrap(Cursors.held, after=True))
            admitting = asyncio.create_task(target.admit(0, old))
            await gate.arrived()
            claiming = asyncio.create_task(target.claim(0))
            await asyncio.sleep(0.02)
            gate.go_on.set()
            await asyncio.gather(admitting, claiming)
        assert target.topic.flows.writing == set()

    scenario(Target, world, work)


def test_a_reset_ends_what_is_written(world: World) -> None:
    async def work(target: Target) -> None:
        (claim,) = await target.claim(0)
        await target.admit(0, claim)
        reply = await target.ask(flows.ResetFlowRequest("alerts", dry_run=True), "admin")
        assert reply.topics == ("orders",)
        assert await target.places() == [0, 0, 0, 0]
        await target.ask(flows.ResetFlowRequest("alerts"), "admin")
        assert target.topic.flows.writing == set()
        for refused in (target.claim(0), target.admit(0, claim), target.seal(target.part(0, claim, 0))):
            with pytest.raises(FlowNotFound):
                await refused
        with pytest.raises(FlowNotFound):
            await target.ask(flows.ResetFlowRequest("alerts"), "admin")
        await target.begin()
        assert await target.claim(0) == [1]

    scenario(Target, world, work)


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_task_shows_its_flows_token(world: World) -> None:
    async def work(target: Target) -> None:
        (claim,) = await target.claim(0)
        await target.begin("others", token="cd" * 16)
        for token in ("", "cd" * 16, TOKEN[:-1]):
            for refused in (
                target.claim(0, token=token),
                target.admit(0, claim, token=token),
                target.seal(target.part(0, claim, 0), token=token),
            ):
                with pytest.raises(NotAuthorized):
                    await refused
        with pytest.raises(FlowNotFound):
            await target.claim(0, flow="nobody")
        assert await target.claim(0) == [claim + 1]  # nothing has claimed in between
        assert await target.agree() == [0, 0, 0, 0]

    scenario(Target, world, work)


def test_how_many_flows_there_may_be(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FLOWS", 2)

    async def work(target: Target) -> None:
        await target.begin("second")
        with pytest.raises(ConfigError, match="which is the limit"):
            await target.begin("third")
        await target.begin("second")  # it may be begun again
        with pytest.raises(RemoteProtocolError):
            await target.begin("second", token="")

    scenario(Target, world, work)


def test_how_many_files_a_task_may_write(world: World) -> None:
    async def work(target: Target) -> None:
        (claim,) = await target.claim(0)
        for _ in range(3 * module.MAX_WRITING):
            await target.admit(0, claim)
        assert len(target.topic.flows.writing) == module.MAX_WRITING

    scenario(Target, world, work)


def test_a_part_larger_than_the_spool(world: World) -> None:
    async def work(target: Target) -> None:
        claims = await target.claim(0, 1)
        target.topic.asked.config.__dict__["spool_max_bytes"] = 1000
        with pytest.raises(FlowFailed, match="return less at once"):
            await answered(target.seal(target.part(1, claims[1], 0), target.part(0, claims[0], 0, count=100)))
        assert await target.agree() == [0, 0, 0, 0]

    scenario(Target, world, work)


@pytest.mark.parametrize("seals", [True, False])
def test_a_task_that_waited_for_room_and_died(world: World, seals: bool) -> None:
    """The topic says that it is full until another task, or the driver, finds room; else readers are hurried on."""

    async def work(target: Target) -> None:
        topic = target.topic
        grant = (await topic.subscribers.grant("reader", "i", LINK, {"host": "a", "pid": 1})).grant
        await topic.subscribers.first_position("reader", Boundary("earliest"), None, skip_removed=False)
        (claim,) = await target.claim(0)
        done = 0
        while (await answered(target.seal(target.part(0, claim, done, count=60)))).room:
            done += 1
        assert (await target.admit(0, claim)).full
        cursors = flows.CursorsRequest("alerts", "orders", LOG)
        assert (await target.ask(cursors, "publisher")).full
        assert topic.waiting is not None
        await topic.subscribers.acknowledge("reader", grant, topic.head)
        await topic.run(topic.store.retirer.retain, topic.retention, need=10**9)
        assert topic.waiting is not None
        if seals:
            assert (await answered(target.seal(target.part(0, claim, done + 1, count=1)))).room
        else:
            assert not (await target.ask(cursors, "publisher")).full
        assert topic.waiting is None

    scenario(Target, world, work, spool__max_bytes="4096", segment__max_bytes="4096", retention__ack_grace="0s")


def test_what_a_flow_does_in_its_source_is_no_room_there(world: World) -> None:
    async def work(source: Source) -> None:
        log = source.topic.log_id
        await source.ask(
            flows.BeginFlowRequest("alerts", "orders", source.place(0), 2, grant=source.grant), "subscriber"
        )
        claim = flows.ClaimRequest("alerts", "orders", log, (0,), grant=source.grant)
        (cursor,) = (await source.ask(claim, "reader")).cursors
        head = await source.put(0, partition=0)
        source.topic._set_waiting("the spool is full")
        part = flows.PartSeal(0, cursor.claim, source.place(0), head, "00" * 8)
        seal = flows.SealPartsRequest("alerts", "orders", log, (part,), grant=source.grant)
        assert (await source.ask(seal, "reader")).room
        await source.ask(flows.CursorsRequest("alerts", "orders", log), "subscriber")
        assert source.topic.waiting is not None

    scenario(Source, world, work)


def test_acks_all_is_refused(world: World) -> None:
    async def work() -> None:
        host = world.host()
        target = Target(host, await host.open_topic("alerts", world.order(required=("billing",), acks="all")))
        with pytest.raises(ConfigError, match="acks=all"):
            await target.begin()
        await host.close()

    run(work())


def test_a_publisher_that_was_closed_seals_nothing_more(world: World) -> None:
    async def work(target: Target) -> None:
        (claim,) = await target.claim(0)
        await target.host.close_publisher(target.topic, final=True)
        for refused in (target.admit(0, claim), target.seal(target.part(0, claim, 0))):
            with pytest.raises(JobpipeError) as caught:
                await refused
            assert isinstance(caught.value, Fenced)
        assert (target.topic.ended, target.topic.head.n) == (True, 1)

    scenario(Target, world, work)
