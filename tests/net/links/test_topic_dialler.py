"""Which server a client ends up with, whatever the registry says: a registration is a hint."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from jobpipe.config import load
from jobpipe.coordinator.registration.topic_claim import claim_topic
from jobpipe.discovery.topic_lookup import TopicLocator, all_from_records, from_records
from jobpipe.errors import LinkBroken, LinkError, PeerNotTrusted, RemoteProtocolError
from jobpipe.net.address import Endpoint
from jobpipe.subscribing.topic_dialler import TopicDialler
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree
from jobpipe_registry.topic_records import OwnerRecord, RegisterRecord
from tests.harness.proxies.proxy import FaultProxy
from tests.net.kit import HELLO, Authority, Mode, bound, peer, read_all, run, serving

TOPICS = "/jobpipe/topics"
NOWHERE = Endpoint("127.0.0.1", 1)


def record(
    place: Endpoint, index: int = 1, *, epoch: int = 1, parallelism: int = 1, tls: bool = False
) -> RegisterRecord:
    return RegisterRecord(
        host=place.host,
        port=place.port,
        parallelism=parallelism,
        index=index,
        coordinator=str(place),
        data=str(place),
        epoch=epoch,
        instance=f"i-{place.port}-{epoch}",
        ssl=tls,
    )


class Registry:
    """A registry in memory, what stands in it, and a locator that follows it."""

    def __init__(self, folder: Path) -> None:
        self._tree = MemoryTree()
        self._handler = MemoryRegisterServerHandler(self._tree)
        self._handler.start({})
        self._others: list[MemoryRegisterServerHandler] = []
        self.locator = TopicLocator(load(overrides={"jobpipe.home": str(folder)}, environ={}), self._handler)

    def put(self, *records: RegisterRecord) -> None:
        """Write registrations, as whoever has permission may."""
        self._handler.create_topic_node("orders")
        for item in records:
            self._tree.put(f"{TOPICS}/orders/parallel-{item.index}", item.to_bytes())

    def another(self) -> MemoryRegisterServerHandler:
        """A session of somebody else with the same registry."""
        handler = MemoryRegisterServerHandler(self._tree)
        handler.start({})
        self._others.append(handler)
        return handler

    def close(self) -> None:
        self.locator.close()
        for handler in (self._handler, *self._others):
            handler.shutdown()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    made = Registry(tmp_path)
    yield made
    made.close()


@contextlib.contextmanager
def full_backlog() -> Iterator[Endpoint]:
    """A port at which connections hang: its queue of those to be accepted is full."""
    with bound() as listener, contextlib.ExitStack() as stack:
        listener.listen(0)
        place = listener.getsockname()
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(place)
        yield Endpoint(*place)


@contextlib.contextmanager
def silent() -> Iterator[Endpoint]:
    """A port at which connections are made, and nobody says anything."""
    with bound() as listener:
        listener.listen()
        yield Endpoint(*listener.getsockname())


def test_the_highest_complete_set_comes_first() -> None:
    """Cases 27, 30: half a set does not count; one of which a complete one took places is the next to try."""
    ours = [record(Endpoint("a", 1), index, epoch=5, parallelism=3) for index in (1, 2, 3)]
    half = [record(Endpoint("b", 1), index, epoch=7, parallelism=4) for index in (1, 2, 4)]
    made_up = record(Endpoint("c", 1), 1, epoch=99)
    assert from_records("orders", []) is None
    assert all_from_records("orders", half) == []
    assert [place.epoch for place in all_from_records("orders", [*ours, *half])] == [5]
    assert [place.epoch for place in all_from_records("orders", [made_up, *ours])] == [99, 5]
    assert [place.epoch for place in all_from_records("orders", [made_up, *ours[1:]])] == [99, 5]
    assert [place.epoch for place in all_from_records("orders", [made_up, *ours[1:2]])] == [99]
    half_taken = [replace(half[0], epoch=8), *ours[1:]]  # as while another one takes over
    assert all_from_records("orders", half_taken) == []


def test_doubt_moves_on_and_comes_round(registry: Registry) -> None:
    """The others first; when all have failed, from the beginning; what is registered anew is not doubted."""
    foreign, ours = record(NOWHERE, epoch=99), record(Endpoint("b", 2), 2, epoch=5, parallelism=2)
    registry.put(foreign, ours)
    first = registry.locator.wait("orders", 5.0)
    assert first.epoch == 99
    registry.locator.doubt(first)
    second = registry.locator.wait("orders", 5.0)
    assert second.epoch == 5
    registry.locator.doubt(second)
    assert registry.locator.current("orders") == first


@pytest.mark.parametrize("turns", range(4))
def test_a_pause_that_is_cancelled_as_it_ends(registry: Registry, turns: int) -> None:
    """The cancellation is not lost, however many turns of the loop it comes after the news of a registration."""

    async def main() -> None:
        dialler = TopicDialler("orders", registry.locator, lambda _: None)
        follower = asyncio.create_task(_pause_for_ever(dialler))
        await asyncio.sleep(0)
        registry.put(record(NOWHERE))
        await asyncio.to_thread(registry.locator.wait, "orders", 5.0)
        dialler._on_change()
        for _ in range(turns):
            await asyncio.sleep(0)
        follower.cancel()
        await asyncio.wait([follower], timeout=1.0)
        assert follower.cancelled()

    run(main())


async def _pause_for_ever(dialler: TopicDialler) -> None:
    while True:
        dialler._moved.clear()
        await dialler.pause(60.0)


@pytest.mark.slow
@pytest.mark.parametrize("hole", [full_backlog, silent])
def test_a_silent_server_is_left_for_a_new_one(
    mode: Mode, registry: Registry, hole: Callable[[], AbstractContextManager[Endpoint]]
) -> None:
    """Case 23: a ghost that hangs does not keep us from the new publisher; 5 s are allowed, a moment is needed."""

    async def main() -> float:
        dialler = TopicDialler("orders", registry.locator, lambda _: mode.client)
        dialler.begin()
        async with serving(mode) as (_, endpoint, _echo):
            attempt = asyncio.create_task(dialler.dial(HELLO))
            await asyncio.sleep(0.5)  # it is on its way by now; if not, the test is easier
            assert not attempt.done()
            began = time.monotonic()
            await asyncio.to_thread(registry.put, record(endpoint, epoch=2, tls=mode.client is not None))
            with pytest.raises(LinkBroken):
                await attempt
            await dialler.pause(30.0)
            link = await dialler.dial(HELLO)
            took = time.monotonic() - began
            await link.close()
        return took

    with hole() as place:
        registry.put(record(place, tls=mode.client is not None))
        took = run(main())
    print(f"connected {took:.3f} s after the registration")
    assert took < 2.0


@pytest.mark.slow
def test_a_silent_link_is_left_for_a_new_server(mode: Mode, registry: Registry) -> None:
    """Case 11: it would be given up after 15 s of silence; a newer registration asks it for a sign of life now."""

    async def main(proxy: FaultProxy, endpoint: Endpoint) -> float:
        dialler = TopicDialler("orders", registry.locator, lambda _: mode.client)
        dialler.begin()
        link = await dialler.dial(HELLO)
        await asyncio.to_thread(registry.put, record(endpoint, epoch=2, tls=mode.client is not None))
        await dialler.pause(30.0)
        await link.ping(5.0)
        assert link.ended is None  # one that lives is kept
        await asyncio.to_thread(proxy.pause)
        began = time.monotonic()
        await asyncio.to_thread(registry.put, record(endpoint, epoch=3, tls=mode.client is not None))
        await link.wait_closed()
        return time.monotonic() - began

    async def all_of_it() -> float:
        async with serving(mode) as (_, endpoint, _echo):
            proxy = await asyncio.to_thread(FaultProxy, str(endpoint))
            try:
                seen = record(Endpoint.parse(proxy.endpoint), tls=mode.client is not None)
                await asyncio.to_thread(registry.put, seen)
                return await main(proxy, endpoint)
            finally:
                await asyncio.to_thread(proxy.close)

    assert run(all_of_it()) < 4.0


def test_a_made_up_registration_does_not_hang_newcomers(mode: Mode, registry: Registry) -> None:
    """Case 30: the highest epoch, complete, and nobody there: the next set is tried."""

    async def main() -> None:
        dialler = TopicDialler("orders", registry.locator, lambda _: mode.client)
        tls = mode.client is not None
        async with serving(mode) as (_, endpoint, _echo):
            ours = [record(endpoint, index, epoch=5, parallelism=2, tls=tls) for index in (1, 2)]
            await asyncio.to_thread(registry.put, *ours)
            await asyncio.to_thread(registry.put, record(NOWHERE, epoch=99, tls=tls))
            dialler.begin()
            await asyncio.to_thread(registry.locator.wait, "orders", 5.0)
            with pytest.raises(LinkError):
                await dialler.dial(HELLO)
            link = await dialler.dial(HELLO)
            assert dialler.location is not None
            assert dialler.location.epoch == 5
            await link.close()

    run(main())


def test_an_epoch_below_the_highest_proven_is_refused(mode: Mode, registry: Registry) -> None:
    """Case 50: what was proven counts, not what is written in the registry."""

    async def main() -> None:
        dialler = TopicDialler("orders", registry.locator, lambda _: mode.client)
        async with serving(mode) as (_, endpoint, echo):  # proves epoch 1
            await asyncio.to_thread(registry.put, record(endpoint, epoch=9, tls=mode.client is not None))
            link = await dialler.dial(replace(HELLO, epoch=1))
            await link.close()
            with pytest.raises(RemoteProtocolError, match=r"has epoch 1, but epoch 2 was here before"):
                await dialler.dial(replace(HELLO, epoch=2))
            await echo.left.wait()

    run(main())


def test_a_stranger_at_the_registered_port(authority: Authority, registry: Registry) -> None:
    """Case 20: another CA's server: not final at once, and forgotten with the next registration."""
    other = Authority(
        authority.other_ca, authority.other_cert, authority.other_key, authority.ca, authority.cert, authority.key
    )

    async def main() -> None:
        dialler = TopicDialler("orders", registry.locator, lambda _: authority.client())
        dialler.begin()
        async with serving(Mode(other)) as (_, strange, _e), serving(Mode(authority)) as (_, endpoint, _echo):
            await asyncio.to_thread(registry.put, record(strange, tls=True))
            for _ in range(5):
                with pytest.raises(PeerNotTrusted) as caught:
                    await dialler.dial(HELLO)
                assert not dialler.is_final(caught.value)
            await asyncio.to_thread(registry.put, record(endpoint, epoch=2, tls=True))
            await dialler.pause(30.0)
            link = await dialler.dial(HELLO)
            await link.close()

    run(main())


