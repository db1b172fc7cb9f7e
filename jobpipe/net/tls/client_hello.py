"""Waits for a client's first TLS message before anything is spent on TLS: a connection that says nothing is a socket.

Asyncio's TLS takes 256 KiB for each connection from its first moment on, and OpenSSL some more (measured: 77 MiB for
256 silent ones). Here the kernel keeps what comes, and wakes us when the message is whole.
"""

from __future__ import annotations

import asyncio
import socket

from jobpipe.errors import LinkBroken, RemoteProtocolError

HEADER = 5  # of a TLS record: type, version, length
HANDSHAKE = 22  # the type of a record that holds a ClientHello
LONGEST = 16 * 1024  # of a record


async def wait_for_client_hello(sock: socket.socket, peer: str) -> None:
    """Return when a whole TLS record that may be a ClientHello lies in the socket; not a byte of it is taken.

    Raises:
        RemoteProtocolError: what comes is no TLS.
        LinkBroken: the peer hung up.
    """
    await _readable(sock, HEADER)
    header = sock.recv(HEADER, socket.MSG_PEEK)
    length = int.from_bytes(header[3:5], "big")
    if len(header) == HEADER:
        if header[0] != HANDSHAKE or header[1] != 3 or not 0 < length <= LONGEST:
            raise RemoteProtocolError(f"{peer} speaks no TLS", peer=peer)
        await _readable(sock, HEADER + length)
        header = sock.recv(HEADER + length, socket.MSG_PEEK)
    if len(header) < HEADER + length:
        raise LinkBroken(f"{peer} hung up in its first message", peer=peer)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


async def _readable(sock: socket.socket, size: int) -> None:
    """Wait until so many bytes, the end, or an error have come."""
    loop = asyncio.get_running_loop()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
