"""The events: a TCP server that job A's ``socket`` source reads, so that A takes them without any Python of its own.

A line is "first count made": so many rows from this id on, made now (microseconds of the wall clock; both jobs are on
this host, so clocks agree). At most 1,000 lines a second; job A makes them rows again.

    python -m benchmarks.side_by_side.feed RATE    prints its port; begins when somebody connects; ends with its stdin
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

TICKS = 1_000  # lines a second, at most
CONNECT_SECONDS = 120.0


def pace(connection: socket.socket, rate: float) -> None:
    """Send rows at this rate until the peer is gone; what was late is sent at once, with the time when it was made."""
    tick = max(1.0 / TICKS, 1.0 / rate)
    began = time.monotonic()
    sent = 0
    while True:
        due = int((time.monotonic() - began) * rate)
        if due > sent:
            line = f"{sent} {due - sent} {time.time_ns() // 1_000}\n"
            try:
                connection.sendall(line.encode())
            except OSError:
                return
            sent = due
        time.sleep(tick - (time.monotonic() - began) % tick)


def main() -> None:
    """Serve one job."""
    rate = float(sys.argv[1])

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
            pace(connection, rate)


if __name__ == "__main__":
    main()
