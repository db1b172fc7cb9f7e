"""A topic with an access list, at a coordinator and a data process of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobpipe.config import Config, load
from jobpipe.net.address import Endpoint
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing import NumberedRows
from tests.bus.conftest import configure as configure
from tests.bus.conftest import nothing_left as nothing_left
from tests.bus.conftest import own_bus as own_bus
from tests.bus.hosts import HostServer
from tests.security.kit import TOPIC, World, full, registry_of, settings


@dataclass(frozen=True)
class Served:
    """The topic, where it is served, and the settings to reach it."""

    world: World
    base: dict[str, str]
    publisher: Publisher
    control: Endpoint
    data: Endpoint
    host: Endpoint  # of a host server with the same certificate and list

    def config(self, **changes: str) -> Config:
        """Return the configuration of another process."""
        return load(overrides={**self.base, **full(changes)}, environ={})


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """One CA for all; tests that change it make another."""
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def base(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings of a namespace that is not embedded: certificates and rights must be given."""
    return full(
        {
            "home": str(tmp_path_factory.mktemp("home")),
            **registry_of(home),
            "registerserver.topic.storage": f"/security-{uuid.uuid4().hex[:12]}/topics",
            "registerserver.session.timeout": "4s",
            "sinkserver.subnet": "127.0.0.0/8",
            "spool.dir": str(tmp_path_factory.mktemp("spool")),
            "discovery.timeout": "20s",
        }
    )


@pytest.fixture(scope="module")
def served(world: World, base: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The topic, with two batches."""
    config = load(overrides={**base, **full(settings(world.orders, world.access))}, environ={})
    publisher = Publisher(TOPIC, config=config)
    rows = NumberedRows(TOPIC)
    for number in range(2):
        publisher.seal("q", number, rows.tables(number), run_id="r1")
    coordinator = publisher.coordinator
    server = HostServer(config, tmp_path_factory.mktemp("host") / "segments")
    yield Served(world, base, publisher, coordinator.endpoint, coordinator.data, server.endpoint)
    server.end()
    publisher.close()
    end_coordinators()
