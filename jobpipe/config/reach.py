"""Whether anything answers at a registry's address, asked only where the configuration is wrong anyway."""

from __future__ import annotations

import socket
import threading
import time

__all__ = ["why_unreachable"]

SECONDS = 1.0  # for all servers together, their names included


def why_unreachable(connect: str) -> str | None:
    """Return why no server of ``host:port,host:port/path`` takes a connection, None when one does; within a second.

    A server that is merely slow counts as reachable: its error comes later, from those who wait longer.
    """
    servers = connect.partition("/")[0].split(",")
    answers: dict[str, str | None] = {}

    def dial(server: str) -> None:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), SECONDS).close()
        except TimeoutError:
            answers[server] = None
        except OSError as error:
            answers[server] = error.strerror or type(error).__name__
        else:
            answers[server] = None

    threads = [threading.Thread(target=dial, args=(server,), name="reach", daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    reasons = [answers.get(server) for server in servers]
    if any(reason is None for reason in reasons):
        return None
    return "; ".join(f"{server}: {reason}" for server, reason in zip(servers, reasons, strict=True))
