"""The asyncio link and server: calls, streams, uploads, heartbeat, deadlines, the end."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
import zlib

import pytest

from jobpipe.errors import (
    DataLoss,
    ForkedProcess,
    JobpipeError,
    LinkBroken,
    LinkClosed,
    LinkEnded,
    LinkTimeout,
    NotAuthorized,
    RemoteProtocolError,
)
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link, connect
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.servers.served_link import MAX_HELD, MAX_REQUESTS, ServedLink
from jobpipe.wire import Hello, Kind, Ping, Request, Side
from tests.net.kit import HELLO, PROVEN, TIMING, Mode, frames, linked, run, serving, until

QUICK = dataclasses.replace(TIMING, heartbeat=0.05, silence=0.2, write=0.2, idle=0.2)


async def raw(endpoint: Endpoint) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (endpoint.host, endpoint.port))
    return sock


async def greeted(endpoint: Endpoint, *requests: Request, hello: Hello = HELLO) -> socket.socket:
    """A raw client that has its WELCOME, and has sent the requests."""
    loop = asyncio.get_running_loop()
    sock = await raw(endpoint)
    await loop.sock_sendall(sock, frames(Side.CLIENT, hello=hello))
    assert (await loop.sock_recv(sock, 65536))[5] == Kind.WELCOME
    await loop.sock_sendall(sock, frames(Side.CLIENT, *requests, greet=False))
    return sock


async def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    try:
        while piece := await asyncio.get_running_loop().sock_recv(sock, 65536):
            data += piece
    except ConnectionError:
        pass
    return data


def test_a_call_is_answered(mode: Mode) -> None:
    """Arguments, blob, greeting and names arrive."""

    async def main() -> None:
        async with serving(mode) as (server, endpoint, echo), linked(mode, endpoint) as link:
            reply = await link.call("echo", {"n": 1}, b"blob", timeout=5)
            assert (reply.result, reply.blob) == ({"n": 1}, b"blob")
            assert (link.welcome.log, link.hello.heartbeat) == ("log-1", True)
            assert link.peer == str(endpoint)
            assert echo.link is not None
            assert list(server.links) == [echo.link]
            names = ("*.topic.jobpipe", "node.jobpipe") if mode.authority else ()
            assert link.peer_names == echo.link.peer_names == names
            await link.ping(5)
            await echo.link.ping(5)

    run(main())


def test_calls_run_side_by_side(mode: Mode) -> None:
    """A long poll holds up nobody."""

    async def main() -> None:
        async with serving(mode) as (_, endpoint, _echo), linked(mode, endpoint) as link:
            poll = asyncio.create_task(link.call("poll", timeout=5))
            replies = await asyncio.gather(*(link.call("echo", {"n": n}, timeout=5) for n in range(40)))
            assert [reply.result["n"] for reply in replies] == list(range(40))
            assert not poll.done()
            await link.call("wake", timeout=5)
            assert (await poll).result == {"woken": True}

    run(main())


def test_a_large_blob_passes(mode: Mode) -> None:
    """Near the limit of control payloads, both ways."""

    async def main() -> None:
        blob = os.urandom(15 * 1024 * 1024)
        async with serving(mode) as (_, endpoint, _echo), linked(mode, endpoint, hello=PROVEN) as link:
            assert (await link.call("echo", {}, blob, timeout=15)).blob == blob

    run(main())


def test_faults_are_mapped(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    """Our errors pass as they are; a bug is logged there and passes as a plain error; the link lives on."""

    async def main() -> None:
        async with serving(mode) as (_, endpoint, _echo), linked(mode, endpoint) as link:
            with pytest.raises(DataLoss) as caught:
                await link.call("fail", timeout=5)
            assert caught.value.fields == {"topic": "orders", "earliest": 7}
            with caplog.at_level(logging.CRITICAL, "jobpipe.net"), pytest.raises(JobpipeError) as bug:
                await link.call("crash", timeout=5)
            assert type(bug.value) is JobpipeError
            with pytest.raises(JobpipeError):
                await link.call("unsendable", timeout=5)
            assert (await link.call("echo", {"n": 1}, timeout=5)).result == {"n": 1}

    run(main())


def test_a_late_answer_is_dropped(mode: Mode) -> None:
    """A call that timed out does not spoil the link."""

    async def main() -> None:
        async with serving(mode) as (_, endpoint, echo), linked(mode, endpoint) as link:
            with pytest.raises(LinkTimeout) as caught:
                await link.call("poll", timeout=0.05)
            assert caught.value.fields["op"] == "poll"
            echo.gate.set()
            assert (await link.call("echo", {"n": 1}, timeout=5)).result == {"n": 1}

    run(main())


def test_too_many_requests(mode: Mode) -> None:
    """Above the limit: a Fault; above twice the limit: the end."""

    async def main() -> None:
        async with serving(mode) as (_, endpoint, echo), linked(mode, endpoint) as link:
            polls = [asyncio.create_task(link.call("poll", timeout=5)) for _ in range(MAX_REQUESTS)]
            await asyncio.wait_for(echo.started.wait(), 5)
            with pytest.raises(JobpipeError) as caught:
                await link.call("echo", timeout=5)
            assert caught.value.fields == {"limit": MAX_REQUESTS}
            echo.gate.set()
            assert all(reply.result["woken"] for reply in await asyncio.gather(*polls))

    run(main())


def test_a_flood_of_requests_ends_the_link() -> None:
    """A peer that reads no answers costs bounded memory."""

    async def main() -> None:
        mode = Mode(None)
        async with serving(mode) as (_, endpoint, echo):
            sock = await greeted(endpoint, *(Request(n, "poll") for n in range(1, 4 * MAX_REQUESTS)))
            await asyncio.wait_for(echo.left.wait(), 5)
            assert isinstance(echo.why, RemoteProtocolError)
            await read_to_end(sock)
            sock.close()

    run(main())


def test_blobs_of_a_peer_that_reads_nothing_are_bounded() -> None:
    """Neither its requests nor their answers pile up."""
    size = 8 * 1024 * 1024

    async def main() -> None:
        async with serving(Mode(None)) as (_, endpoint, echo):
            sock = await greeted(endpoint, hello=PROVEN)
            said = frames(Side.CLIENT, *(Request(n, "echo", {}, bytes(size)) for n in range(1, 21)), greet=False)
            sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(sock, said))
            await until(lambda: echo.link is not None and echo.link._deaf)
            link = echo.link
            assert isinstance(link, ServedLink)
            for _ in range(200):
                await asyncio.sleep(0)
            assert MAX_HELD < link._held <= MAX_HELD + size
            assert link._transport is not None
            assert link._transport.get_write_buffer_size() < 2 * size
            received = 0
            while received < 20 * size:
                received += len(await asyncio.get_running_loop().sock_recv(sock, 1 << 20))
            await sending
            await until(lambda: not link.tasks)
            assert (link._held, link._deaf) == (0, set())
            sock.close()
            await echo.left.wait()

    run(main())


def test_an_upload_arrives(mode: Mode) -> None:
    """Beyond the window, with back-pressure; others are served before and after."""

    async def main() -> None:
        data = os.urandom(6 * 1024 * 1024)
        async with serving(mode) as (_, endpoint, echo), linked(mode, endpoint) as link:
            upload = asyncio.create_task(link.call("put", {"wait": True}, timeout=10, upload=data))
            await asyncio.wait_for(echo.started.wait(), 5)
            assert echo.link is not None
            transport = echo.link._transport
            assert transport is not None
            await until(lambda: not transport.is_reading())  # the handler is slow: the server stops reading
            assert echo.link._upload_buffers.waiting < 3 * 1024 * 1024
            echo.gate.set()
            assert (await upload).result == {"size": len(data), "crc": zlib.crc32(data)}
            assert echo.link._upload_buffers.waiting == 0
            with pytest.raises(DataLoss):
                await link.call("put", {"refuse": True}, timeout=5, upload=data)
            await link.call("put", {"part": True}, timeout=5, upload=data)
            # what a handler leaves unread was thrown away
            assert (await link.call("put", timeout=5, upload=data)).result["crc"] == zlib.crc32(data)
            assert echo.link._upload_buffers.waiting == 0

    run(main())


def test_an_upload_cut_short_ends_the_handler() -> None:
    """The handler does not wait for bytes that will not come."""

    async def main() -> None:
        mode = Mode(None)
        async with serving(mode) as (_, endpoint, echo):
            sock = await greeted(endpoint, Request(1, "put", upload=100))
            await until(lambda: echo.link is not None and echo.link._upload_buffers._open)
            sock.close()
            await asyncio.wait_for(echo.left.wait(), 5)
            assert isinstance(echo.why, LinkBroken)
            await until(lambda: echo.cancelled)

    run(main())


@pytest.mark.parametrize("name", ["intruder", "crash", "elsewhere"])
def test_a_refused_client_learns_why(mode: Mode, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The error of the handler, before WELCOME; or a server that serves another topic (case 20)."""
    expected = {"intruder": NotAuthorized, "crash": JobpipeError, "elsewhere": RemoteProtocolError}[name]

    async def main() -> None:
        with caplog.at_level(logging.CRITICAL, "jobpipe.net"):
            async with serving(mode) as (server, endpoint, _echo):
                with pytest.raises(expected) as caught:
                    async with linked(mode, endpoint, hello=dataclasses.replace(HELLO, name=name)):
                        pass
                assert type(caught.value) is expected
                await until(lambda: not server.links)

    run(main())


