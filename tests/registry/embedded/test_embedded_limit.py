"""The most connections that an embedded ZooKeeper takes."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from jobpipe.cli.doctor import registry_connections_check
from jobpipe.config import load
from jobpipe.discovery.registry_handler import open_handler
from jobpipe.errors import RegistryUnavailable
from jobpipe_registry.embedded.embedded_files import MAX_CONNECTIONS
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from jobpipe_registry.zookeeper.zookeeper_tls import make_context
from tests.docs.troubleshooting import on_page


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.timeout(240)
def test_the_most_connections(home: Path) -> None:
    """The one that is too many learns why; before that the doctor warns."""
    config = load(overrides={"jobpipe.home": str(home), "jobpipe.registerserver.connect.timeout": "3s"}, environ={})
    handler = open_handler(config)
    server = EmbeddedZooKeeper(home)
    assert list(registry_connections_check.connections(config)) == []
    status, context = server.status(), make_context(server.tls)
    assert status is not None
    with contextlib.ExitStack() as stack:

        def connect(count: int) -> None:
            for _ in range(count):
                raw = socket.create_connection(("127.0.0.1", status.port), 10.0)
                stack.enter_context(context.wrap_socket(raw, server_hostname="127.0.0.1"))

        connect(900)
        (found,) = registry_connections_check.connections(config)
        assert found.status == "warn"
        assert f"connections, and the embedded ZooKeeper takes {MAX_CONNECTIONS}" in found.detail
        assert not server.is_full()
        with contextlib.suppress(OSError):  # it ends those that are too many
            connect(200)
        assert server.is_full()
        (found,) = registry_connections_check.connections(config)
        assert found.detail.startswith(f"{MAX_CONNECTIONS} connections")
        with pytest.raises(RegistryUnavailable) as caught:
            open_handler(config)
        on_page(str(caught.value), "registry … is not available: the embedded ZooKeeper is full, with 1000 connections")
    assert handler.topics() == []  # who is in stays in
    handler.shutdown()


def test_connections_of_this_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of others are counted, too: the server does not know which program has one."""
    monkeypatch.setattr(registry_connections_check, "PER_ADDRESS", 5)
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        config = load(
            overrides={
                "jobpipe.home": str(tmp_path),
                "jobpipe.registerserver.connect": f"{where}/chroot",
                "jobpipe.ssl.enabled": "false",
                "security.allow_plaintext": "true",
            },
            environ={},
        )
        for count, more, status in ((3, 3, "ok"), (4, 1, "warn")):
            for _ in range(more):
                stack.enter_context(socket.create_connection(listener.getsockname()))
            (found,) = registry_connections_check.connections(config)
            assert (found.status, f"{count} connections of this host to {where}" in found.detail) == (status, True)
            assert ("maxClientCnxns" in found.remedy) == (status == "warn")
