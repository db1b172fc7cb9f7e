"""Case 71 on single links: their age, the end of their certificate, and the alert that a refused one hears."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobpipe.errors import LinkEnded, NotAuthorized
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import connect
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.retry import RENEW
from jobpipe.net.servers import listener as net_listener
from jobpipe.net.servers.link_server import LinkServer
from jobpipe.net.servers.served_link import ServedLink
from jobpipe.net.tls.certificates import NODE_LIFE, issue
from jobpipe.net.tls.tls_context import Credentials, ServerTls, client_context, server_context
from jobpipe.wire import Hello, Side
from tests.net.kit import HELLO, NAME, TIMING, Authority, Echo, Mode, Remote, bound, frames, linked, run, serving, until
from tests.security.kit import World

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_listener, "TEND_SECONDS", 0.02)


@pytest.fixture(params=["tcp", "tls"])
def mode(request: pytest.FixtureRequest, world: World) -> Mode:
    mine, other = world.orders, world.stranger
    files = (mine.ca, mine.cert, mine.key, other.ca, other.cert, other.key)
    return Mode(Authority(*files) if request.param == "tls" else None)


@pytest.mark.slow
def test_a_quiet_link_ends_with_its_time(mode: Mode) -> None:
    async def main() -> None:
        async with serving(mode, max_age=0.3) as (server, endpoint, echo):
            began = time.monotonic()
            async with linked(mode, endpoint) as link:
                asking = asyncio.create_task(link.call("poll", timeout=10.0))
                why = await link.wait_closed()
                with pytest.raises(LinkEnded) as caught:
                    await asking
            assert isinstance(why, LinkEnded)
            assert why.fields["reason"] == caught.value.fields["reason"] == RENEW
            assert 0.25 < time.monotonic() - began < 5.0
            assert echo.cancelled == 1
            async with linked(mode, endpoint) as link:  # and the next one lives its own time
                assert (await link.call("echo", {"n": 1}, timeout=5.0)).result == {"n": 1}
            await until(lambda: not server.links)

    run(main())


@pytest.mark.parametrize("what", ["stream", "upload"])
def test_a_link_at_work_may_finish(mode: Mode, what: str) -> None:
    """A stream is finished first, and so is an upload, up to its answer: what has no task to retry must not fail."""
    with Remote(mode) as remote:

        async def expire() -> None:
            for served in remote.server.admitted:
                served.accepted.expire(0.0)

        with BlockingLink.connect(
            remote.endpoint, HELLO, tls=mode.client, server_hostname=mode.hostname, timing=TIMING
        ) as link:
            if what == "stream":
                link.start_stream("stream", {"parts": 2, "chunks": 40, "size": 256 * 1024}, timeout=5.0)
                view = memoryview(bytearray(256 * 1024))
                for part in range(2):
                    assert link.next_part() is not None
                    for chunk in range(40):
                        assert link.next_chunk_length() == 256 * 1024
                        link.read_chunk_into(view)
                        if (part, chunk) == (0, 1):
                            remote.do(expire())
                            time.sleep(0.2)
                assert link.next_part() is None
            else:
                link.start_upload("put", length=3, timeout=5.0)
                link.send_data(b"ab")
                remote.do(expire())
                time.sleep(0.2)
                link.send_data(b"c")
                assert link.end_upload(timeout=5.0).result["size"] == 3
            deadline = time.monotonic() + 5.0
            while link.usable():
                assert time.monotonic() < deadline
                time.sleep(0.01)


def test_a_link_that_cannot_be_told_is_cut(
    mode: Mode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the others are told: the listener goes on."""

    async def main() -> None:
        async with serving(mode, max_age=0.1) as (server, endpoint, _):
            with monkeypatch.context() as patch:
                patch.setattr(ServedLink, "leave", lambda link, reason: 1 / 0)
                async with linked(mode, endpoint) as link:
                    await link.wait_closed()
                    await until(lambda: not server._served)
            async with linked(mode, endpoint) as link:
                assert (await link.wait_closed()).fields["reason"] == RENEW

    with caplog.at_level("CRITICAL", "jobpipe.net"):
        run(main())


def test_work_without_end_is_cut(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_listener, "BUSY_SECONDS", 0.2)

    async def main() -> None:
        async with serving(mode, max_age=0.1) as (_, endpoint, echo), linked(mode, endpoint) as client:
            upload = asyncio.create_task(client.call("put", {"wait": True}, timeout=10.0, upload=b"x" * 100))
            await echo.started.wait()
            why = await client.wait_closed()
            assert isinstance(why, LinkEnded)
            with pytest.raises(LinkEnded):
                await upload

    run(main())


def short_lived(world: World, folder: Path, seconds: float) -> Credentials:
    """Return a reader's certificate that ends soon."""
    now = datetime.now(UTC) - NODE_LIFE + timedelta(seconds=seconds)
    made = issue(world.folder, "short", dns=["short.subscription.jobpipe"], usages=["client"], now=now, replace=True)
    copy = Credentials(folder / "ca.crt", folder / "short.crt", folder / "short.key")
    for source, target in ((made.ca, copy.ca), (made.cert, copy.cert), (made.key, copy.key)):
        target.write_bytes(source.read_bytes())
        target.chmod(0o600)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda each: each.name)
