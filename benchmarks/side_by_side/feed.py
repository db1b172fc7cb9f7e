"""The events: a TCP server that job A's ``socket`` source reads, so that A takes them without any Python of its own.

A line is "first count made": so many rows from this id on, made at this time (microseconds of the wall clock; both jobs
are on this host, so clocks agree). At most 1,000 lines a second; job A makes them rows again.

    python -m benchmarks.side_by_side.feed RATE LINES    prints its port, serves one connection, ends with stdin
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
import time

LINES = 1_000  # a second, at most
CONNECT_SECONDS = 120.0


def pace(connection: socket.socket, rate: float, lines: float = LINES) -> None:
    """Send rows at this rate until the peer is gone, in so many lines a second at most.

    A row is made when it is due, not when it is sent: what this process sends late, because others keep the processors,
    is late for whoever waits for it.
    """
    tick = max(1.0 / lines, 1.0 / rate)
    began, made = time.monotonic(), time.time()
    sent = 0
    for number in itertools.count(1):
        due = round(number * tick * rate)
        time.sleep(max(0.0, began + number * tick - time.monotonic()))
        if due > sent:
            line = f"{sent} {due - sent} {round((made + number * tick) * 1e6)}\n"
            try:
                connection.sendall(line.encode())
            except OSError:
                return
            sent = due


def main() -> None:
    """Serve one job."""
    rate, lines = map(float, sys.argv[1:])

    def end_with_stdin() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=end_with_stdin, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(CONNECT_SECONDS)
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pace(connection, rate, lines)


if __name__ == "__main__":
    main()
