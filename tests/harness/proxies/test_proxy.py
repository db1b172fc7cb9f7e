"""The fault proxy, with plain sockets: each fault does what it says, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from jobpipe.wire.frames import Kind, crc_of, encode_header
from tests.harness.proxies.proxy import FaultProxy

PATIENCE = 10.0
Dial = Callable[[], socket.socket]


class Upstream:
    """A server that keeps the bytes of each connection, and sends back what it gets where ``echo`` says so."""

    def __init__(self, *, echo: bool = True) -> None:
        self.got: list[bytearray] = []
        self.ends: list[str] = []
        self.sockets: list[socket.socket] = []
        self._echo = echo
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            self.sockets.append(sock)
            self.got.append(bytearray())
            self._threads.append(threading.Thread(target=self._serve, args=(sock, self.got[-1])))
            self._threads[-1].start()

    def _serve(self, sock: socket.socket, got: bytearray) -> None:
        with sock:
            try:
                while data := sock.recv(65536):
                    got += data
                    if self._echo:
                        sock.sendall(data)
                self.ends.append("fin")
            except OSError:
                self.ends.append("rst")

    def close(self) -> None:
        """End all."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    """An echo server."""
    made = Upstream()
    yield made
    made.close()


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[FaultProxy]:
    """A proxy before the echo server; ended before it."""
    threads = threading.active_count()
    with FaultProxy(upstream.endpoint, buffer=64 * 1024) as made:
        yield made
    assert "fault-proxy" not in {thread.name for thread in threading.enumerate()}, threads


@pytest.fixture
def dial(proxy: FaultProxy) -> Iterator[Dial]:
    """Connect through the proxy."""
    made: list[socket.socket] = []

    def connect() -> socket.socket:
        host, _, port = proxy.endpoint.rpartition(":")
        made.append(socket.create_connection((host, int(port)), PATIENCE))
        return made[-1]

    yield connect
    for sock in made:
        sock.close()


def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def take(sock: socket.socket, size: int) -> bytes:
    """Receive so many bytes, fewer at the end."""
    got = b""
    while len(got) < size and (data := sock.recv(size - len(got))):
        got += data
    return got


def silent(sock: socket.socket, seconds: float = 0.15) -> bool:
    """Tell whether nothing comes."""
    sock.settimeout(seconds)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        sock.settimeout(PATIENCE)


def test_passes_everything_and_counts(proxy: FaultProxy, dial: Dial, upstream: Upstream) -> None:
    """Without a fault it is not there; FIN passes too."""
    data = os.urandom(300_000)
    first, second = dial(), dial()
    sender = threading.Thread(target=first.sendall, args=(data,))
    sender.start()
    assert take(first, len(data)) == data
    sender.join(PATIENCE)
    second.sendall(b"two")
    assert take(second, 3) == b"two"
    assert (proxy.connections, proxy.open) == (2, 2)
    assert proxy.passed("up") == proxy.passed("down") == len(data) + 3
    first.shutdown(socket.SHUT_WR)
    assert first.recv(1) == b""
    until(lambda: proxy.open == 1)
    assert upstream.ends == ["fin"]


@pytest.mark.slow
def test_delay(proxy: FaultProxy, dial: Dial) -> None:
    """Both ways, and throughput does not suffer."""
    sock = dial()
    proxy.delay(0.5)
    began = time.monotonic()
    sock.sendall(b"x" * 40_000)
    assert take(sock, 40_000)
    assert 1.0 <= time.monotonic() - began < 3.0
    proxy.delay(0.0)
    began = time.monotonic()
    sock.sendall(b"y")
    assert take(sock, 1) == b"y"
    assert time.monotonic() - began < 0.4  # not one way's delay is left


@pytest.mark.slow
def test_rate_is_shared_by_all_connections(proxy: FaultProxy, dial: Dial) -> None:
    """Two connections at 100 kB/s together."""
    proxy.limit_rate(100_000, "up")
    socks = [dial(), dial()]
    began = time.monotonic()
    for sock in socks:
        sock.sendall(b"x" * 20_000)
    for sock in socks:
        assert len(take(sock, 20_000)) == 20_000
    assert 0.3 < time.monotonic() - began < 2.0


@pytest.mark.parametrize("at", [0, 1, 2, 9])
def test_cut_at_every_byte(proxy: FaultProxy, dial: Dial, at: int) -> None:
    """Exactly so many bytes arrive, then the end; the next connection is whole."""
    proxy.cut("down", at)
    sock = dial()
    sock.sendall(b"0123456789")
    assert take(sock, 10) == b"0123456789"[:at]
    assert sock.recv(1) == b""
    other = dial()
    other.sendall(b"0123456789")
    assert len(take(other, 10)) == 10


def test_cut_by_reset_and_open_connections(proxy: FaultProxy, dial: Dial, upstream: Upstream) -> None:
    """RST reaches both ends; ``open_ones`` counts from now."""
    sock = dial()
    sock.sendall(b"before")
    take(sock, 6)
    proxy.cut("up", 3, reset=True, open_ones=True)
    sock.sendall(b"after")
    with pytest.raises(ConnectionResetError):
        take(sock, 100)
    until(lambda: upstream.ends == ["rst"])
    assert bytes(upstream.got[0]) in (b"beforeaft", b"before")  # a reset may overtake what it follows


def test_flip_one_bit(proxy: FaultProxy, dial: Dial) -> None:
    """Of one byte of each of the next two connections."""
    proxy.flip("down", 2, bit=1, times=2)
    for expected in (b"aaca", b"aaca", b"aaaa"):
        sock = dial()
        sock.sendall(b"aaaa")
        assert take(sock, 4) == expected


def test_duplicate_bytes(proxy: FaultProxy, dial: Dial, upstream: Upstream) -> None:
    """A range comes twice, also when it is sent piecemeal."""
    proxy.duplicate("up", 2, 5)
    sock = dial()
    for byte in b"0123456":
        sock.sendall(bytes([byte]))
        time.sleep(0.002)
    assert take(sock, 10) == b"0123423456"
    assert upstream.got[0] == b"0123423456"


def test_duplicate_frame(proxy: FaultProxy, dial: Dial) -> None:
    """The second frame of a connection comes twice, the others once; whatever the chunking."""
    frames = [
        encode_header(Kind.REQUEST, len(text), crc_of(Kind.REQUEST, text)) + text for text in (b"one", b"", b"three")
    ]
    proxy.duplicate_frame("up", 1)
    sock = dial()
    for byte in b"".join(frames):
        sock.sendall(bytes([byte]))
    expected = b"".join([frames[0], frames[1], frames[1], frames[2]])
    assert take(sock, len(expected)) == expected


def test_one_way_drop(proxy: FaultProxy, dial: Dial, upstream: Upstream) -> None:
    """The server hears everything, the client nothing, and nobody is told; not even of the end."""
    sock = dial()
    proxy.drop("down")
    sock.sendall(b"heard")
    until(lambda: upstream.got and upstream.got[0] == b"heard")
    assert silent(sock)
    proxy.drop("down", False)
    sock.sendall(b"again")
    assert take(sock, 5) == b"again"
    proxy.drop("up")
    sock.shutdown(socket.SHUT_WR)
    assert silent(sock)
    assert upstream.ends == []


def test_held_bytes_outlive_their_sender(proxy: FaultProxy, dial: Dial, upstream: Upstream) -> None:
    """Case 16: an old connection's message arrives after those of its successor."""
    old = dial()
    old.sendall(b"hello ")
    take(old, 6)
    proxy.hold("up")
    old.sendall(b"late")
    time.sleep(0.05)
    old.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    old.close()
    new = dial()
    new.sendall(b"new")
    assert take(new, 3) == b"new"
    assert upstream.got[0] == b"hello "
    proxy.release()
    until(lambda: upstream.got[0] == b"hello late")
    until(lambda: proxy.open == 1)


