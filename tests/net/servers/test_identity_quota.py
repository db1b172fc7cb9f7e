"""S2: what the requests and answers of one identity may take, over all its links."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import socket

import pytest

from jobpipe.errors import FrameTooLarge, JobpipeError, LinkError, RemoteProtocolError
from jobpipe.net.links.async_link import Link
from jobpipe.net.servers.identity_quota import LIMITS, LONGEST, SHOWN, IdentityQuotas, identity_of
from jobpipe.net.servers.served_link import MAX_REFUSALS, ServedLink
from jobpipe.wire import Connection, Hello, Phase, Request, Side
from jobpipe.wire.codec import encode, weight_of
from jobpipe.wire.frames import Kind, crc_of, encode_header
from tests.net.kit import HELLO, PROVEN, PUBLISHER, Mode, frames, linked, run, serving, until
from tests.net.links.test_async_link import greeted, raw

MB = 1024 * 1024
ROLES = pytest.mark.parametrize("hello", [HELLO, PUBLISHER], ids=["reader", "publisher"])
"""A client says which it is: without the job's secret a publisher may take no more than a reader."""


@pytest.mark.slow
@ROLES
def test_five_large_polls_take_little(hello: Hello) -> None:
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
                await loop.sock_sendall(sock, frames(Side.CLIENT, hello=hello))
                await loop.sock_recv(sock, 65536)
                echo.left.clear()
                with contextlib.suppress(ConnectionError):  # it is cut
                    await loop.sock_sendall(sock, frame)
                await asyncio.wait_for(echo.left.wait(), 10.0)
                assert isinstance(echo.why, FrameTooLarge)
                sock.close()

    run(main())
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 50 * MB


@ROLES
def test_requests_that_are_small_but_grow_are_refused(hello: Hello) -> None:
    """Three bytes of JSON become an object of 64: what it would take counts, before it is decoded."""

    async def main() -> None:
        mode = Mode(None)
        async with serving(mode) as (_, endpoint, _echo), linked(mode, endpoint, hello=hello) as link:
            with pytest.raises(FrameTooLarge, match="in memory"):
                await link.call("poll", {"x": [[]] * 300_000}, timeout=10)

    run(main())


@ROLES
def test_the_quota_is_of_the_identity_not_of_the_link(hello: Hello) -> None:
    """S2: many links with one request each are refused above the quota, clearly; then all goes on."""

    async def main() -> None:
        mode = Mode(None)
        async with serving(mode) as (server, endpoint, echo), contextlib.AsyncExitStack() as stack:
            server.quotas._limits = {**LIMITS, "requests": 5 * 2000}
            args = {"x": "y" * 1700}
            links: list[Link] = [await stack.enter_async_context(linked(mode, endpoint, hello=hello)) for _ in range(8)]
            polls = [asyncio.create_task(link.call("poll", args, timeout=20)) for link in links]
            await until(lambda: sum(poll.done() for poll in polls) == 3)
            done = [poll for poll in polls if poll.done()]
            waiting = [poll for poll in polls if not poll.done()]
            for task in done:
                with pytest.raises(LinkError, match=r"127\.0\.0\.1 holds \d+ bytes of requests here"):
                    task.result()
            told = server.quotas.describe()["127.0.0.1"]
            assert 5 * 1700 < told["requests"] <= 5 * 2000
            assert told["requests refused"] == len(done)
            echo.gate.set()
            await asyncio.gather(*waiting)
            assert server.quotas.held("127.0.0.1", "requests") == 0
            assert (await links[0].call("echo", {"n": 1}, timeout=5)).result == {"n": 1}

    run(main())


