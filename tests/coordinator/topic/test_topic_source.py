"""What a publisher says of the database that it captures: kept in memory, with its age, as long as it publishes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobpipe.errors import Fenced, NotAuthorized, RemoteProtocolError
from jobpipe.operations.messages.source_messages import MAX_TABLES, SourceReport, TableReading
from jobpipe.operations.publisher_operations import BeginRequest, CloseRequest, SourceRequest
from jobpipe.operations.status_operations import StatusRequest
from tests.coordinator.kit import World, run, until
from tests.coordinator.test_prepared import SMALL, A, Asking

REPORT = SourceReport(
    position="0/1A2B3C8",
    behind_bytes=4096,
    behind_seconds=1.5,
    retained_bytes=1 << 24,
    tables=(TableReading("public.orders", 500, 20_000),),
)


def test_the_status_has_what_was_said_last(world: World) -> None:
    """With its age; a publisher that says nothing has none, also once another one has closed."""

    async def work() -> None:
        asking = Asking(world)
        await asking.open()
        first = await asking.ask_raw("status", StatusRequest().to_json())
        assert "source" not in first[0], "an older program gets nothing that it does not know"
        await asking.ask(SourceRequest(SourceReport(position="0/1", behind_bytes=9)))
        await asking.ask(SourceRequest(REPORT))
        await asyncio.sleep(0.01)
        source = (await asking.ask(StatusRequest())).source
        assert source is not None
        assert 0.0 < source.age < 60.0
        assert {name: value for name, value in vars(source).items() if name != "age"} == vars(REPORT)
        assert source.lag_seconds == 1.5 + source.age
        await asking.ask(CloseRequest(False))
        assert (await asking.ask(StatusRequest())).source is None
        with pytest.raises(Fenced):
            await asking.ask(SourceRequest(REPORT))
        await asking.open("b" * 32)
        assert (await asking.ask(StatusRequest())).source is None

    run(work())


def test_it_is_told_while_a_batch_waits_for_room(world: World) -> None:
    async def work() -> None:
        asking = Asking(world, **SMALL)
        await asking.open(required=("billing",))
        await asking.fill()
        waiting = asyncio.ensure_future(asking.ask(BeginRequest("q", 1000, "r", wait=20.0)))
        await until(lambda: asking.topic.waiting is not None)
        await asking.ask(SourceRequest(REPORT))
        status = await asking.ask(StatusRequest())
        assert status.source is not None
        assert not waiting.done()
        assert status.waiting is not None
        waiting.cancel()

    run(work())


def test_only_the_publisher_says_it(world: World) -> None:
    """With the secret of its job, and in its role."""

    async def work() -> None:
        asking = Asking(world)
        await asking.open(A)
        await asking.ask(SourceRequest(REPORT))
        with pytest.raises(NotAuthorized):
            await asking.ask(SourceRequest(REPORT), job="cd" * 32)
        for role in ("subscriber", "reader", "admin", "appender"):
            with pytest.raises((NotAuthorized, RemoteProtocolError)):
                await asking.ask(SourceRequest(REPORT), role=role)

    run(work())


@pytest.mark.parametrize(
    "wrong",
    [
        {"behind_bytes": -1},
        {"behind_seconds": float("nan")},
        {"behind_seconds": float("inf")},
        {"behind_seconds": -0.5},
        {"retained_bytes": 2**63},
        {"retained_bytes": 0.5},
        {"safe_bytes": True},
        {"position": "a\x1b[2J"},
        {"position": "x" * 201},
        {"tables": [{"name": "t", "rows": 1}] * (MAX_TABLES + 1)},
        {"tables": [{"name": "t", "rows": -1}]},
        {"tables": [{"rows": 1}]},
        {"more_tables": -1},
    ],
    ids=repr,
)
def test_what_is_out_of_bounds_is_refused(wrong: dict[str, Any]) -> None:
    right = {**REPORT.to_json(), "safe_bytes": 1, "more_tables": 0}
    assert SourceRequest.from_json({"report": right}).report.safe_bytes == 1
    with pytest.raises(RemoteProtocolError):
        SourceRequest.from_json({"report": {**right, **wrong}})
