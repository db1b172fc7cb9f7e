"""HTTP: connections come from the listener that all servers share, and are given to uvicorn; in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

import h11
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState as UvicornState

from jobpipe.control.rest.auth_middleware import LET_IN, PEER, REFUSED, App
from jobpipe.errors import JobpipeError, LinkBroken, LinkClosed
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.servers.accepted_connection import AcceptedConnection
from jobpipe.net.servers.audit_log import RateLimitedLog
from jobpipe.net.servers.connection_limits import ConnectionLimits
from jobpipe.net.servers.listener import Listener
from jobpipe.net.tls.tls_context import RenewableTls

log = logging.getLogger(__name__)

HEADER_BYTES = 16 * 1024
CLOSE_SECONDS = 5.0  # for answers that are on their way
log_of_uvicorn = logging.getLogger("jobpipe.control.http")
_rate = RateLimitedLog(log_of_uvicorn)
log_of_uvicorn.addFilter(lambda record: _rate.admits())  # what is no HTTP needs no right
NO_RATE = 1e6  # connections a second: without TLS one costs no more than its refusal


@dataclass(frozen=True)
class HttpLimits:
    """What the listener takes.

    Attributes:
        connections: in total; at the limit the oldest makes room that has not made a request yet.
        per_address: of them, of one address, where connections are encrypted. Others are all of this host.
        per_identity: of one certificate.
        rate: connections a second of one address, where they are encrypted; a failed one counts eleven times.
        handshake_seconds: for TLS.
        request_seconds: for a request to arrive, from its first byte, or from the connection.
        stuck_seconds: for a client to take what it was sent, before it is cut off.
        idle_seconds: between two requests.
    """

    connections: int = 256
    per_address: int = 128
    per_identity: int = 64
    rate: float = 200.0
    handshake_seconds: float = 5.0
    request_seconds: float = 20.0
    stuck_seconds: float = 30.0
    idle_seconds: int = 15

    def of_connections(self, *, encrypted: bool) -> ConnectionLimits:
        if not encrypted:
            return ConnectionLimits(self.connections, self.connections, self.connections, NO_RATE)
        return ConnectionLimits(self.connections, self.per_address, self.per_identity, self.rate)


class HttpConnection(H11Protocol):
    """uvicorn's connection, as a listener has it, and with limits of time.

    It is not read before its peer's certificate was found to be in order, and admitted with its first request that the
    authentication knows a right of. Until then it makes room for others.

    Attributes:
        accepted: its peer, and until when.
    """

    accepted: AcceptedConnection

    def __init__(
        self,
        limits: HttpLimits,
        config: UvicornConfig,
        forget: Callable[[HttpConnection], None],
        left: set[asyncio.Task[None]],
    ) -> None:
        super().__init__(config=config, server_state=UvicornState(), app_state={})  # the state of this one alone
        self.access_log = False  # it would write addresses with their query, where a token may stand
        self.logger = log_of_uvicorn
        self._limits = limits
        self._forget = forget
        self._left = left  # tasks of connections that are gone
        self._late: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._let_in: asyncio.Future[bool] = self.loop.create_future()  # False: it is gone before
        self._lost = asyncio.Event()
        self._made = False
        self._ended = False

    # ---------------------------------------------------------------------------------------------- for the listener

    @property
    def busy(self) -> bool:
        """Whether a request is arriving."""
        return self._late is not None

    @property
    def proven(self) -> bool:
        """No: the server belongs to no job."""
        return False

    @property
    def gone(self) -> bool:
        """Its transport is gone, or never came."""
        return self._lost.is_set()

    async def admit(self) -> None:
        """Wait for the first request that is let through.

        Raises:
            LinkBroken: it ended before any request.
        """
        self.flow.resume_reading()
        if not await asyncio.shield(self._let_in) and not self.cycle:
            raise LinkBroken(f"{self.accepted.address} ended, or was cut, before its first request")

    def let_in(self) -> None:
        """Note that a request was let through."""
        if not self._let_in.done():
            self._let_in.set_result(True)

    def refuse(self, error: JobpipeError) -> None:
        """Answer the first request with the error, or end at once what has no transport, or no time."""
        if isinstance(error, LinkClosed) or not self._made or bool(self.cycle):
            self.abort()
            return
        self.app_state[REFUSED] = error
        self.flow.resume_reading()

    def leave(self, reason: str) -> None:
        """End when the answer that is on its way is sent; without one, now."""
        if not self._made:
            self.abort()
        elif not self.transport.is_closing():
            log.debug("%s must connect again: %s", self.accepted.address, reason)
            try:
                self.shutdown()
            except h11.LocalProtocolError:  # what it sent was no HTTP
                self.abort()

    def abort(self) -> None:
        """Cut it now, and what works for it."""
        self._ended = True
        for task in self.tasks:
            task.cancel()
        if self._made:
            self.transport.abort()
        else:
            self._lost.set()

    async def wait_gone(self) -> None:
        """Wait until the transport and all tasks are gone."""
        await self._lost.wait()
        if self.tasks:
            await asyncio.wait(list(self.tasks))

    # --------------------------------------------------------------------------------------------- asyncio callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.accepted = AcceptedConnection(transport)
        self.app_state.update({PEER: self.accepted, LET_IN: self.let_in})
        super().connection_made(transport)
        self._made = True
        self.flow.pause_reading()
        self._expect()
        if self._ended:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.DONE and self.conn.trailing_data[0].strip():
            # Reading pauses until the answer is sent, so the end of a client that asks on would not be noticed.
            log.debug("%s asks before it has its answer, and is cut", self.accepted.address)
            self._cut()
            return
        self._time()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._stuck = self._stuck or self.loop.call_later(self._limits.stuck_seconds, self._cut)
        else:
            self._time()

    def send_400_response(self, msg: str) -> None:
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # an answer was sent before
            self._cut()

    def _time(self) -> None:
        """See that a timer runs while the client is to move: to send the rest of a request, or another one."""
        arriving = self.conn.their_state is h11.SEND_BODY or (
            self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        )
        if arriving:
            self._expect()
            return
        if self._late is not None:
            self._late.cancel()
            self._late = None
        idle = self.conn.their_state is h11.IDLE and self.conn.our_state is h11.IDLE
        if idle and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self._stuck = self._stuck or self.loop.call_later(self._limits.stuck_seconds, self._cut)

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        self.flow.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for task in self.tasks:
            self._left.add(task)
            task.add_done_callback(self._left.discard)
        if not self._let_in.done():
            self._let_in.set_result(False)
        self._lost.set()
        self._forget(self)

    def _expect(self) -> None:
        """Give the request that arrives its time; the time does not begin again with each byte."""
        self._late = self._late or self.loop.call_later(self._limits.request_seconds, self._cut)

    def _cut(self) -> None:
        self.transport.abort()


class HttpListener:
    """Serves an application at a bound socket, from :meth:`start` to :meth:`close`.

    Args:
        tls: the context for connections, looked at again each second; None without encryption.
        max_age: seconds after which a client must connect again.
        failed: called if it ends by itself, in its thread; :attr:`failure` says why.
    """

    def __init__(
        self,
        app: App,
        sock: socket.socket,
        *,
        tls: RenewableTls | None = None,
        limits: HttpLimits | None = None,
        max_age: float | None = None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.failure: Exception | None = None
        self._failed = failed
        self._app = app
        self._sock = sock
        self._limits = limits or HttpLimits()
        self._tls = tls
        self._max_age = max_age
        self._config = UvicornConfig(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=self._limits.idle_seconds,
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rest", daemon=True)

    def start(self) -> None:
        """Begin to serve.

        Raises:
            JobpipeError: it cannot listen.
        """
        self._config.load()
        self._config.loaded_app = self._app  # without what would log each request at the lowest level, addresses too
        self._thread.start()
        self._started.wait()
        if self.failure is not None:
            raise JobpipeError(f"the REST interface cannot start: {self.failure}") from self.failure

    def close(self) -> None:
        """Take no more connections, let answers that are on their way end, for a few seconds, and end."""
        loop, ended = self._loop, self._ended
        if loop is not None and ended is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(ended.set)
            self._thread.join()
        self._sock.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            log.exception("the REST interface has failed")
            self.failure = error
            self._failed()
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        left: set[asyncio.Task[None]] = set()
        listener: Listener[HttpConnection] = Listener(
            lambda forget: HttpConnection(self._limits, self._config, forget, left),
            tls=self._tls,
            timing=LinkTimeouts(handshake=self._limits.handshake_seconds, goodbye=self._limits.stuck_seconds),
            limits=self._limits.of_connections(encrypted=self._tls is not None),
            max_age=self._max_age,
        )
        await listener.start(self._sock)
        self._started.set()
        ends = [asyncio.create_task(self._ended.wait()), asyncio.create_task(listener.wait_failed())]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(listener.close(CLOSE_SECONDS), _finish(left))


async def _finish(tasks: Collection[asyncio.Task[None]]) -> None:
    """Let work whose client is gone end, for a few seconds."""
    if waiting := list(tasks):
        await asyncio.wait(waiting, timeout=CLOSE_SECONDS)
