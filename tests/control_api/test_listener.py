"""Connections: their limits, TLS and people's certificates beyond loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from jobpipe.config import Config, load
from jobpipe.control.permissions import Right
from jobpipe.control.rest.http_listener import HttpLimits, HttpListener
from jobpipe.control.rest.rest_client import ControlClient, ServerAddress
from jobpipe.control.rest.rest_server import RestServer
from jobpipe.control.server_files import ServerFiles
from jobpipe.errors import JobpipeError, LinkBroken, NotAuthorized
from jobpipe.net.servers.listener import Listener
from jobpipe.net.tls.certificates import BOTH, CLIENT, init_ca, issue
from tests.control_api.conftest import PORTS
from tests.control_api.kit import DEADLINE, MemoryControl, Served, until


def dial(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(served.host.rpartition(":")[2])), DEADLINE)


def ended(sock: socket.socket) -> bytes:
    """Return what comes until the server ends the connection."""
    found = b""
    try:
        while part := sock.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def answer(sock: socket.socket) -> bytes:
    """Return an answer that is a problem document."""
    found = b""
    while not found.endswith(b"}}"):
        part = sock.recv(65536)
        assert part, found
        found += part
    return found


def test_a_burst_of_connections_is_served() -> None:
    """Those that wait in the kernel when the loop turns to them are no handshakes, and none is dropped."""

    with socket.create_server(("127.0.0.1", 0), backlog=128) as waiting:
        listener = HttpListener(_no_content, waiting, limits=HttpLimits(connections=100))
        clients = [socket.create_connection(waiting.getsockname(), DEADLINE) for _ in range(40)]
        listener.start()
        try:
            for client in clients:
                client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            assert [ended(client)[:12] for client in clients] == [b"HTTP/1.1 204"] * len(clients)
        finally:
            for client in clients:
                client.close()
            listener.close()


class TestTimes:
    """Requests that do not arrive, and answers that are not taken."""

    @pytest.fixture
    def limits(self) -> HttpLimits:
        return HttpLimits(connections=4, request_seconds=0.4, idle_seconds=1)

    @pytest.mark.slow
    def test_silence_and_drops_end(self, served: Served) -> None:
        """A connection that says nothing, half a header, or half a body; a byte now and then gives no more time."""
        host = served.host
        starts = (
            b"",
            b"GET /health HT",
            f"POST /pipelines HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n\r\n{{".encode(),
        )
        for start in starts:
            with dial(served) as sock:
                sock.sendall(start)
                began = time.monotonic()
                sock.settimeout(0.1)
                while time.monotonic() - began < DEADLINE:
                    try:
                        if not sock.recv(1):
                            break
                    except TimeoutError:
                        try:
                            sock.sendall(b" " if start.startswith(b"POST") else b"G" if start else b"")
                        except OSError:
                            break
                    except OSError:
                        break
                assert time.monotonic() - began < DEADLINE
        assert served.ask("GET", "/health").status == 200

    def test_connections_are_bounded(self, served: Served) -> None:
        """Those above the limit are dropped; they end with their time, and others have room."""
        socks = [dial(served) for _ in range(6)]
        assert all(ended(sock) == b"" for sock in socks)
        for sock in socks:
            sock.close()
        assert served.ask("GET", "/health").status == 200

    @pytest.mark.slow
    @pytest.mark.parametrize("path", ["/pipelines", "/nothing"])
    def test_a_body_after_its_answer_keeps_no_connection(self, served: Served, path: str) -> None:
        """What is refused by its head is answered early; when the rest has come, it is a connection without work."""
        with dial(served) as sock:
            sock.sendall(f"POST {path} HTTP/1.1\r\nHost: {served.host}\r\nContent-Length: 10\r\n\r\n".encode())
            assert answer(sock).startswith(b"HTTP/1.1 401")
            sock.sendall(b"x" * 10)
            began = time.monotonic()
            assert ended(sock) == b""
            assert time.monotonic() - began < DEADLINE - 5


def test_who_asks_before_the_answer_is_cut(served: Served) -> None:
    """Its end would not be noticed, and it would keep its place among the followers of events."""
    request = f"GET /events HTTP/1.1\r\nHost: {served.host}\r\nAuthorization: Bearer {served.address.token}\r\n\r\n"
    for _ in range(2):  # as many as the server takes
        with dial(served) as sock:
            sock.sendall(request.encode())
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
            sock.sendall(b"\r\n")  # which some clients send after a request
            sock.sendall(request.encode())
            ended(sock)
    until(lambda: served.ask("GET", "/pipelines").status == 200)

    def follows() -> bool:
        with dial(served) as sock:
            sock.sendall(request.encode())
            return sock.recv(65536).startswith(b"HTTP/1.1 200")

    until(follows)


async def _no_content(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_work_of_a_client_that_is_gone_ends_first() -> None:
    """A change that has begun is not cut short because the server closes."""
    begun, done = threading.Event(), []

    async def slow(_scope: Scope, _receive: Receive, send: Send) -> None:
        begun.set()
        await asyncio.sleep(0.3)
        done.append("finished")

    with socket.create_server(("127.0.0.1", 0)) as waiting:
        listener = HttpListener(slow, waiting)
        listener.start()
        with socket.create_connection(waiting.getsockname(), DEADLINE) as client:
            client.sendall(b"POST / HTTP/1.1\r\nHost: here\r\n\r\n")
            assert begun.wait(DEADLINE)
        listener.close()
    assert done == ["finished"]


def test_who_cannot_listen_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(listener: Listener[Any], sock: socket.socket) -> None:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(Listener, "start", start)
    with socket.create_server(("127.0.0.1", 0)) as waiting:
        listener = HttpListener(_no_content, waiting)
        with pytest.raises(JobpipeError, match=r"cannot start.*in use"):
            listener.start()
        listener.close()


def test_what_is_no_http_fills_no_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        with dial(served) as sock:
            sock.sendall(b"no HTTP\r\n\r\n")
            assert b" 400 " in ended(sock).split(b"\r\n")[0]
    assert 1 <= caplog.text.count("Invalid HTTP request") < 40


def test_no_http_after_an_early_answer(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """The answer is sent, so nothing can be said of it; the connection ends, and the server goes on."""
    with dial(served) as sock:
        sock.sendall(f"POST /nothing HTTP/1.1\r\nHost: {served.host}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        assert answer(sock).startswith(b"HTTP/1.1 401")
        sock.sendall(b"nonsense\r\n")
        assert ended(sock) == b""
    assert served.ask("GET", "/health").status == 200
    assert "Traceback" not in caplog.text


def test_headers_are_bounded(served: Served) -> None:
    with dial(served) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n" + b"X: " + b"x" * 40_000)
        assert b" 400 " in ended(sock).split(b"\r\n")[0]


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A CA; the server's certificate is for localhost."""
    folder = tmp_path / "ca"
    init_ca(folder)
    issue(folder, "server", dns=["localhost"], usages=BOTH)
    for person in ("anna", "ben", "carl"):
        issue(folder, person, usages=[CLIENT])
    return folder