def test_a_server_that_is_slow_to_admit(mode: Mode) -> None:
    """WELCOME has a deadline on both sides."""

    async def main() -> None:
        timing = dataclasses.replace(TIMING, welcome=0.1)
        async with serving(mode) as (_, endpoint, _echo):
            with pytest.raises(LinkTimeout):
                async with linked(mode, endpoint, timing=timing, hello=dataclasses.replace(HELLO, name="slow")):
                    pass
        async with serving(mode, timing=timing) as (_, endpoint, _echo):
            with pytest.raises(JobpipeError) as caught:
                async with linked(mode, endpoint, hello=dataclasses.replace(HELLO, name="slow")):
                    pass
            assert type(caught.value).__name__ == "LinkError"

    run(main())


def test_both_ends_hear_goodbye(mode: Mode) -> None:
    """We closed: LinkClosed; the peer closed: LinkEnded with its reason. Open calls fail with it."""

    async def main() -> None:
        async with serving(mode) as (server, endpoint, echo):
            async with linked(mode, endpoint) as link:
                await link.close("done")
                assert type(await link.wait_closed()) is LinkClosed
                with pytest.raises(LinkClosed):
                    await link.call("echo", timeout=5)
            await asyncio.wait_for(echo.left.wait(), 5)
            assert isinstance(echo.why, LinkEnded)
            assert echo.why.fields["reason"] == "done"
            async with linked(mode, endpoint) as link:
                polls = [asyncio.create_task(link.call("poll", timeout=5)) for _ in range(3)]
                await asyncio.wait_for(echo.started.wait(), 5)
                await server.close(grace=2)
                results = await asyncio.gather(*polls, return_exceptions=True)
                assert [type(result) for result in results] == [LinkEnded] * 3
                assert len({id(result) for result in results}) == 3
                assert type(await link.wait_closed()) is LinkEnded
                assert echo.cancelled == 3
            with pytest.raises(LinkBroken):
                await connect(endpoint, HELLO, tls=mode.client, server_hostname=mode.hostname, timing=TIMING)

    run(main())


