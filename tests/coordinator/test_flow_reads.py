"""Flow jobs at the coordinator of their source: when a task that waits is answered, and with what."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from jobpipe.coordinator.handlers.dispatch import Context
from jobpipe.coordinator.handlers.flow_handlers import QUIET_SECONDS, _Waiting
from jobpipe.coordinator.handlers.reader_handlers import ReaderHandlers
from jobpipe.coordinator.topic.flow_reads import GROUP
from jobpipe.coordinator.topic.log_thread import LogThread
from jobpipe.coordinator.topic.topic_state import WakeUp, wait_for_any
from jobpipe.errors import (
    ConfigError,
    DataLoss,
    Fenced,
    NotAuthorized,
    RemoteProtocolError,
    SegmentCorrupt,
    SpoolError,
    TopicNotFound,
)
from jobpipe.net.servers.identity_quota import asking
from jobpipe.operations import flow_operations
from jobpipe.operations.range_messages import News
from jobpipe.operations.subscriber_operations import PollRequest
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.reading.boundary import Boundary
from jobpipe.store.reading.change_feed import ChangeFeed
from tests.coordinator.flow_kit import ARROW, LINK, SOON, Counted, Source, answered, at, scenario, waits
from tests.coordinator.kit import Gate, World, run
from tests.store.build import rows, written

# -- the driver --------------------------------------------------------------------------------------------------------


def test_a_driver_that_needs_no_head_is_told_of_it_after_a_while_and_of_the_rest_at_once(world: World) -> None:
    """Batches come hundreds of times a second: each would wake the driver."""

    async def work(source: Source) -> None:
        topic = source.topic
        await source.put(0, partition=0)  # the first one of a process takes long
        poll = ReaderHandlers(source.host)._poll
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
    reads = Counted(monkeypatch, ChangeFeed, "read")

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
    reads = Counted(monkeypatch, ChangeFeed, "read")

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
            patched.setattr(ChangeFeed, "read", fails)
            for task in [source.follow((partition, source.place(0))) for partition in range(2)]:
                with pytest.raises(SpoolError):
                    await answered(task)
        assert (await answered(source.follow((1, source.place(0))))).parts

    scenario(Source, world, work)


def test_a_task_that_goes_while_it_is_read_for_leaves_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    monkeypatch.setattr(ChangeFeed, "read", gate.wrap(ChangeFeed.read))

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
        before, count = turns.calls, flow_operations.MAX_PARTS // 2
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
        topic.news.notify_all()
        assert await answered(task)

    scenario(Source, world, work)


def test_a_ring_is_heard_from_the_moment_of_the_call() -> None:
    async def work() -> None:
        first, second = WakeUp(), WakeUp()
        asyncio.get_running_loop().call_soon(second.notify_all)
        async with asyncio.timeout(5.0):
            await wait_for_any((first, second), 20.0)

    run(work())


def test_one_identity_waits_for_no_reads_of_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that asks for a thousand, as many as share a turn come before it, and no more."""
    order: list[str] = []
    read = ChangeFeed.read

    def noted(self: ChangeFeed, name: str, parts: Any, **how: Any) -> Any:
        order.append("other" if parts[0][0] else "many")
        return read(self, name, parts, **how)

    async def work(source: Source) -> None:
        await source.put_all(0, partitions=2)
        monkeypatch.setattr(ChangeFeed, "read", noted)
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
            await source.ask(flow_operations.HaltRequest(source.grant + 1), "subscriber", "alerts")
        await waits(*tasks)
        await source.ask(flow_operations.HaltRequest(source.grant), "subscriber", "alerts")
        assert [(await answered(task)).over for task in tasks] == [True, True]
        assert (await answered(source.follow((0, source.place(0))))).over

    scenario(Source, world, work)