def test_pause_and_resume(proxy: FaultProxy, dial: Dial, upstream: Upstream) -> None:
    """Old and new connections fall silent, and go on."""
    sock = dial()
    sock.sendall(b"a")
    take(sock, 1)
    proxy.pause()
    other = dial()
    other.sendall(b"b")
    sock.sendall(b"c")
    assert silent(sock)
    assert silent(other)
    proxy.resume()
    assert (take(sock, 1), take(other, 1)) == (b"c", b"b")


def test_buffer_is_bounded() -> None:
    """Behind a proxy that is paused, a sender has to wait."""
    upstream = Upstream(echo=False)
    with FaultProxy(upstream.endpoint, buffer=64 * 1024) as proxy:
        host, _, port = proxy.endpoint.rpartition(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"x")
            until(lambda: bool(upstream.got))
            proxy.pause()
            sock.settimeout(0.3)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 64 * 1024 * 1024:
                    sent += sock.send(b"x" * 65536)
            assert sent < 64 * 1024 * 1024
            proxy.heal()
            until(lambda: len(upstream.got[0]) == sent + 1)
    upstream.close()


def test_refuse_and_accept(proxy: FaultProxy, dial: Dial) -> None:
    """Open connections stay; the port is the same afterwards."""
    sock, endpoint = dial(), proxy.endpoint
    sock.sendall(b"a")
    take(sock, 1)
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial()
    sock.sendall(b"b")
    assert take(sock, 1) == b"b"
    proxy.accept()
    assert proxy.endpoint == endpoint
    other = dial()
    other.sendall(b"c")
    assert take(other, 1) == b"c"


def test_reset_of_all(proxy: FaultProxy, dial: Dial, upstream: Upstream) -> None:
    """Every open connection, at both ends."""
    socks = [dial(), dial()]
    until(lambda: proxy.open == 2)
    assert proxy.reset() == 2
    for sock in socks:
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    until(lambda: upstream.ends == ["rst", "rst"])
    until(lambda: proxy.open == 0)


def test_reset_by_a_peer_passes(proxy: FaultProxy, dial: Dial, upstream: Upstream) -> None:
    """A client that dies by RST does so for the server too."""
    sock = dial()
    sock.sendall(b"a")
    take(sock, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    until(lambda: upstream.ends == ["rst"])
    until(lambda: proxy.open == 0)


def test_upstream_that_does_not_answer(proxy: FaultProxy, dial: Dial, upstream: Upstream) -> None:
    """The client is reset; another upstream serves the next one."""
    working = proxy.upstream
    proxy.upstream = "127.0.0.1:1"
    with pytest.raises(ConnectionResetError):
        dial().recv(1)
    assert (proxy.failed, proxy.connections) == (1, 0)
    proxy.upstream = working
    other = dial()
    other.sendall(b"a")
    assert take(other, 1) == b"a"


def test_close_ends_everything(proxy: FaultProxy, dial: Dial) -> None:
    """Connections in any state; twice is once."""
    socks = [dial() for _ in range(3)]
    until(lambda: proxy.open == 3)
    proxy.hold("up")
    proxy.delay(30.0)
    for sock in socks:
        sock.sendall(b"x" * 1000)
    proxy.close()
    proxy.close()
    for sock in socks:
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    with pytest.raises(RuntimeError, match="closed"):
        proxy.heal()
