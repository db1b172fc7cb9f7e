"""A ZooKeeper that knows its clients: who gets in, what strangers may do, and what the errors say.

Cases 28 and 31 of the fault list; measured facts 16 to 18 of its section 3.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, make_acl

from jobpipe_registry.registry_errors import BadOption, Unavailable
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.zookeeper.acl import ExposedNode
from jobpipe_registry.zookeeper.zookeeper_handler import ZooKeeperRegisterServerHandler
from tests.harness.proxies.proxy import FaultProxy
from tests.registry.worlds import Recorder, eventually, owner, record
from tests.registry.zookeeper.secured import Authority, SecuredZooKeeper

pytestmark = pytest.mark.zookeeper

USERS = {"alice": "canary-8c1f", "bob": "canary-77aa"}
LENIENT_USERS = {**USERS, "carol": "canary-carol"}
ALICE = {"sasl.mechanism": "DIGEST-MD5", "sasl.username": "alice", "sasl.password": USERS["alice"]}
BOB = {"sasl.mechanism": "DIGEST-MD5", "sasl.username": "bob", "sasl.password": USERS["bob"]}
SHORT = {"connect.timeout": "2", "session.timeout": "4"}

Start = Callable[..., ZooKeeperRegisterServerHandler]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SecuredZooKeeper]:
    """SASL enforced on a plain port, and on one with TLS that takes no client certificates."""
    tls = (authority, authority.issue("server", dns="localhost"))
    with SecuredZooKeeper(tmp_path_factory.mktemp("guarded") / "zk", users=USERS, enforce=True, tls=tls) as server:
        yield server


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SecuredZooKeeper]:
    """SASL possible, not enforced; the port with TLS demands a client certificate."""
    tls = (authority, authority.issue("lenient", dns="localhost", ip="127.0.0.1"))
    folder = tmp_path_factory.mktemp("lenient") / "zk"
    with SecuredZooKeeper(folder, users=LENIENT_USERS, tls=tls, client_auth="need") as server:
        yield server


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a starter of handlers, which are shut down after the test."""
    started: list[ZooKeeperRegisterServerHandler] = []

    def make(connect: str, options: dict[str, str]) -> ZooKeeperRegisterServerHandler:
        handler = ZooKeeperRegisterServerHandler()
        started.append(handler)
        handler.start({"connect": connect, "connect.timeout": "10", "session.timeout": "4", **options})
        return handler

    yield make
    for handler in started:
        handler.shutdown()


@pytest.fixture
def other() -> Iterator[Callable[..., KazooClient]]:
    """Return a maker of kazoo clients that have nothing to do with ours."""
    made: list[KazooClient] = []

    def make(connect: str, name: str | None = None) -> KazooClient:
        sasl = None if name is None else {"mechanism": "DIGEST-MD5", "username": name, "password": USERS[name]}
        made.append(KazooClient(hosts=connect, timeout=4.0, sasl_options=sasl))
        made[-1].start(timeout=10.0)
        return made[-1]

    yield make
    for client in made:
        client.stop()
        client.close()


def refusal(start: Start, connect: str, options: dict[str, str]) -> str:
    """Return why a handler does not start; it must say so soon after its time-out, and name no password."""
    begun = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        start(connect, {**SHORT, **options})
    assert time.monotonic() - begun < 5.0
    assert "canary" not in repr(caught.value) + str(caught.value) + str(caught.value.__cause__)
    return caught.value.reason


def nodes_below(client: KazooClient, path: str) -> list[str]:
    """Return a node and all below it."""
    return [path, *(node for name in client.get_children(path) for node in nodes_below(client, f"{path}/{name}"))]


def fill(handler: ZooKeeperRegisterServerHandler) -> None:
    """Make a node of each kind."""
    handler.claim("orders", owner())
    handler.next_epoch("orders", 1)
    handler.register("orders", record(1))
    handler.register("orders", record(2))
    handler.set_recovery_point("orders", 1, "{}")


