"""What only a real ZooKeeper can do to us."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from jobpipe_registry.registry_errors import Unavailable
from jobpipe_registry.zookeeper.kazoo_client import RegistryClient
from jobpipe_registry.zookeeper.zookeeper_handler import ZooKeeperRegisterServerHandler
from tests.harness.proxies.proxy import FaultProxy
from tests.registry.worlds import Recorder, ZooKeeperWorld, eventually, owner, record

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def dead_end() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dead_end", "closed_port", "no.such.host.invalid:2181"])
def test_start_gives_up_and_names_the_hosts(kind: str, request: pytest.FixtureRequest) -> None:
    hosts = kind if ":" in kind else request.getfixturevalue(kind)
    handler = ZooKeeperRegisterServerHandler()
    begun = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        handler.start({"connect": hosts, "connect.timeout": "0.5", "session.timeout": "4"})
    assert caught.value.hosts == hosts
    assert time.monotonic() - begun < 4.0
    handler.shutdown()


@pytest.mark.parametrize("kind", ["closed_port", "no.such.host.invalid:2181"])
def test_a_wrong_address_is_told_once(
    kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """U12: the error says why; the log has no line for each attempt, but at DEBUG."""
    hosts = kind if ":" in kind else request.getfixturevalue(kind)
    reason = {"closed_port": "Connection refused", "no.such.host.invalid:2181": "can be resolved"}[kind]
    options = {"connect": hosts, "connect.timeout": "0.8", "session.timeout": "4"}
    for level in (logging.INFO, logging.DEBUG):
        caplog.clear()
        with caplog.at_level(level, "jobpipe_registry"), pytest.raises(Unavailable, match=reason):
            ZooKeeperRegisterServerHandler().start(options)
        told = [entry for entry in caplog.records if entry.levelno >= logging.WARNING]
        assert bool(told) == (level == logging.DEBUG), caplog.text


def test_a_lost_connection_is_told_once_a_minute(
    zookeeper_world: ZooKeeperWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """U12: what was connected says that it no longer is, not how often it tried since."""
    with FaultProxy(zookeeper_world.options()["connect"]) as proxy, caplog.at_level(logging.INFO, "jobpipe_registry"):
        handler = zookeeper_world.handler(start=False)
        handler.start({**zookeeper_world.options(), "connect": proxy.endpoint, "connect.timeout": "10"})
        for _ in range(3):
            proxy.reset()
            assert eventually(lambda: handler.topics() == [])
    lines = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert len([line for line in lines if line.startswith("Connection dropped")]) == 1, lines


def test_start_may_be_tried_again(closed_port: str, zookeeper_world: ZooKeeperWorld) -> None:
    handler = zookeeper_world.handler(start=False)
    with pytest.raises(Unavailable):
        handler.start({**zookeeper_world.options(), "connect": closed_port, "connect.timeout": "0.3"})
    handler.start(zookeeper_world.options())
    assert handler.topics() == []


def test_a_client_that_stopped_unasked_is_replaced(zookeeper_world: ZooKeeperWorld) -> None:
    """As kazoo's does when its connection drops during SASL."""
    a, b, seen = zookeeper_world.handler(), zookeeper_world.handler(), Recorder()
    a.claim("orders", owner())
    a.register("orders", record(1))
    a.watch("orders", seen)
    seen.wait([record(1)])
    stopped = zookeeper_world.client_of(a)
    stopped.stop()
    assert a.query("orders", 1) in (None, record(1))  # waits for the new client
    assert zookeeper_world.client_of(a) is not stopped
    eventually(lambda: b.records("orders") == [record(1)])
    eventually(lambda: b.owner("orders") == owner())
    b.register("orders", record(2))
    seen.wait([record(1), record(2)])


