"""Listening: accepts connections, bounds them before and after TLS, and lets each end when its peer is due.

It accepts connections itself, not through ``loop.create_server``. So it owns each connection from its first moment, can
cut those that hang in the handshake, and does not need ``Server.wait_closed``, which behaves differently in Python 3.11
to 3.13.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import random
import resource
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Generic, TypeVar, cast
from weakref import WeakValueDictionary

from jobpipe.errors import JobpipeError, LinkClosed, LinkError, NotAuthorized, ProtocolError
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.links.socket_options import mapped, peer_of
from jobpipe.net.retry import RENEW
from jobpipe.net.servers.accepted_connection import Connection
from jobpipe.net.servers.audit_log import RateLimitedLog
from jobpipe.net.servers.connection_limits import ConnectionLimiter, ConnectionLimits, ConnectionRefusal, source_of
from jobpipe.net.tls.client_hello import wait_for_client_hello
from jobpipe.net.tls.tls_alerts import HandshakeContext
from jobpipe.net.tls.tls_context import RenewableTls

log = logging.getLogger(__name__)

BACKLOG = 4096  # connections that may wait for accept() during a flood; the kernel caps it at somaxconn
ACCEPT_PAUSE = 0.2  # seconds without accepting, when the process has no file descriptor left
ACCEPT_TURN = 64  # connections accepted at once (some 2 ms), before existing ones get a turn
MAX_GREETING = 256  # connections not yet admitted: in TLS each costs 300 KiB
HANDSHAKES = 16  # concurrent, per address: each blocks the event loop for 1.3 ms
RESERVED_FILES = 64  # descriptors kept for catalogs, segments and pipes
NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST, so that what we drop leaves no TIME_WAIT with us
TEND_SECONDS = 1.0  # between two looks at certificate files and the connections' ages
BUSY_SECONDS = 30.0  # how long a connection that is due may take to finish its work
SPREAD_SECONDS = 2.0  # over which all are renewed when trust changes, so that they do not all reconnect at once


C = TypeVar("C", bound=Connection)


class Listener(Generic[C]):
    """Serves one listening socket.

    Args:
        connection: Makes the protocol of a new connection; it is given what it must call once its transport is gone.
        tls: The server's context, fixed or renewable, or None for plaintext.
        timing: Deadlines.
        limits: How many connections, and how fast. At a cap the listener drops the oldest connection not yet admitted:
            at an address's own cap, of that address; at any other, of the address with the most such connections. If
            there is none, it drops the new one.
        max_age: Seconds after which the client must connect again, or sooner if its certificate expires.
    """

    def __init__(
        self,
        connection: Callable[[Callable[[C], None]], C],
        *,
        tls: ssl.SSLContext | RenewableTls | None,
        timing: LinkTimeouts | None = None,
        limits: ConnectionLimits | None = None,
        max_age: float | None = None,
    ) -> None:
        self._connection = connection
        self._tls = tls
        self._timing = timing or LinkTimeouts()
        self._limits = limits or ConnectionLimits()
        self._max_age = max_age
        self._tending: asyncio.Task[None] | None = None
        self._trust = 0  # how often the trusted CAs or the revocation list have changed
        self.limiter = ConnectionLimiter(self._limits)
        self._log = RateLimitedLog(log)
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        # By task, in order of arrival: the connection's source, and its socket until asyncio owns it.
        self._greeting: dict[asyncio.Task[None], tuple[str, socket.socket | None]] = {}
        # Connections whose transport is still open, and the source that they count to: None for those of our own job.
        self._served: dict[C, str | None] = {}
        self._accepted: set[C] = set()  # of those served: their TLS handshake is over
        self._identified: set[C] = set()
        self._leaving: dict[C, float] = {}  # of those accepted: told to end, and since when
        self._handshakes: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by source, while in use
        self._admitted: set[C] = set()
        self._closing = False

    @property
    def admitted(self) -> Collection[C]:
        """The connections that were admitted and live."""
        return frozenset(self._admitted)

    async def start(self, sock: socket.socket) -> None:
        """Listen on a bound socket and accept from now on. The listener owns the socket and closes it."""
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._socket = sock
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files != resource.RLIM_INFINITY:  # beyond it accept() itself fails, for everybody
            room = max(1, files - RESERVED_FILES)
            self.limiter.limits = replace(self._limits, connections=min(self._limits.connections, room))
        self._accepting = asyncio.create_task(self._accept(sock), name="jobpipe-accept")
        self._tending = asyncio.create_task(self._tend(), name="jobpipe-tend")

    async def wait_failed(self) -> None:
        """Wait for the end of its own work, which comes before :meth:`close` only by an error; raise that."""
        work = [task for task in (self._accepting, self._tending) if task is not None]
        done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def close(self, grace: float = 5.0) -> None:
        """Stop accepting, end all connections; whatever is left after ``grace`` seconds is cut."""
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
        for connection in list(self._served):
            connection.leave("the server closes")
        if not await self._all_gone(grace):
            for connection in list(self._served):
                connection.abort()
            if not await self._all_gone(1.0):
                log.warning("%d tasks outlive the server: a handler ignores its cancellation", len(self._tasks()))

    def _tasks(self) -> set[asyncio.Task[None]]:
        return set(self._greeting).union(*(connection.tasks for connection in self._served))

    async def _all_gone(self, timeout: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._greeting or self._served:
                    for connection in list(self._served):
                        await connection.wait_gone()
                        self._release(connection)
                    if self._greeting:
                        await asyncio.wait(list(self._greeting))
                return True
        return False

    # ------------------------------------------------------------------------------------------------------ renewing

    async def _tend(self) -> None:
        """Follow the certificate files, and end connections whose time is over; their clients dial again."""
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
                        log.info("CAs or revocation list have changed: renewing %d connections", len(self._accepted))
                        for connection in self._accepted:
                            connection.accepted.expire(random.uniform(0.0, SPREAD_SECONDS))  # noqa: S311
            for connection in list(self._accepted):
                try:
                    self._renew_if_due(connection)
                except Exception:
                    log.exception("a connection of %s cannot be ended, and is cut", connection.accepted.address)
                    connection.abort()

    def _renew_if_due(self, connection: C) -> None:
        """End a connection that is due, in quiet or after BUSY_SECONDS; as long after that, cut it."""
        now, late = asyncio.get_running_loop().time(), connection.accepted.overdue()
        if late is None:
            return
        if now - self._leaving.get(connection, now) > BUSY_SECONDS:
            connection.abort()
        elif late > BUSY_SECONDS or not connection.busy:
            self._leaving.setdefault(connection, now)
            connection.leave(RENEW)

    def _context(self, sock: socket.socket) -> HandshakeContext | None:
        if self._tls is None:
            return None
        return HandshakeContext(self._tls if isinstance(self._tls, ssl.SSLContext) else self._tls.context, sock)

    # ---------------------------------------------------------------------------------------------------- accepting

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # Without TLS each is served at once: no more of them come in between than may wait for their first request.
        taken, turn = 0, ACCEPT_TURN if self._tls is not None else ACCEPT_TURN // 4
        while True:
            taken += 1
            if taken % turn == 0:
                await asyncio.sleep(0)  # sock_accept does not yield while connections wait, as they do in a flood
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:
                self._log.log(logging.WARNING, "accept failed: %s", error)
                if error.errno in NO_ROOM:
                    self._make_room(None)
                    await asyncio.sleep(ACCEPT_PAUSE)
                continue
            source = source_of(address)
            refusal = self.limiter.arrive(source, loop.time()) or self._fit(source)
            if refusal is not None:
                self._log.log(logging.WARNING, "%s is dropped: %s", peer_of(address), refusal.value)
                _drop(sock)
                continue
            task = asyncio.create_task(
                self._greet(sock, peer_of(address), source), name=f"jobpipe-greet-{peer_of(address)}"
            )
            self._greeting[task] = source, sock
            task.add_done_callback(self._greeted)

    def _fit(self, source: str) -> ConnectionRefusal | None:
        """Make room for a connection that has arrived, or say why it is refused."""
        over = self.limiter.over(source)
        if over is None and len(self._greeting) < MAX_GREETING:
            return None
        if self._make_room(source if over is ConnectionRefusal.ADDRESS else None):
            return None
        over = over or ConnectionRefusal.TOTAL
        self.limiter.refused[over] += 1
        self.limiter.leave(source)
        return over

    def _greeted(self, task: asyncio.Task[None]) -> None:
        source, sock = self._greeting.pop(task)
        if sock is not None:  # cancelled before its first step
            sock.close()
            self._failed(source)
            self.limiter.leave(source)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.log(logging.ERROR, "greeting a client failed", error=error)

    def _failed(self, source: str) -> None:
        if not self._closing:
            self.limiter.failed(source, asyncio.get_running_loop().time())

    def _make_room(self, source: str | None) -> bool:
        """Drop the oldest connection not yet admitted: of ``source`` if given, else of the address with the most."""
        waiting = [(task, found) for task, (found, _) in self._greeting.items() if not task.cancelling()]
        if source is None and waiting:
            ((source, _),) = Counter(found for _, found in waiting).most_common(1)
        for task, found in waiting:
            if found == source:
                task.cancel()
                return True
        return False

    async def _greet(self, sock: socket.socket, peer: str, source: str) -> None:
        loop = asyncio.get_running_loop()
        connection = self._connection(self._forget)
        context, trust = self._context(sock), self._trust
        task = asyncio.current_task()
        if task in self._greeting:
            self._greeting[task] = source, None
        self._served[connection] = source
        try:
            with mapped(peer, "handshake with"):
                if context is None:
                    await loop.connect_accepted_socket(lambda: cast("asyncio.Protocol", connection), sock)
                else:
                    await self._handshake(connection, sock, peer, source, context)
            self._accepted.add(connection)
            connection.accepted.limit_age(self._max_age)
            if trust != self._trust:  # trust changed during the handshake
                connection.accepted.expire(0.0)
            connection.accepted.require()
            self._identify(connection)
            await connection.admit()
            if not connection.gone:
                self._admitted.add(connection)
                if connection.proven:
                    self._stop_counting(connection)
        except JobpipeError as error:
            level = logging.WARNING if isinstance(error, NotAuthorized) else logging.INFO
            self._log.log(level, "%s is not let in: %s", peer, error)
            connection.refuse(error)
            if isinstance(error, (LinkError, ProtocolError, NotAuthorized)):  # others come from authorised clients
                self._failed(source)
            await self._wait_refused(connection, context)
        except asyncio.CancelledError:
            connection.refuse(LinkClosed("the server closes or is full", peer=peer))
            self._failed(source)
            raise
        except Exception as error:  # noqa: BLE001 - logged, and told to the client
            self._log.log(logging.ERROR, "admitting %s failed", peer, error=error)
            connection.refuse(JobpipeError(f"the server failed: {type(error).__name__}"))
            await self._wait_refused(connection, context)
        finally:
            if context is not None:
                context.close()
            if connection.gone:
                self._release(connection)

    async def _wait_refused(self, connection: C, context: HandshakeContext | None) -> None:
        """Wait until a refused connection is gone; until then it makes room for others."""
        try:
            if context is not None:
                await context.linger()
            await connection.wait_gone()
        except asyncio.CancelledError:
            connection.abort()
            raise

    async def _handshake(
        self, connection: C, sock: socket.socket, peer: str, source: str, context: HandshakeContext
    ) -> None:
        loop = asyncio.get_running_loop()
        slots = self._handshakes.get(source)
        if slots is None:
            slots = self._handshakes[source] = asyncio.Semaphore(HANDSHAKES)
        handed_over = False
        try:
            async with asyncio.timeout(self._timing.handshake):
                await wait_for_client_hello(sock, peer)
                await slots.acquire()
            try:
                handed_over = True
                await loop.connect_accepted_socket(
                    lambda: cast("asyncio.Protocol", connection),
                    sock,
                    ssl=context,  # type: ignore[arg-type]
                    ssl_handshake_timeout=self._timing.handshake,
                    ssl_shutdown_timeout=self._timing.goodbye,
                )
            finally:
                slots.release()
        finally:
            if not handed_over:
                _drop(sock)

    def _identify(self, connection: C) -> None:
        peer = connection.accepted
        if not peer.names:
            return  # plaintext: there is no identity
        if not self.limiter.identify(peer.names):
            limit = self.limiter.limits.per_identity
            named = f" ({self._limits.identity_key})" if self._limits.identity_key else ""
            raise LinkError(
                f"the certificate of {', '.join(peer.names)} has {limit} connections here already{named}",
                peer=peer.address,
                limit=limit,
            )
        self._identified.add(connection)

    def _stop_counting(self, connection: C) -> None:
        """Let a connection of our own job count to no limit: it has one for each of its topics."""
        source, self._served[connection] = self._served[connection], None
        if source is not None:
            self.limiter.leave(source)
        if connection in self._identified:
            self._identified.remove(connection)
            self.limiter.forget(connection.accepted.names)

    def _release(self, connection: C) -> None:
        if connection in self._served:
            self._stop_counting(connection)
            del self._served[connection]
        self._accepted.discard(connection)
        self._leaving.pop(connection, None)

    def _forget(self, connection: C) -> None:
        self._admitted.discard(connection)
        if not self._closing:
            self._release(connection)


def _drop(sock: socket.socket) -> None:
    """Close a socket with a reset."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()