# -- who gets in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [pytest.param("plain", marks=pytest.mark.slow), "tls"])
def test_publisher_and_subscriber_meet(
    guarded: SecuredZooKeeper, authority: Authority, start: Start, port: str
) -> None:
    options = {"topic.storage": f"/meet-{port}/topics"}
    if port == "tls":
        options |= {"ssl.enabled": "true", "ssl.ca": str(authority.path)}
    connect = guarded.endpoint if port == "plain" else guarded.secure_endpoint
    publisher, subscriber = start(connect, {**options, **ALICE}), start(connect, {**options, **ALICE})
    seen = Recorder()
    subscriber.watch("orders", seen)
    fill(publisher)
    seen.wait([record(1), record(2)])
    assert subscriber.owner("orders") == owner()
    assert subscriber.recovery_point("orders") == "{}"


@pytest.mark.slow
def test_a_wrong_password(guarded: SecuredZooKeeper, lenient: SecuredZooKeeper, start: Start) -> None:
    for server in (guarded, lenient):
        reason = refusal(start, server.endpoint, {**ALICE, "sasl.password": "canary-wrong"})
        assert "SASL DIGEST-MD5 as 'alice' was refused (wrong name or password" in reason
    assert "was refused" in refusal(start, guarded.endpoint, {**ALICE, "sasl.username": "nobody"})


@pytest.mark.slow
def test_no_password_where_one_is_demanded(guarded: SecuredZooKeeper, start: Start) -> None:
    reason = refusal(start, guarded.endpoint, {})
    assert "the server demands SASL, and sasl.mechanism is not set" in reason


@pytest.mark.parametrize("missing", ["sasl.username", "sasl.password"])
def test_half_a_login_is_refused_at_once(start: Start, missing: str) -> None:
    with pytest.raises(BadOption) as caught:
        start("127.0.0.1:1", {**ALICE, missing: ""})
    assert caught.value.option == missing
    assert "canary" not in str(caught.value)


@pytest.mark.slow
def test_a_server_that_knows_no_sasl(ensemble: str, start: Start) -> None:
    assert "SASL DIGEST-MD5 as 'alice'" in refusal(start, ensemble, ALICE)


@pytest.mark.slow
@pytest.mark.parametrize("port", ["sasl refused", "sasl missing", "tls refused"])
def test_a_refused_client_does_not_spin(
    guarded: SecuredZooKeeper, authority: Authority, start: Start, port: str, tmp_path: Path
) -> None:
    """Case 28. Each attempt is counted by a proxy; they become rarer."""
    upstream = guarded.secure_endpoint if port == "tls refused" else guarded.endpoint
    options = {"sasl refused": {**ALICE, "sasl.password": "canary-wrong"}, "sasl missing": {}}.get(
        port, {"ssl.enabled": "true", "ssl.ca": str(Authority(tmp_path, "another").path), **ALICE}
    )
    with FaultProxy(upstream.replace("localhost", "127.0.0.1")) as proxy:
        with pytest.raises(Unavailable):
            start(proxy.endpoint.replace("127.0.0.1", "localhost"), {**options, **SHORT, "connect.timeout": "4"})
        assert 2 <= proxy.connections <= 15


@pytest.mark.slow
def test_a_password_that_becomes_right(tmp_path: Path, start: Start) -> None:
    """The operator mends the server while the job waits; registrations come back by themselves."""
    server = SecuredZooKeeper(tmp_path / "zk", users=USERS, enforce=True)
    with server:
        handler = start(server.endpoint, ALICE)
        handler.claim("orders", owner())
        handler.register("orders", record(1))
        server.stop()
        server.users = {**USERS, "alice": "canary-new"}
        server.start()
        eventually(lambda: not handler._started.nodes.ready)  # type: ignore[union-attr]
        with pytest.raises(Unavailable) as caught:
            handler.topics()
        assert "SASL DIGEST-MD5 as 'alice' was refused" in caught.value.reason
        server.stop()
        server.users = USERS
        server.start()
        deadline = time.monotonic() + 30.0
        while True:
            try:
                found = handler.records("orders"), handler.owner("orders")
            except Unavailable:
                found = ([], None)
            if found == ([record(1)], owner()):
                break
            assert time.monotonic() < deadline, found


