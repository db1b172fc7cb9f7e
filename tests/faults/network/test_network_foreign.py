"""Bytes that were changed on the way, and strangers at the place of a data server: never a wrong row."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from jobpipe.discovery.topic_lookup import locate
from jobpipe.net.tls.certificates import ensure_home
from jobpipe.store.catalog.position import Position
from jobpipe.subscribing.fetching.part_fetch import FetchRange, fetch
from jobpipe.testing.delivery_checker import Checker
from tests.faults.rig import FILES, PAUSE, chance, conclude, gone, later_rows, more, processes_of, running
from tests.harness.jobs.consume import Received
from tests.harness.processes import Harness
from tests.harness.proxies.lanes import BOTH

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

PLAIN = {"ssl.enabled": "false"}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{"rows": 50}, FILES], ids=["inline", "files"])
def test_flipped_bits(tmp_path: Path, shape: dict[str, int]) -> None:
    """Case 18: plaintext; one bit of a header, a message or data, in open and in new links; the pair goes on."""
    moments = chance()
    with running(tmp_path, proxied=True, settings=PLAIN, **shape) as rig:
        places = [0, 4, 5, 6, 7, 8, 11, 12, 20]  # magic, version, kind, flags, length, checksum, payload
        moments.shuffle(places)
        for at in [*places, *(moments.randrange(3000) for _ in range(2))]:
            way = moments.choice(BOTH)
            for proxy in rig.proxies:
                proxy.flip(way, at, bit=moments.randrange(8), open_ones=True)
                proxy.flip(way, moments.randrange(500), bit=moments.randrange(8))
            more(rig, rows=200)
        for proxy in rig.proxies:
            proxy.heal()
        more(rig)
        conclude(rig)


@contextmanager
def stranger(tls: ssl.SSLContext | None, said: bytes, port: int = 0) -> Iterator[str]:
    """Serve something else than jobpipe: say something to everybody, and close after a while."""
    loop, ready, places = asyncio.new_event_loop(), threading.Event(), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(said)
            await writer.drain()
            await reader.read(100)
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def listen() -> asyncio.Server:
        server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=tls)
        places.append(server.sockets[0].getsockname()[1])
        ready.set()
        return server

    def run() -> None:
        server = loop.run_until_complete(listen())
        loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(5.0)
    try:
        yield f"127.0.0.1:{places[0]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5.0)


def read_by_hint(rig: Harness, hint: str) -> None:
    """Read everything so far with a wrong hint of where it is served."""
    with closing(Received(rig._store("all"))) as received:
        position = received.position
    assert position is not None
    checker = Checker(rig.rows, rig.journal)
    for partition in range(rig.rows.partitions):
        wanted = FetchRange(rig.topic, Position(position.log, 0, 0), position, partition, hint)
        for fetched in fetch(wanted, rig.config):
            checker.take(fetched.batch)
    assert checker.rows == position.n * rig.rows.rows * rig.rows.partitions
    report = checker.report()
    assert set(report.faults) <= {"lost"}, report  # what was sealed since is not in the range


@pytest.mark.slow
def test_another_server_at_the_data_servers_port(tmp_path: Path) -> None:
    """Case 20: nobody, the control server, a foreign protocol, with our certificate too: the registry is asked."""
    with running(tmp_path) as rig:
        location = locate(rig.config, rig.topic, 10.0)
        for hint in ("127.0.0.1:1", str(location.control)):
            read_by_hint(rig, hint)
        ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ours.load_cert_chain(rig.config.ssl_cert or "", rig.config.ssl_key or "")
        http = (None, b"HTTP/1.1 400 Bad Request\r\n\r\n")
        for tls, said in (http, (None, b""), (ours, b"hello\n"), (foreign_tls(tmp_path), b"")):
            with stranger(tls, said) as hint:
                read_by_hint(rig, hint)
        conclude(rig)


def foreign_tls(folder: Path) -> ssl.SSLContext:
    """Return what a server of another CA uses, which asks nobody for a certificate."""
    files = ensure_home(folder / "foreign")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    return context


def test_a_server_of_another_ca_at_the_ports_of_one_that_ended(tmp_path: Path) -> None:
    """Case 20: it has both ports while the old registration stands; then the next publisher is found all the same."""
    with running(tmp_path) as rig:
        location, tls = locate(rig.config, rig.topic, 10.0), foreign_tls(tmp_path)
        old = processes_of(rig.publisher)
        for process in old:
            process.kill()
        gone(old)
        with stranger(tls, b"", location.control.port), stranger(tls, b"", location.data.port):
            time.sleep(2.0)  # of the 4 s for which the old session lives on: subscribers dial the stranger
            rig.publisher.start(pause=PAUSE)
            took = later_rows(rig)
            print(f"rows of the next publisher after {took:.2f} s")
            more(rig)
            conclude(rig)
        assert rig.consumer().starts == 1
