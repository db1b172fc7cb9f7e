"""Every operation of a coordinator, as an explorer does it: prepared, done, and done again with the same meaning."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jobpipe.discovery.registry_handler import map_registry_errors
from jobpipe.errors import Fenced, FlowNotFound, HoldNotFound, JobpipeError, TopicNotFound, TopicOwned
from jobpipe.net.servers.write_tokens import write_ticket
from jobpipe.store.catalog.batches import APPENDERS
from jobpipe.store.spool.spool_files import new_write_id
from jobpipe.testing import SCHEMA
from jobpipe_registry.topic_records import OwnerRecord
from tests.explore.worlds import world_asking as asking
from tests.explore.worlds.world import HOST, HOST_ENDPOINT, SECRET, TOPIC, Coordinator, World
from tests.explore.worlds.world_stage import BASE, GIVEN_UP, QUERY, SUBSCRIBER, Stage, Violation

WRITER = "ab"
APPENDER = f"{APPENDERS}x"
MARKED = {"offset": 0, "published_ms": 1, "partition": 0, "row": 0}
PATIENCE = 300.0  # virtual seconds that an operation may take


async def _nothing(stage: Stage) -> None:
    pass


def _any(stage: Stage, result: Any) -> None:
    pass


@dataclass(frozen=True)
class Operation:
    """An operation.

    Attributes:
        name: for reports.
        act: does it; done again after a cancellation or a fault it must succeed.
        prepare: what comes before, and is not explored.
        verify: checks the answer of the one that succeeded.
        allowed: errors that say the same when it is done again.
        acks: ``acks`` of the publishers that it is explored with.
        cancels: it is cancelled at the step; else only its thread pauses there.
        placements: where the spool is in the worlds that it is explored in.
        repeatable: it may be done again also if it was not cancelled, and only its answer is lost.
        ends: the coordinator ends by it, also if its request is cancelled.
        halfway: where a call of it fails, memory, disk and registry may differ until it is done again.
    """

    name: str
    act: Callable[[Stage], Awaitable[Any]]
    prepare: Callable[[Stage], Awaitable[None]] = _nothing
    verify: Callable[[Stage, Any], None] = _any
    allowed: tuple[type[JobpipeError], ...] = ()
    acks: tuple[str, ...] = ("stored",)
    repeatable: bool = True
    cancels: bool = True
    placements: tuple[str, ...] = ("driver", "shared")
    ends: bool = False
    halfway: bool = False


@contextlib.contextmanager
def staged(operation: Operation, acks: str, placement: str) -> Iterator[Stage]:
    """Give a stage where an operation is prepared; what a run leaves that failed is ended."""
    with World(spool_placement=placement) as world:
        stage = Stage(world, acks=acks)
        stage.set_up()
        world.run(operation.prepare(stage))  # type: ignore[arg-type]
        world.settle()
        try:
            yield stage
        finally:
            with contextlib.suppress(Exception):
                world.abandon()


def repeated(operation: Operation, stage: Stage, *, done: bool, failed: bool = False) -> int:
    """Check, do it again if it was not done, or may be repeated, check, and let the oracle judge; return the rows.

    Args:
        done: it has given an answer.
        failed: a call in it did.
    """
    world = stage.world
    if not operation.ends and not (failed and operation.halfway):
        stage.check()
    result = None
    if operation.repeatable or not done:
        with contextlib.suppress(*operation.allowed):
            result = world.run(operation.act(stage))  # type: ignore[arg-type]
    world.settle()
    if result is not None:
        operation.verify(stage, result)
    if failed and operation.halfway:
        world.run(stage.live(stage.a))  # its tick sees what a commit did that seemed to fail
    stage.check()
    stage.go_on()
    return stage.finish()


# -- take-over ---------------------------------------------------------------------------------------------------------


async def _close(stage: Stage) -> None:
    await stage.publish(stage.a, "close", {"final": False})


async def _other(stage: Stage) -> None:
    """Another coordinator wants the topic; its first one's publisher has closed."""
    await _close(stage)
    _make_other(stage)


