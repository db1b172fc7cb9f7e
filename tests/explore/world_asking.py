"""What subscribers, readers and administrators ask of a topic, as explorers do it, and what must be true then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobpipe.errors import LinkClosed
from jobpipe.store import Position
from tests.explore.world_stage import BASE, EARLIEST, SUBSCRIBER, Stage, Violation


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
    known = {one.name: one for one in topic.store.subscriptions()}
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


def behind(stage: Stage, n: int) -> Position:
    assert stage.position is not None
    return Position(stage.position.log, 1, n, 0)


def planned(stage: Stage, result: Any) -> None:
    demand(stage, result["end"]["n"] == BASE, f"planned {result}")
    demand_acked(stage, 2)


def demand_acked(stage: Stage, n: int) -> None:
    topic = stage.a.topic
    assert topic is not None
    known = {one.name: one for one in topic.store.subscriptions()}[SUBSCRIBER].acked
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
    return await stage.look("lease", {"id": "lease", "first": 0, "last": BASE - 1, "seconds": 60.0})


async def leased(stage: Stage) -> None:
    await lease(stage)


def leases(count: int) -> Callable[[Stage, Any], None]:
    def verify(stage: Stage, result: Any) -> None:
        topic = stage.a.topic
        assert topic is not None
        there = int(topic.store._db.value("SELECT count(*) FROM leases"))
        demand(stage, there == count, f"{there} leases")

    return verify


async def release(stage: Stage) -> Any:
    return await stage.look("release", {"id": "lease"})


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
