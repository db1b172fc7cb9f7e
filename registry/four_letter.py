"""ZooKeeper's four letter words, which need no session. Only for a server on this host's loopback."""

from __future__ import annotations

import socket

__all__ = ["ask", "count_sessions", "is_serving"]

_MOST_BYTES = 1 << 20


def ask(port: int, word: str, timeout: float = 2.0) -> str | None:
    """Return the answer of 127.0.0.1:port, None if there is none within about ``timeout`` seconds."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(word.encode())
            answer = bytearray()
            while len(answer) < _MOST_BYTES and (piece := connection.recv(65536)):
                answer += piece
    except OSError:
        return None
    return answer.decode(errors="replace")


def is_serving(port: int) -> bool:
    """Say whether a ZooKeeper that serves requests is there."""
    return (ask(port, "srvr") or "").startswith("Zookeeper version")


def count_sessions(port: int) -> int | None:
    """Return the number of live sessions, those with a lost connection included; None without an answer."""
    for line in (ask(port, "mntr") or "").splitlines():
        name, _, value = line.partition("\t")
        if name == "zk_global_sessions" and value.isdigit():
            return int(value)
    return None
