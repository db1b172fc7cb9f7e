"""One embedded ZooKeeper for the directory; a namespace for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from tests.registry.worlds import MemoryWorld, World, ZooKeeperWorld

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # The contract is that of any ZooKeeper; what the embedded one demands is in test_embedded_tls.py.
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("home"), linger=1800.0, tls=False)
    yield server.ensure()
    server.stop()
    assert server.status() is None


@pytest.fixture(scope="module")
def foreign(ensemble: str) -> Iterator[KazooClient]:
    """A client beside the handlers. Not for longer than a module: its thread draws from the global ``random``, which
    hypothesis takes for a strategy's fault in whatever test runs at that moment."""
    client = KazooClient(hosts=ensemble, timeout=10.0)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def zookeeper_world(ensemble: str, foreign: KazooClient) -> Iterator[ZooKeeperWorld]:
    world = ZooKeeperWorld(f"/test-{next(_numbers)}/topics", ensemble, foreign)
    yield world
    world.close()


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "zookeeper":
        yield request.getfixturevalue("zookeeper_world")
        return
    world = MemoryWorld("/test/topics")
    yield world
    world.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose server, if any, is gone after the test."""
    yield tmp_path / "home"
    EmbeddedZooKeeper(tmp_path / "home").stop()
