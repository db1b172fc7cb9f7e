"""Flow jobs at the coordinator of what they publish: what becomes of parts, whatever is cut or closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, cast

import pytest

from jobpipe.coordinator.topic import topic_flows as module
from jobpipe.errors import (
    ConfigError,
    Fenced,
    FlowFailed,
    FlowNotFound,
    JobpipeError,
    NotAuthorized,
    RemoteProtocolError,
    SpoolError,
    TopicNotFound,
)
from jobpipe.net.servers.identity_quota import asking
from jobpipe.operations import flow_operations
from jobpipe.operations.messages.message_fields import Fields
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.flow_cursors import FlowCursors
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.boundary import Boundary
from tests.coordinator.flow_kit import (
    KEY,
    LINK,
    LOG,
    TOKEN,
    Counted,
    Source,
    Target,
    answered,
    at,
    scenario,
    schema,
    waits,
)
from tests.coordinator.kit import Gate, World, run, until

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
        assert not topic.flows._waiting

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
                (flow_operations.PartSeal(3, 0, at(3), at(2), "00"), []),
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


@pytest.mark.parametrize(("kind", "method"), [(FlowCursors, "claim"), (FlowCursors, "held"), (FlowCursors, "begin")])
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
        places = [cursor.position.n for cursor in await again.run(again.store.cursors.all, KEY)]
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


def test_identities_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that seals much for its own flow does not keep the tasks of another one waiting."""
    monkeypatch.setattr(module, "GROUP", 2)

    async def work(target: Target) -> None:
        claims = await target.claim(*range(4))
        gate, done = Gate(), []

        def seal(whose: str, number: int, start: int) -> asyncio.Task[flow_operations.SealPartsReply]:
            asking.set(whose)
            task = target.seal(target.part(number, claims[number], start))
            task.add_done_callback(lambda _: done.append(f"{whose}{start}"))
            return task

        monkeypatch.setattr(TopicLog, "seal_parts", gate.wrap(TopicLog.seal_parts))
        tasks = [seal("first", 3, 0)]
        await gate.arrived()
        tasks += [seal("much", 0, start) for start in range(4)] + [seal("little", 1, 0)]
        await waits(*tasks, seconds=0.05)
        gate.go_on.set()
        await asyncio.gather(*tasks)
        assert done == ["first0", "much0", "little0", "much1", "much2", "much3"]
        assert await target.agree() == [4, 1, 0, 1]
        assert not target.topic.flows._waiting

    scenario(Target, world, work)


def test_a_sweep_keeps_what_a_live_claim_writes(world: World) -> None:
    async def work(target: Target) -> None:
        topic = target.topic
        old, other = await target.claim(0, 1)
        ids = [(await target.admit(*place)).admitted.write_id for place in ((0, old), (1, other))]  # type: ignore[union-attr]
        parts = [target.part(number, 1, 0, write_id=write_id) for number, write_id in enumerate(ids)]

        async def sweep() -> int:
            return await topic.run(topic.store.cleaner.sweep, topic.being_written)

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
            patch.setattr(FlowCursors, "held", gate.wrap(FlowCursors.held, after=True))
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
        reply = await target.ask(flow_operations.ResetFlowRequest("alerts", dry_run=True), "admin")
        assert reply.topics == ("orders",)
        assert await target.places() == [0, 0, 0, 0]
        await target.ask(flow_operations.ResetFlowRequest("alerts"), "admin")
        assert target.topic.flows.writing == set()
        for refused in (target.claim(0), target.admit(0, claim), target.seal(target.part(0, claim, 0))):
            with pytest.raises(FlowNotFound):
                await refused
        with pytest.raises(FlowNotFound):
            await target.ask(flow_operations.ResetFlowRequest("alerts"), "admin")
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