def test_an_abort_is_a_broken_link_for_the_peer(mode: Mode) -> None:
    """Cut without goodbye."""

    async def main() -> None:
        async with serving(mode) as (server, endpoint, echo), linked(mode, endpoint) as link:
            poll = asyncio.create_task(link.call("poll", timeout=5))
            await asyncio.wait_for(echo.started.wait(), 5)
            link.abort()
            with pytest.raises(LinkClosed):
                await poll
            await asyncio.wait_for(echo.left.wait(), 5)
            assert type(echo.why) is LinkBroken
            await until(lambda: echo.cancelled and not server.links)

    run(main())


def test_a_cancelled_call_leaves_the_link_alone(mode: Mode) -> None:
    """Its answer is dropped."""

    async def main() -> None:
        async with serving(mode) as (_, endpoint, echo), linked(mode, endpoint) as link:
            poll = asyncio.create_task(link.call("poll", timeout=5))
            await asyncio.wait_for(echo.started.wait(), 5)
            poll.cancel()
            await asyncio.wait([poll])
            await link.call("wake", timeout=5)
            assert (await link.call("echo", timeout=5)).result == {}

    run(main())


@pytest.mark.processes
def test_a_fork_leaves_the_link_alone(mode: Mode) -> None:
    """It has the socket, and the loop's epoll too (case P4): nothing is written, nothing closed."""

    async def main() -> None:
        async with serving(mode) as (_, endpoint, _), linked(mode, endpoint) as link:
            child = os.fork()
            if child == 0:
                try:
                    with pytest.raises(ForkedProcess, match="a fork of that process"):
                        link._write(Ping(1))
                    with pytest.raises(StopIteration):
                        link.close().send(None)  # is done at once
                    link.abort()
                    os._exit(0)
                finally:
                    os._exit(1)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            await link.ping(5)
            assert (await link.call("echo", timeout=5)).result == {}

    run(main())