def _make_other(stage: Stage) -> None:
    world = stage.world
    world.coordinators.append(Coordinator(world, len(world.coordinators), world.config))


async def _expired(stage: Stage) -> None:
    """The first one's registry session has ended, and it does not know yet."""
    _make_other(stage)
    stage.a.handler.memory_nodes().expire()


async def _open_same(stage: Stage) -> Any:
    return await stage.open(stage.a)


async def _open_other(stage: Stage) -> Any:
    return await stage.open(stage.world.coordinators[-1])


def _opened(stage: Stage, result: Any) -> None:
    asking.demand(stage, result["head"]["n"] == BASE, f"opened at {result['head']}")


# -- the publisher -----------------------------------------------------------------------------------------------------


async def _begin(stage: Stage) -> Any:
    return await stage.begin(stage.a, stage.batch_id)


async def _begun(stage: Stage) -> None:
    answer = await stage.begin(stage.a, stage.batch_id)
    stage.kept["write_id"] = answer["admitted"]["write_id"]
    inline = stage.kept.get("inline", False)
    stage.kept["segments"] = stage.write(stage.kept["write_id"], stage.batch_id, inline=inline)


async def _begun_inline(stage: Stage) -> None:
    stage.kept["inline"] = True
    await _begun(stage)


async def _prepare(stage: Stage) -> Any:
    return await stage.publish(stage.a, "prepare", {"writer": WRITER})


def _writable(stage: Stage, result: Any) -> None:
    topic = stage.a.topic
    assert topic is not None
    asking.demand(stage, result["admitted"]["write_id"] in topic.writing, "its files would be tidied away")


async def _prepared(stage: Stage) -> None:
    """Tasks have written a batch of which only they knew the id."""
    stage.kept["write_id"] = (await _prepare(stage))["admitted"]["write_id"]
    stage.kept["segments"] = stage.write(stage.kept["write_id"], stage.batch_id, inline=False)


async def _room(stage: Stage) -> Any:
    write_id = stage.kept["write_id"]
    asked = {"write_id": write_id, "ticket": write_ticket(SECRET, TOPIC, write_id), "wait": 0.1}
    return await stage.publish(stage.a, "room", asked)


async def _seal_written(stage: Stage) -> Any:
    asked = {"query_id": QUERY, "batch_id": stage.batch_id, "run_id": "run", "written": True}
    answer = await stage.publish(stage.a, "begin", asked)
    asking.demand(stage, answer["admitted"] is None, "another write id was given")
    return await _seal(stage)


async def _seal(stage: Stage) -> Any:
    return await stage.seal(stage.a, stage.batch_id, stage.kept["write_id"], stage.kept["segments"])


def _sealed(stage: Stage, result: Any) -> None:
    asking.demand(stage, result["position"]["n"] == BASE + 1, f"sealed at {result['position']}")


async def _seal_late(stage: Stage) -> Any:
    """The publisher gives up waiting for a seal and begins the batch again; what it wrote first may be tidied away."""
    topic = stage.a.topic
    assert topic is not None
    late = asyncio.ensure_future(_seal(stage))
    await asyncio.wait({late}, timeout=0.5)
    if not late.done():
        await stage.begin(stage.a, stage.batch_id)
        await stage.a.host.host_servers._sweep(topic, HOST, str(HOST_ENDPOINT))
        await topic.run(topic.store.cleaner.sweep, topic.writing)
    with contextlib.suppress(JobpipeError):
        await late
    await stage.batch(stage.a, stage.batch_id, inline=False)


async def _append(stage: Stage) -> Any:
    """A process that is not the publisher publishes a batch; done again, it has the same id, and marks the same row."""
    number = stage.kept.setdefault("append", stage.batch_id)
    link = stage.a.link("appender")
    begun = (await stage.a.answer(link, "begin", {"query_id": APPENDER, "batch_id": number}))[0]
    if begun["last"] is None:
        segments = stage.write(new_write_id(), number)
        marks = [{**MARKED, "row": row} for row in range(sum(info.rows for info in segments))]
        await stage.append(stage.a, link, APPENDER, number, new_write_id(), segments, marks)
    stage.batch_id = number + 1
    return (await stage.a.answer(link, "redriven", {"rows": [MARKED]}))[0]