def test_a_new_session_asks_the_leader_first(zookeeper_world: ZooKeeperWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server may lag behind: what others wrote before it began would be missing in its reads."""
    asked: list[str] = []
    for name in ("sync_async", "get_async"):
        method = getattr(RegistryClient, name)

        def noted(self: RegistryClient, *given: Any, name: str = name, method: Any = method, **named: Any) -> Any:
            asked.append(name)
            return method(self, *given, **named)

        monkeypatch.setattr(RegistryClient, name, noted)
    handler = zookeeper_world.handler()
    assert asked[:2] == ["sync_async", "get_async"]
    asked.clear()
    zookeeper_world.client_of(handler).stop()
    handler.topics()
    assert asked[:2] == ["sync_async", "get_async"]


def test_a_create_whose_answer_was_lost_is_success(zookeeper_world: ZooKeeperWorld) -> None:
    a, b = zookeeper_world.handler(), zookeeper_world.handler()
    client = zookeeper_world.client_of(a)
    a.create_topic_node("orders")
    client.create(f"{zookeeper_world.topic_path('orders')}/parallel-1", record(1).to_bytes(), ephemeral=True)
    client.create(f"{zookeeper_world.namespace}.owners/orders", owner().to_bytes(), ephemeral=True, makepath=True)
    a.register("orders", record(1))
    a.claim("orders", owner())
    assert b.records("orders") == [record(1)]


def test_every_node_has_the_acl(zookeeper_world: ZooKeeperWorld) -> None:
    handler, foreign = zookeeper_world.handler(), zookeeper_world.foreign
    handler.claim("orders", owner())
    handler.register("orders", record(1))
    root = zookeeper_world.namespace
    for path in (root, f"{root}/orders", f"{root}/orders/parallel-1", f"{root}.owners/orders", f"{root}.epochs/orders"):
        assert foreign.get_acls(path)[0] == OPEN_ACL_UNSAFE


def test_want_of_permission_is_unavailable(zookeeper_world: ZooKeeperWorld, ensemble: str) -> None:
    root = "/locked"
    admin = KazooClient(hosts=ensemble, auth_data=[("digest", "admin:secret")])
    admin.start()
    try:
        admin.create(root, b"", acl=[make_digest_acl("admin", "secret", all=True)])
        with pytest.raises(NoAuthError):
            zookeeper_world.foreign.get(root)
        handler = zookeeper_world.handler(start=False)
        with pytest.raises(Unavailable):
            handler.start({**zookeeper_world.options(), "topic.storage": root, "connect.timeout": "1"})
    finally:
        admin.stop()
        admin.close()


def test_no_secret_reaches_the_logs(zookeeper_world: ZooKeeperWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    handler = zookeeper_world.handler()
    handler.register("orders", record(1))
    password = zookeeper_world.client_of(handler).client_id[1]
    zookeeper_world.expire(handler)
    eventually(lambda: handler.query("orders", 1))
    lines = [entry for entry in caplog.records if entry.name.startswith(("kazoo", "jobpipe_registry.kazoo"))]
    ours = [entry for entry in lines if entry.name == "jobpipe_registry.kazoo"]
    assert ours
    assert min(entry.levelno for entry in ours) >= logging.INFO
    assert not [entry for entry in ours if password.hex() in entry.getMessage() or repr(password) in entry.getMessage()]


@pytest.mark.slow
def test_the_server_dies_and_comes_back(home: Path) -> None:
    """Its supervisor starts it again on the same port; sessions and registrations go on."""
    server = EmbeddedZooKeeper(home, linger=60.0)
    options = {**server.options(), "session.timeout": "10", "connect.timeout": "15"}
    a, b, seen = ZooKeeperRegisterServerHandler(), ZooKeeperRegisterServerHandler(), Recorder()
    a.start(options)
    b.start(options)
    a.claim("orders", owner())
    a.register("orders", record(1))
    b.watch("orders", seen)
    seen.wait([record(1)])
    status = server.status()
    assert status is not None
    os.kill(status.java_pid, signal.SIGKILL)
    a.register("orders", record(2))
    seen.wait([record(1), record(2)])
    assert b.owner("orders") == owner()
    again = eventually(server.status)  # clients may be back before the supervisor has written so
    assert (again.pid, again.port) == (status.pid, status.port)
    assert again.java_pid != status.java_pid
    a.shutdown()
    b.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["gone", "stopped"])
def test_everything_is_bounded_while_the_server_is_away(home: Path, fault: str) -> None:
    server = EmbeddedZooKeeper(home, linger=60.0)
    handler = ZooKeeperRegisterServerHandler()
    handler.start({**server.options(), "session.timeout": "4", "connect.timeout": "0.5"})
    handler.claim("orders", owner())
    handler.register("orders", record(1))
    status = server.status()
    assert status is not None
    if fault == "gone":
        server.stop()
    else:
        java = psutil.Process(status.java_pid)
        java.suspend()  # a thread that runs just now may still answer
        eventually(lambda: java.status() == psutil.STATUS_STOPPED)
    for call in (lambda: handler.records("orders"), lambda: handler.register("orders", record(2)), handler.topics):
        begun = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            call()
        assert time.monotonic() - begun < 3.0
        assert caught.value.hosts == status.endpoint
    begun = time.monotonic()
    handler.shutdown()
    assert time.monotonic() - begun < 10.0
    if fault == "stopped":
        psutil.Process(status.java_pid).resume()