def test_heartbeats_keep_an_idle_link(mode: Mode) -> None:
    """Both sides answer; nothing else passes, for several times the deadline of silence."""

    async def main() -> None:
        async with serving(mode, timing=QUICK) as (_, endpoint, echo), linked(mode, endpoint, timing=QUICK) as link:
            assert echo.link is not None
            loop = asyncio.get_running_loop()
            end = loop.time() + 3 * QUICK.silence
            while loop.time() < end:
                await link.ping(5)
                poll = asyncio.create_task(link.wait_closed())
                await asyncio.wait([poll], timeout=QUICK.silence)
                poll.cancel()
                await asyncio.wait([poll])
            assert link.ended is None
            assert echo.link.ended is None

    run(main())


def test_a_silent_client_is_cut() -> None:
    """Case 13: it promised heartbeats, its connection stays open, and nothing comes."""

    async def main() -> None:
        async with serving(Mode(None), timing=QUICK) as (_, endpoint, echo):
            sock = await greeted(endpoint, hello=dataclasses.replace(HELLO, heartbeat=True))
            await asyncio.wait_for(echo.left.wait(), 5)
            assert isinstance(echo.why, LinkTimeout)
            assert echo.why.fields["verdict"] == "silent"
            await read_to_end(sock)
            sock.close()

    run(main())


def test_a_silent_server_is_noticed() -> None:
    """Case 13, the other direction: it said WELCOME, then nothing, and its socket stays open."""

    async def main() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(frames(Side.SERVER))
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server:
            link = await connect(Endpoint(host, port), HELLO, tls=None, server_hostname=None, timing=QUICK)
            with pytest.raises(LinkTimeout):
                await link.call("echo", timeout=5)
            assert (await link.wait_closed()).fields["verdict"] == "silent"
        await server.wait_closed()

    run(main())


def test_an_idle_reader_is_cut_and_a_waiting_one_is_not() -> None:
    """A blocking client answers no PING: only a request keeps its link."""

    async def main() -> None:
        async with serving(Mode(None), timing=QUICK) as (_, endpoint, echo):
            sock = await greeted(endpoint, Request(1, "poll"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3 * QUICK.idle):
                    await echo.left.wait()
            echo.gate.set()
            await asyncio.wait_for(echo.left.wait(), 5)
            assert isinstance(echo.why, LinkTimeout)
            assert echo.why.fields["verdict"] == "idle"
            assert b'"idle"' in await read_to_end(sock)
            sock.close()

    run(main())


def test_an_upload_that_stands_still_is_cut() -> None:
    """The handler waits for bytes; nothing else would end it."""

    async def main() -> None:
        async with serving(Mode(None), timing=QUICK) as (_, endpoint, echo):
            sock = await greeted(endpoint, Request(1, "put", upload=100))
            await asyncio.wait_for(echo.left.wait(), 5)
            assert isinstance(echo.why, LinkTimeout)
            await read_to_end(sock)
            sock.close()

    run(main())


def test_a_stalled_reader_is_cut(mode: Mode) -> None:
    """Case 6: the server's memory stays bounded, and the write deadline ends it."""

    async def main() -> None:
        async with serving(mode, timing=QUICK) as (_, endpoint, echo):
            request = Request(1, "stream", {"size": 256 * 1024, "chunks": 1000})
            if mode.client is None:
                close = (await greeted(endpoint, request)).close
            else:
                reader, writer = await asyncio.open_connection(
                    endpoint.host, endpoint.port, ssl=mode.client, server_hostname=mode.hostname, limit=1024
                )
                writer.write(frames(Side.CLIENT))
                assert await reader.read(1000)
                writer.write(frames(Side.CLIENT, request, greet=False))
                close = writer.transport.abort
            await asyncio.wait_for(echo.left.wait(), 5)
            assert isinstance(echo.why, LinkTimeout)
            assert echo.why.fields["verdict"] == "stalled"
            close()

    run(main())


def test_an_unused_link_ends_with_its_first_message() -> None:
    """A server's link serves requests; a client's takes none and no streams."""

    async def main() -> None:
        link = Link(Side.CLIENT, LinkTimeouts())
        link.abort()
        assert type(await link.wait_closed()) is LinkClosed
        with pytest.raises(LinkClosed):
            await link.call("x", timeout=1)

    run(main())


def test_a_stream_to_an_asyncio_client_is_refused(mode: Mode) -> None:
    """Streams are for blocking links."""

    async def main() -> None:
        async with serving(mode) as (_, endpoint, _echo), linked(mode, endpoint) as link:
            with pytest.raises(RemoteProtocolError):
                await link.call("stream", timeout=5)

    run(main())
