"""The server: accepts, greets, runs one task for each request, and ends all of it in bounded time.

It accepts by itself rather than through ``loop.create_server``: so it owns each connection from its first moment, can
cut those that hang in the handshake, and ``close`` needs none of ``Server.wait_closed``, which differs from Python
3.11 to 3.13.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
from collections.abc import Collection
from typing import Protocol

from jobpipe.errors import (
    JobpipeError,
    LinkClosed,
    NotAuthorized,
)
from jobpipe.net.alerts import HandshakeContext
from jobpipe.net.link import Link
from jobpipe.net.served import Handler, ServedLink
from jobpipe.net.stream import mapped, peer_of
from jobpipe.net.timing import Timing

__all__ = ["Handler", "RenewableTls", "Server"]

log = logging.getLogger(__name__)

BACKLOG = 256
ACCEPT_PAUSE = 0.2  # seconds without accepting, when the process has no file descriptor left
TEND_SECONDS = 1.0  # between two looks at certificate files and the links' ages
BUSY_SECONDS = 30.0  # that a link with a stream may live on when its time is over
SPREAD_SECONDS = 2.0  # over which all links are renewed when trust changes, so that they do not return at once


class RenewableTls(Protocol):
    """A context that is made anew when its files change, as :class:`jobpipe.net.tls.ServerTls`."""

    @property
    def context(self) -> ssl.SSLContext:
        """What the next connection gets."""
        ...

    def refresh(self) -> bool:
        """Look at the files; return True if the links there are must prove themselves anew. Blocking."""
        ...


class Server:
    """Serves one listening socket.

    Args:
        handler: What to do with the links.
        tls: The server's context, fixed or renewable, or None for plaintext.
        timing: Deadlines.
        max_age: Seconds after which a link is told to end, and to dial again; at the latest when its certificate ends.
        max_connections: With so many, the oldest that was not welcomed yet makes room, or else the new one is cut.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        tls: ssl.SSLContext | RenewableTls | None,
        timing: Timing | None = None,
        max_age: float | None = None,
        max_connections: int = 1024,
    ) -> None:
        self._handler = handler
        self._tls = tls
        self._timing = timing or Timing()
        self._max_age = max_age
        self._tending: asyncio.Task[None] | None = None
        self._trust = 0  # so often has it changed
        self._max_connections = max_connections
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        # In order of arrival; the socket, until asyncio owns it.
        self._greeting: dict[asyncio.Task[None], socket.socket | None] = {}
        self._served: set[ServedLink] = set()  # all whose transport is not gone yet
        self._links: set[ServedLink] = set()
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
        self._tending = asyncio.create_task(self._tend(), name="jobpipe-tend")

    async def close(self, grace: float = 5.0) -> None:
        """Stop accepting, say goodbye, cancel the handlers; whatever is left after ``grace`` seconds is cut."""
        self._closing = True
        for loop in (self._accepting, self._tending):
            if loop is not None:
                loop.cancel()
                await asyncio.wait([loop])
        self._accepting = self._tending = None
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

    # ------------------------------------------------------------------------------------------------------ renewing

    async def _tend(self) -> None:
        """Follow the certificate files, and end links whose time is over; they are dialled again, and prove anew."""
        while True:
            await asyncio.sleep(TEND_SECONDS)
            if self._tls is not None and not isinstance(self._tls, ssl.SSLContext):
                try:
                    trust_changed = await asyncio.to_thread(self._tls.refresh)
                except Exception:
                    log.exception("looking at the certificate files failed")
                else:
                    if trust_changed:
                        self._trust += 1
                        log.info("CAs or revocation list have changed: renewing %d links", len(self._links))
                        for link in self._links:
                            link.expire(random.uniform(0.0, SPREAD_SECONDS))  # noqa: S311
            for link in list(self._links):
                link.renew_if_due(BUSY_SECONDS)

    def _context(self, sock: socket.socket) -> HandshakeContext | None:
        if self._tls is None:
            return None
        return HandshakeContext(self._tls if isinstance(self._tls, ssl.SSLContext) else self._tls.context, sock)

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
        link = ServedLink(self._handler, self._timing, self._forget)
        secured = None if self._tls is None else self._timing.handshake
        farewell = None if self._tls is None else self._timing.goodbye
        context, trust = self._context(sock), self._trust
        task = asyncio.current_task()
        if task in self._greeting:
            self._greeting[task] = None
        self._served.add(link)
        try:
            with mapped(peer, "handshake with"):
                await loop.connect_accepted_socket(
                    lambda: link,
                    sock,
                    ssl=context,  # type: ignore[arg-type]
                    ssl_handshake_timeout=secured,
                    ssl_shutdown_timeout=farewell,
                )
            await link.admit(self._max_age)
            if trust != self._trust:  # meanwhile
                link.expire(0.0)
            self._links.add(link)
        except JobpipeError as error:
            level = logging.WARNING if isinstance(error, NotAuthorized) else logging.INFO
            log.log(level, "no link with %s: %s", peer, error)
            link.refuse(error)
            if context is not None:
                await context.linger()
        except asyncio.CancelledError:
            link.refuse(LinkClosed("the server closes or is full", peer=peer))
            raise
        except Exception as error:
            log.exception("admitting %s failed", peer)
            link.refuse(JobpipeError(f"the server failed: {type(error).__name__}"))
        finally:
            if context is not None:
                context.close()
            if link.gone:
                self._served.discard(link)

    def _forget(self, link: ServedLink) -> None:
        self._links.discard(link)
        if not self._closing:
            self._served.discard(link)
