"""R15: what silent connections leave behind: objects would be a leak, memory alone is the allocator's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
from collections import Counter

import psutil
import pytest

from jobpipe.net.address import Endpoint
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.servers.connection_limits import ConnectionLimits
from jobpipe.net.servers.link_server import LinkServer
from tests.net.kit import NAME, Authority, Echo, Mode, bound, until

COUNT = 25  # of each kind, in each round
ROUNDS = 5
SETTLED = 2  # rounds, after which nothing is used for the first time
SOON = LinkTimeouts(
    connect=10, handshake=0.3, hello=0.3, welcome=1, heartbeat=1, silence=3, write=3, idle=3, goodbye=0.2
)
MOST = 8 * 1024 * 1024  # bytes that three more rounds may keep; 300 KiB a connection would be 50 MiB a round


def counted() -> Counter[str]:
    """Return how many objects there are, by type; of ours, of asyncio's, of TLS and of sockets."""
    for _ in range(3):
        gc.collect()
    names = Counter(
        f"{type(each).__module__}.{type(each).__qualname__}"
        for each in gc.get_objects()
        if not (isinstance(each, asyncio.TimerHandle) and each.cancelled())  # the loop drops these by the hundred
    )
    wanted = ("jobpipe.", "asyncio.", "_asyncio.", "ssl.", "_ssl.", "socket.", "builtins.coroutine")
    return Counter({name: count for name, count in names.items() if name.startswith(wanted)})


async def a_round(mode: Mode, endpoint: Endpoint) -> None:
    """Connect and be silent: before TLS, in the middle of a ClientHello, after the handshake, in half a HELLO."""
    loop = asyncio.get_running_loop()
    socks: list[socket.socket] = []
    for number in range(2 * COUNT):
        sock = socket.socket()
        sock.setblocking(False)
        socks.append(sock)
        await loop.sock_connect(sock, (endpoint.host, endpoint.port))
        if number % 2:
            with contextlib.suppress(OSError):  # it was cut first
                await loop.sock_sendall(sock, b"\x16\x03\x01\x02\x00\x01")
    context = mode.client
    assert context is not None

    async def greet_half(number: int) -> asyncio.StreamWriter | None:
        try:
            _, writer = await asyncio.open_connection(
                endpoint.host, endpoint.port, ssl=context, server_hostname=NAME, ssl_handshake_timeout=5.0
            )
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            return None  # it was cut first
        if number % 2:
            writer.write(b"JPIP\x01\x01\x00\x00\x00")
        return writer

    writers = await asyncio.gather(*(greet_half(number) for number in range(2 * COUNT)))
    await asyncio.sleep(2 * SOON.hello)
    for writer in writers:
        if writer is not None:
            writer.transport.abort()
    for sock in socks:
        sock.close()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_silent_connections_leave_no_objects(authority: Authority) -> None:
    """R15: the same objects after each round; and memory that no longer grows once the allocator has its arenas."""
    mode = Mode(authority)
    counts: list[Counter[str]] = []
    memory: list[int] = []

    async def main() -> None:
        server = LinkServer(Echo(), tls=mode.server, timing=SOON, limits=ConnectionLimits(rate=1e6))
        sock = bound()
        endpoint = Endpoint("127.0.0.1", sock.getsockname()[1])
        await server.start(sock)
        try:
            for _ in range(ROUNDS):
                await a_round(mode, endpoint)
                await until(lambda: not (server.limiter.open or server._greeting or server._served))
                await asyncio.sleep(2 * SOON.goodbye)
                counts.append(counted())
                memory.append(psutil.Process().memory_info().rss)
        finally:
            await server.close()

    asyncio.run(main())
    grown = {name: count - counts[SETTLED - 1][name] for name, count in counts[-1].items()}
    leaked = {name: count for name, count in grown.items() if count > COUNT // 3}
    print(f"memory by round: {[each >> 20 for each in memory]} MiB")
    assert not leaked, leaked
    assert memory[-1] - memory[SETTLED - 1] < MOST, [each >> 20 for each in memory]
