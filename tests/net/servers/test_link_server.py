"""The server against clients that hang, lie and flood, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
import ssl

import pytest

from jobpipe.errors import JobpipeError, LinkBroken, LinkError, LinkTimeout
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link, connect
from jobpipe.net.links.async_pump import WRITE_BUFFER
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.servers.connection_limits import ConnectionLimits, ConnectionRefusal
from jobpipe.net.servers.link_server import LinkServer
from jobpipe.wire import Kind, Request, Side
from tests.net.kit import HELLO, NAME, PROVEN, TIMING, Authority, Echo, Mode, bound, frames, linked, run, serving, until

QUICK = dataclasses.replace(TIMING, handshake=0.2, hello=0.2, welcome=0.2)


async def dial(endpoint: Endpoint) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (endpoint.host, endpoint.port))
    return sock


async def to_end(sock: socket.socket) -> bytes:
    """What the server says until it hangs up; the test's deadline counts."""
    data = b""
    try:
        while piece := await asyncio.get_running_loop().sock_recv(sock, 65536):
            data += piece
    except ConnectionError:
        pass
    finally:
        sock.close()
    return data


async def still_serves(mode: Mode, endpoint: Endpoint) -> None:
    async with linked(mode, endpoint) as link:
        assert (await link.call("echo", {"n": 1}, timeout=5)).result == {"n": 1}


@pytest.mark.parametrize("said", [b"", b"J", frames(Side.CLIENT)[:-1]], ids=["nothing", "a byte", "all but one"])
def test_a_client_that_never_says_hello_is_cut(mode: Mode, said: bytes) -> None:
    """Case 62: in the TLS handshake, or before HELLO is whole."""

    async def main() -> None:
        async with serving(mode, timing=QUICK) as (server, endpoint, _):
            sock = await dial(endpoint)
            await asyncio.get_running_loop().sock_sendall(sock, said)
            await to_end(sock)
            assert not server.links
            await still_serves(mode, endpoint)

    run(main())


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        os.urandom(4096),
        b"JPIP\x01\x01\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00",
        b"JPIP\x01\x01\x00\x00\x00\x00\x10\x01\x00\x00\x00\x00",
        b"JPIP\x01\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        frames(Side.CLIENT, Request(1, "echo")),
        frames(Side.CLIENT, hello=dataclasses.replace(HELLO, versions=(7, 9))),
    ],
    ids=["http", "random", "4 GiB", "above 4 KiB", "ping", "request before welcome", "version 7"],
)
def test_a_client_that_breaks_the_protocol_is_cut(said: bytes, mode: Mode) -> None:
    """Case 63; a FAULT says why, and the server goes on."""

    async def main() -> None:
        async with serving(mode) as (server, endpoint, _):
            sock = await dial(endpoint)
            await asyncio.get_running_loop().sock_sendall(sock, said)
            answer = await to_end(sock)
            if mode.authority is None:
                assert answer[5] in (Kind.FAULT, Kind.WELCOME)
            await until(lambda: not server.links)
            await still_serves(mode, endpoint)

    run(main())


@pytest.mark.slow
def test_a_cut_at_every_byte() -> None:
    """Case 14: of HELLO and of a request; nothing is left of any of them."""
    whole = frames(Side.CLIENT)
    request = frames(Side.CLIENT, Request(1, "echo", {"n": 1}), greet=False)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with serving(Mode(None)) as (server, endpoint, echo):
            for length in range(len(whole)):
                sock = await dial(endpoint)
                await loop.sock_sendall(sock, whole[:length])
                sock.shutdown(socket.SHUT_WR)
                await to_end(sock)
            for length in range(len(request)):
                echo.left.clear()
                sock = await dial(endpoint)
                await loop.sock_sendall(sock, whole)
                await loop.sock_recv(sock, 65536)
                await loop.sock_sendall(sock, request[:length])
                sock.shutdown(socket.SHUT_WR)
                await to_end(sock)
                await echo.left.wait()
                assert isinstance(echo.why, LinkBroken)
                assert echo.why.fields["mid_frame"] is (length > 0)
            await until(lambda: not server._served)
            await still_serves(Mode(None), endpoint)

    run(main())