def _appended(stage: Stage, result: Any) -> None:
    topic = stage.a.topic
    asking.demand(stage, topic is not None and topic.head.n == BASE + 1, "appended twice, or not at all")
    asking.demand(stage, len(result["rows"]) == 1, f"marked: {result}")


async def _acked(stage: Stage) -> Any:
    return await stage.publish(stage.a, "acked", {"n": BASE, "wait": 0.1})


async def _drained(stage: Stage) -> Any:
    return await stage.publish(stage.a, "drained", {"wait": 0.1})


def _lagging(stage: Stage, result: Any) -> None:
    asking.demand(stage, result["lagging"] == {SUBSCRIBER: BASE - 1}, f"lagging: {result}")


async def _close_final(stage: Stage) -> Any:
    stage.final = True
    return await stage.publish(stage.a, "close", {"final": True})


def _closed(stage: Stage, result: Any) -> None:
    topic = stage.a.topic
    asking.demand(stage, topic is not None and topic.ended and not topic.publishing, "not ended")
    asking.demand(stage, result["head"]["n"] == BASE + 1, f"the end mark lies at {result['head']}")


async def _declare(stage: Stage) -> Any:
    schema = SCHEMA.append(SCHEMA.field(0).with_name("more")).serialize().to_pybytes()
    return (await stage.a.answer(stage.a.link("publisher", "p"), "declare", {"spark": None}, schema))[0]


def _declared(stage: Stage, result: Any) -> None:
    asking.demand(stage, result["id"] == 2, f"schema {result}")


async def _source(stage: Stage) -> Any:
    report = {"position": "binlog.000003:154", "behind_bytes": 7}
    return await stage.publish(stage.a, "source", {"report": report})


def _told(stage: Stage, result: Any) -> None:
    topic = stage.a.topic
    told = None if topic is None else topic._source
    asking.demand(stage, told is not None and told[0].behind_bytes == 7, f"the source is {told}")


# -- the end of a topic ------------------------------------------------------------------------------------------------


async def _handover(stage: Stage) -> Any:
    return await stage.look("handover", {}, role="admin")


async def _rise(stage: Stage) -> None:
    """Another publisher has got a higher epoch: the registry gives it, and the catalog has it."""
    other = stage.world.coordinators[-1]
    stage.kept["epoch"] = other.handler.next_epoch(TOPIC, 7)


async def _fence(stage: Stage) -> Any:
    """A reader comes that has proof of a higher epoch."""
    link = stage.a.link("subscriber", SUBSCRIBER)
    object.__setattr__(link.hello, "epoch", stage.kept["epoch"])
    return await stage.a.service.welcome(link, link.hello)  # type: ignore[arg-type]


async def _lose(stage: Stage) -> None:
    """The registry session ends, and another coordinator claims the topic before ours is back."""
    _make_other(stage)
    stage.a.handler.memory_nodes().expire()
    rival = stage.world.coordinators[-1]
    record = OwnerRecord(
        endpoint=str(rival.endpoint), epoch=9, instance="a-rival", name="rival", host="elsewhere", pid=1, started=1.0
    )
    rival.handler.create_topic_node(TOPIC)
    rival.handler.claim(TOPIC, record)
    stage.kept["rival"] = rival


async def _give_up(stage: Stage) -> Any:
    """Claim a topic, and release it also if the claim's caller is cancelled: the claim may be in flight then."""
    record = OwnerRecord(
        endpoint=str(stage.a.endpoint),
        epoch=1,
        instance=stage.a.host.instance,
        name="p",
        host="here",
        pid=1,
        started=1.0,
    )
    with map_registry_errors():
        try:
            await asyncio.to_thread(stage.a.handler.claim, GIVEN_UP, record)
        finally:
            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(stage.a.handler.release, GIVEN_UP)))


async def _lost(stage: Stage) -> Any:
    stage.a.handler.mend()
    for _ in range(20):
        await asyncio.sleep(0.05)
    if stage.a.topic is not None:
        raise Violation("the topic is served, though another publisher has claimed it")