def test_the_end_of_a_certificate_ends_its_links(world: World, tmp_path: Path, version: ssl.TLSVersion) -> None:
    """And a resumed TLS session brings it no further: OpenSSL looks at no certificate then."""
    mode = Mode(Authority(*[world.orders.ca, world.orders.cert, world.orders.key] * 2))
    with Remote(mode) as remote:
        ends = time.time() + 3.0
        tls = client_context(short_lived(world, tmp_path, 3.0))
        tls.maximum_version = version

        def dial() -> BlockingLink:
            return BlockingLink.connect(remote.endpoint, HELLO, tls=tls, server_hostname=NAME, timing=TIMING)

        first = dial()
        first.call("echo", timeout=5.0)
        second = dial()
        assert isinstance(second._socket, ssl.SSLSocket)
        assert second._socket.session_reused, "or this test tests nothing"
        while first.usable() or second.usable():
            assert time.time() < ends + 5.0
            time.sleep(0.02)
        assert time.time() > ends - 1.5
        time.sleep(max(0.0, ends + 1.1 - time.time()))  # certificates count whole seconds
        with pytest.raises(NotAuthorized, match="expired"):
            dial()
        first.close()
        second.close()


@pytest.mark.slow
def test_a_refused_client_that_stays_is_let_go(world: World) -> None:
    """It hears its alert, and costs a second, no more."""
    served = ServerTls(world.orders)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            server = LinkServer(Echo(), tls=served, timing=TIMING)
            listener = bound()
            endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
            await server.start(listener)
            stack.push_async_callback(server.close)
            tls = world.client(world.stranger, ssl.TLSVersion.TLSv1_3)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            shaking = tls.wrap_bio(incoming, outgoing, server_hostname=NAME)
            sock = socket.socket()
            stack.callback(sock.close)
            sock.setblocking(False)
            await loop.sock_connect(sock, (endpoint.host, endpoint.port))
            heard: Exception | None = None
            while heard is None:
                try:
                    shaking.do_handshake()
                    await loop.sock_sendall(sock, outgoing.read())
                    shaking.read(1)
                except ssl.SSLWantReadError:
                    if outgoing.pending:
                        await loop.sock_sendall(sock, outgoing.read())
                    data = await loop.sock_recv(sock, 65536)
                    assert data, "an end, and no word of why"
                    incoming.write(data)
                except ssl.SSLError as error:
                    heard = error
            assert "UNKNOWN_CA" in str(heard)
            began = time.monotonic()
            await until(lambda: not server._greeting and not server._served)
            assert time.monotonic() - began < 3.0

    run(main())


def test_who_is_greeted_while_trust_changes_proves_itself_again(world: World) -> None:
    """Else a revoked client could keep a handshake open until the list is in force, and then have its time."""

    class Changing:
        context = server_context(world.orders)
        now = False

        def refresh(self) -> bool:
            now, self.now = self.now, False
            return now

    async def main() -> None:
        changing = Changing()
        server = LinkServer(Echo(), tls=changing, timing=TIMING)
        sock = bound()
        place = sock.getsockname()
        await server.start(sock)
        tls = world.client(world.orders)
        reader, writer = await asyncio.open_connection(*place, ssl=tls, server_hostname=NAME)
        changing.now = True
        await until(lambda: not changing.now)
        writer.write(frames(Side.CLIENT))
        assert RENEW.encode() in await reader.read()
        writer.close()
        await writer.wait_closed()
        await server.close()

    run(main())


def test_a_new_context_counts_for_the_next_connection(world: World) -> None:
    class Changing:
        context = server_context(world.payments)
        asked = 0

        def refresh(self) -> bool:
            self.asked += 1
            self.context = server_context(world.orders)
            return self.asked == 1

    async def main() -> None:
        mode = Mode(Authority(*[world.orders.ca, world.orders.cert, world.orders.key] * 2))
        changing = Changing()
        server = LinkServer(Echo(), tls=changing, timing=TIMING)
        sock = bound()
        endpoint = Endpoint("127.0.0.1", sock.getsockname()[1])
        await server.start(sock)
        link = await connect(
            endpoint,
            Hello("payments", "reader", instance="i"),
            tls=mode.client,
            server_hostname="payments.topic.jobpipe",
            timing=TIMING,
        )
        why = await link.wait_closed()
        assert why.fields["reason"] == RENEW, "trust has changed: it must prove itself anew"
        link = await connect(endpoint, HELLO, tls=mode.client, server_hostname=NAME, timing=TIMING)
        await until(lambda: changing.asked > 5)
        assert link.ended is None, "nothing has changed since"
        await link.close()
        await server.close()

    run(main())