def test_a_grant_gives_no_cursors_of_a_flow_that_publishes(world: World) -> None:
    """V1: that flow holds its subscription at its source; here, its name is free for who may read under it."""

    async def work(target: Target) -> None:
        topic = target.topic
        (claim,) = await target.claim(0)
        write_id = (await target.admit(0, claim)).admitted.write_id  # type: ignore[union-attr]
        part, segments = target.part(0, claim, 0, write_id=write_id)
        grant = (await topic.subscribers.grant("alerts", "i", LINK, {"host": "a", "pid": 1})).grant
        await topic.subscribers.first_position("alerts", Boundary("earliest"), None, skip_removed=False)

        async def ask(name: str, log: str, start: Position, to: Position) -> list[Any]:
            asked: tuple[tuple[str, Fields], ...] = (
                ("subscriber", flow_operations.BeginFlowRequest("alerts", name, start, 1, grant=grant)),
                ("subscriber", flow_operations.CursorsRequest("alerts", name, log)),
                ("reader", flow_operations.ClaimRequest("alerts", name, log, (0,), grant=grant)),
                (
                    "reader",
                    flow_operations.SealPartsRequest(
                        "alerts", name, log, (replace(moved, start=start, to=to),), grant=grant
                    ),
                ),
            )
            return [await _outcome(target.ask(request, role, "alerts")) for role, request in asked]

        moved = flow_operations.PartSeal(0, 1, at(0), at(1), "00" * 8)
        own = Position(topic.log_id, 0, 0)
        begun, cursors, claimed, sealed = await ask("alerts", topic.log_id, own, Position(topic.log_id, 1, 7))
        assert [len(each.cursors) for each in (begun, cursors, claimed)] == [1, 1, 1]
        assert sealed.parts[0].position.n == 7, "its own cursor is its own"
        assert await topic.run(topic.store.cleaner.sweep, topic.being_written) == 0, "nor does it give up their files"
        for refused in await ask("orders", LOG, at(0), at(1)):
            assert isinstance(refused, NotAuthorized), refused
        assert (await answered(target.seal((part, segments)))).parts[0].position == at(1)
        assert await target.agree() == [1, 0, 0, 0]
        assert await target.claim(0) == [claim + 1], "nobody has claimed it in between"

    scenario(Target, world, work)


async def _outcome(asking: Awaitable[Any]) -> Any:
    try:
        return await asking
    except JobpipeError as error:
        return error


def test_a_flow_does_not_publish_what_it_reads(world: World) -> None:
    """Its cursors would be those of a flow that reads here."""

    async def work(target: Target) -> None:
        for name, refused in (("orders", False), ("alerts", True)):
            asked = flow_operations.BeginFlowRequest("own", name, at(0), 1, token=TOKEN, schema=schema(), parallelism=2)
            outcome = await _outcome(target.ask(asked, "publisher"))
            assert isinstance(outcome, ConfigError) is refused, outcome

    scenario(Target, world, work)


def test_files_of_a_log_that_is_lost_are_given_up(world: World) -> None:
    """The driver begins in the log that its source has now; no task can seal what was made of the other one."""

    async def work(target: Target) -> None:
        (claim,) = await target.claim(0)
        await target.admit(0, claim)
        await target.begin()
        assert len(target.topic.flows.writing) == 1
        again = Position("ff" * 8, 1, 0)
        await target.ask(
            flow_operations.BeginFlowRequest("alerts", "orders", again, 4, token=TOKEN, schema=schema()), "publisher"
        )
        assert target.topic.flows.writing == set()

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
        cursors = flow_operations.CursorsRequest("alerts", "orders", LOG)
        assert (await target.ask(cursors, "publisher")).full
        assert topic.waiting is not None
        await topic.subscribers.acknowledge("reader", grant, topic.head)
        await topic.run(topic.store.cleaner.retain, topic.retention, need=10**9)
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
            flow_operations.BeginFlowRequest("alerts", "orders", source.place(0), 2, grant=source.grant), "subscriber"
        )
        claim = flow_operations.ClaimRequest("alerts", "orders", log, (0,), grant=source.grant)
        (cursor,) = (await source.ask(claim, "reader")).cursors
        head = await source.put(0, partition=0)
        source.topic._set_waiting("the spool is full")
        part = flow_operations.PartSeal(0, cursor.claim, source.place(0), head, "00" * 8)
        seal = flow_operations.SealPartsRequest("alerts", "orders", log, (part,), grant=source.grant)
        assert (await source.ask(seal, "reader")).room
        await source.ask(flow_operations.CursorsRequest("alerts", "orders", log), "subscriber")
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
