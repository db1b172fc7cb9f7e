"""A hostile host: ``python -m tests.security.floods.flood`` with a JSON order on standard input, a JSON report after.

Order: {"kind": "connect" or "silent", "endpoints": [[host, port]...], "sources": ["127.0.0.2"...], "seconds": 5,
"count": 500, "tls": [ca, cert, key, server name] or null}. It ends by itself.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import json
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HELD = 64  # connections that are open at once in a flood of connects
RESET = struct.pack("ii", 1, 0)  # so that we leave no TIME_WAIT and never run out of ports
GRACE = 60.0  # seconds that it may take to end
NO_PORT = 24  # IP_BIND_ADDRESS_NO_PORT: the kernel picks it when we connect


@contextlib.contextmanager
def hostile(**order: Any) -> Iterator[dict[str, Any]]:
    """Run a flood beside the block; its report is there after it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.security.floods.flood"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    report: dict[str, Any] = {}
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"started\n"
        yield report
        out, _ = process.communicate(timeout=order["seconds"] + GRACE)
        report.update(json.loads(out))
    finally:
        process.kill()
        process.communicate()


def _socket(source: str) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_IP, NO_PORT, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.bind((source, 0))
    return sock


def connect(order: dict[str, Any]) -> dict[str, Any]:
    """Connect as fast as one process can, and hang up."""
    held: collections.deque[socket.socket] = collections.deque()
    targets = itertools.cycle(itertools.product(order["sources"], [tuple(each) for each in order["endpoints"]]))
    made = 0
    started = time.monotonic()
    while time.monotonic() - started < order["seconds"]:
        for source, endpoint in itertools.islice(targets, 32):
            sock = _socket(source)
            sock.connect_ex(endpoint)
            made += 1
            held.append(sock)
            if len(held) > HELD:
                held.popleft().close()
    for sock in held:
        sock.close()
    return {"connects": made, "seconds": time.monotonic() - started}


async def silent(order: dict[str, Any]) -> dict[str, Any]:
    """Hold so many connections that say nothing, half a HELLO, or a byte a second; connect anew when cut."""
    report: collections.Counter[str] = collections.Counter()
    tls = None
    if order["tls"]:
        ca, cert, key, name = order["tls"]
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.load_verify_locations(ca)
        tls.load_cert_chain(cert, key)

    async def hold(number: int) -> None:
        endpoint = order["endpoints"][number % len(order["endpoints"])]
        source = order["sources"][number % len(order["sources"])]
        while True:
            sock = _socket(source)
            try:
                await asyncio.get_running_loop().sock_connect(sock, tuple(endpoint))
                report["connects"] += 1
                secured = {"ssl": tls, "server_hostname": name} if tls is not None and number % 3 == 1 else {}
                reader, writer = await asyncio.open_connection(sock=sock, **secured)
                try:
                    await _pretend(reader, writer, number % 3)
                finally:
                    writer.transport.abort()
            except OSError:
                report["cuts"] += 1
            finally:
                sock.close()
            report["cuts"] += 1
            await asyncio.sleep(0.1)

    async def _pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, how: int) -> None:
        if how == 1:
            writer.write(b"JPIP\x01\x01\x00\x00\x00\x00\x01")
        while how == 2 and not reader.at_eof():
            writer.write(b"\x16")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):  # wait_for of Python 3.11 may swallow our cancellation
                    await reader.read(1)
        await reader.read()

    tasks = [asyncio.create_task(hold(number)) for number in range(order["count"])]
    await asyncio.sleep(order["seconds"])
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return dict(report)


def main() -> None:
    """Run the order."""
    order = json.loads(sys.stdin.readline())
    print("started", flush=True)
    report = connect(order) if order["kind"] == "connect" else asyncio.run(silent(order))
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
