"""S6: the embedded ZooKeeper answers only clients that know its home's secret; strangers cannot make it fall over."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from registry import embedded_files
from registry.embedded import EmbeddedStatus, EmbeddedZooKeeper
from registry.errors import Unavailable
from registry.zookeeper import ZooKeeperRegisterServerHandler

pytestmark = pytest.mark.zookeeper

MIB = 1 << 20


@contextmanager
def client(connect: str, sasl: dict[str, str] | None = None, digest: str | None = None) -> Iterator[KazooClient]:
    """Give a client that is told in time that it may not."""
    auth = None if digest is None else [("digest", digest)]
    made = KazooClient(hosts=connect, timeout=4.0, sasl_options=sasl, auth_data=auth, connection_retry={"max_tries": 1})
    try:
        made.start(timeout=5.0)
        yield made
    finally:
        made.stop()
        made.close()


def sasl_of(server: EmbeddedZooKeeper) -> dict[str, str]:
    options = server.options()
    return {name.removeprefix("sasl."): value for name, value in options.items() if name.startswith("sasl.")}


def running(server: EmbeddedZooKeeper) -> EmbeddedStatus:
    status = server.status()
    assert status is not None
    return status


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # kazoo's, of a wrong password
@pytest.mark.parametrize("who", ["nobody", "digest", "wrong password", "another name"])
def test_a_stranger_can_do_nothing(home: Path, who: str) -> None:
    """S6: he could read, change and fill it."""
    server = EmbeddedZooKeeper(home)
    connect = server.ensure()
    known = sasl_of(server)
    login: dict[str, Any] = {
        "nobody": {},
        "digest": {"digest": f"jobpipe:{known['password']}"},
        "wrong password": {"sasl": {**known, "password": "0" * 64}},
        "another name": {"sasl": {**known, "username": "super"}},
    }[who]
    calls: list[Callable[[KazooClient], Any]] = [
        lambda stranger: stranger.get("/"),
        lambda stranger: stranger.get_children("/"),
        lambda stranger: stranger.create("/mine", b"x"),
        lambda stranger: stranger.create("/zookeeper/quota/mine", b"x"),
        lambda stranger: stranger.set_acls("/", []),
    ]
    for call in calls:
        with pytest.raises((KazooException, KazooTimeoutError)), client(connect, **login) as stranger:
            call(stranger)
    with client(connect, known) as owner:
        assert owner.get_children("/") == ["zookeeper"]
        assert owner.get_children("/zookeeper/quota") == []


def test_strangers_cannot_make_it_fall_over(home: Path) -> None:
    """S6: it died of 100 nodes of 1 MB. Large messages, and many that never end, of many connections."""
    server = EmbeddedZooKeeper(home)
    options, before = server.options(), running(server)
    port = before.port
    for _ in range(100):
        with pytest.raises((KazooException, KazooTimeoutError)), client(options["connect"]) as stranger:
            stranger.create("/big-", b"x" * (MIB - 1000), sequence=True)
    held: list[socket.socket] = []
    try:
        for number in range(600):
            connection = socket.create_connection(("127.0.0.1", port), 5.0)
            held.append(connection)
            length = 65_000 if number % 2 else 64 * MIB
            connection.sendall(struct.pack(">i", length) + b"x" * 1000)
        handler = ZooKeeperRegisterServerHandler()
        handler.start({**options, "connect.timeout": "15"})
        assert handler.topics() == []
        handler.shutdown()
    finally:
        for connection in held:
            connection.close()
    assert running(server) == before
    assert psutil.Process(before.java_pid).memory_info().rss < 400 * MIB


def test_the_secret_is_in_its_files_only(home: Path) -> None:
    """Neither in a command line, nor in an environment, log or state; the files are this user's alone."""
    server = EmbeddedZooKeeper(home)
    secret = server.options()["sasl.password"]
    assert len(secret) == 64
    with client(server.ensure(), sasl_of(server)) as owner:
        owner.get("/")
    status = running(server)
    for pid in (status.pid, status.java_pid):
        for name in ("cmdline", "environ"):
            assert secret.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    holders = {path.name for path in home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()}
    assert holders == {"secret", "jaas.conf"}
    for name in holders:
        assert stat.S_IMODE((home / "zookeeper" / name).stat().st_mode) == 0o600


def test_secret_and_data_stay(home: Path) -> None:
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


def test_one_of_an_older_version_still_runs(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its state does not tell of a secret: it is joined, and that is logged. Its data are read afterwards."""
    old = EmbeddedZooKeeper(home, guarded=False)
    connect = old.ensure()
    state = home / "zookeeper" / "state.json"
    fields = json.loads(state.read_text())
    del fields["guarded"]
    state.write_text(json.dumps(fields))
    (home / "zookeeper" / "secret").unlink(missing_ok=True)
    with client(connect) as anybody:
        anybody.create("/large", b"x" * 900_000)  # by its limits
    server = EmbeddedZooKeeper(home)
    with caplog.at_level(logging.WARNING, "registry.embedded"):
        assert server.options() == {"connect": connect}
    assert "every user of this host may change it" in caplog.text
    handler = ZooKeeperRegisterServerHandler()
    handler.start(server.options())
    handler.create_topic_node("orders")
    handler.shutdown()
    assert server.stop()
    with client(server.ensure(), sasl_of(server)) as owner:
        assert len(owner.get("/large")[0]) == 900_000


def test_a_lost_secret_is_named(home: Path) -> None:
    server = EmbeddedZooKeeper(home)
    former = server.options()["sasl.password"]
    server.secret_file.unlink()
    with pytest.raises(Unavailable, match="registry stop"):
        server.options()
    assert server.stop()
    assert server.options()["sasl.password"] != former


def test_another_users_folder_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9: what lies there could be his."""
    (home / "zookeeper").mkdir(parents=True)
    monkeypatch.setattr(embedded_files.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Unavailable, match="not a directory of this user"):
        EmbeddedZooKeeper(home).ensure()
