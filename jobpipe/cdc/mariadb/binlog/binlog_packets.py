"""Packets of MariaDB's and MySQL's protocol, taken from a socket in bulk."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from jobpipe.errors import LinkBroken

if TYPE_CHECKING:
    import socket

_HEADER: Final = 4
_BUFFER: Final = 2**18
_LONGEST: Final = 2**24 - 1  # a packet of this length goes on in the next one
_MAX_BYTES: Final = 2**30 + 2**24  # the server's own limit, and what is around an event


class Packets:
    """Packets from a socket that does not block.

    Args:
        number: that of the first packet.
    """

    def __init__(self, socket: socket.socket, number: int) -> None:
        self._socket = socket
        self._number = number
        self._buffer = bytearray(_BUFFER)
        self._start = self._end = 0
        self._parts: list[bytes] = []
        self._bytes = 0

    @property
    def pending(self) -> bool:
        """Whether TLS has bytes of which the socket does not tell."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def take(self) -> bytes | None:
        """Return the next packet; None if it has not come as a whole.

        Raises:
            LinkBroken: a packet is missing, or too long.
        """
        while (found := self._next_part()) is not None:
            if len(found) < _LONGEST and not self._parts:
                return found
            self._parts.append(found)
            self._bytes += len(found)
            if self._bytes > _MAX_BYTES:
                raise LinkBroken(f"the server sent an event of over {_MAX_BYTES} bytes")
            if len(found) < _LONGEST:
                whole = b"".join(self._parts)
                self._parts.clear()
                self._bytes = 0
                return whole
        return None

    def _next_part(self) -> bytes | None:
        start = self._start + _HEADER
        if start > self._end:
            return None
        buffer = self._buffer
        length = int.from_bytes(buffer[start - _HEADER : start - 1], "little")
        end = start + length
        if end > self._end:
            if _HEADER + length > len(buffer):
                self._resize(_HEADER + length)
            return None
        if buffer[start - 1] != self._number:
            raise LinkBroken(f"the server sent packet {buffer[start - 1]} instead of {self._number}")
        self._number = (self._number + 1) & 0xFF
        self._start = end
        return bytes(memoryview(buffer)[start:end])

    def receive(self) -> None:
        """Take what has come.

        Raises:
            LinkBroken: the connection has ended.
        """
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _BUFFER and not self._parts:
                self._buffer = bytearray(_BUFFER)
        elif self._start and (self._end == len(self._buffer) or self._start > len(self._buffer) // 2):
            self._resize(len(self._buffer))
        try:
            count = self._socket.recv_into(memoryview(self._buffer)[self._end :])
        except (BlockingIOError, ssl.SSLWantReadError, InterruptedError):
            return
        except OSError as error:
            raise LinkBroken(f"the stream of the binary log is cut: {error}") from None
        if not count:
            raise LinkBroken("the server has closed the stream of the binary log")
        self._end += count

    def _resize(self, size: int) -> None:
        """Move what is left to the begin of a buffer of another size."""
        left = self._end - self._start
        buffer = bytearray(size)
        buffer[:left] = memoryview(self._buffer)[self._start : self._end]
        self._buffer = buffer
        self._start, self._end = 0, left
