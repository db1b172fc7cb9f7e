"""One ZooKeeper for all fault tests but those that kill it: starting one takes longer than most faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobpipe.config import Config, load
from tests.bus.kit import Bus
from tests.faults.rig import SHARED


@pytest.fixture(autouse=True, scope="session")
def shared_zookeeper(home: Path) -> Iterator[None]:
    """Let :func:`tests.faults.rig.running` use the session's ZooKeeper."""
    SHARED.zookeeper = home
    yield
    SHARED.zookeeper = None


@pytest.fixture
def bus(settings_of_test: dict[str, str], config: Config) -> Iterator[Bus]:
    """A topic at a coordinator of its own."""

    def configure(changes: dict[str, str]) -> Config:
        settings = {**settings_of_test, **{f"jobpipe.{key}": value for key, value in changes.items()}}
        return load(overrides=settings, environ={})

    made = Bus("orders", configure)
    yield made
    made.close()
