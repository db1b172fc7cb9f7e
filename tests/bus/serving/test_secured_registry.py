"""The whole bus over a ZooKeeper that demands SASL and TLS: rows pass, faults heal, and the password shows nowhere.

Cases 1, 28, 31 and 72 of the fault list.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient

from jobpipe.config import Config, config_from_dict
from jobpipe.discovery.registry_handler import open_handler
from jobpipe.errors import ConfigError, RegistryUnavailable
from tests.harness.processes import Harness
from tests.harness.program import marked
from tests.registry.zookeeper.secured import Authority, SecuredZooKeeper

pytestmark = pytest.mark.zookeeper

CANARY = "canary-5f0c9d"
NAMESPACE = "/secured/topics"
KINDS = ("owners", "epochs", "recovery")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SecuredZooKeeper]:
    tls = (authority, authority.issue("server", dns="localhost"))
    folder = tmp_path_factory.mktemp("secured") / "zk"
    with SecuredZooKeeper(folder, users={"alice": CANARY, "bob": f"{CANARY}-2"}, enforce=True, tls=tls) as made:
        yield made


@pytest.fixture
def rig(tmp_path: Path, home: Path, server: SecuredZooKeeper, authority: Authority) -> Iterator[Harness]:
    settings = {
        "acks": "all",  # so that there are recovery points, too
        "registerserver.connect": server.secure_endpoint,
        "registerserver.topic.storage": NAMESPACE,
        "registerserver.ssl.enabled": "true",
        "registerserver.ssl.ca": str(authority.path),
        "registerserver.sasl.mechanism": "DIGEST-MD5",
        "registerserver.sasl.username": "alice",
        "registerserver.sasl.password": _secret(tmp_path / "password", CANARY),
        "registerserver.acl": "auth, sasl:bob:r",
    }
    with Harness(tmp_path / "rig", settings=settings, zookeeper=home) as made:
        yield made


def nodes_below(client: KazooClient, path: str) -> list[str]:
    return [path, *(node for name in client.get_children(path) for node in nodes_below(client, f"{path}/{name}"))]


@pytest.mark.slow
def test_rows_pass_and_the_password_shows_nowhere(rig: Harness, server: SecuredZooKeeper, tmp_path: Path) -> None:
    """alice publishes; bob, who may only read in the registry, subscribes."""
    password = _secret(tmp_path / "password-2", f"{CANARY}-2")
    bob = {"registerserver.sasl.username": "bob", "registerserver.sasl.password": password}
    rig.subscribers_config = _changed(rig, bob)
    rig.consumer().start()
    rig.publisher.start(pause=0.01, options={"required_subscribers": ["all"]})
    rig.wait_until(lambda: rig.received() > 500, "rows")
    sasl = {"mechanism": "DIGEST-MD5", "username": "alice", "password": CANARY}
    client = KazooClient(hosts=server.endpoint, sasl_options=sasl)
    client.start()
    try:
        made = nodes_below(client, "/secured")
        kinds = {f"{NAMESPACE}/orders/parallel-1", *(f"{NAMESPACE}.{kind}/orders" for kind in KINDS)}
        assert kinds <= set(made)
        for path in made:
            acl = {(entry.id.id, entry.perms) for entry in client.get_acls(path)[0]}
            assert acl == {("alice", 31), ("bob", 1)}, path
    finally:
        client.stop()
        client.close()
    for process in [psutil.Process(), *marked(rig._mark)]:
        assert not any(CANARY in word for word in process.cmdline()), process
    rig.publisher.kill()
    rig.publisher.start(options={"required_subscribers": ["all"]})
    received = rig.received()
    rig.wait_until(lambda: rig.received() > received, "rows after the kill")
    rig.finish()
    rig.verdict()
    files = [path for path in rig.folder.rglob("*") if path.is_file()]
    assert [path.name for path in files if path.suffix == ".log"], "there are logs to look at"
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    assert CANARY not in repr(rig.config)


@pytest.mark.slow
def test_a_wrong_password_is_one_clear_error(rig: Harness, tmp_path: Path) -> None:
    wrong = _secret(tmp_path / "wrong", f"{CANARY}-wrong")
    config = _changed(rig, {"registerserver.sasl.password": wrong, "registerserver.connect.timeout": "2s"})
    with pytest.raises(RegistryUnavailable) as caught:
        open_handler(config)
    assert "SASL DIGEST-MD5 as 'alice' was refused (wrong name or password" in str(caught.value)
    assert CANARY not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.fields}"


@pytest.mark.slow
def test_a_missing_file_is_an_error_of_the_configuration(rig: Harness) -> None:
    with pytest.raises(ConfigError) as caught:
        open_handler(_changed(rig, {"registerserver.ssl.ca": "/nowhere/ca.crt"}))
    assert caught.value.fields["key"] == "jobpipe.registerserver.ssl.ca"
    assert "/nowhere/ca.crt" in str(caught.value)


def _secret(path: Path, text: str) -> str:
    """Write a file that only its owner may read; return the reference to it."""
    path.touch(0o600)
    path.write_text(text)
    return f"file:{path}"


def _changed(rig: Harness, changes: dict[str, str]) -> Config:
    return config_from_dict({**rig.config.to_dict(), **{f"jobpipe.{name}": value for name, value in changes.items()}})