async def _shut_down(stage: Stage) -> Any:
    stage.a.ended = True
    await asyncio.shield(asyncio.ensure_future(stage.a.end()))  # a process that ends is told of no request's end


async def _open_and_shut_down(stage: Stage) -> Any:
    """A publisher's request comes while the coordinator ends."""
    opening = asyncio.ensure_future(_open_same(stage))
    try:
        await asyncio.sleep(0)
        await _shut_down(stage)
    finally:
        opening.cancel()
        await asyncio.wait({opening})


async def _open_twice(stage: Stage) -> Any:
    """A publisher asks again over another link, while the first request is under way."""
    return (await asyncio.gather(_open_same(stage), _open_same(stage)))[1]


async def _partly_lost(stage: Stage) -> None:
    """The newest batch lies with a host server that is lost, and the subscriber has not read it."""
    await stage.batch(stage.a, stage.batch_id, inline=False)
    _lose_host(stage)


def _lose_host(stage: Stage) -> None:
    if stage.a.topic is not None:
        stage.a.topic.gone = frozenset({HOST})


async def _take_back(stage: Stage) -> Any:
    """Spark repeats the batch."""
    await stage.batch(stage.a, stage.batch_id, run="repeated")


async def _take_back_and_hand_over(stage: Stage) -> Any:
    """It does, and where this is cancelled its publisher ends, and another one asks for the topic."""
    topic = stage.a.topic
    if topic is not None:
        _lose_host(stage)
        with contextlib.suppress(asyncio.CancelledError):
            await stage.a.host.take_back(topic, QUERY, stage.batch_id)
        topic.publishing = False
    return await _handover(stage)


async def _restart_data_process(stage: Stage) -> Any:
    """The data process has died, and is started again."""
    await stage.a.host._background.run(stage.a.host._restart_data_process())


async def _mend_data_and_hand_over(stage: Stage) -> Any:
    """Where this is cancelled, another publisher asks for the topic."""
    with contextlib.suppress(asyncio.CancelledError):
        await _restart_data_process(stage)
    return await _handover(stage)


async def _live(stage: Stage) -> Any:
    """So long that each kind of tick comes."""
    live = asyncio.ensure_future(stage.a.host.live())
    try:
        await asyncio.wait({live}, timeout=2.5)
        if live.done():
            raise Violation(f"the coordinator ended by itself: {live.exception()!r}")
    finally:
        live.cancel()
        await asyncio.wait({live})