@dataclasses.dataclass
class Limited(Mode):
    """TLS up to a version."""

    version: ssl.TLSVersion

    @property
    def server(self) -> ssl.SSLContext | None:
        return None if self.authority is None else self.authority.server(self.version)


def dial_with(skin: str, endpoint: Endpoint, tls: ssl.SSLContext, name: str) -> None:
    """Open a link that is not meant to come."""
    if skin == "asyncio":
        run(connect(endpoint, HELLO, tls=tls, server_hostname=name, timing=TIMING))
    else:
        BlockingLink.connect(endpoint, HELLO, tls=tls, server_hostname=name, timing=TIMING).abort()


@pytest.mark.parametrize("how", ["hang", "hang up", "garbage"])
def test_a_client_of_a_bad_server(mode: Mode, how: str) -> None:
    """In the handshake or before WELCOME, from the asyncio client."""

    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if how == "garbage":
                writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
            if how != "hang up":
                await reader.read()
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(JobpipeError) as caught:
            await connect(endpoint, HELLO, tls=mode.client, server_hostname=mode.hostname, timing=QUICK)
        if how != "garbage":
            assert type(caught.value) is {"hang": LinkTimeout, "hang up": LinkBroken}[how]
        server.close()
        await server.wait_closed()

    run(main())


def test_many_idle_sockets_do_not_keep_others_out(mode: Mode) -> None:
    """Case 62: the oldest that was not welcomed makes room; a welcomed link is never cut for it."""

    async def main() -> None:
        async with serving(mode, limits=ConnectionLimits(8)) as (server, endpoint, _), linked(mode, endpoint) as first:
            idle = [await dial(endpoint) for _ in range(30)]
            await still_serves(mode, endpoint)
            assert len(server._greeting) <= 8
            assert first.ended is None
            for sock in idle:
                sock.close()
            await until(lambda: not server._greeting)

    run(main())


def test_a_full_server_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """All its places are taken by links that were welcomed."""
    mode = Mode(None)

    async def main() -> None:
        async with serving(mode, limits=ConnectionLimits(2)) as (_, endpoint, _echo):
            async with linked(mode, endpoint), linked(mode, endpoint):
                with caplog.at_level(logging.CRITICAL, "jobpipe.net"), pytest.raises(LinkBroken):
                    await connect(endpoint, HELLO, tls=None, server_hostname=None, timing=TIMING)
            await still_serves(mode, endpoint)

    run(main())


async def dial_from(source: str, endpoint: Endpoint) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((source, 0))
    try:
        await asyncio.get_running_loop().sock_connect(sock, (endpoint.host, endpoint.port))
    except BaseException:
        sock.close()
        raise
    return sock


def test_an_address_has_its_share(mode: Mode) -> None:
    """Case 62: at its own cap, or at that of all, it makes room for the others, not they for it."""

    async def main() -> None:
        async with serving(mode, limits=ConnectionLimits(20, per_address=4, rate=1e6)) as (server, endpoint, _):
            async with linked(mode, endpoint) as first:
                few = await dial_from("127.0.0.3", endpoint)
                idle = [await dial_from("127.0.0.2", endpoint) for _ in range(30)]
                await until(lambda: server.limiter.open == 4 + 1 + 1)
                await until(lambda: len(server._greeting) == 4 + 1)
                assert "127.0.0.3" in {source for source, _ in server._greeting.values()}
                await still_serves(mode, endpoint)
                assert first.ended is None
                for sock in (few, *idle):
                    sock.close()
            await until(lambda: not server._greeting and not server._served)
            assert server.limiter.open == 0

    run(main())