@pytest.mark.slow
def test_a_connection_lost_during_authentication(guarded: SecuredZooKeeper, start: Start) -> None:
    """Case 28: a drop there ends kazoo's own client for good. Here at every stage, by the bytes towards the client.

    The answer to the connect request has 41 bytes, the challenge some hundred.
    """
    with FaultProxy(guarded.endpoint) as proxy:
        for at in (0, 1, 40, 41, 42, 100, 180, 200):
            made = proxy.connections
            proxy.cut("down", at=at)
            begun = time.monotonic()
            handler = start(proxy.endpoint, {**ALICE, "topic.storage": "/cut/topics"})
            assert handler.topics() == []
            assert time.monotonic() - begun < 8.0, at
            assert proxy.connections >= made + 2, "the first one was cut"
            handler.shutdown()


@pytest.mark.slow
def test_authentication_that_is_always_cut_is_told(guarded: SecuredZooKeeper, start: Start) -> None:
    with FaultProxy(guarded.endpoint) as proxy:
        proxy.cut("down", at=60, times=1000)
        assert "the connection was lost during SASL DIGEST-MD5 as 'alice'" in refusal(start, proxy.endpoint, ALICE)


def test_a_session_goes_on_after_a_cut_reconnect(guarded: SecuredZooKeeper, start: Start) -> None:
    """As in a rolling restart: the session, and what is registered in it, outlive a drop during SASL."""
    with FaultProxy(guarded.endpoint) as proxy:
        handler = start(proxy.endpoint, {**ALICE, "topic.storage": "/roll/topics", "session.timeout": "20"})
        nodes: Any = handler._started.nodes  # type: ignore[union-attr]
        session, client = nodes.session, nodes._session._client
        proxy.cut("down", at=60)
        proxy.reset()
        eventually(lambda: not nodes.ready)
        eventually(lambda: nodes.ready)
        assert (nodes.session, nodes._session._client) == (session, client)


@pytest.mark.slow
def test_a_server_that_refuses_us_is_passed_by(
    guarded: SecuredZooKeeper, lenient: SecuredZooKeeper, start: Start
) -> None:
    """As while a password is changed on one server after the other."""
    carol = {"sasl.mechanism": "DIGEST-MD5", "sasl.username": "carol", "sasl.password": LENIENT_USERS["carol"]}
    for attempt in range(3):  # the order is random
        handler = start(
            f"{guarded.endpoint},{lenient.endpoint}", {**carol, "topic.storage": f"/carol-{attempt}/topics"}
        )
        assert handler.topics() == []


@pytest.mark.parametrize("at", [0, 1, 500])
def test_a_connection_lost_during_the_tls_handshake(
    guarded: SecuredZooKeeper, authority: Authority, start: Start, at: int
) -> None:
    with FaultProxy(f"127.0.0.1:{guarded.secure_port}") as proxy:
        proxy.cut("down", at=at)
        handler = start(proxy.endpoint.replace("127.0.0.1", "localhost"), {**tls(authority), **ALICE})
        assert handler.topics() == []
        assert proxy.connections >= 2
        handler.shutdown()


@pytest.mark.slow
def test_an_authentication_that_is_never_answered(guarded: SecuredZooKeeper, start: Start) -> None:
    """The connection stays, the answers vanish: only our own deadline notices."""
    with FaultProxy(guarded.endpoint) as proxy:
        proxy.drop("down")
        assert "the server does not answer" in refusal(start, proxy.endpoint, {**ALICE, "session.timeout": "2"})
        proxy.heal()
        assert start(proxy.endpoint, ALICE).topics() == []


