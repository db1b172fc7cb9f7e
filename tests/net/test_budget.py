"""S2: what the requests and answers of one identity may take, over all its links."""

from __future__ import annotations

import asyncio
import contextlib
import resource

import pytest

from jobpipe.errors import FrameTooLarge, JobpipeError, LinkError, RemoteProtocolError
from jobpipe.net.budget import LIMITS, SHOWN, Budgets, identity_of
from jobpipe.net.link import Link
from jobpipe.wire import Request, Side
from jobpipe.wire.codec import decode, encode, weight_of
from jobpipe.wire.frames import Kind, crc_of, encode_header
from tests.net.kit import Mode, frames, linked, run, serving, until
from tests.net.test_link import raw

MB = 1024 * 1024


def test_five_large_polls_take_little() -> None:
    """S2: five polls of 15.7 MiB, all of them empty lists, on one link: 46 MiB became 1,942."""
    text = b'{"args":{"x":[' + b"[]," * 5_400_000 + b'[]]},"id":1,"op":"poll"}'
    payload = len(text).to_bytes(4, "big") + text
    frame = encode_header(Kind.REQUEST, len(payload), crc_of(Kind.REQUEST, payload)) + payload
    assert len(frame) > 15.4 * MB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with serving(Mode(None)) as (_, endpoint, echo):
            for _ in range(5):
                sock = await raw(endpoint)
                await loop.sock_sendall(sock, frames(Side.CLIENT))
                await loop.sock_recv(sock, 65536)
                echo.left.clear()
                with contextlib.suppress(ConnectionError):  # it is cut
                    await loop.sock_sendall(sock, frame)
                await asyncio.wait_for(echo.left.wait(), 10.0)
                assert isinstance(echo.why, FrameTooLarge)
                sock.close()

    run(main())
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 50 * MB


def test_requests_that_are_small_but_grow_are_refused() -> None:
    """Three bytes of JSON become an object of 64: what it would take counts, before it is decoded."""

    async def main() -> None:
        mode = Mode(None)
        async with serving(mode) as (_, endpoint, _echo), linked(mode, endpoint) as link:
            with pytest.raises(FrameTooLarge, match="in memory"):
                await link.call("poll", {"x": [[]] * 300_000}, timeout=10)

    run(main())


def test_the_budget_is_of_the_identity_not_of_the_link() -> None:
    """S2: many links with one request each are refused above the budget, clearly; then all goes on."""

    async def main() -> None:
        mode = Mode(None)
        async with serving(mode) as (server, endpoint, echo), contextlib.AsyncExitStack() as stack:
            server.budgets._limits = {**LIMITS, "requests": 5 * 2000}
            args = {"x": "y" * 1700}
            links: list[Link] = [await stack.enter_async_context(linked(mode, endpoint)) for _ in range(8)]
            polls = [asyncio.create_task(link.call("poll", args, timeout=20)) for link in links]
            await until(lambda: sum(poll.done() for poll in polls) == 3)
            done = [poll for poll in polls if poll.done()]
            waiting = [poll for poll in polls if not poll.done()]
            for task in done:
                with pytest.raises(LinkError, match=r"127\.0\.0\.1 holds \d+ bytes of requests here"):
                    task.result()
            told = server.budgets.describe()["127.0.0.1"]
            assert 5 * 1700 < told["requests"] <= 5 * 2000
            assert told["requests refused"] == len(done)
            echo.gate.set()
            await asyncio.gather(*waiting)
            assert server.budgets.held("127.0.0.1", "requests") == 0
            assert (await links[0].call("echo", {"n": 1}, timeout=5)).result == {"n": 1}

    run(main())


def test_answers_that_nobody_takes_are_bounded() -> None:
    """Requests are small, answers large: a peer that asks and does not read holds no more than its budget."""

    async def main() -> None:
        mode = Mode(None)
        async with serving(mode) as (server, endpoint, _echo), linked(mode, endpoint) as link:
            server.budgets._limits = {**LIMITS, "answers": 1000}
            with pytest.raises(LinkError, match="bytes of answers"):
                await link.call("echo", {"x": "y" * 2000}, timeout=5)
            assert (await link.call("echo", {"n": 1}, timeout=5)).result == {"n": 1}
            assert server.budgets.held("127.0.0.1", "answers") == 0

    run(main())


def test_names_of_operations_are_short() -> None:
    """They stand in names of tasks and in logs."""

    async def main() -> None:
        mode = Mode(None)
        async with serving(mode) as (_, endpoint, _echo), linked(mode, endpoint) as link:
            with pytest.raises(RemoteProtocolError, match="64 characters"):
                await link.call("x" * 65, timeout=5)

    run(main())


def test_weights() -> None:
    """What a request takes is not underestimated; what lies in the blob does not count twice."""
    plain = b"".join(encode(Request(1, "seal", {}, b",[{" * 100_000)))
    assert weight_of(plain) < len(plain) + 1000
    wide = b"".join(encode(Request(1, "poll", {"x": [{}] * 1000})))
    assert weight_of(wide) > 64 * 1000
    message = decode(Kind.REQUEST, wide)
    assert isinstance(message, Request)
    assert message.weight == weight_of(wide)


def test_counting() -> None:
    """Nothing is kept of identities that hold nothing; what is told of refused ones is bounded."""
    budgets = Budgets({"leases": 2})
    budgets.take("a", "leases", 2)
    budgets.give("a", "leases", 1)
    with pytest.raises(LinkError) as caught:
        budgets.take("a", "leases", 2)
    assert caught.value.fields == {"identity": "a", "kind": "leases", "held": 1, "limit": 2}
    budgets.give("a", "leases", 1)
    budgets.give("unknown", "leases", 1)
    assert budgets._held == {}
    for number in range(3 * SHOWN):
        with pytest.raises(JobpipeError):
            budgets.take(f"n{number}", "leases", 3)
    assert budgets._held == {}
    assert len(budgets.describe()) <= SHOWN
    budgets.take("a", "leases", 100, bounded=False)
    assert budgets.held("a", "leases") == 100
    assert identity_of(("x", "y"), "h:1") == "x, y"
    assert identity_of((), "[::1]:7") == "[::1]"
