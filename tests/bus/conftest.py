"""Fixtures of the bus tests: real ZooKeeper, real TLS, real coordinator processes, and nothing left running."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from jobpipe.config import Config, load
from jobpipe.publishing.coordinator_launcher import end_coordinators
from tests.bus.kit import MARK, Bus, Driver, kill, marked, until


@pytest.fixture(autouse=True, scope="module")
def nothing_left() -> Iterator[None]:
    """Fail a module whose processes are still there at its end."""
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)  # every process we start inherits it
        yield
        end_coordinators()
        try:
            until(lambda: not marked(mark), 15.0, lambda: f"these go on running: {marked(mark)}")
        finally:
            for process in marked(mark):
                kill(process.pid)


def _config(settings: dict[str, str], changes: dict[str, str]) -> Config:
    return load(overrides={**settings, **{_full(key): value for key, value in changes.items()}}, environ={})


def _full(key: str) -> str:
    return key if key.startswith("security.") else f"jobpipe.{key}"


@pytest.fixture
def configure(settings_of_test: dict[str, str], config: Config) -> Callable[..., Config]:
    """Return a maker of configurations for this test's own namespace: ``configure({"acks": "all"})``."""
    return lambda changes=None: _config(settings_of_test, changes or {})


@pytest.fixture
def bus(module_settings: dict[str, str]) -> Iterator[Bus]:
    """A topic of one's own at the coordinator that the module shares."""
    made = Bus(f"t-{uuid.uuid4().hex[:8]}", lambda changes: _config(module_settings, changes))
    yield made
    made.close()


@pytest.fixture
def own_bus(configure: Callable[..., Config]) -> Iterator[Bus]:
    """A topic at a coordinator of its own, for tests that hurt it."""
    made = Bus("orders", configure)
    yield made
    made.close()


@pytest.fixture
def drive(settings_of_test: dict[str, str], config: Config) -> Iterator[Callable[..., Driver]]:
    """Return a starter of publisher jobs: processes of their own, in this test's namespace."""
    started: list[Driver] = []

    def start(changes: dict[str, str] | None = None) -> Driver:
        full = {_full(key): value for key, value in (changes or {}).items()}
        started.append(Driver({**settings_of_test, **full}))
        return started[-1]

    yield start
    for driver in started:
        driver.end()