def test_a_task_of_an_older_grant_is_refused(world: World) -> None:
    async def work(source: Source) -> None:
        source.topic.subscribers._session_owners["alerts"].link = None
        before = source.grant
        task = source.follow((0, source.place(0)))
        await waits(task)
        source.grant = (await source.topic.subscribers.grant("alerts", "j", LINK, {"host": "b", "pid": 2})).grant
        assert source.grant > before
        await source.put(0, partition=0)
        with pytest.raises(Fenced):
            await answered(task)
        assert (await answered(source.follow((0, source.place(0))))).parts, "the same under the new grant"

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
    monkeypatch.setattr("jobpipe.store.reading.change_feed.ANSWER_BYTES", 10_000)

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
            return source.ask(
                flow_operations.BeginFlowRequest("alerts", topic, start, 2, grant=source.grant), "subscriber"
            )

        with pytest.raises(NotAuthorized, match="reads topic 'invented'"):
            await begin("invented", source.place(0))
        with pytest.raises(RemoteProtocolError, match="with its source"):
            await begin("orders", at(0))
        assert len((await begin("orders", source.place(0))).cursors) == 2
        assert len((await source.topic.status()).flows) == 1

    scenario(Source, world, work)


def test_what_a_reader_may_make_in_its_source_is_bounded(world: World) -> None:
    """It holds the right to read, perhaps under many names, and no other."""

    async def work(source: Source) -> None:
        topic, place = source.topic, source.place(0)

        async def begin(flow: str, partitions: int = 2, *, stands: bool = True) -> int:
            grant = (await topic.subscribers.grant(flow, "i", LINK, {"host": "a", "pid": 1})).grant
            if stands:
                await topic.subscribers.first_position(flow, Boundary("earliest"), None, skip_removed=False)
            asked = flow_operations.BeginFlowRequest(flow, "orders", place, partitions, grant=grant)
            return len((await source.ask(asked, "subscriber")).cursors)

        async def drop(flow: str) -> None:
            topic.subscribers._session_owners[flow].link = None
            await topic.subscribers.drop(flow, dry_run=False)

        with pytest.raises(RemoteProtocolError, match="which is nowhere"):
            await begin("one", stands=False)
        with pytest.raises(RemoteProtocolError, match="has 2 partitions at most"):
            await begin("one", 3)
        assert await begin("one") == 2
        await source.put(0, partition=3, partitions=4)
        assert await begin("one", 4) == 4
        claim = flow_operations.ClaimRequest("one", "orders", topic.log_id, (0,), grant=1)
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
        assert len((await topic.status()).flows) == 2

    scenario(Source, world, work, subscription__max="2")


def test_a_flow_that_publishes_nothing_moves_its_cursors_by_its_grant(world: World) -> None:
    async def work(source: Source) -> None:
        log = source.topic.log_id
        begin = flow_operations.BeginFlowRequest("alerts", "orders", source.place(0), 2, grant=source.grant)
        await source.ask(begin, "subscriber", "alerts")
        with pytest.raises(Fenced):
            await source.ask(
                flow_operations.ClaimRequest("alerts", "orders", log, (0,), grant=source.grant + 1), "reader"
            )
        claim = flow_operations.ClaimRequest("alerts", "orders", log, (0,), grant=source.grant)
        (cursor,) = (await source.ask(claim, "reader")).cursors
        head = await source.put(0, partition=0)
        part = flow_operations.PartSeal(0, cursor.claim, source.place(0), head, "00" * 8)
        seal = flow_operations.SealPartsRequest("alerts", "orders", log, (part,), grant=source.grant)
        with pytest.raises(Fenced):
            await source.ask(flow_operations.SealPartsRequest("alerts", "orders", log, (part,), grant=99), "reader")
        (sealed,) = (await source.ask(seal, "reader")).parts
        assert (sealed.position, sealed.code, source.topic.head) == (head, "", head)
        write_id, segments = written(source.topic.store, [(0, rows(0, 1, 1))])
        more = flow_operations.PartSeal(0, cursor.claim, head, Position(log, 1, 2), write_id, len(segments))
        with pytest.raises(RemoteProtocolError, match="publishes nothing"):
            await source.ask(
                flow_operations.SealPartsRequest("alerts", "orders", log, (more,), tuple(segments), grant=source.grant),
                "reader",
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
