"""Tells a client why its certificate is refused.

When a handshake fails, OpenSSL leaves an alert that names the reason (expired, revoked, unknown CA, wrong purpose) in
its output; asyncio cuts the connection without sending it (``asyncio.sslproto``, seen in 3.11 to 3.13). With TLS 1.3
the client then sees nothing but an end, after a handshake that succeeded. Here the alert is sent before asyncio hears
of the failure, and the connection lives on for a moment: an early end would reset it, and the alert could get lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

LINGER_SECONDS = 1.0  # for the client to hear the alert and hang up
LINGER_READS = 16


class AlertingObject(ssl.SSLObject):
    """An SSLObject that, if its handshake fails, sends the alert over the socket of ``handshake``."""

    handshake: HandshakeContext | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.handshake is not None:
                self.handshake.alert()
            raise
        self.handshake = None


class HandshakeContext:
    """Stands before a server's context for one connection: asyncio asks it for nothing but ``wrap_bio``."""

    def __init__(self, context: ssl.SSLContext, sock: socket.socket) -> None:
        self._context = context
        self._socket = sock
        self._outgoing: ssl.MemoryBIO | None = None
        self._lingering: socket.socket | None = None

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **options: Any) -> ssl.SSLObject:
        self._outgoing = outgoing
        wrapped = self._context.wrap_bio(incoming, outgoing, **options)
        if isinstance(wrapped, AlertingObject):
            wrapped.handshake = self
        return wrapped

    def alert(self) -> None:
        """Send what the failed handshake left to say; at once or not at all."""
        if self._outgoing is None or self._lingering is not None:
            return
        with contextlib.suppress(OSError):
            self._socket.send(self._outgoing.read())
            self._lingering = self._socket.dup()
            self._lingering.setblocking(False)

    def close(self) -> None:
        """Let a refused connection go at once."""
        if self._lingering is not None:
            self._lingering.close()

    async def linger(self) -> None:
        """Keep a refused connection for a moment, until the client hangs up; without a refusal return at once."""
        sock, self._lingering = self._lingering, None
        if sock is None:
            return
        loop = asyncio.get_running_loop()
        with sock, contextlib.suppress(OSError, TimeoutError):
            sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_SECONDS):
                for _ in range(LINGER_READS):
                    if not await loop.sock_recv(sock, 4096):
                        break