def test_an_address_above_its_rate_is_dropped(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    """Case 73: with a reset, before any handshake; another address is served."""

    async def main() -> None:
        async with serving(mode, limits=ConnectionLimits(rate=2)) as (server, endpoint, echo):
            for _ in range(40):
                with contextlib.suppress(ConnectionResetError):  # it comes as early as that
                    (await dial_from("127.0.0.2", endpoint)).close()
            await until(lambda: server.limiter.refused[ConnectionRefusal.RATE] >= 30)
            assert echo.link is None
            await still_serves(mode, endpoint)

    with caplog.at_level(logging.INFO, "jobpipe.net"):
        run(main())
    assert 1 <= len(caplog.messages) <= 25  # the budget of its log


def test_an_identity_has_its_share(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """Case 62: one certificate cannot take all places; the refusal says which key."""
    mode = Mode(authority)

    async def main() -> None:
        async with serving(mode, limits=ConnectionLimits(per_identity=2, rate=1e6)) as (server, endpoint, _):
            async with linked(mode, endpoint), linked(mode, endpoint):
                with caplog.at_level(logging.CRITICAL, "jobpipe.net"), pytest.raises(LinkError) as caught:
                    await connect(endpoint, HELLO, tls=mode.client, server_hostname=NAME, timing=TIMING)
                assert caught.value.fields["limit"] == 2
            await until(lambda: not server._served)
            await still_serves(mode, endpoint)

    run(main())


def test_the_own_jobs_links_count_to_no_limit(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    """It has one for each of its topics; those of others are counted as if they were not there."""

    async def main() -> None:
        limits = ConnectionLimits(2, per_address=2, per_identity=2, rate=1e6)
        async with serving(mode, limits=limits) as (server, endpoint, _):
            async with contextlib.AsyncExitStack() as own:
                for _number in range(5):
                    await own.enter_async_context(linked(mode, endpoint, hello=PROVEN))
                async with linked(mode, endpoint), linked(mode, endpoint):
                    with caplog.at_level(logging.CRITICAL, "jobpipe.net"), pytest.raises(LinkError):
                        await connect(endpoint, HELLO, tls=mode.client, server_hostname=mode.hostname, timing=TIMING)
                await until(lambda: len(server._served) == 5)
                await still_serves(mode, endpoint)
            await until(lambda: not server._served)
            assert server.limiter.open == 0
            async with linked(mode, endpoint), linked(mode, endpoint):
                pass

    run(main())


@pytest.mark.parametrize(
    "said",
    [b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00", b"\x16\x03\x01\xff\xff", b"\x17\x03\x01\x00\x05", b"\0" * 100],
    ids=["half a header", "half a message", "too long", "no handshake", "zeros"],
)
def test_nothing_is_spent_on_what_is_no_client_hello(
    authority: Authority, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 62: not even a TLS object; what is whole and wrong is cut at once."""
    mode = Mode(authority)

    async def main() -> None:
        async with serving(mode, timing=QUICK) as (server, endpoint, _):
            sock = await dial(endpoint)
            await asyncio.get_running_loop().sock_sendall(sock, said)
            await until(lambda: server._served)
            (link,) = server._served
            await to_end(sock)
            assert link._transport is None
            await until(lambda: not server._served)
            await still_serves(mode, endpoint)

    with caplog.at_level(logging.CRITICAL, "jobpipe.net"):
        run(main())


@pytest.mark.slow
def test_trickling_readers_cost_bounded_memory(mode: Mode) -> None:
    """Case 6: each holds half a MiB, however slowly it takes, and is cut by the write deadline, ours or TCP's."""

    async def main() -> None:
        async with serving(mode, timing=dataclasses.replace(TIMING, write=1.0)) as (server, endpoint, _):
            readers = []
            links: set[Link] = set()
            for _ in range(8):
                reader, writer = await asyncio.open_connection(
                    endpoint.host, endpoint.port, ssl=mode.client, server_hostname=mode.hostname, limit=1024
                )
                writer.write(frames(Side.CLIENT))
                assert await reader.read(1000)
                links |= set(server.links)
                stream = Request(1, "stream", {"size": 256 * 1024, "chunks": 10_000})
                writer.write(frames(Side.CLIENT, stream, greet=False))
                readers.append((reader, writer))
            async with asyncio.timeout(10.0):  # a client hears WELCOME a moment before its link counts
                while len(links) < 8:
                    await asyncio.sleep(0.01)
                    links |= set(server.links)
            deepest = 0
            while server.links:
                for reader, _ in readers:
                    with contextlib.suppress(OSError):
                        await reader.read(10)
                for link in links:
                    if link._transport is not None:
                        deepest = max(deepest, link._transport.get_write_buffer_size())
                await asyncio.sleep(0.02)
            assert {type(link.ended) for link in links} <= {LinkTimeout, LinkBroken}
            assert deepest <= WRITE_BUFFER + 256 * 1024 + 1024
            for _, writer in readers:
                writer.transport.abort()

    run(main())


@pytest.mark.slow
def test_close_is_bounded(mode: Mode) -> None:
    """Case 7: with a client that is idle, one that is stalled, one in its handshake and one that says nothing."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        echo = Echo()
        server = LinkServer(echo, tls=mode.server, timing=TIMING)
        sock = bound()
        endpoint = Endpoint("127.0.0.1", sock.getsockname()[1])
        await server.start(sock)
        half = [await dial(endpoint) for _ in range(3)]
        await loop.sock_sendall(half[1], b"\x16\x03\x01\x02\x00\x01" if mode.authority else b"JPIP\x01")
        async with linked(mode, endpoint) as idle:
            poll = asyncio.create_task(idle.call("poll", timeout=10))
            await echo.started.wait()
            echo.started.clear()
            reader, writer = await asyncio.open_connection(
                endpoint.host, endpoint.port, ssl=mode.client, server_hostname=mode.hostname, limit=1024
            )
            writer.write(frames(Side.CLIENT))
            await reader.read(1000)
            stream = Request(1, "stream", {"size": 256 * 1024, "chunks": 1000})
            writer.write(frames(Side.CLIENT, stream, greet=False))
            await echo.started.wait()
            assert echo.link is not None
            stalled = echo.link
            await until(lambda: not stalled._writable.is_set())
            start = loop.time()
            await server.close(grace=1.0)
            assert loop.time() - start < 3
            assert not server.links
            assert not server._served
            assert echo.cancelled == 2
            with pytest.raises(JobpipeError):
                await poll
            writer.transport.abort()
        for other in half:
            await to_end(other)

    run(main())


def test_close_survives_a_handler_that_will_not_end(caplog: pytest.LogCaptureFixture) -> None:
    """It is reported, and not waited for."""

    class Stubborn(Echo):
        async def poll(self, link: object, request: object) -> tuple[dict[str, object], bytes]:
            self.started.set()
            while not self.gate.is_set():
                try:
                    await self.gate.wait()
                except asyncio.CancelledError:
                    self.cancelled += 1
            return {}, b""

    async def main() -> None:
        echo = Stubborn()
        echo.operations = {"poll": Stubborn.poll}
        mode = Mode(None)
        async with serving(mode, echo) as (server, endpoint, _), linked(mode, endpoint) as link:
            poll = asyncio.create_task(link.call("poll", timeout=10))
            await echo.started.wait()
            with caplog.at_level(logging.CRITICAL, "jobpipe.net"):
                await server.close(grace=0.1)
            with pytest.raises(JobpipeError):
                await poll
            echo.gate.set()

    run(main())


def test_close_before_start_and_twice() -> None:
    """Idempotent."""

    async def main() -> None:
        server = LinkServer(Echo(), tls=None)
        await server.close()
        await server.start(bound())
        await server.close()
        await server.close()

    run(main())


def test_long_poll_beside_a_data_stream(mode: Mode) -> None:
    """A stream to a fast reader does not hold up a call on another link."""

    async def main() -> None:
        async with serving(mode) as (_, endpoint, echo), linked(mode, endpoint) as control:
            poll = asyncio.create_task(control.call("poll", timeout=10))
            reader, writer = await asyncio.open_connection(
                endpoint.host, endpoint.port, ssl=mode.client, server_hostname=mode.hostname
            )
            writer.write(frames(Side.CLIENT))
            await reader.read(1000)
            stream = Request(1, "stream", {"size": 256 * 1024, "chunks": 100_000})
            writer.write(frames(Side.CLIENT, stream, greet=False))

            async def swallow() -> None:
                while await reader.read(1 << 20):
                    pass

            eater = asyncio.create_task(swallow())
            await until(lambda: echo.started.is_set())
            for n in range(20):
                assert (await control.call("echo", {"n": n}, timeout=5)).result == {"n": n}
            await control.call("wake", timeout=5)
            assert (await poll).result == {"woken": True}
            eater.cancel()
            await asyncio.wait([eater])
            writer.transport.abort()

    run(main())
