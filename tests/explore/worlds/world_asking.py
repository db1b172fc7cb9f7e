"""What subscribers, readers and administrators ask of a topic, as explorers do it, and what must be true then."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

from jobpipe.errors import LinkClosed
from jobpipe.operations.reader_operations import lease_name
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary
from jobpipe.testing import SCHEMA
from tests.explore.worlds.world_stage import BASE, EARLIEST, SUBSCRIBER, Stage, Violation

LEASE = "1ea5e" * 8


def demand(stage: Stage, condition: bool, what: str) -> None:
    """Raise Violation unless the condition holds."""
    if not condition:
        raise Violation(what)


async def grant_new(stage: Stage) -> Any:
    return await stage.read("grant", {"host": "h", "pid": 2}, name="audit")


async def grant_same(stage: Stage) -> Any:
    return await stage.read("grant", {"host": "h", "pid": 1})


def granted(stage: Stage, result: Any) -> None:
    topic = stage.a.topic
    assert topic is not None
    known = {one.name: one for one in topic.store.subscriptions.all()}
    name = "audit" if "audit" in known else SUBSCRIBER
    demand(stage, known[name].grant == result["grant"], f"grant {result['grant']}, stored {known[name].grant}")


async def holder_is_silent(stage: Stage) -> None:
    stage.subscriber().alive = False
    topic = stage.a.topic
    assert topic is not None


async def grant_other(stage: Stage) -> Any:
    """Another reader wants the name of a silent one."""
    link = stage.subscriber(instance="newcomer")
    return (await stage.a.answer(link, "grant", {"host": "h", "pid": 3}))[0]


async def granted_again(stage: Stage) -> None:
    """The reader that was there is back, by another link; it must be able to acknowledge."""


async def first_new(stage: Stage) -> None:
    stage.kept["audit"] = (await grant_new(stage))["grant"]


async def first(stage: Stage) -> Any:
    args = {**stage.first_args(), "grant": stage.kept["audit"]}
    return await stage.read("first", args, name="audit")


def at_tail(stage: Stage, result: Any) -> None:
    demand(stage, result["position"]["n"] == 0, f"first position {result}")


async def poll(stage: Stage) -> Any:
    topic = stage.a.topic
    assert topic is not None
    return await stage.read(
        "poll", {"head": topic.head.to_json(), "ended": topic.ended, "waiting": topic.waiting, "wait": 1.0}
    )


async def plan(stage: Stage) -> Any:
    assert stage.position is not None
    return await stage.read("plan", stage.plan_args(behind(stage, 2), count=True))


def plan_waiting(n: int) -> Callable[[Stage], Any]:
    """Return a plan from offset ``n`` that waits for rows, and may come with them."""

    async def plan(stage: Stage) -> Any:
        return await stage.read("plan", stage.plan_args(behind(stage, n), wait=1.0, held=True))

    return plan


def planned_at_head(stage: Stage, result: Any) -> None:
    demand(stage, result["end"]["n"] == BASE and result["rows"] == 0, f"planned {result}")
    demand_acked(stage, BASE)


def behind(stage: Stage, n: int) -> Position:
    assert stage.position is not None
    return Position(stage.position.log, 1, n, 0)


def planned(stage: Stage, result: Any) -> None:
    demand(stage, result["end"]["n"] == BASE, f"planned {result}")
    demand_acked(stage, 2)


def demand_acked(stage: Stage, n: int) -> None:
    topic = stage.a.topic
    assert topic is not None
    known = {one.name: one for one in topic.store.subscriptions.all()}[SUBSCRIBER].acked
    demand(stage, known is not None and known.n == n, f"acknowledged {known}, not {n}")


async def ack(stage: Stage) -> Any:
    return await stage.read("ack", {"grant": stage.grant, "position": behind(stage, 2).to_json()})


def acknowledged(stage: Stage, result: Any) -> None:
    demand_acked(stage, 2)


SLOT = "0123456789abcdef" * 2


async def slot(stage: Stage) -> Any:
    start = behind(stage, 1)
    return await stage.read(
        "slot", {"grant": stage.grant, "start": start.to_json(), "last": None, "slot": SLOT, "end": None}
    )


async def slotted(stage: Stage) -> None:
    await slot(stage)


async def settle(stage: Stage) -> Any:
    args = {"grant": stage.grant, "start": behind(stage, 1).to_json(), "slot": SLOT, "committed": False}
    return await stage.read("settle", args)


async def bind(stage: Stage) -> Any:
    return await stage.look(
        "bind",
        {
            "name": SUBSCRIBER,
            "grant": stage.grant,
            "slot": SLOT,
            "end": None,
            "max_rows": None,
            "max_bytes": None,
            "schemas": [1],
            "wait": 0.2,
        },
    )


async def ledger(stage: Stage) -> Any:
    return await stage.look("ledger", {"minutes": 60})


def accounted(stage: Stage, result: Any) -> None:
    demand(stage, [each["name"] for each in result["hops"]] == [SUBSCRIBER], f"accounts: {result}")


def bound(stage: Stage, result: Any) -> None:
    demand(stage, result["end"]["n"] == BASE, f"bound to {result}")


async def at_head(stage: Stage) -> None:
    await stage.read("plan", stage.plan_args(behind(stage, BASE)))
    start = behind(stage, BASE)
    await stage.read("slot", {"grant": stage.grant, "start": start.to_json(), "last": None, "slot": SLOT, "end": None})


def bound_empty(stage: Stage, result: Any) -> None:
    demand(stage, result["rows"] == 0, f"bound to {result}")


async def bounds(stage: Stage) -> Any:
    return await stage.look("bounds", {"name": SUBSCRIBER, "start": EARLIEST, "end": None})


async def range(stage: Stage) -> Any:
    args = {"grant": stage.grant, "start": behind(stage, 1).to_json(), "end": behind(stage, BASE).to_json()}
    return await stage.read("range", args)


async def cut(stage: Stage) -> Any:
    args = {"grant": stage.grant, "start": behind(stage, 1).to_json(), "end": behind(stage, BASE).to_json()}
    return await stage.read("cut", {**args, "partitions": [0, 1], "max_rows": 2, "at_least": 2})


async def lease(stage: Stage) -> Any:
    return await stage.look("lease", {"secret": LEASE, "first": 0, "last": BASE - 1, "seconds": 60.0})


async def leased(stage: Stage) -> None:
    await lease(stage)


async def lease_twice(stage: Stage) -> Any:
    """Two links of one reader ask for one lease; if this is cancelled, the first of them is cut."""
    args = {"secret": LEASE, "first": 0, "last": BASE - 1, "seconds": 60.0}
    links = [stage.a.link("reader", "someone"), stage.a.link("reader", "someone")]
    asked = [asyncio.ensure_future(stage.a.answer(link, "lease", args)) for link in links]
    try:
        await asyncio.wait({asked[0]})
    except asyncio.CancelledError:
        links[0].ended = LinkClosed("cut")
        stage.a.service.disconnected(links[0], links[0].ended)  # type: ignore[arg-type]
        asked[0].cancel()
        raise
    finally:
        await asyncio.gather(*asked, return_exceptions=True)
    return asked[1].result()[0]


def leases(count: int) -> Callable[[Stage, Any], None]:
    def verify(stage: Stage, result: Any) -> None:
        topic = stage.a.topic
        assert topic is not None
        there = int(topic.store._db.value("SELECT count(*) FROM leases"))
        demand(stage, there == count, f"{there} leases")

    return verify


async def release(stage: Stage) -> Any:
    return await stage.look("release", {"secret": LEASE})


async def drop_lease(stage: Stage) -> Any:
    return await stage.look("drop_lease", {"id": lease_name(LEASE), "dry_run": False}, role="admin")


async def hold(stage: Stage) -> Any:
    to = Boundary("offset", BASE - 1).to_json()
    return await stage.look("hold", {"name": "nightly", "to": to, "max_time": 1000.0}, role="admin")


async def held(stage: Stage) -> None:
    to = Boundary("offset", BASE - 2).to_json()
    await stage.look("hold", {"name": "nightly", "to": to, "max_time": 1000.0}, role="admin")


def holds(offset: int | None) -> Callable[[Stage, Any], None]:
    def verify(stage: Stage, result: Any) -> None:
        topic = stage.a.topic
        assert topic is not None
        there = topic.store._db.value("SELECT n FROM holds WHERE name = 'nightly' AND gap_up IS NULL")
        demand(stage, there == offset, f"held from {there}")

    return verify


async def release_hold(stage: Stage) -> Any:
    return await stage.look("release_hold", {"name": "nightly", "dry_run": False}, role="admin")


async def require(stage: Stage) -> Any:
    return await stage.look("require", {"name": SUBSCRIBER, "required": True, "dry_run": False}, role="admin")


async def unrequire(stage: Stage) -> Any:
    return await stage.look("require", {"name": SUBSCRIBER, "required": False, "dry_run": False}, role="admin")


async def was_required(stage: Stage) -> None:
    await require(stage)


def required(*names: str) -> Callable[[Stage, Any], None]:
    def verify(stage: Stage, result: Any) -> None:
        topic = stage.a.topic
        assert topic is not None
        marked = {one.name for one in topic.store.subscriptions.all() if one.required}
        there = (topic.store.required.names(), marked)
        demand(stage, all(set(names) == each for each in there), f"required: {there}")

    return verify


async def schema(stage: Stage) -> Any:
    return await stage.look("schema", {"id": None})


async def status(stage: Stage) -> Any:
    return await stage.look("status", {})


def stated(stage: Stage, result: Any) -> None:
    demand(stage, result["head"] == BASE, f"status: {result}")


async def let_go(stage: Stage) -> None:
    """The subscriber's reader is gone."""
    topic = stage.a.topic
    assert topic is not None
    topic.subscribers.disconnected(stage.subscriber(), LinkClosed("over"))  # type: ignore[arg-type]


