"""The server: accepts, greets, runs one task for each request, and ends all of it in bounded time.

It accepts by itself rather than through ``loop.create_server``: so it owns each connection from its first moment, can
cut those that hang in the handshake, and ``close`` needs none of ``Server.wait_closed``, which differs from Python
3.11 to 3.13.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Collection
from typing import Any, Protocol

from jobpipe.errors import (
    JobpipeError,
    LinkClosed,
    LinkError,
    LocalProtocolError,
    NotAuthorized,
    ProtocolError,
    RemoteProtocolError,
)
from jobpipe.net.link import Link
from jobpipe.net.stream import mapped, peer_of
from jobpipe.net.timing import Timing
from jobpipe.wire import Goodbye, Hello, Phase, Reply, Request, Side, Welcome
from jobpipe.wire.codec import fault
from jobpipe.wire.messages import choose_version

__all__ = ["MAX_REQUESTS", "Handler", "Server"]

log = logging.getLogger(__name__)

MAX_REQUESTS = 64
"""Unanswered requests of one link, long polls included; those above get a Fault, twice as many end the link."""

BACKLOG = 256
ACCEPT_PAUSE = 0.2  # seconds without accepting, when the process has no file descriptor left


class Handler(Protocol):
    """What a server does with its links. All methods run in the server's event loop and must not block it."""

    async def welcome(self, link: Link, hello: Hello) -> Welcome:
        """Admit a client; a raised JobpipeError refuses it, and is sent to it."""
        ...

    async def handle(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        """Answer a request with (result, blob). Runs in a task of its own, cancelled when the link ends.

        A raised JobpipeError is sent as it is; any other exception is logged and sent as a plain JobpipeError.
        """
        ...

    def disconnected(self, link: Link, why: JobpipeError) -> None:
        """A link that was welcomed has ended. Its handlers are being cancelled."""
        ...


class Server:
    """Serves one listening socket.

    Args:
        handler: What to do with the links.
        tls: The server's context, or None for plaintext.
        timing: Deadlines.
        max_connections: With so many, the oldest that was not welcomed yet makes room, or else the new one is cut.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        tls: ssl.SSLContext | None,
        timing: Timing | None = None,
        max_connections: int = 1024,
    ) -> None:
        self._handler = handler
        self._tls = tls
        self._timing = timing or Timing()
        self._max_connections = max_connections
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        # In order of arrival; the socket, until asyncio owns it.
        self._greeting: dict[asyncio.Task[None], socket.socket | None] = {}
        self._served: set[_ServedLink] = set()  # all whose transport is not gone yet
        self._links: set[Link] = set()
        self._closing = False

    @property
    def links(self) -> Collection[Link]:
        """The links that were welcomed and live."""
        return frozenset(self._links)

    async def start(self, sock: socket.socket) -> None:
        """Listen on a bound socket and accept from now on. The server owns the socket and closes it."""
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._socket = sock
        self._accepting = asyncio.create_task(self._accept(sock), name="jobpipe-accept")

    async def close(self, grace: float = 5.0) -> None:
        """Stop accepting, say goodbye, cancel the handlers; whatever is left after ``grace`` seconds is cut."""
        self._closing = True
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self._accepting = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for task in list(self._greeting):
            task.cancel()
        for link in list(self._served):
            link.leave("the server closes")
        if not await self._all_gone(grace):
            for link in list(self._served):
                link.abort()
            if not await self._all_gone(1.0):
                log.warning("%d tasks outlive the server: a handler ignores its cancellation", len(self._tasks()))

    def _tasks(self) -> set[asyncio.Task[None]]:
        return set(self._greeting).union(*(link.tasks for link in self._served))

    async def _all_gone(self, timeout: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._greeting or self._served:
                    for link in list(self._served):
                        await link.wait_gone()
                        self._served.discard(link)
                    if self._greeting:
                        await asyncio.wait(list(self._greeting))
                return True
        return False

    # ---------------------------------------------------------------------------------------------------- accepting

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:  # no descriptor left, or the peer is gone already
                log.warning("accept failed: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            if len(self._served) >= self._max_connections and not self._make_room():
                log.warning("%s refused: %d connections are open", peer_of(address), self._max_connections)
                sock.close()
                continue
            task = asyncio.create_task(self._greet(sock, peer_of(address)), name=f"jobpipe-greet-{peer_of(address)}")
            self._greeting[task] = sock
            task.add_done_callback(self._greeted)

    def _greeted(self, task: asyncio.Task[None]) -> None:
        sock = self._greeting.pop(task, None)
        if sock is not None:  # cancelled before its first step
            sock.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("greeting a client failed", exc_info=error)

    def _make_room(self) -> bool:
        for task in self._greeting:
            if not task.cancelling():
                task.cancel()
                return True
        return False

    async def _greet(self, sock: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        link = _ServedLink(self._handler, self._timing, self._forget)
        secured = None if self._tls is None else self._timing.handshake
        farewell = None if self._tls is None else self._timing.goodbye
        task = asyncio.current_task()
        if task in self._greeting:
            self._greeting[task] = None
        self._served.add(link)
        try:
            with mapped(peer, "handshake with"):
                await loop.connect_accepted_socket(
                    lambda: link,
                    sock,
                    ssl=self._tls,
                    ssl_handshake_timeout=secured,
                    ssl_shutdown_timeout=farewell,
                )
            await link.admit()
            self._links.add(link)
        except JobpipeError as error:
            level = logging.WARNING if isinstance(error, NotAuthorized) else logging.INFO
            log.log(level, "no link with %s: %s", peer, error)
            link.refuse(error)
        except asyncio.CancelledError:
            link.refuse(LinkClosed("the server closes or is full", peer=peer))
            raise
        except Exception as error:
            log.exception("admitting %s failed", peer)
            link.refuse(JobpipeError(f"the server failed: {type(error).__name__}"))
        finally:
            if link.gone:
                self._served.discard(link)

    def _forget(self, link: _ServedLink) -> None:
        self._links.discard(link)
        if not self._closing:
            self._served.discard(link)


class _ServedLink(Link):
    """A client's link, with the tasks that answer its requests."""

    def __init__(self, handler: Handler, timing: Timing, forget: Any) -> None:
        super().__init__(Side.SERVER, timing)
        self._handler = handler
        self._forget = forget
        self._welcomed = False
        self.tasks: set[asyncio.Task[None]] = set()

    async def admit(self) -> None:
        """Take HELLO, ask the handler, send WELCOME."""
        hello = await self._greet(self.timing.hello, "HELLO")
        if not isinstance(hello, Hello):
            raise RemoteProtocolError(f"{self.peer} sent no HELLO", peer=self.peer)
        choose_version(hello.versions)
        self.hello = hello
        try:
            async with asyncio.timeout(self.timing.welcome):
                welcome = await self._handler.welcome(self, hello)
        except TimeoutError as error:
            raise LinkError("the server took too long to admit us", peer=self.peer) from error
        self.welcome = welcome
        self._write(welcome)
        self._welcomed = True
        self._watch(beats=hello.heartbeat)

    @property
    def gone(self) -> bool:
        """Its transport is gone, or never came."""
        return self._lost.is_set()

    def refuse(self, error: JobpipeError) -> None:
        """End a link that was not welcomed."""
        self._end(error, fault(None, error))

    def leave(self, reason: str) -> None:
        """Say goodbye without waiting."""
        self._end(LinkClosed(f"{reason}: link to {self.peer}", peer=self.peer, reason=reason), Goodbye(reason))

    async def wait_gone(self) -> None:
        """Wait until the transport and all tasks are gone."""
        await self._lost.wait()
        if self.tasks:
            await asyncio.wait(list(self.tasks))

    def _on_request(self, request: Request) -> None:
        if len(self.tasks) >= 2 * MAX_REQUESTS:
            raise RemoteProtocolError(f"{self.peer} has {len(self.tasks)} unanswered requests", peer=self.peer)
        full = len(self.tasks) >= MAX_REQUESTS
        task = asyncio.create_task(self._serve(request, full=full), name=f"jobpipe-{request.op}-{self.peer}")
        self.tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request of %s failed", self.peer, exc_info=error)

    async def _serve(self, request: Request, *, full: bool) -> None:
        try:
            if full:
                raise JobpipeError(f"more than {MAX_REQUESTS} requests are open on this link", limit=MAX_REQUESTS)
            result, blob = await self._handler.handle(self, request)
            self._answer_request(Reply(request.id, result, blob))
        except JobpipeError as error:
            self._answer_fault(request, error)
        except Exception as error:
            log.exception("%s of %s failed", request.op, self.peer)
            self._answer_fault(request, error)
        finally:
            self._inboxes.drop(request.id)
        with contextlib.suppress(JobpipeError):
            await self._drain()  # counts as unanswered until the peer takes it

    def _answer_request(self, reply: Reply) -> None:
        if self._why is None:
            try:
                self._write(reply)
            except ProtocolError as error:
                raise JobpipeError(f"the answer cannot be sent: {error.message}") from error

    def _answer_fault(self, request: Request, error: BaseException) -> None:
        if self._why is None and self._wire.phase is Phase.OPEN:
            try:
                self._write(fault(request.id, error))
            except LocalProtocolError:
                log.exception("%s of %s: its fault cannot be sent", request.op, self.peer)
                self.abort()

    def _on_end(self, why: JobpipeError) -> None:
        super()._on_end(why)
        for task in self.tasks:
            task.cancel()
        if self._welcomed:
            self._handler.disconnected(self, why)

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio: the transport is gone."""
        super().connection_lost(exc)
        self._forget(self)
