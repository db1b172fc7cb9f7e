"""SASL GSSAPI against a real KDC and a ZooKeeper with Kerberos logins. Case 28: tickets that are missing or expired."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.security import ACL, Id

from jobpipe_registry.credentials import Sasl
from jobpipe_registry.registry_errors import BadOption, Unavailable
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.zookeeper import kazoo_client
from jobpipe_registry.zookeeper.kazoo_client import _for_kazoo, check_options
from jobpipe_registry.zookeeper.zookeeper_handler import ZooKeeperRegisterServerHandler
from tests.harness.proxies.proxy import FaultProxy
from tests.registry.worlds import eventually, owner, record
from tests.registry.zookeeper import kerberos
from tests.registry.zookeeper.kerberos import REALM, Realm
from tests.registry.zookeeper.secured import SecuredZooKeeper

MISSING = kerberos.missing()
needs_kdc = pytest.mark.skipif(
    MISSING is not None, reason=f"NOT TESTED: Kerberos login to ZooKeeper; not here: {MISSING}"
)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with Realm(tmp_path_factory.mktemp("kdc") / "realm") as made:
        yield made


@pytest.fixture(scope="module")
def server(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    login = (
        "com.sun.security.auth.module.Krb5LoginModule required\n"
        f'  useKeyTab=true storeKey=true useTicketCache=false keyTab="{realm.keytab("zookeeper/localhost")}"\n'
        f'  principal="zookeeper/localhost@{REALM}";'
    )
    folder = tmp_path_factory.mktemp("kerberos") / "zk"
    java = (f"-Djava.security.krb5.conf={realm.config}",)
    with SecuredZooKeeper(folder, login=login, enforce=True, java=java) as made:
        yield made


@pytest.fixture
def ours(realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process may log in as ``publisher``, by a keytab; MIT's library gets and renews the tickets by itself."""
    monkeypatch.setenv("KRB5_CONFIG", str(realm.config))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    keytab = realm.keytab("publisher")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{keytab}")
    return keytab


def options(server: SecuredZooKeeper, **more: str) -> dict[str, str]:
    return {
        "connect": f"localhost:{server.port}",
        "connect.timeout": "10",
        "session.timeout": "4",
        "sasl.mechanism": "GSSAPI",
        **more,
    }


@needs_kdc
@pytest.mark.zookeeper
@pytest.mark.parametrize("principal", ["", f"publisher@{REALM}"])
def test_log_in_by_keytab(server: SecuredZooKeeper, ours: Path, principal: str) -> None:
    handler = ZooKeeperRegisterServerHandler()
    handler.start(options(server, **{"sasl.principal": principal, "topic.storage": "/krb/topics"}))
    try:
        handler.claim("orders", owner())
        handler.register("orders", record(1))
        assert handler.records("orders") == [record(1)]
        kazoo = handler._started.nodes._session._client  # type: ignore[union-attr, attr-defined]
        assert kazoo.get_acls("/krb/topics/orders/parallel-1")[0] == [ACL(31, Id("sasl", f"publisher@{REALM}"))]
    finally:
        handler.shutdown()


@pytest.mark.slow
@needs_kdc
@pytest.mark.zookeeper
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("no ticket", "No Kerberos credentials available"),
        ("unknown principal", "Can't find client principal nobody@"),
        ("unknown service", "Server kafka/localhost@JOBPIPE.TEST not found in Kerberos database"),
        ("no KDC", "Cannot contact any KDC"),
    ],
)
def test_a_login_that_fails_says_why(
    server: SecuredZooKeeper, realm: Realm, ours: Path, fault: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"connect.timeout": "3"}
    if fault == "no ticket":
        monkeypatch.delenv("KRB5_CLIENT_KTNAME")
    elif fault == "unknown principal":
        more["sasl.principal"] = f"nobody@{REALM}"
    elif fault == "unknown service":
        more["sasl.service"] = "kafka"
    else:
        realm.stop()
    handler = ZooKeeperRegisterServerHandler()
    begun = time.monotonic()
    try:
        with pytest.raises(Unavailable) as caught:
            handler.start(options(server, **more))
    finally:
        if fault == "no KDC":
            realm.start()
        handler.shutdown()
    assert time.monotonic() - begun < 8.0
    assert "SASL GSSAPI as" in caught.value.reason
    assert text in caught.value.reason


@needs_kdc
@pytest.mark.zookeeper
def test_an_expired_ticket(
    server: SecuredZooKeeper, realm: Realm, ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session goes on while it is connected; a reconnect fails with the reason, until there is a new ticket."""
    monkeypatch.delenv("KRB5_CLIENT_KTNAME")
    tickets = tmp_path / "tickets"
    realm.log_in("publisher", tickets, 4)
    handler = ZooKeeperRegisterServerHandler()
    with FaultProxy(server.endpoint) as proxy:
        try:
            connect = proxy.endpoint.replace("127.0.0.1", "localhost")
            handler.start({**options(server, **{"topic.storage": "/expired/topics"}), "connect": connect})
            handler.register("orders", record(1))
            eventually(lambda: not realm.has_ticket(tickets))
            assert handler.records("orders") == [record(1)]
            nodes = handler._started.nodes  # type: ignore[union-attr]
            proxy.reset()
            eventually(lambda: not nodes.ready)
            with pytest.raises(Unavailable) as caught:
                handler.topics()
            assert "SASL GSSAPI" in caught.value.reason
            assert "expired" in caught.value.reason
            realm.log_in("publisher", tickets, 3600)
            eventually(lambda: nodes.ready)
            eventually(lambda: handler.records("orders") == [record(1)])
        finally:
            handler.shutdown()


def test_what_kazoo_is_told() -> None:
    """The part that needs neither KDC nor package."""
    assert _for_kazoo(Sasl("GSSAPI")) == {"mechanism": "GSSAPI", "service": "zookeeper"}
    assert _for_kazoo(Sasl("GSSAPI", principal="a@B", service="zk")) == {
        "mechanism": "GSSAPI",
        "service": "zk",
        "principal": "a@B",
    }
    parsed = RegistryOptions.parse({"sasl.mechanism": "GSSAPI", "sasl.principal": "a@B"})
    assert parsed.sasl == Sasl("GSSAPI", principal="a@B")
    assert parsed.identity == "SASL GSSAPI as a@B"


def test_a_missing_package_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kazoo_client.importlib.util, "find_spec", lambda name: None if name == "kerberos" else object())
    with pytest.raises(BadOption, match="pip install kerberos"):
        check_options(RegistryOptions.parse({"sasl.mechanism": "GSSAPI"}))
