"""A server, its clients and hostile peers, for the tests of the net skins."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import queue
import socket
import ssl
import threading
import warnings
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from blockbuster import blockbuster_ctx

from jobpipe.errors import DataLoss, JobpipeError, NotAuthorized
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link
from jobpipe.net.links.async_link import connect as connect_link
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.servers.connection_limits import ConnectionLimits
from jobpipe.net.servers.link_server import LinkServer
from jobpipe.wire import Connection, Hello, Message, Request, Side, Welcome

T = TypeVar("T")
DEADLINE = 20.0
TIMING = LinkTimeouts(connect=2, handshake=2, hello=2, welcome=2, heartbeat=2, silence=6, write=6, idle=6, goodbye=0.5)
NAME = "orders.topic.jobpipe"
HELLO = Hello("orders", "reader", instance="i-1")
PUBLISHER = Hello("orders", "publisher", instance="i-1")  # as everybody may say who has a certificate for it
PROVEN = Hello("orders", "publisher", instance="i-1", proof="the job's secret")  # whose requests may be large


@dataclass(frozen=True)
class Authority:
    """Files of a throw-away CA, and the contexts that its holders use. None of them is shared between tests."""

    ca: Path
    cert: Path
    key: Path
    other_ca: Path
    other_cert: Path
    other_key: Path

    def server(self, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        if version is not None:
            context.maximum_version = version
        return context

    def client(self, *, certificate: str | None = "own", trust: str = "own") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca if trust == "own" else self.other_ca)
        if certificate == "own":
            context.load_cert_chain(self.cert, self.key)
        elif certificate == "other":
            context.load_cert_chain(self.other_cert, self.other_key)
        return context


@dataclass
class Mode:
    """Plain TCP or TLS: what servers and clients of a test get."""

    authority: Authority | None

    @property
    def server(self) -> ssl.SSLContext | None:
        return None if self.authority is None else self.authority.server()

    @property
    def client(self) -> ssl.SSLContext | None:
        return None if self.authority is None else self.authority.client()

    @property
    def hostname(self) -> str | None:
        return None if self.authority is None else NAME


@dataclass
class Echo:
    """A handler with an operation for each thing that is tested."""

    seen: list[tuple[str, Any]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    why: JobpipeError | None = None
    cancelled: int = 0
    link: Link | None = None

    async def welcome(self, link: Link, hello: Hello) -> Welcome:
        self.link = link
        if hello.proof == PROVEN.proof:
            link.note_proof()
        if hello.name == "intruder":
            raise NotAuthorized("not on the list", name=hello.name)
        if hello.name == "crash":
            raise RuntimeError("a bug in welcome")
        if hello.name == "slow":
            await self.gate.wait()
        return Welcome(hello.topic if hello.name != "elsewhere" else "other", "log-1", 1, "i-2")

    async def handle(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        try:
            return await self.operations[request.op](self, link, request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def disconnected(self, link: Link, why: JobpipeError) -> None:
        self.why = why
        self.left.set()

    async def echo(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        return request.args, request.blob

    async def fail(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        raise DataLoss("rows are gone", topic="orders", earliest=7)

    async def crash(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        raise RuntimeError("a bug in handle")

    async def unsendable(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        return {"what": object()}, b""

    async def poll(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        self.started.set()
        await self.gate.wait()
        return {"woken": True}, b""

    async def wake(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        self.gate.set()
        return {}, b""

    async def stream(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        """``parts`` parts of ``chunks`` chunks of ``size`` bytes; ``wrong_crc`` or ``fail_at`` a part spoils it."""
        args = request.args
        payload = memoryview(os.urandom(args.get("size", 1000)))
        crc = zlib.crc32(payload) ^ (1 if args.get("wrong_crc") else 0)
        for part in range(args.get("parts", 1)):
            if part == args.get("fail_at"):
                raise DataLoss("rows are gone", part=part)
            await link.send_part(request.id, {"part": part})
            self.started.set()
            for _ in range(args.get("chunks", 1)):
                await link.send_data(payload, crc)
        return {"crc": zlib.crc32(payload)}, b"end"

    async def put(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        """Take an upload; ``refuse``: not at all; ``wait``: after the gate; ``part``: only its first payload."""
        if request.args.get("refuse"):
            raise DataLoss("not wanted")
        if request.args.get("wait"):
            self.started.set()
            await self.gate.wait()
        size = crc = 0
        async for payload in link.receive_stream(request):
            size += len(payload)
            crc = zlib.crc32(payload, crc)
            if request.args.get("part"):
                break
        return {"size": size, "crc": crc}, b""

    operations: dict[str, Callable[..., Coroutine[Any, Any, tuple[dict[str, Any], bytes]]]] = field(
        default_factory=lambda: {
            name: getattr(Echo, name)
            for name in ("echo", "fail", "crash", "unsendable", "poll", "wake", "stream", "put")
        }
    )


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine: in debug mode, with a deadline, and nothing may be left when it ends.

    Afterwards no task lives and no descriptor is open that was not before; a blocking call in the loop fails.
    """

    async def bounded() -> T:
        async with asyncio.timeout(DEADLINE):
            result = await main
        for _ in range(50):  # transports close in the next rounds of the loop
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if not others:
                break
            await asyncio.sleep(0)
        assert not others, others
        return result

    before = descriptors()
    with warnings.catch_warnings(), blockbuster_ctx():
        warnings.simplefilter("error")
        result = asyncio.run(bounded(), debug=True)
    gc.collect()
    left = {name: target for name, target in descriptors().items() if before.get(name) != target}
    assert not left, left
    return result