def as_person(folder: Path, name: str) -> Config:
    given = {"ssl.ca": folder / "ca.crt", "ssl.cert": folder / f"{name}.crt", "ssl.key": folder / f"{name}.key"}
    return load(overrides={key: str(path) for key, path in given.items()}, environ={})


@pytest.mark.slow
def test_beyond_loopback_people_need_certificates(certificates: Path, tmp_path: Path, control: MemoryControl) -> None:
    """TLS and the access list, which is read again; no tokens there."""
    access = tmp_path / "access.yaml"
    access.write_text("operate: [anna.jobpipe]\nview: [ben.jobpipe]\n")
    access.chmod(0o600)
    server = as_person(certificates, "server")
    config = load(
        overrides={
            "home": str(tmp_path / "home"),
            "server.host": "0.0.0.0",  # noqa: S104 - what is tested
            "server.port": PORTS,
            "server.access": str(access),
            **{f"ssl.{name}": str(getattr(server, f"ssl_{name}")) for name in ("ca", "cert", "key")},
        },
        environ={},
    )
    with ServerFiles.of(config.home).locked():
        rest = RestServer(control, config, limits=HttpLimits(handshake_seconds=1.5))
        rest.start()
        try:
            assert rest.state.url.startswith("https://localhost:")
            assert rest.state.token is None
            assert not (ServerFiles.of(config.home).token(Right.OPERATE)).exists()

            def client(name: str) -> ControlClient:
                return ControlClient(ServerAddress.given(rest.state.url, as_person(certificates, name), None))

            assert (client("anna").index().right, client("ben").index().right) == ("operate", "view")
            assert client("server").index().right == "operate"
            with pytest.raises(NotAuthorized, match="needs the right operate"):
                client("ben").stop("flights")
            with pytest.raises(NotAuthorized, match="does not know who asks"):
                client("carl").pipelines()
            access.write_text("view: [carl.jobpipe]\n")
            deadline = time.monotonic() + DEADLINE
            while True:
                try:
                    assert client("carl").index().right == "view"
                    break
                except NotAuthorized:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            with pytest.raises(NotAuthorized):
                client("anna").pipelines()
            other = load(overrides={"home": str(tmp_path / "other")}, environ={})
            stranger = ControlClient(ServerAddress.given(rest.state.url, other, None))
            with pytest.raises((LinkBroken, NotAuthorized)):
                stranger.pipelines()
            with socket.create_connection(("127.0.0.1", int(rest.state.url.rpartition(":")[2])), DEADLINE) as silent:
                assert ended(silent) == b""
        finally:
            rest.close()