# -- TLS -----------------------------------------------------------------------------------------------------------


def tls(authority: Authority, **more: str) -> dict[str, str]:
    return {"ssl.enabled": "true", "ssl.ca": str(authority.path), **more}


@pytest.mark.slow
def test_another_ca_is_refused(guarded: SecuredZooKeeper, tmp_path: Path, start: Start) -> None:
    stranger = Authority(tmp_path, "stranger")
    reason = refusal(start, guarded.secure_endpoint, {**tls(stranger), **ALICE})
    assert "the server's certificate is refused" in reason
    assert str(stranger.path) in reason


@pytest.mark.slow
def test_the_ca_of_the_system_is_not_believed(
    guarded: SecuredZooKeeper, authority: Authority, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo loads the system's CAs beside the given one; a server that they vouch for gets nothing from us."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))  # of OpenSSL's default store
    reason = refusal(start, guarded.secure_endpoint, {**tls(Authority(tmp_path, "ours")), **ALICE})
    assert "the server's certificate is refused" in reason


@pytest.mark.slow
def test_another_host_name_is_refused(guarded: SecuredZooKeeper, authority: Authority, start: Start) -> None:
    """The certificate is for localhost; the address in its place will not do."""
    reason = refusal(start, f"127.0.0.1:{guarded.secure_port}", {**tls(authority), **ALICE})
    assert "IP address mismatch" in reason


@pytest.mark.slow
def test_tls_to_a_plain_port(guarded: SecuredZooKeeper, authority: Authority, start: Start) -> None:
    reason = refusal(start, f"localhost:{guarded.port}", {**tls(authority), **ALICE})
    assert "does this port expect TLS?" in reason


@pytest.mark.slow
def test_no_tls_to_a_port_with_tls(guarded: SecuredZooKeeper, start: Start) -> None:
    reason = refusal(start, guarded.secure_endpoint, ALICE)
    assert "does this port expect TLS (ssl.enabled)?" in reason


@pytest.mark.slow
def test_a_client_certificate_is_demanded(
    lenient: SecuredZooKeeper, authority: Authority, tmp_path: Path, start: Start
) -> None:
    reason = refusal(start, lenient.secure_endpoint, tls(authority))
    assert "the server refused us during the TLS handshake" in reason
    assert "we show no client certificate" in reason
    wrong = Authority(tmp_path, "stranger").issue("client")
    options = tls(authority, **{"ssl.cert": str(wrong.cert), "ssl.key": str(wrong.key)})
    assert "the server refused us" in refusal(start, lenient.secure_endpoint, options)


@pytest.mark.slow
def test_known_by_certificate_alone(
    lenient: SecuredZooKeeper, authority: Authority, start: Start, other: Callable[..., KazooClient]
) -> None:
    """x509: the ACL names the certificate's holder, and others stay outside."""
    client = authority.issue("client")
    mine = tls(authority, **{"ssl.cert": str(client.cert), "ssl.key": str(client.key)})
    handler = start(lenient.secure_endpoint, {**mine, "topic.storage": "/x509/topics"})
    fill(handler)
    assert handler.records("orders") == [record(1), record(2)]
    stranger = other(lenient.endpoint)
    with pytest.raises(NoAuthError):
        stranger.get("/x509/topics/orders")
    assert handler.exposed_nodes() == []
    reader = start(lenient.endpoint, {**ALICE, "topic.storage": "/alice/topics"})
    with pytest.raises(Unavailable, match="no permission"):
        start(lenient.endpoint, {**ALICE, **SHORT, "topic.storage": "/x509/topics"})
    assert reader.topics() == []


@pytest.mark.parametrize("fault", ["no ca", "ca is no pem", "no cert", "open key", "another key"])
def test_wrong_files_are_told_at_once(authority: Authority, tmp_path: Path, start: Start, fault: str) -> None:
    pem = Authority(tmp_path).issue("client")
    options = tls(authority, **{"ssl.cert": str(pem.cert), "ssl.key": str(pem.key)})
    if fault == "no ca":
        options["ssl.ca"] = str(tmp_path / "nowhere")
    elif fault == "ca is no pem":
        text = tmp_path / "text"
        text.write_text("hello")
        options["ssl.ca"] = str(text)
    elif fault == "no cert":
        options["ssl.cert"] = str(tmp_path / "nowhere")
    elif fault == "open key":
        pem.key.chmod(0o644)
    else:
        options["ssl.key"] = str(Authority(tmp_path / "b").issue("b").key)
    with pytest.raises(BadOption) as caught:
        start("localhost:1", options)
    assert caught.value.option in ("ssl.ca", "ssl.cert", "ssl.key")
    assert str(tmp_path) in str(caught.value)


# -- ACL -----------------------------------------------------------------------------------------------------------


def test_every_node_is_its_makers(guarded: SecuredZooKeeper, start: Start, other: Callable[..., KazooClient]) -> None:
    """Case 31: parents, topic, registrations, claim, epoch and recovery point, seen by an independent client."""
    fill(start(guarded.endpoint, {**ALICE, "topic.storage": "/mine/jobpipe/topics"}))
    alice, bob = other(guarded.endpoint, "alice"), other(guarded.endpoint, "bob")
    made = nodes_below(alice, "/mine")
    root = "/mine/jobpipe/topics"
    assert set(made) == {
        *("/mine", "/mine/jobpipe", root, f"{root}.owners", f"{root}.epochs", f"{root}.recovery"),
        *(f"{root}/orders", f"{root}/orders/parallel-1", f"{root}/orders/parallel-2"),
        *(f"{root}.owners/orders", f"{root}.epochs/orders", f"{root}.recovery/orders"),
    }
    for path in made:
        assert alice.get_acls(path)[0] == [ACL(31, Id("sasl", "alice"))], path
        for attempt in (
            lambda path=path: bob.get(path),
            lambda path=path: bob.get_children(path),
            lambda path=path: bob.set(path, b"forged"),
            lambda path=path: bob.create(f"{path}/forged", b""),
            lambda path=path: bob.set_acls(path, OPEN_ACL_UNSAFE),
        ):
            with pytest.raises(NoAuthError):
                attempt()
        if path != "/mine":  # deleting is the parent's to allow, and the root is everybody's
            with pytest.raises(NoAuthError):
                bob.delete(path)


def test_an_anonymous_stranger_may_nothing(
    lenient: SecuredZooKeeper, start: Start, other: Callable[..., KazooClient]
) -> None:
    fill(start(lenient.endpoint, {**ALICE, "topic.storage": "/lenient/topics"}))
    stranger, alice = other(lenient.endpoint), other(lenient.endpoint, "alice")
    for path in nodes_below(alice, "/lenient"):
        for attempt in (stranger.get, stranger.get_children, lambda path: stranger.set(path, b"forged")):
            with pytest.raises(NoAuthError):
                attempt(path)


def test_others_may_be_let_in(guarded: SecuredZooKeeper, start: Start) -> None:
    """A publisher and a subscriber of different names: bob reads, and cannot write."""
    options = {"topic.storage": "/shared/topics", "acl": "auth, sasl:bob:r"}
    subscriber, seen = (
        start(guarded.endpoint, {**options, **BOB}),
        Recorder(),
    )  # who only reads makes no node, so owns none
    subscriber.watch("orders", seen)
    publisher = start(guarded.endpoint, {**options, **ALICE})
    fill(publisher)
    seen.wait([record(1), record(2)])
    assert subscriber.records("orders") == [record(1), record(2)]
    with pytest.raises(Unavailable, match="no permission"):
        subscriber.register("orders", record(3))
    with pytest.raises(Unavailable, match="no permission"):
        subscriber.evict("orders", "a")
    assert publisher.records("orders") == [record(1), record(2)]


def test_an_acl_that_the_server_cannot_fulfil(lenient: SecuredZooKeeper, start: Start) -> None:
    handler = start(lenient.endpoint, {"acl": "auth", "topic.storage": "/auth/topics"})
    with pytest.raises(Unavailable, match="it does not know us; we are an anonymous client"):
        handler.create_topic_node("orders")


def test_nodes_that_strangers_may_change_are_found_and_mended(
    lenient: SecuredZooKeeper, start: Start, other: Callable[..., KazooClient], caplog: pytest.LogCaptureFixture
) -> None:
    """Case 31: a tree that was made before there were users."""
    options = {"topic.storage": "/old/topics"}
    fill(start(lenient.endpoint, options))
    other(lenient.endpoint).create("/old/topics/orders/foreign", b"", acl=[make_acl("world", "anyone", read=True)])
    with caplog.at_level(logging.WARNING, "jobpipe_registry.zookeeper.zookeeper_handler"):
        handler = start(lenient.endpoint, {**options, **ALICE})
        assert handler.topics() == ["orders"]
        assert caplog.text == ""  # a reader relies on nothing there
        handler.create_topic_node("orders")
    assert "strangers may change /old/topics (permissions crwda)" in caplog.text
    found = {node.path: node for node in handler.exposed_nodes()}
    alice = other(lenient.endpoint, "alice")
    assert set(found) == set(nodes_below(alice, "/old"))
    assert found["/old/topics/orders/parallel-1"] == ExposedNode("/old/topics/orders/parallel-1", "crwda")
    assert found["/old/topics/orders/foreign"] == ExposedNode("/old/topics/orders/foreign", "r")
    for node in found.values():
        if node.writable:
            handler.protect(node.path)
    assert [node.path for node in handler.exposed_nodes()] == ["/old/topics/orders/foreign"]
    with pytest.raises(Unavailable, match="no permission"):  # nobody may administer it
        handler.protect("/old/topics/orders/foreign")
    handler.protect("/old/topics/gone")
    assert alice.get_acls("/old/topics/orders")[0] == [ACL(31, Id("sasl", "alice"))]


# -- the password --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
def test_a_password_shows_nowhere(
    guarded: SecuredZooKeeper,
    start: Start,
    right: bool,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Case 72, at the lowest log level: ours and kazoo's lines, tracebacks of threads, objects, the process list."""
    caplog.set_level(1)
    login = ALICE if right else {**ALICE, "sasl.password": "canary-wrong"}
    options = {**login, **SHORT, "topic.storage": "/quiet/topics"}
    if right:
        with FaultProxy(guarded.endpoint) as proxy:
            handler = start(proxy.endpoint, {**options, "connect.timeout": "10"})
            handler.register("orders", record(1))
            proxy.cut("down", at=60)
            proxy.reset()
            eventually(lambda: handler.query("orders", 1))
            handler.shutdown()
    else:
        refusal(start, guarded.endpoint, options)
    texts = [f"{entry.getMessage()} {entry.args!r} {entry.exc_info!r} {entry.exc_text}" for entry in caplog.records]
    assert texts
    assert [text for text in texts if "canary" in text] == []
    assert "canary" not in "".join(capfd.readouterr())
    assert "canary" not in repr(RegistryOptions.parse(options))
    assert "canary" not in " ".join(psutil.Process().cmdline())


@pytest.mark.slow
def test_a_password_of_any_characters(tmp_path: Path, start: Start) -> None:
    password = "p\u00e4ss w\u00f6rd,=;\u20ac"
    with SecuredZooKeeper(tmp_path / "zk", users={"alice": password}, enforce=True) as server:
        assert start(server.endpoint, {**ALICE, "sasl.password": password}).topics() == []
