"""Listening: connections are taken, bounded in number, time and size, and given to uvicorn's HTTP; in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState as UvicornState

from jobpipe.control.api_gate import PEER_NAMES, App

log = logging.getLogger(__name__)

HEADER_BYTES = 16 * 1024
RENEW_SECONDS = 2.0
CLOSE_SECONDS = 5.0  # for answers that are on their way


class ListenerLimits:
    """What one listener takes."""

    def __init__(
        self,
        *,
        connections: int = 128,
        handshakes: int = 64,
        handshake_seconds: float = 10.0,
        request_seconds: float = 20.0,
        stuck_seconds: float = 30.0,
        idle_seconds: int = 15,
    ) -> None:
        """Give the limits.

        Args:
            connections: those with a request or waiting for one.
            handshakes: those that are not encrypted yet.
            request_seconds: for a request to arrive, from its first byte, or from the connection.
            stuck_seconds: for a client to take what it was sent, before it is cut off.
            idle_seconds: between two requests.
        """
        self.connections = connections
        self.handshakes = handshakes
        self.handshake_seconds = handshake_seconds
        self.request_seconds = request_seconds
        self.stuck_seconds = stuck_seconds
        self.idle_seconds = idle_seconds


class _Connection(H11Protocol):
    """uvicorn's connection, with limits of time."""

    limits: ListenerLimits

    def __init__(self, limits: ListenerLimits, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # it would write addresses with their query, where a token may stand
        self.limits = limits
        self._late: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            names = [value for kind, value in (secured.getpeercert() or {}).get("subjectAltName", ()) if kind == "DNS"]
            self.app_state = {**self.app_state, PEER_NAMES: tuple(names)}
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        arriving = self.conn.their_state is h11.SEND_BODY or (
            self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        )
        if arriving:
            self._expect()
        elif self._late is not None:
            self._late.cancel()
            self._late = None

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self._stuck = self._stuck or self.loop.call_later(self.limits.stuck_seconds, self._cut)

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

    def _expect(self) -> None:
        """Give the request that arrives its time; the time does not begin again with each byte."""
        self._late = self._late or self.loop.call_later(self.limits.request_seconds, self._cut)

    def _cut(self) -> None:
        self.transport.abort()


class Listener:
    """Serves an application at a listening socket, from :meth:`start` to :meth:`close`.

    Args:
        tls: returns the context for the next connection; None without encryption. It may block: it reads files.
        refresh: called every two seconds, in a thread.
        failed: called if it ends by itself, in its thread; :attr:`failure` says why.
    """

    def __init__(
        self,
        app: App,
        sock: socket.socket,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        refresh: Callable[[], None] | None = None,
        limits: ListenerLimits | None = None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.failure: Exception | None = None
        self._failed = failed
        self._app = app
        self._sock = sock
        self._limits = limits or ListenerLimits()
        self._tls = tls
        self._context = None if tls is None else tls()
        self._refresh = refresh
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
        self._state = UvicornState()
        self._handshakes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rest", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._config.load()
        self._config.loaded_app = self._app  # without what would log each request at the lowest level, addresses too
        self._sock.setblocking(False)
        self._thread.start()
        self._started.wait()

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
        self._started.set()
        work = [asyncio.create_task(self._accept()), asyncio.create_task(self._renew())]
        ending = asyncio.create_task(self._ended.wait())
        await asyncio.wait((ending, *work), return_when=asyncio.FIRST_COMPLETED)
        failures = [task.exception() for task in work if task.done()]  # they go on until they are cancelled
        for task in (ending, *work):
            task.cancel()
        for connection in list(self._state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while waiting := [*self._state.tasks]:
                    await asyncio.wait(waiting)
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in (*self._tasks, *self._state.tasks):
            task.cancel()
        await asyncio.gather(ending, *work, *self._tasks, *self._state.tasks, return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure

    async def _renew(self) -> None:
        """Look at certificates and access list again and again."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                if self._tls is not None:
                    self._context = await asyncio.to_thread(self._tls)
                if self._refresh is not None:
                    await asyncio.to_thread(self._refresh)
            except Exception:
                log.exception("certificates or access list cannot be read; the previous ones stay in use")

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                conn, _ = await loop.sock_accept(self._sock)
            except OSError as error:  # no descriptor is free, or the client is gone already
                log.warning("a connection cannot be accepted: %s", error.strerror)
                await asyncio.sleep(0.1)
                continue
            full = len(self._state.connections) + self._handshakes >= self._limits.connections
            if full or self._handshakes >= self._limits.handshakes:
                conn.close()
                continue
            self._handshakes += 1
            task = loop.create_task(self._connect(conn))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if self._context is None:  # else a burst in the kernel is taken without a turn for these tasks
                await asyncio.wait((task,))

    async def _connect(self, conn: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        context = self._context
        seconds = None if context is None else self._limits.handshake_seconds
        try:
            await loop.connect_accepted_socket(self._connection, conn, ssl=context, ssl_handshake_timeout=seconds)
        except (OSError, ssl.SSLError) as error:
            log.debug("a connection has ended before its first request: %s", error)
            conn.close()
        finally:
            self._handshakes -= 1

    def _connection(self) -> _Connection:
        return _Connection(self._limits, config=self._config, server_state=self._state, app_state={})
