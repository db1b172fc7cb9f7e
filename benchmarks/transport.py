"""What the transport costs on loopback: control round trips, streams to blocking links, uploads.

The server runs in a process of its own, each stream's reader too. Usage: python benchmarks/transport.py [--plain]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import socket
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jobpipe.errors import JobpipeError
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link, connect
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.servers.link_server import LinkServer
from jobpipe.net.tls.certificates import ensure_home
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.net.tls.tls_context import Credentials, client_context, server_context
from jobpipe.wire import CHUNK, Hello, Request, Welcome

TOPIC = "bench"
HELLO = Hello(TOPIC, "reader")
WARM_UP = 200
fork = multiprocessing.get_context("fork")


class Source:
    """Echoes, streams one chunk again and again, and swallows uploads."""

    def __init__(self) -> None:
        self._chunk = memoryview(bytes(range(256)) * (CHUNK // 256))
        self._crc = zlib.crc32(self._chunk)

    async def welcome(self, link: Link, hello: Hello) -> Welcome:
        return Welcome(hello.topic, "log", 1, "bench")

    async def handle(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        if request.op == "read":
            await link.send_part(request.id, {})
            for _ in range(request.args["chunks"]):
                await link.send_data(self._chunk, self._crc)
        elif request.op == "put":
            async for _ in link.receive_stream(request):
                pass
        elif request.op == "cpu":
            usage = resource.getrusage(resource.RUSAGE_SELF)
            return {"seconds": usage.ru_utime + usage.ru_stime}, b""
        return request.args, b""

    def disconnected(self, link: Link, why: JobpipeError) -> None:
        pass


def serve(sock: socket.socket, credentials: Credentials | None) -> None:
    """Serve until killed."""

    async def main() -> None:
        server = LinkServer(Source(), tls=server_context(credentials) if credentials else None)
        await server.start(sock)
        await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        asyncio.run(main())


class Bench:
    """One server and what is measured against it."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials | None) -> None:
        self._endpoint = endpoint
        self._credentials = credentials
        self._name = topic_server_name(TOPIC) if credentials else None

    def blocking(self) -> BlockingLink:
        tls = client_context(self._credentials) if self._credentials else None
        return BlockingLink.connect(self._endpoint, HELLO, tls=tls, server_hostname=self._name)

    def server_cpu(self) -> float:
        with self.blocking() as link:
            return float(link.call("cpu", timeout=5).result["seconds"])

    def blocking_calls(self, count: int) -> list[float]:
        with self.blocking() as link:
            return timed(lambda: link.call("echo", {"n": 1}, timeout=5), count)

    def asyncio_calls(self, count: int) -> list[float]:
        async def main() -> list[float]:
            tls = client_context(self._credentials) if self._credentials else None
            link = await connect(self._endpoint, HELLO, tls=tls, server_hostname=self._name)
            times = []
            for _ in range(WARM_UP + count):
                start = time.perf_counter()
                await link.call("echo", {"n": 1}, timeout=5)
                times.append(time.perf_counter() - start)
            await link.close()
            return times[WARM_UP:]

        return asyncio.run(main())

    def connects(self, count: int) -> list[float]:
        return timed(lambda: self.blocking().abort(), count, warm_up=5)

    def read(self, chunks: int) -> None:
        with self.blocking() as link:
            buffer = memoryview(bytearray(CHUNK))
            link.start_stream("read", {"chunks": chunks}, timeout=5)
            link.next_part()
            for _ in range(chunks):
                link.read_chunk_into(buffer[: link.next_chunk_length()])
            link.next_part()

    def put(self, chunks: int) -> None:
        data = bytes(CHUNK)
        with self.blocking() as link:
            link.start_upload("put", length=chunks * CHUNK, timeout=5)
            for _ in range(chunks):
                link.send_data(data)
            link.end_upload(timeout=30)

    def streams(self, transfer: Callable[[int], None], readers: int, total: int) -> tuple[float, float]:
        """Return GB/s of all readers together, and the server's CPU seconds per GB."""
        chunks = total // CHUNK // readers
        ready, go = fork.Semaphore(0), fork.Event()

        def reader() -> None:
            transfer(4)
            ready.release()
            go.wait(30)
            transfer(chunks)

        processes = [fork.Process(target=reader) for _ in range(readers)]
        for process in processes:
            process.start()
        for _ in processes:
            ready.acquire(timeout=30)
        cpu, start = self.server_cpu(), time.perf_counter()
        go.set()
        for process in processes:
            process.join()
        seconds = time.perf_counter() - start
        gigabytes = readers * chunks * CHUNK / 1e9
        return gigabytes / seconds, (self.server_cpu() - cpu) / gigabytes


def timed(call: Callable[[], object], count: int, warm_up: int = WARM_UP) -> list[float]:
    times = []
    for _ in range(warm_up + count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times[warm_up:]


def latency(times: list[float]) -> str:
    cuts = statistics.quantiles(times, n=100)
    return f"p50 {cuts[49] * 1e3:.3f} ms, p99 {cuts[98] * 1e3:.3f} ms"


def measure(bench: Bench, title: str, calls: int, total: int) -> Table:
    table = Table("what", "measured", title=title)
    table.add_row("call, blocking link", latency(bench.blocking_calls(calls)))
    table.add_row("call, asyncio link", latency(bench.asyncio_calls(calls)))
    table.add_row("connect to WELCOME, blocking", latency(bench.connects(100)))
    for name, transfer, readers in (
        ("1 stream", bench.read, 1),
        ("4 streams", bench.read, 4),
        ("1 upload", bench.put, 1),
    ):
        rate, cpu = bench.streams(transfer, readers, total)
        table.add_row(name, f"{rate:.2f} GB/s, server {cpu:.2f} CPU-s/GB")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", action="store_true", help="without TLS")
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        credentials = None if options.plain else ensure_home(Path(home))
        sock = socket.create_server(("127.0.0.1", 0))
        endpoint = Endpoint("127.0.0.1", sock.getsockname()[1])
        process = fork.Process(target=serve, args=(sock, credentials), daemon=True)
        process.start()
        sock.close()
        try:
            title = f"transport on loopback, {'plain TCP' if options.plain else 'mutual TLS'}"
            table = measure(Bench(endpoint, credentials), title, options.calls, int(options.gigabytes * 1e9))
            Console().print(table)
        finally:
            process.terminate()
            process.join(5)


if __name__ == "__main__":
    main()