def half(size: int) -> bytes:
    """The first half of a request of ``size`` bytes."""
    payload = b"x" * size
    return (encode_header(Kind.REQUEST, size, crc_of(Kind.REQUEST, payload)) + payload)[: size // 2]


@ROLES
def test_half_a_request_counts_too(hello: Hello) -> None:
    """From its first byte on, over all links of the identity; above the quota the link that brings more is ended."""

    async def main() -> None:
        mode, size, loop = Mode(None), 20_000, asyncio.get_running_loop()
        kind = "uploads" if hello.role == "publisher" else "requests"
        async with serving(mode) as (server, endpoint, echo), linked(mode, endpoint) as good:
            quotas = server.quotas
            quotas._limits = {**LIMITS, kind: 5 * size // 2}
            socks = []
            for _ in range(5):
                socks.append(await raw(endpoint))
                await loop.sock_sendall(socks[-1], frames(Side.CLIENT, hello=hello))
                await loop.sock_recv(socks[-1], 65536)
                await loop.sock_sendall(socks[-1], half(size))
                await until(lambda: quotas.held("127.0.0.1", kind) == len(socks) * size // 2)
            last = await raw(endpoint)
            await loop.sock_sendall(last, frames(Side.CLIENT, hello=hello))
            await loop.sock_recv(last, 65536)
            echo.left.clear()
            await loop.sock_sendall(last, half(size)[:5000])
            said = b""
            while received := await asyncio.wait_for(loop.sock_recv(last, 65536), 10.0):
                said += received
            assert f"127.0.0.1 holds 50000 bytes of {kind} here".encode() in said
            await asyncio.wait_for(echo.left.wait(), 10.0)
            assert isinstance(echo.why, LinkError)
            assert quotas.held("127.0.0.1", kind) == 5 * size // 2
            if kind == "requests":
                with pytest.raises(LinkError, match="bytes of requests"):  # whole ones are answered, as before
                    await good.call("echo", {"x": 1}, timeout=5)
            socks[0].close()
            await until(lambda: quotas.held("127.0.0.1", kind) == 4 * size // 2)
            assert (await good.call("echo", {"x": 1}, timeout=5)).result == {"x": 1}
            for sock in [*socks, last]:
                sock.close()
            await until(lambda: not quotas._held)

    run(main())


def test_what_the_job_itself_uploads_keeps_no_newcomer_out() -> None:
    """A task's link shows its ticket with the request; until that is checked it is judged as any other's."""

    async def main() -> None:
        mode, size, loop = Mode(None), 20_000, asyncio.get_running_loop()
        async with serving(mode) as (server, endpoint, _echo):
            quotas = server.quotas
            quotas._limits = {**LIMITS, "uploads": size // 2}
            socks = []
            for hello in (PROVEN, PROVEN, PUBLISHER):
                socks.append(await raw(endpoint))
                await loop.sock_sendall(socks[-1], frames(Side.CLIENT, hello=hello))
                await loop.sock_recv(socks[-1], 65536)
                await loop.sock_sendall(socks[-1], half(size))
                await until(lambda: sum(quotas._held.get("127.0.0.1", {}).values()) == len(socks) * size // 2)
            assert quotas._held["127.0.0.1"] == {"the job's uploads": size, "uploads": size // 2}
            assert not quotas.refused
            for sock in socks:
                sock.close()
            await until(lambda: not quotas._held)

    run(main())


def test_half_a_request_becomes_a_whole_one() -> None:
    """Its bytes do not count twice, and nothing is left when it is answered."""

    async def main() -> None:
        mode, loop = Mode(None), asyncio.get_running_loop()
        async with serving(mode) as (server, endpoint, _echo):
            payload = b"".join(encode(Request(1, "echo", {"x": "y" * 20_000})))
            frame = encode_header(Kind.REQUEST, len(payload), crc_of(Kind.REQUEST, payload)) + payload
            server.quotas._limits = {**LIMITS, "requests": weight_of(payload)}
            sock = await raw(endpoint)
            await loop.sock_sendall(sock, frames(Side.CLIENT))
            await loop.sock_recv(sock, 65536)
            await loop.sock_sendall(sock, frame[:5000])
            await until(lambda: server.quotas.held("127.0.0.1", "requests") == 5000)
            await loop.sock_sendall(sock, frame[5000:15_000])
            await until(lambda: server.quotas.held("127.0.0.1", "requests") == 15_000)
            await loop.sock_sendall(sock, frame[15_000:])
            said = b""
            while len(said) < 20_000:
                said += await asyncio.wait_for(loop.sock_recv(sock, 65536), 10.0)
            assert b"holds" not in said
            await until(lambda: not server.quotas._held)
            sock.close()

    run(main())


def test_what_is_uploaded_and_not_taken_counts() -> None:
    """A peer may announce an upload with any request: what waits for its handler counts until it is taken."""

    async def main() -> None:
        mode, size, loop = Mode(None), 30_000, asyncio.get_running_loop()
        async with serving(mode) as (server, endpoint, echo):
            sock = await raw(endpoint)
            data = b"z" * size
            payload = b"".join(encode(Request(1, "poll", {}, upload=2 * size)))
            asked = encode_header(Kind.REQUEST, len(payload), crc_of(Kind.REQUEST, payload)) + payload
            await loop.sock_sendall(sock, frames(Side.CLIENT))
            await loop.sock_recv(sock, 65536)
            await loop.sock_sendall(sock, asked + encode_header(Kind.DATA, size, crc_of(Kind.DATA, data)) + data)
            await until(lambda: server.quotas.held("127.0.0.1", "requests") == size + weight_of(payload))
            echo.gate.set()  # it is answered: what came with it is thrown away
            await until(lambda: not server.quotas._held)
            sock.close()

    run(main())


def test_answers_that_nobody_takes_are_bounded() -> None:
    """Requests are small, answers large: a peer that asks and does not read holds no more than its quota."""

    async def main() -> None:
        mode = Mode(None)
        async with serving(mode) as (server, endpoint, _echo), linked(mode, endpoint) as link:
            server.quotas._limits = {**LIMITS, "answers": 1000}
            with pytest.raises(LinkError, match="bytes of answers"):
                await link.call("echo", {"x": "y" * 2000}, timeout=5)
            assert (await link.call("echo", {"n": 1}, timeout=5)).result == {"n": 1}
            assert server.quotas.held("127.0.0.1", "answers") == 0

    run(main())


def with_small_buffers(sock: socket.socket, link: ServedLink) -> None:
    """Let the kernel keep little of what the server sends to a client."""
    assert link._transport is not None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    link._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def test_refusals_that_nobody_takes_end_the_link() -> None:
    """T4: they were written without a bound, to a peer that asks on and reads nothing."""

    async def main() -> None:
        mode, loop, total = Mode(None), asyncio.get_running_loop(), 10_000
        args = {"x": [{}] * 150}  # much for its bytes, so that each is refused that has come whole
        async with serving(mode) as (server, endpoint, echo):
            server.quotas._limits = {**LIMITS, "requests": 8000}
            sock = await greeted(endpoint)
            assert isinstance(echo.link, ServedLink)
            with_small_buffers(sock, echo.link)
            asked = frames(Side.CLIENT, *(Request(n, "poll", args) for n in range(1, total)), greet=False)
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(sock, asked)
            await asyncio.wait_for(echo.left.wait(), 10.0)
            assert isinstance(echo.why, RemoteProtocolError)
            assert "reads none of the answers" in echo.why.message
            assert MAX_REFUSALS < server.quotas.refused["127.0.0.1", "requests"] < total // 2
            assert not server.quotas._held
            sock.close()

    run(main())


def test_an_answer_counts_until_it_is_taken() -> None:
    """T4: in the write buffer it counted to nobody, and each link of an identity may have one of 16 MiB there."""

    async def main() -> None:
        mode, loop, size = Mode(None), asyncio.get_running_loop(), 3 * MB
        async with serving(mode) as (server, endpoint, echo):

            async def large(link: Link, request: Request) -> tuple[dict[str, object], bytes]:
                return {}, bytes(size)

            echo.operations["poll"] = lambda _, link, request: large(link, request)
            sock = await greeted(endpoint)
            link = echo.link
            assert isinstance(link, ServedLink)
            with_small_buffers(sock, link)
            await loop.sock_sendall(sock, frames(Side.CLIENT, Request(1, "poll", {}), greet=False))
            await until(lambda: not link._writable.is_set())
            assert server.quotas.held("127.0.0.1", "answers") > size
            said = 0
            while said < size:
                received = await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 10.0)
                assert received, echo.why
                said += len(received)
            await until(lambda: not server.quotas._held)
            sock.close()

    run(main())


def test_only_a_proof_lets_requests_be_large() -> None:
    """The job's own publisher is bounded by neither the identity's quota nor the small size; without proof it is."""

    async def main() -> None:
        mode, blob = Mode(None), bytes(2 * MB)
        async with serving(mode) as (server, endpoint, _echo), linked(mode, endpoint, hello=PROVEN) as link:
            server.quotas._limits = {**LIMITS, "requests": MB, "uploads": MB, "answers": MB}
            assert (await link.call("echo", {}, blob, timeout=10)).blob == blob
            async with linked(mode, endpoint, hello=PUBLISHER) as other:
                with pytest.raises(FrameTooLarge, match="1048576"):
                    await other.call("echo", {}, blob, timeout=10)

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
    server = Connection(Side.SERVER)
    server.state.phase = Phase.OPEN
    server.receive_data(encode_header(Kind.REQUEST, len(wide), crc_of(Kind.REQUEST, wide)) + wide)
    message = server.next_event()
    assert isinstance(message, Request)
    assert message.weight == weight_of(wide)


def test_counting() -> None:
    """Nothing is kept of identities that hold nothing; what is told of refused ones is bounded."""
    quotas = IdentityQuotas({"leases": 2})
    quotas.acquire("a", "leases", 2)
    quotas.release("a", "leases", 1)
    with pytest.raises(LinkError) as caught:
        quotas.acquire("a", "leases", 2)
    assert caught.value.fields == {"identity": "a", "kind": "leases", "held": 1, "limit": 2}
    quotas.release("a", "leases", 1)
    quotas.release("unknown", "leases", 1)
    assert quotas._held == {}
    for number in range(3 * SHOWN):
        with pytest.raises(JobpipeError):
            quotas.acquire(f"n{number}", "leases", 3)
    assert quotas._held == {}
    assert len(quotas.describe()) <= SHOWN
    quotas.acquire("a", "leases", 100, bounded=False)
    assert quotas.held("a", "leases") == 100
    assert identity_of(("x", "y"), "h:1") == identity_of(("y", "x"), "h:1") == "x, y"
    assert identity_of((), "[::1]:7") == "[::1]"


def test_identities_with_long_names_are_not_one() -> None:
    """Certificates that begin with the same names: each would have the holds and the quota of the other."""
    common = [f"a{number}.{'x' * 60}.jobpipe" for number in range(8)]
    one, two = (identity_of([*common, name], "h:1") for name in ("one.jobpipe", "two.jobpipe"))
    assert one != two
    assert one == identity_of(["one.jobpipe", *common], "h:1")
    assert len(one) == len(two) == LONGEST
    assert one.startswith(common[0])
    just = "j" * LONGEST
    assert identity_of([just], "h:1") == just


def test_expensive_requests_run_one_after_the_other() -> None:
    """Of one identity, a topic and an operation; those of others, and other ones, do not wait for them."""

    async def main() -> None:
        quotas = IdentityQuotas({"expensive requests": 3})
        order: list[str] = []
        ends = asyncio.Event()

        async def ask(name: str, identity: str, topic: str = "orders", op: str = "cut") -> None:
            async with quotas.expensive(identity, topic, op):
                order.append(name)
                await ends.wait()

        asked = [asyncio.create_task(ask(f"a{number}", "a")) for number in range(3)]
        asked += [asyncio.create_task(ask("b", "b")), asyncio.create_task(ask("b's other", "b", topic="payments"))]
        asked += [asyncio.create_task(ask("b's status", "b", op="status"))]
        await until(lambda: len(order) == 4)
        assert order == ["a0", "b", "b's other", "b's status"]
        with pytest.raises(LinkError, match="a holds 3 expensive requests here, and at most 3"):
            await ask("a3", "a")
        asked[1].cancel()  # it waits
        await asyncio.wait([asked[1]])
        ends.set()
        await asyncio.gather(asked[0], *asked[2:])
        assert order[4:] == ["a2"]
        assert quotas._held == {}
        del asked  # the cancelled one's traceback has its turn
        gc.collect()
        assert not quotas._locks

    run(main())