def test_a_stranger_at_the_port_of_an_owner_is_silence(registry: Registry) -> None:
    """Case 20: in plaintext, too; a newcomer waits for the end of the owner's session, and then has the topic."""
    asked = threading.Event()

    def stranger(sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        asked.set()
        read_all(sock)

    ghost, newcomer = registry.another(), registry.another()
    with peer(stranger) as place:
        ghost.claim("orders", OwnerRecord("another-host", 1, 1.0, str(place), 1, "ghost", "job"))
        mine = OwnerRecord(socket.gethostname(), 1, 1.0, str(place), 2, "newcomer", "job")

        async def main() -> None:
            claiming = asyncio.create_task(
                claim_topic(newcomer, "orders", lambda: mine, tls=lambda _: None, timeout=10.0)
            )
            assert await asyncio.to_thread(asked.wait, 10.0)
            await asyncio.to_thread(ghost.shutdown)
            await claiming

        run(main())
    assert newcomer.owner("orders") == mine


@pytest.mark.slow
def test_a_session_that_ends_while_its_owner_is_asked_for_the_last_time(registry: Registry) -> None:
    """Case 5: a stopped owner keeps its asker for seconds; the topic is free by then, and is had, not refused."""
    ghost, newcomer = registry.another(), registry.another()
    over = time.monotonic() + 2.0

    def stopped(sock: socket.socket) -> None:
        time.sleep(max(0.0, over - time.monotonic()))  # the time limit itself is what passes here
        ghost.shutdown()

    with peer(stopped) as place:
        ghost.claim("orders", OwnerRecord("another-host", 1, 1.0, str(place), 1, "ghost", "job"))
        mine = OwnerRecord(socket.gethostname(), 1, 1.0, str(place), 2, "newcomer", "job")
        run(claim_topic(newcomer, "orders", lambda: mine, tls=lambda _: None, timeout=1.0))
    assert newcomer.owner("orders") == mine
