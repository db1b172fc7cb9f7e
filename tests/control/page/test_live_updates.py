"""The streams that keep pages live, without HTTP: what they say, when they end, how many there are."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from jobpipe.control.page import live_updates
from jobpipe.control.page.live_updates import LiveUpdates
from jobpipe.control.page.page_snapshot import PageSnapshots
from jobpipe.control.page.pages import Pages
from jobpipe.control.permissions import Caller, Right
from jobpipe.pipelines.model.job_states import JobState
from tests.control.page.kit import flights, job_status, put_pipeline
from tests.control_api.kit import MemoryControl, until

DEADLINE = 20.0
VIEWER = Caller(Right.VIEW)


@dataclass
class World:
    """A core in memory, and its streams."""

    control: MemoryControl
    live: LiveUpdates
    pages: Pages
    over: bool = field(default=False)

    def shape(self, address: str = "/") -> str:
        return self.pages.render(address, VIEWER).shape


@pytest.fixture
def world() -> Iterator[World]:
    control = MemoryControl()
    flights(control)
    pages = Pages(control, PageSnapshots(control, "/test"))
    live = LiveUpdates(control, pages, most=2)
    yield World(control, live, pages)
    live.close()


class Reader:
    """Follows one stream."""

    def __init__(self, world: World, address: str = "/", shape: str | None = None) -> None:
        assert world.live.take()
        self._world = world
        self.caller: Caller | None = VIEWER
        shape = world.shape(address) if shape is None else shape
        self._stream = world.live.stream(address, shape, lambda: self.caller, lambda: world.over)

    async def next(self) -> tuple[str, Any]:
        """Return the next message but ``same``: its event and its data."""
        async with asyncio.timeout(DEADLINE):
            while True:
                event, data, *_ = (await anext(self._stream)).decode().split("\n")
                if event != "event: same":
                    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    async def ended(self) -> bool:
        """Whether nothing follows."""
        async with asyncio.timeout(DEADLINE):
            return [each async for each in self._stream] == []

    async def close(self) -> None:
        self._world.live.leave()
        await self._stream.aclose()


def test_all_parts_come_first_and_then_what_differs(world: World) -> None:
    """A browser may have had the page for a while."""

    async def follow() -> None:
        reader = Reader(world)
        event, parts = await reader.next()
        assert (event, parts) == ("parts", dict(world.pages.render("/", VIEWER).parts))
        world.control.set_state("flights", "report", JobState.BLOCKED)
        world.control.tell("state")
        event, parts = await reader.next()
        assert event == "parts"
        assert len(parts) == 2  # the job, and the troubles
        assert all("blocked" in html for html in parts.values())
        await reader.close()

    asyncio.run(follow())


def test_a_page_of_another_shape_comes_whole(world: World) -> None:
    async def follow() -> None:
        reader = Reader(world, shape="another")
        event, page = await reader.next()
        assert (event, page["shape"]) == ("page", world.shape())
        put_pipeline(world.control, *world.control.statuses["flights"].jobs, job_status("third"))
        world.control.tell("submitted")
        event, page = await reader.next()
        assert event == "page"
        assert "flights.third" in page["main"]
        await reader.close()

    asyncio.run(follow())


def test_who_has_no_right_any_more_loses_the_stream(world: World) -> None:
    """As when a session ends, or a name is taken from the access list. One that keeps it goes on."""

    async def follow() -> None:
        reader = Reader(world)
        assert (await reader.next())[0] == "parts"
        world.control.set_state("flights", "report", JobState.BLOCKED)
        world.control.tell("state")
        assert (await reader.next())[0] == "parts"
        reader.caller = None
        world.control.tell("state")
        assert (await reader.next())[0] == "sign-in"
        assert await reader.ended()
        await reader.close()

    asyncio.run(follow())


def test_a_connection_that_must_end_ends_its_stream(world: World) -> None:
    """As when its certificate was revoked."""

    async def follow() -> None:
        reader = Reader(world)
        assert (await reader.next())[0] == "parts"
        world.over = True
        world.control.tell("state")
        assert await reader.ended()

    asyncio.run(follow())


def test_streams_are_bounded_and_give_their_places_back(world: World) -> None:
    async def follow() -> None:
        readers = [Reader(world), Reader(world)]
        for reader in readers:
            await reader.next()
        assert not world.live.take()
        await readers[0].close()
        await Reader(world).next()
        assert not world.live.take()
        await readers[1].close()

    asyncio.run(follow())


def test_a_quiet_page_is_told_that_it_still_holds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a reader could not tell a quiet server from one that is gone."""
    monkeypatch.setattr(live_updates, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(live_updates, "TICK_SECONDS", 0.3)

    async def follow() -> None:
        assert world.live.take()
        stream = world.live.stream("/", world.shape(), lambda: VIEWER, lambda: False)
        async with asyncio.timeout(DEADLINE):
            found = [(await anext(stream)).split(b"\n")[0] for _ in range(3)]
        assert found == [b"event: parts", b"event: same", b"event: same"]
        await stream.aclose()

    asyncio.run(follow())


def test_the_servers_end_ends_streams(world: World) -> None:
    async def follow() -> None:
        reader = Reader(world)
        await reader.next()
        world.live.end()
        world.control.tell("state")
        assert await reader.ended()
        assert not world.live.take()

    asyncio.run(follow())


def test_events_that_cannot_be_read_do_not_stop_a_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks by itself, and is told at once again when they can be read."""
    monkeypatch.setattr(live_updates, "TICK_SECONDS", 0.3)
    events = world.control.events

    def fail(*_: object, **__: object) -> tuple[Any, ...]:
        raise OSError("the disk is gone")

    world.control.events = fail  # type: ignore[method-assign]

    async def follow() -> None:
        reader = Reader(world)
        assert (await reader.next())[0] == "parts"
        world.control.set_state("flights", "report", JobState.BLOCKED)
        world.pages.look_again()
        assert (await reader.next())[0] == "parts"
        monkeypatch.setattr(live_updates, "TICK_SECONDS", 600.0)
        world.control.events = events  # type: ignore[method-assign]
        world.control.set_state("flights", "report", JobState.RUNNING)
        world.control.tell("state")
        assert (await reader.next())[0] == "parts"
        await reader.close()

    asyncio.run(follow())


def test_looking_again_does_not_wait_for_a_slow_look(world: World) -> None:
    """The event loop calls it, and everything else waits for that."""
    world.control.blocks = threading.Event()
    slow = threading.Thread(target=world.pages.render, args=("/", VIEWER))
    slow.start()
    try:
        until(lambda: bool(world.control.calls))
        world.pages.look_again()
    finally:
        world.control.blocks.set()
        slow.join()
    assert world.control.calls.count(("topics_snapshot",)) == 2  # what was being made does not count