async def seek(stage: Stage) -> Any:
    args = {"name": SUBSCRIBER, "to": EARLIEST, "dry_run": False}
    return await stage.look("seek", args, role="admin")


def sought(stage: Stage, result: Any) -> None:
    demand_acked(stage, 0)


async def drop(stage: Stage) -> Any:
    return await stage.look("drop", {"name": SUBSCRIBER, "dry_run": False}, role="admin")


# -- flow jobs ---------------------------------------------------------------------------------------------------------

FLOW = {"flow": "alerts", "topic": "raw", "log": "00112233445566aa"}
TOKEN = "ab" * 16


def in_source(n: int) -> dict[str, Any]:
    """Return a place in what the flow reads."""
    return Position(FLOW["log"], 1, n).to_json()


async def begin_flow(stage: Stage) -> Any:
    """A flow publishes here."""
    schema = {"arrow": base64.b64encode(SCHEMA.serialize().to_pybytes()).decode(), "spark": None}
    args = {"flow": FLOW["flow"], "topic": FLOW["topic"], "start": in_source(0), "partitions": 2, "token": TOKEN}
    return await stage.publish(stage.a, "begin_flow", {**args, "schema": schema, "parallelism": 2})


def cursors_at(n: int) -> Callable[[Stage, Any], None]:
    def verify(stage: Stage, result: Any) -> None:
        found = {one["partition"]: one["position"] for one in result["cursors"]}
        demand(stage, found == {0: in_source(n), 1: in_source(n)}, f"cursors {result}")

    return verify


