"""The asyncio pump: moves bytes between a transport and a ``wire.Connection``, watches the peer, ends the link once.

It knows nothing of requests; :class:`jobpipe.net.links.async_link.Link` gives the messages their meaning.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from typing import cast

from jobpipe.errors import (
    JobpipeError,
    LinkBroken,
    LinkClosed,
    LinkEnded,
    LinkTimeout,
    LocalProtocolError,
    ProtocolError,
)
from jobpipe.net.links.fork_guard import ForkGuard
from jobpipe.net.links.keepalive import Keepalive, LinkHealth
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.links.socket_options import copy_of, map_error, peer_names, peer_of, tune
from jobpipe.wire import ENDED, NEED_DATA, Connection, Goodbye, Message, Phase, Ping, Pong, Side
from jobpipe.wire.codec import fault

log = logging.getLogger(__name__)

WRITE_BUFFER = 512 * 1024
"""Bytes that may wait in a transport before writers wait: two chunks, so that the socket never runs dry."""


class Pump(asyncio.Protocol):
    """One link's transport. Ends once, for one reason, which everybody who waits for it gets.

    Attributes:
        peer: "host:port" of the other end.
        peer_names: DNS names of its certificate; () in plaintext.
    """

    def __init__(self, side: Side, timing: LinkTimeouts) -> None:
        self.peer = "unknown"
        self.peer_names: tuple[str, ...] = ()
        self.timing = timing
        self._owner = ForkGuard("this link")
        self._loop = asyncio.get_running_loop()
        self._wire = Connection(side)
        self._transport: asyncio.Transport | None = None
        self._tls = False
        self._why: JobpipeError | None = None
        self._lost = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._keepalive: Keepalive | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deaf: set[str] = set()
        self._nonces = itertools.count(1)
        self._pong: Pong | None = None

    def __repr__(self) -> str:
        state = self._wire.phase.value if self._why is None else type(self._why).__name__
        return f"<{type(self).__name__} {self._wire.side.value} {self.peer} {state}>"

    @property
    def ended(self) -> JobpipeError | None:
        """Why the link ended, or None while it lives."""
        return self._why

    # ------------------------------------------------------------------------------------------------ for subclasses

    def _on_message(self, message: Message) -> None:
        """Handle one message; PING and GOODBYE do not come here."""
        raise NotImplementedError

    def _on_end(self, why: JobpipeError) -> None:
        """Clean up: called once, at the moment the link ends."""
        raise NotImplementedError

    def _peer_waits(self) -> bool:
        """Whether the peer has to wait for us, so that its silence is in order."""
        state = self._wire.state
        return bool(state.unanswered) and not state.upload_left

    def _watch(self, *, beats: bool) -> None:
        """Start the heartbeat and the deadlines of an open link."""
        self._keepalive = Keepalive(self.timing, self._loop.time(), beats=beats)
        self._timer = self._loop.call_later(self._keepalive.interval, self._check)

    @property
    def silence(self) -> float:
        """For how many seconds nothing was heard of the peer; a live one is heard within its heartbeat."""
        return 0.0 if self._keepalive is None else self._keepalive.silence(self._loop.time())

    def _raise_if_ended(self) -> None:
        if self._why is not None:
            raise copy_of(self._why)

    def _write(self, message: Message, encoded: tuple[bytes, bytes] | None = None) -> None:
        """Send a message now or buffer it; follow with :meth:`_drain` where much may be written.

        Args:
            message: what is sent.
            encoded: its bytes, if they were made before.

        Raises:
            LocalProtocolError: it is illegal now.
            ForkedProcess: another process made the link; nothing was written.
            JobpipeError: why the link ended.
        """
        self._raise_if_ended()
        self._owner.require()
        self._wire.send(message, encoded)
        self._flush()

    def _write_data(self, payload: memoryview, crc: int) -> None:
        self._raise_if_ended()
        self._owner.require()
        self._wire.send_data_header(payload.nbytes, crc)
        self._flush(payload)

    def _flush(self, payload: memoryview | None = None) -> None:
        buffers: list[bytes | memoryview] = list(self._wire.data_to_send())
        if payload is not None:
            buffers.append(payload)
        transport = self._transport
        if transport is None:
            raise LocalProtocolError("the link has no transport")
        if self._tls:
            transport.writelines(buffers)  # one flight of records, no join
        else:
            for buffer in buffers:
                transport.write(buffer)  # writelines would join them

    async def _drain(self) -> None:
        """Wait until the write buffer has room.

        Raises:
            JobpipeError: why the link ended, if it ended meanwhile.
        """
        if not self._writable.is_set():
            await self._writable.wait()
        self._raise_if_ended()

    def _read_gate(self, reason: str, *, paused: bool) -> None:
        """Stop reading the socket for a reason, or withdraw the reason; without any the link reads on."""
        if paused == (reason in self._deaf):
            return
        before = bool(self._deaf)
        (self._deaf.add if paused else self._deaf.discard)(reason)
        after = bool(self._deaf)
        if before == after or self._transport is None or self._why is not None:
            return
        if after:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
        if self._keepalive is not None:
            self._keepalive.reading(self._loop.time(), paused=after)

    # ------------------------------------------------------------------------------------------------------- ending

    def _end(self, why: JobpipeError, farewell: Message | None = None) -> None:
        """End the link, once; ``farewell`` is flushed for at most ``timing.goodbye``, without one it is cut now."""
        if self._why is not None:
            return
        self._why = why
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._writable.set()
        log.debug("link %s ends: %s", self.peer, why)
        try:
            self._on_end(why)
        except Exception:
            log.exception("clean-up of the link to %s failed", self.peer)
        transport = self._transport
        if transport is None:
            self._lost.set()
            return
        if farewell is not None and not transport.is_closing() and self._wire.phase is not Phase.CLOSED:
            try:
                self._wire.send(farewell)
            except LocalProtocolError:
                log.debug("no farewell to %s in phase %s", self.peer, self._wire.phase.value)
            else:
                self._flush()
                transport.close()
                if not self._lost.is_set():
                    self._timer = self._loop.call_later(self.timing.goodbye, transport.abort)
                return
        transport.abort()

    async def close(self, reason: str = "") -> None:
        """Say goodbye, flush, and wait for the end of the transport, at most ``timing.goodbye`` seconds.

        In a fork of the process that made it, nothing is done, here and by :meth:`abort`.
        """
        if not self._owner.is_here:
            return
        self._end(LinkClosed(f"we closed the link to {self.peer}", peer=self.peer, reason=reason), Goodbye(reason))
        await self._lost.wait()

    def abort(self) -> None:
        if not self._owner.is_here:
            return
        self._end(LinkClosed(f"we cut the link to {self.peer}", peer=self.peer))
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> JobpipeError:
        """Wait until the link has ended and its transport is gone; return why."""
        await self._lost.wait()
        assert self._why is not None  # noqa: S101 - _lost is set after it
        return self._why

    def _check(self) -> None:
        keepalive = self._keepalive
        if keepalive is None or self._why is not None:
            return
        verdict = keepalive.check(self._loop.time(), waiting=self._peer_waits())
        match verdict:
            case LinkHealth.PING:
                if self._writable.is_set():
                    self._write(Ping(next(self._nonces)))
            case LinkHealth.SILENT:
                self._timed_out("was silent for", self.timing.silence, verdict)
            case LinkHealth.STALLED:
                self._timed_out("took nothing for", self.timing.write, verdict)
            case LinkHealth.IDLE:
                self._timed_out("was idle for", self.timing.idle, verdict)
            case _:
                pass
        if self._why is None:
            self._timer = self._loop.call_later(keepalive.interval, self._check)

    def _timed_out(self, what: str, seconds: float, verdict: LinkHealth) -> None:
        error = LinkTimeout(f"{self.peer} {what} {seconds:g} s", peer=self.peer, verdict=verdict.value, seconds=seconds)
        self._end(error, Goodbye("idle") if verdict is LinkHealth.IDLE else None)

    # --------------------------------------------------------------------------------------------- asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio: the transport is there, its TLS handshake done."""
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_of(transport.get_extra_info("peername"))
        session = transport.get_extra_info("ssl_object")
        self._tls = isinstance(session, ssl.SSLObject)
        self.peer_names = peer_names(transport.get_extra_info("peercert"))
        tune(transport.get_extra_info("socket"), self.timing)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        if self._why is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Asyncio: bytes came."""
        if self._why is not None:
            return
        if self._keepalive is not None:
            self._keepalive.heard(self._loop.time())
        self._wire.receive_data(data)
        self._dispatch()

    def eof_received(self) -> None:
        """Asyncio: the peer ended its direction; a link that is half open is no link."""
        self._wire.receive_eof()
        self._dispatch()

    def _dispatch(self) -> None:
        try:
            while self._why is None:
                event = self._wire.next_event()
                if event is NEED_DATA or event is ENDED:
                    return
                match event:
                    case Ping(nonce):
                        self._answer(Pong(nonce))
                    case Goodbye(reason):
                        self._end(LinkEnded(f"{self.peer} said goodbye: {reason}", peer=self.peer, reason=reason))
                    case _:
                        self._on_message(cast("Message", event))
        except ProtocolError as error:
            self._end(error, fault(None, error))
        except LinkBroken as error:
            self._end(LinkBroken(f"{self.peer}: {error.message}", peer=self.peer, **error.fields))

    def _answer(self, pong: Pong) -> None:
        if self._writable.is_set():
            self._write(pong)
        else:
            self._pong = pong  # only the last: a peer that floods us with PING and reads nothing costs no memory

    def pause_writing(self) -> None:
        """Asyncio: the write buffer is full."""
        self._writable.clear()
        if self._keepalive is not None:
            self._keepalive.writing(self._loop.time(), stalled=True)

    def resume_writing(self) -> None:
        """Asyncio: the write buffer has room."""
        self._writable.set()
        if self._keepalive is not None:
            self._keepalive.writing(self._loop.time(), stalled=False)
        if self._pong is not None and self._why is None:
            pong, self._pong = self._pong, None
            self._write(pong)

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio: the transport is gone."""
        if exc is not None:
            why = map_error(exc, self.peer, "link to")
        else:
            why = LinkBroken(f"{self.peer} ended the link without goodbye", peer=self.peer)
        self._end(why)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport = None
        self._lost.set()
