"""Server-sent events: what happened, from where a client stopped reading."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import TypeAdapter

from jobpipe.control.control_service import Control
from jobpipe.control.permissions import Caller
from jobpipe.control.rest.auth_middleware import CALLER_NOW, PEER, Receive, Scope, Send
from jobpipe.jobs.storage.job_rows import Event
from jobpipe.net.servers.accepted_connection import AcceptedConnection

MOST = 16
POLL_SECONDS = 1.0  # how long a thread waits for an event; a stream ends so late at most
QUIET_SECONDS = 15.0  # then a comment is sent, so that nothing between us and the client takes it for dead
AGE_SECONDS = 15 * 60.0  # then the client connects again, and its right is looked at again
RETRY_MS = 2000
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def as_text(event: Event) -> bytes:
    """Return an event as a stream has it."""
    data = json.dumps(_EVENT.dump_python(event, mode="json"), default=str)  # on one line
    return f"id: {event.id}\ndata: {data}\n\n".encode()


class EventStreams:
    """The streams of a server: a bounded number, each with a thread that waits for events."""

    def __init__(self, control: Control, most: int = MOST) -> None:
        self._control = control
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="rest-events")
        self._most = most
        self._open = 0
        self._closed = False

    def take(self) -> bool:
        """Take a place for a stream; False if there is none."""
        if self._open >= self._most or self._closed:
            return False
        self._open += 1
        return True

    def end(self) -> None:
        """Let the streams end, within a second or so; does not wait."""
        self._closed = True

    def close(self) -> None:
        """End the threads; they are done in a second or so."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def send(self, after: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client goes, or must prove itself again; its place was taken."""
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await self._send(after, scope, gone, send)
        finally:
            self._open -= 1
            gone.cancel()

    async def _send(self, after: int, scope: Scope, gone: asyncio.Future[None], send: Send) -> None:
        peer: AcceptedConnection = scope["state"][PEER]
        caller_now: Callable[[], Caller | None] = scope["state"][CALLER_NOW]
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"x-accel-buffering", b"no"),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _part(send, f"retry: {RETRY_MS}\n\n".encode())
        loop, began = asyncio.get_running_loop(), time.monotonic()
        told = began
        while not (gone.done() or self._closed or peer.is_due or time.monotonic() - began >= AGE_SECONDS):
            if caller_now() is None:
                break
            events = await loop.run_in_executor(self._pool, self._next, after)
            if events:
                after = events[-1].id
                await _part(send, b"".join(map(as_text, events)))
                told = time.monotonic()
            elif time.monotonic() - told >= QUIET_SECONDS:
                await _part(send, b":\n\n")
                told = time.monotonic()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _next(self, after: int) -> tuple[Event, ...]:
        return () if self._closed else self._control.events(after, wait=POLL_SECONDS, limit=200)


async def _part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    message: Any = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