async def cursors(stage: Stage) -> Any:
    return await stage.publish(stage.a, "cursors", dict(FLOW))


async def reset_flow(stage: Stage) -> Any:
    return await stage.look("reset_flow", {"flow": FLOW["flow"], "dry_run": False}, role="admin")


def was_reset(stage: Stage, result: Any) -> None:
    topic = stage.a.topic
    assert topic is not None
    demand(stage, not topic.store._db.value("SELECT count(*) FROM cursors"), "cursors are left")


async def halt(stage: Stage) -> Any:
    return await stage.read("halt", {"grant": stage.grant})


def halted(stage: Stage, result: Any) -> None:
    topic = stage.a.topic
    assert topic is not None
    demand(stage, topic.subscribers.held(SUBSCRIBER, stage.grant).halted, "not halted")


async def flow_begun(stage: Stage) -> None:
    """A flow publishes here; the next batch of the oracle is its part."""
    await begin_flow(stage)
    stage.kept["part"], stage.batch_id = stage.batch_id, stage.batch_id + 1


async def claimed(stage: Stage) -> None:
    await flow_begun(stage)
    stage.kept["claim"] = (await claim(stage))["cursors"][0]["claim"]


async def claim(stage: Stage) -> Any:
    return await stage.publish(stage.a, "claim", {**FLOW, "partitions": [0], "token": TOKEN})