def descriptors() -> dict[str, str]:
    """The open files of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return {name: target for name, target in found.items() if not target.startswith("/proc/")}


async def until(condition: Callable[[], object]) -> None:
    """Let the loop go round until the condition holds; :func:`run` has the deadline."""
    while not condition():  # noqa: ASYNC110 - states that have no event
        await asyncio.sleep(0)


def bound() -> socket.socket:
    """A bound socket on a free port."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


@contextlib.asynccontextmanager
async def serving(
    mode: Mode, echo: Echo | None = None, *, timing: LinkTimeouts = TIMING, **options: Any
) -> AsyncIterator[tuple[LinkServer, Endpoint, Echo]]:
    """A server with the Echo handler."""
    echo = echo or Echo()
    options.setdefault("limits", ConnectionLimits(rate=1e6))  # tests fail more often in a second than any client
    server = LinkServer(echo, tls=mode.server, timing=timing, **options)
    sock = bound()
    endpoint = Endpoint("127.0.0.1", sock.getsockname()[1])
    await server.start(sock)
    try:
        yield server, endpoint, echo
    finally:
        await server.close(grace=2.0)


@contextlib.asynccontextmanager
async def linked(
    mode: Mode, endpoint: Endpoint, *, timing: LinkTimeouts = TIMING, hello: Hello = HELLO
) -> AsyncIterator[Link]:
    """An asyncio client."""
    link = await connect_link(endpoint, hello, tls=mode.client, server_hostname=mode.hostname, timing=timing)
    try:
        yield link
    finally:
        await link.close()


class Remote:
    """A server in a thread of its own, for tests of blocking clients."""

    def __init__(self, mode: Mode, timing: LinkTimeouts = TIMING) -> None:
        self.echo: Echo
        self.server: LinkServer
        self.endpoint: Endpoint
        self.loop: asyncio.AbstractEventLoop
        self._mode = mode
        self._timing = timing
        self._ready: queue.Queue[BaseException | None] = queue.Queue()
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._main)

    def _main(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            async with serving(self._mode, timing=self._timing) as (self.server, self.endpoint, self.echo):
                self._ready.put(None)
                await self._stop.wait()

        try:
            asyncio.run(main())
        except BaseException as error:
            self._ready.put(error)
            raise

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE)

    def __enter__(self) -> Remote:
        self._thread.start()
        error = self._ready.get(timeout=DEADLINE)
        if error is not None:
            raise error
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def peer(script: Callable[[socket.socket], None]) -> Iterator[Endpoint]:
    """A raw server: runs the script on each connection, in a thread."""
    listener = bound()
    listener.listen()
    failures: list[BaseException] = []

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            try:
                with sock:
                    sock.settimeout(DEADLINE)
                    script(sock)
            except (OSError, ssl.SSLError):
                pass
            except BaseException as error:
                failures.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Endpoint("127.0.0.1", listener.getsockname()[1])
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(DEADLINE)
        assert not thread.is_alive()
        assert not failures, failures


def read_all(sock: socket.socket) -> bytes:
    """Everything up to the end, or the cut, of the peer."""
    data = b""
    with contextlib.suppress(OSError):
        while piece := sock.recv(65536):
            data += piece
    return data


def frames(side: Side, *said: Message, hello: Hello = HELLO, greet: bool = True) -> bytes:
    """Bytes of one side's messages, legal after its greeting, which they begin with unless ``greet`` is false."""
    connection = Connection(side)
    if side is Side.CLIENT:
        connection.send(hello)
        connection.state.apply(Side.SERVER, Welcome("orders", "log-1", 1, "i-2"))
    else:
        connection.state.apply(Side.CLIENT, hello)
        connection.send(Welcome("orders", "log-1", 1, "i-2"))
        connection.state.unanswered.update(range(1, 100))
    if not greet:
        connection.data_to_send()
    for message in said:
        connection.send(message)
    return b"".join(connection.data_to_send())
