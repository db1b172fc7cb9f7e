"""A bare TLS socket: bytes with their length before them, nothing else. What TLS itself costs."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.side_by_side.transports.rows import BIG, copies
from jobpipe.net.tls.certificates import ensure_home
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.net.tls.tls_context import client_context, server_context

CHUNK = 1 << 20  # as large as jobpipe's largest frame
LENGTH = struct.Struct("!Q")
NEWS = 2**64 - 1  # asked for instead of a length


class Server:
    """A thread for each connection."""

    def __init__(self, folder: Path) -> None:
        self._tls = server_context(ensure_home(folder / "home"))
        self._size = 0
        self._listeners: list[ssl.SSLSocket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def open(self, parts: int, gigabytes: float) -> dict[str, Any]:
        """Have so many parts."""
        self._size = copies(gigabytes / parts) * BIG.nbytes
        return {"port": self._server.getsockname()[1], "bytes": self._size}

    def say(self, count: int, pause: float) -> list[list[float]]:
        """Send a few bytes to all who listen."""
        found = []
        for _ in range(count):
            time.sleep(pause)
            began = time.time()
            for listener in self._listeners:
                listener.sendall(bytes(LENGTH.size))
            found.append([began, time.time()])
        return found

    def _accept(self) -> None:
        while True:
            connection, _ = self._server.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self._tls.wrap_socket(plain, server_side=True)
        chunk = bytes(range(256)) * (CHUNK // 256)
        with suppress(OSError, struct.error):  # the reader has gone
            while True:
                (wanted,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
                if wanted == NEWS:
                    self._listeners.append(connection)
                    connection.sendall(bytes(LENGTH.size))
                    return
                while wanted:
                    piece = memoryview(chunk)[: min(wanted, CHUNK)]
                    connection.sendall(piece)
                    wanted -= len(piece)

    def end(self) -> None:
        """End; the threads end with the process."""
        self._server.close()


class Reader:
    """One connection."""

    def __init__(self, folder: Path) -> None:
        self._tls = client_context(ensure_home(folder / "home"))
        self._connection: ssl.SSLSocket | None = None
        self._told: dict[str, Any] = {}
        self._listens = False

    def connect(self, told: dict[str, Any]) -> None:
        """Connect."""
        plain = socket.create_connection(("127.0.0.1", told["port"]))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = self._tls.wrap_socket(plain, server_hostname=topic_server_name("bench"))
        self._told = told

    def listen(self) -> None:
        """Ask for news; the connection is for that only from now on."""
        assert self._connection is not None
        if not self._listens:
            self._connection.sendall(LENGTH.pack(NEWS))
            _exactly(self._connection, LENGTH.size)
            self._listens = True

    def hear(self, count: int) -> list[float]:
        """Return when each of the next messages came."""
        assert self._connection is not None
        found = []
        for _ in range(count):
            _exactly(self._connection, LENGTH.size)
            found.append(time.time())
        return found

    def read(self, part: int, seconds: float) -> dict[str, Any]:
        """Read a part."""
        assert self._connection is not None
        buffer = memoryview(bytearray(CHUNK))
        size, began = 0, time.time()
        while True:
            self._connection.sendall(LENGTH.pack(self._told["bytes"]))
            left = self._told["bytes"]
            while left:
                left -= self._connection.recv_into(buffer[: min(left, CHUNK)])
            size += self._told["bytes"]
            if time.time() - began >= seconds:
                return {"bytes": size, "began": began, "ended": time.time()}

    def end(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()


def _exactly(connection: ssl.SSLSocket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise ConnectionError("the peer has gone")
        found += piece
    return found