async def claimed_then_sealed(stage: Stage) -> Any:
    """A task comes, and publishes a part."""
    stage.kept["claim"] = (await claim(stage))["cursors"][0]["claim"]
    return await seal_part(stage)


async def admitted(stage: Stage) -> None:
    """A part lies in a file."""
    await claimed(stage)
    await write_part(stage)


async def admit_part(stage: Stage) -> Any:
    args = {"flow": FLOW["flow"], "token": TOKEN, "partition": 0, "claim": stage.kept["claim"], "wait": 0.1}
    return await stage.publish(stage.a, "admit_part", args)


def may_be_written(stage: Stage, result: Any) -> None:
    topic = stage.a.topic
    assert topic is not None
    demand(stage, result["admitted"]["write_id"] in topic.flows.writing, "its files would be tidied away")


async def write_part(stage: Stage) -> None:
    write_id = (await admit_part(stage))["admitted"]["write_id"]
    stage.kept["written"] = write_id, stage.write(write_id, stage.kept["part"], inline=False)


async def seal_part(stage: Stage) -> Any:
    """Publish a part as a task does: what it wrote may have to be written again."""
    number = stage.kept["part"]
    while True:
        if "written" in stage.kept:
            write_id, segments = stage.kept["written"]
        else:
            write_id = "c" * 16
            segments = stage.write(write_id, number, inline=True)
        part = {"partition": 0, "claim": stage.kept["claim"], "start": in_source(0), "to": in_source(1)}
        stage.journal.intend(number, stage.rows.ranges(number))
        args = {
            **FLOW,
            "token": TOKEN,
            "parts": [{**part, "write_id": write_id, "segments": len(segments)}],
            "segments": [
                {**info.to_json(), "inline": None if info.data is None else len(info.data)} for info in segments
            ],
        }
        blob = b"".join(info.data for info in segments if info.data is not None)
        result = await stage.publish(stage.a, "seal_parts", args, blob)
        if not result["parts"][0].get("again"):
            stage.journal.seal(number)
            return result
        await write_part(stage)


def part_sealed(stage: Stage, result: Any) -> None:
    topic = stage.a.topic
    assert topic is not None
    demand(stage, result["parts"][0]["position"] == in_source(1), f"sealed {result}")
    row = topic.store._db.one("SELECT n, claim FROM cursors WHERE partition = 0")
    demand(stage, row is not None and tuple(row) == (1, stage.kept["claim"]), "the cursor is elsewhere")
    demand(stage, topic.head.n == BASE + 1, f"one part, and the head is {topic.head.n}")


def was_claimed(stage: Stage, result: Any) -> None:
    topic = stage.a.topic
    assert topic is not None
    stored = topic.store._db.value("SELECT claim FROM cursors WHERE partition = 0")
    demand(stage, result["cursors"][0]["claim"] == stored, f"claimed {result}, stored is {stored}")


def follow_from(n: int) -> Callable[[Stage], Any]:
    async def follow(stage: Stage) -> Any:
        parts = [{"partition": 0, "at": behind(stage, n).to_json()}]
        args = {"name": SUBSCRIBER, "grant": stage.grant, "parts": parts, "partitions": 2, "wait": 1.0}
        return await stage.look("follow", args)

    return follow


def followed(stage: Stage, result: Any) -> None:
    demand(stage, [part["end"]["n"] for part in result["parts"]] in ([], [BASE]), f"followed {result}")
