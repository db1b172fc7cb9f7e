"""ZooKeeper's four letter words, which need no session. Only for a server on this host's loopback."""

from __future__ import annotations

import socket
import ssl

_MOST_BYTES = 1 << 20


def ask(port: int, word: str, tls: ssl.SSLContext | None = None, timeout: float = 2.0) -> str | None:
    """Return what 127.0.0.1:port answers within about ``timeout`` seconds.

    "" means that it ended the connection without an answer: it takes no more of them, but it lives. None means that
    nothing is there, that it stands still, or that it is not the server that ``tls`` trusts.
    """
    answer = bytearray()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as raw:
            try:
                with raw if tls is None else tls.wrap_socket(raw, server_hostname="127.0.0.1") as connection:
                    connection.sendall(word.encode())
                    while len(answer) < _MOST_BYTES and (piece := connection.recv(65536)):
                        answer += piece
            except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
                pass
    except OSError:
        return None
    return answer.decode(errors="replace")


def is_serving(port: int, tls: ssl.SSLContext | None = None) -> bool:
    """Say whether a ZooKeeper that serves requests is there."""
    return (ask(port, "srvr", tls) or "").startswith("Zookeeper version")


def count_sessions(answer: str | None) -> int | None:
    """Return the number of live sessions, those with a lost connection included, by the answer to ``mntr``."""
    return _number(answer, "zk_global_sessions")


def count_connections(answer: str | None) -> int | None:
    """Return the number of open connections, by the answer to ``mntr``."""
    return _number(answer, "zk_num_alive_connections")


def _number(answer: str | None, wanted: str) -> int | None:
    for line in (answer or "").splitlines():
        name, _, value = line.partition("\t")
        if name == wanted and value.isdigit():
            return int(value)
    return None
