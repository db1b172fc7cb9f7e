"""S6: the embedded ZooKeeper answers only clients that hold its home's certificate; strangers get nothing from it.

A stranger here is what another user of the host is: someone who reaches loopback and cannot read the home's files.
"""

from __future__ import annotations

import os
import resource
import socket
import ssl
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient

from jobpipe_registry.credentials import Tls
from jobpipe_registry.embedded import embedded_files, embedded_server
from jobpipe_registry.embedded.embedded_files import EmbeddedFiles
from jobpipe_registry.embedded.embedded_server import JavaSupervisor
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedStatus, EmbeddedZooKeeper
from jobpipe_registry.embedded.four_letter_words import ask, count_sessions
from jobpipe_registry.registry_errors import Unavailable
from jobpipe_registry.zookeeper.kazoo_client import TlsHandler
from jobpipe_registry.zookeeper.zookeeper_handler import ZooKeeperRegisterServerHandler
from jobpipe_registry.zookeeper.zookeeper_tls import make_context
from tests.harness.proxies.proxy import FaultProxy
from tests.registry.worlds import eventually
from tests.registry.zookeeper.secured import Authority

pytestmark = pytest.mark.zookeeper

MIB = 1 << 20
# A session asked for as a client does: protocol, last zxid, timeout, session, password, read-only.
CONNECT = struct.pack(">iiqiqi16s?", 45, 0, 0, 10_000, 0, 16, b"", False)
AUTH = struct.pack(">iiii", 8 + 4 + 4 + 6 + 4 + 1000, -4, 100, 0) + struct.pack(">i", 6) + b"digest"
AUTH += struct.pack(">i", 1000) + b"a:" + b"x" * 998


@contextmanager
def client(connect: str, tls: Tls | None) -> Iterator[KazooClient]:
    made = KazooClient(
        hosts=connect, timeout=4.0, handler=None if tls is None else TlsHandler(tls), use_ssl=tls is not None
    )
    try:
        made.start(timeout=10.0)
        yield made
    finally:
        made.stop()
        made.close()


def running(server: EmbeddedZooKeeper) -> EmbeddedStatus:
    status = server.status()
    assert status is not None
    return status