BOTH = ("stored", "all")
OPERATIONS: dict[str, Operation] = {
    one.name: one
    for one in (
        Operation("open again", _open_same, _close, _opened, acks=BOTH),
        Operation("open elsewhere", _open_other, _other, _opened, acks=BOTH, repeatable=False),
        Operation("open twice at once", _open_twice, _close, _opened),
        Operation("open after an expiry", _open_other, _expired, _opened, (TopicOwned,), repeatable=False),
        Operation("begin", _begin),
        Operation("prepare", _prepare, verify=_writable),
        Operation("room", _room, _prepared),
        Operation("seal what was prepared", _seal_written, _prepared, _sealed, acks=BOTH),
        Operation("seal files", _seal, _begun, _sealed, acks=BOTH),
        Operation("seal inline", _seal, _begun_inline, _sealed),
        Operation("seal late", _seal_late, _begun, acks=("all",), cancels=False, placements=("host",)),
        Operation("take back", _take_back, _partly_lost, acks=BOTH, placements=("host",), halfway=True),
        Operation(
            "take back and hand over",
            _take_back_and_hand_over,
            _partly_lost,
            allowed=(TopicNotFound,),
            placements=("host",),
            halfway=True,
        ),
        Operation("append", _append, verify=_appended),
        Operation("acked", _acked),
        Operation("drained", _drained, verify=_lagging),
        Operation("close", _close_final, verify=_closed, acks=BOTH),
        Operation("declare", _declare, verify=_declared),
        Operation("source", _source, verify=_told),
        Operation("grant to a new name", asking.grant_new, verify=asking.granted),
        Operation("grant to the holder", asking.grant_same, verify=asking.granted),
        Operation("grant to another", asking.grant_other, asking.holder_is_silent, asking.granted),
        Operation("first", asking.first, asking.first_new, asking.at_tail),
        Operation("poll", asking.poll),
        Operation("plan", asking.plan, verify=asking.planned),
        Operation("plan that need not wait", asking.plan_waiting(2), verify=asking.planned),
        Operation("plan that waits", asking.plan_waiting(BASE), verify=asking.planned_at_head),
        Operation("ack", asking.ack, verify=asking.acknowledged),
        Operation("slot", asking.slot),
        Operation("settle", asking.settle, asking.slotted),
        Operation("bind", asking.bind, asking.slotted, asking.bound),
        Operation("bind at the head", asking.bind, asking.at_head, asking.bound_empty),
        Operation("ledger", asking.ledger, verify=asking.accounted),
        Operation("bounds", asking.bounds),
        Operation("range", asking.range),
        Operation("cut", asking.cut),
        Operation("lease", asking.lease, verify=asking.leases(1)),
        Operation("lease twice at once", asking.lease_twice, verify=asking.leases(1)),
        Operation("release", asking.release, asking.leased, asking.leases(0)),
        Operation("drop a lease", asking.drop_lease, asking.leased, asking.leases(0), allowed=(TopicNotFound,)),
        Operation("hold", asking.hold, verify=asking.holds(BASE - 1)),
        Operation("move a hold", asking.hold, asking.held, asking.holds(BASE - 1)),
        Operation("release a hold", asking.release_hold, asking.held, asking.holds(None), (HoldNotFound,)),
        Operation("require", asking.require, verify=asking.required(SUBSCRIBER)),
        Operation("require no more", asking.unrequire, asking.was_required, asking.required(), acks=BOTH),
        Operation("schema", asking.schema),
        Operation("begin a flow", asking.begin_flow, verify=asking.cursors_at(0)),
        Operation("cursors", asking.cursors, asking.flow_begun, asking.cursors_at(0)),
        Operation("halt", asking.halt, verify=asking.halted),
        Operation("reset a flow", asking.reset_flow, asking.claimed, asking.was_reset, allowed=(FlowNotFound,)),
        Operation("admit a part", asking.admit_part, asking.claimed, asking.may_be_written),
        Operation("claim", asking.claim, asking.claimed, asking.was_claimed),
        Operation("claim and seal a part", asking.claimed_then_sealed, asking.flow_begun, asking.part_sealed),
        Operation("seal a part", asking.seal_part, asking.claimed, asking.part_sealed),
        Operation("seal a part of files", asking.seal_part, asking.admitted, asking.part_sealed),
        Operation("follow", asking.follow_from(1), verify=asking.followed),
        Operation("follow at the head", asking.follow_from(BASE), verify=asking.followed),
        Operation("status", asking.status, verify=asking.stated),
        Operation("seek", asking.seek, asking.let_go, asking.sought),
        Operation("drop", asking.drop, asking.let_go, allowed=(JobpipeError,)),
        Operation("handover", _handover, _close, allowed=(TopicNotFound,)),
        Operation("fence", _fence, _rise, allowed=(TopicNotFound, Fenced)),
        Operation("mend data", _restart_data_process),
        Operation("mend data and hand over", _mend_data_and_hand_over, _close, allowed=(TopicNotFound,)),
        Operation("lost claim", _lost, _lose),
        Operation("live", _live),
        Operation("live after a close", _live, _close),
        Operation("claim and release", _give_up),
        Operation("shut down", _shut_down, ends=True),
        Operation("open and shut down", _open_and_shut_down, _close, ends=True),
    )
}

FIRST = (
    *("handover", "fence", "open elsewhere", "shut down", "take back and hand over", "mend data and hand over"),
    *("open and shut down", "open twice at once", "lease twice at once", "drop a lease", "take back", "mend data"),
    *("lost claim", "open after an expiry", "open again", "claim and release", "seal late"),
)
"""Who has the topic, and what outlives its request: the first seeds have these, so that a short run has them all."""