def careless(shown: Tls | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """Return the context of a stranger, who believes any server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    if shown is not None and shown.cert is not None:
        context.load_cert_chain(shown.cert, shown.key)
    return context


def strangers(folder: Path) -> dict[str, ssl.SSLContext | None]:
    theirs = EmbeddedFiles(folder / "theirs")
    theirs.make()
    theirs.make_tls()
    return {
        "plain": None,
        "no certificate": careless(None),
        "old TLS": careless(None, ssl.TLSVersion.TLSv1_2),
        "another home's": careless(theirs.tls),
    }


def tell(port: int, tls: ssl.SSLContext | None, message: bytes, times: int) -> tuple[bytes, int]:
    """Say it until the server ends the connection; return its answer, and how often that worked."""
    answer, said = b"", 0
    with suppress(ConnectionError, ssl.SSLError), ExitStack() as stack:
        raw = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10.0))
        link = raw if tls is None else stack.enter_context(tls.wrap_socket(raw))
        link.sendall(CONNECT)
        while said < times:
            link.sendall(message)
            said += 1
        while piece := link.recv(65536):
            answer += piece
    return answer, said


@pytest.mark.slow
@pytest.mark.parametrize("who", ["plain", "no certificate", "old TLS", "another home's"])
def test_a_stranger_can_do_nothing(home: Path, tmp_path: Path, who: str) -> None:
    """S6: others could read, change and fill it, and ask for its counters."""
    server = EmbeddedZooKeeper(home)
    connect, port = server.ensure(), running(server).port
    stranger = strangers(tmp_path)[who]
    for message in (b"", b"srvr", b"mntr"):
        answer, _ = tell(port, stranger, message, 1)
        assert b"okeeper" not in answer
        assert len(answer) <= 7, "no more than the TLS alert"
    assert not ask(port, "srvr", stranger)
    with client(connect, server.tls) as owner:
        assert owner.get_children("/") == ["zookeeper"]
        assert count_sessions(ask(port, "mntr", make_context(server.tls))) == 1, "strangers have no sessions"


@pytest.mark.slow
def test_strangers_cannot_fill_its_memory(home: Path, tmp_path: Path) -> None:
    """S6: it died of large messages, of many that never end, and of logins (AUTH) that it kept unjudged."""
    server = EmbeddedZooKeeper(home)
    options, before = server.options(), running(server)
    for stranger in strangers(tmp_path).values():
        answer, said = tell(before.port, stranger, AUTH, 200_000)
        assert (len(answer) <= 7, said < 200_000) == (True, True), "it hung up on 200 MB of logins"
    with ExitStack() as held:
        for number in range(600):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", before.port), 5.0))
            with suppress(ConnectionError):
                connection.sendall(struct.pack(">i", 65_000 if number % 2 else 64 * MIB) + b"x" * 1000)
        handler = ZooKeeperRegisterServerHandler()
        handler.start({**options, "connect.timeout": "15"})
        assert handler.topics() == []
        handler.shutdown()
    assert running(server) == before
    assert psutil.Process(before.java_pid).memory_info().rss < 400 * MIB


@pytest.mark.slow
def test_idle_connections_of_strangers_leave_room(home: Path) -> None:
    """S6: 1,000 of them filled it, and made it look dead: its keeper ended it, and jobs could not join."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    server = EmbeddedZooKeeper(home)
    options, before = server.options(), running(server)
    try:
        with ExitStack() as held:
            for _ in range(1500):
                held.enter_context(socket.create_connection(("127.0.0.1", before.port), 5.0))
            handler = ZooKeeperRegisterServerHandler()
            handler.start({**EmbeddedZooKeeper(home).options(), "connect.timeout": "15"})
            handler.create_topic_node("orders")
            assert handler.topics() == ["orders"]
            handler.shutdown()
            assert ask(before.port, "srvr", make_context(server.tls)), "its keeper is answered, too"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (running(server), server.options()) == (before, options)


@pytest.mark.slow
def test_a_server_that_refuses_is_joined(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who joins goes by the processes, not by the port, which strangers can keep busy."""
    server = EmbeddedZooKeeper(home)
    connect, before = server.ensure(), running(server)
    java = psutil.Process(before.java_pid)
    java.suspend()
    try:
        eventually(lambda: java.status() == psutil.STATUS_STOPPED)
        assert server.ensure(timeout=5.0) == connect
    finally:
        java.resume()
    assert running(server) == before


@pytest.mark.parametrize(
    ("answer", "cpu", "restarted"),
    [("", 0.0, False), (None, 1.0, False), (None, 0.0, True)],
    ids=["refuses", "busy", "stands still"],
)
def test_its_keeper_tells_full_from_dead(
    home: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, cpu: float, restarted: bool
) -> None:
    files, asked, starts = EmbeddedFiles(home / "zookeeper"), 0, 0
    files.make()
    files.make_tls()
    keeper = JavaSupervisor(files, linger=0.5, java="java", jars=home, token="t")

    class Alive:
        pid = os.getpid()

        def poll(self) -> None:
            return None

        def terminate(self) -> None:
            return None

        def wait(self, _: float) -> None:
            return None

    def start(port: int) -> None:
        nonlocal starts
        starts += 1
        keeper._java = Alive()  # type: ignore[assignment]

    def respond(*_: object) -> str | None:
        nonlocal asked
        asked += 1
        if asked == 10:
            keeper.stop()
        return answer

    monkeypatch.setattr(embedded_server, "_SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(embedded_server, "ask", respond)
    monkeypatch.setattr(keeper, "_start", start)
    monkeypatch.setattr(embedded_server, "_cpu_seconds", lambda _: cpu * time.monotonic())
    keeper.run()
    assert asked == 10
    assert (starts > 1) == restarted


class Thief:
    """Has the port of a dead server, hands all that comes to it to ``upstream`` or shows a certificate of its own."""

    def __init__(self, port: int, folder: Path) -> None:
        own = Authority(folder).issue("thief", dns="localhost", ip="127.0.0.1")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(own.cert, own.key)
        self.heard: list[bytes] = []
        self.refused = 0
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                raw, _ = self._socket.accept()
            except OSError:
                return
            with raw:
                raw.settimeout(5.0)
                try:
                    with self._context.wrap_socket(raw, server_side=True) as link:
                        self.heard.append(link.recv(65536))
                except OSError:  # ssl.SSLError is one
                    self.refused += 1

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10.0)


@pytest.mark.slow
def test_who_takes_the_port_of_a_dead_server_gets_nothing(home: Path, tmp_path: Path) -> None:
    """S6: the login of a running job could be passed on from there."""
    server = EmbeddedZooKeeper(home)
    options = server.options()
    handler = ZooKeeperRegisterServerHandler()
    handler.start({**options, "connect.timeout": "1"})
    handler.create_topic_node("orders")
    port = running(server).port
    assert server.stop()
    thief = Thief(port, tmp_path / "thief")
    try:
        eventually(lambda: thief.refused >= 2)
        assert thief.heard == [], "nothing was said to it"
        assert server.ensure() != options["connect"]
        newcomer = ZooKeeperRegisterServerHandler()
        newcomer.start(server.options())
        assert newcomer.topics() == ["orders"]
        newcomer.shutdown()
        with pytest.raises(Unavailable):
            handler.topics()
    finally:
        thief.close()
        handler.shutdown()


@pytest.mark.slow
def test_a_relay_can_only_cut(home: Path) -> None:
    """S6: between a job and the server it sees no login to use, and what it changes ends the link."""
    server = EmbeddedZooKeeper(home)
    with FaultProxy(server.ensure()) as relay:
        handler = ZooKeeperRegisterServerHandler()
        handler.start({**server.options(), "connect": relay.endpoint, "connect.timeout": "10"})
        handler.create_topic_node("orders")
        before = relay.connections
        relay.flip("up", 20, open_ones=True)
        handler.create_topic_node("payments")  # by the next link
        assert relay.connections > before
        assert handler.topics() == ["orders", "payments"]
        handler.shutdown()


@pytest.mark.slow
def test_the_key_is_in_its_file_only(home: Path) -> None:
    """Neither in a command line, nor in an environment, log or state; the file is this user's alone."""
    server = EmbeddedZooKeeper(home)
    with client(server.ensure(), server.tls) as owner:
        owner.get("/")
    pem = server.tls.ca.read_text()
    secret = pem.split("\n")[1].encode()  # the first line of the key itself
    status = running(server)
    for pid in (status.pid, status.java_pid):
        for name in ("cmdline", "environ"):
            assert secret not in Path(f"/proc/{pid}/{name}").read_bytes()
    holders = [path for path in home.rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert holders == [server.tls.ca]
    assert stat.S_IMODE(server.tls.ca.stat().st_mode) == 0o600


@pytest.mark.slow
def test_certificate_and_data_stay(home: Path) -> None:
    """A server that is started again knows the same clients, whose sessions and nodes go on."""
    server = EmbeddedZooKeeper(home)
    options = server.options()
    handler = ZooKeeperRegisterServerHandler()
    handler.start(options)
    handler.create_topic_node("orders")
    assert server.stop()
    assert EmbeddedZooKeeper(home).options() == options
    assert handler.topics() == ["orders"]
    handler.shutdown()


@pytest.mark.slow
def test_a_lost_certificate_is_named(home: Path) -> None:
    server = EmbeddedZooKeeper(home)
    server.options()
    server.tls.ca.unlink()
    with pytest.raises(Unavailable, match="registry stop"):
        server.options()
    assert server.stop()
    with client(server.options()["connect"], server.tls) as owner:
        owner.get("/")


@pytest.mark.parametrize("damage", ["cut", "empty", "others may read"])
def test_a_file_that_is_of_no_use_is_made_again(home: Path, damage: str) -> None:
    files = EmbeddedFiles(home / "zookeeper")
    files.make()
    files.make_tls()
    path, former = files.tls.ca, files.tls.ca.read_bytes()
    files.make_tls()
    assert path.read_bytes() == former
    if damage == "others may read":
        path.chmod(0o644)
    else:
        path.write_bytes(former[:300] if damage == "cut" else b"")
    files.make_tls()
    assert path.read_bytes() != former
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    make_context(files.tls)


def test_another_users_folder_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9: what lies there could be theirs."""
    (home / "zookeeper").mkdir(parents=True)
    monkeypatch.setattr(embedded_files.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Unavailable, match="not a directory of this user"):
        EmbeddedZooKeeper(home).ensure()
