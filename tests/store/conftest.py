"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store import crash
from tests.store.build import close_logs
from tests.store.children import PROCESSES, Child


@pytest.fixture(autouse=True)
def _close_logs() -> Iterator[None]:
    yield
    close_logs()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[None]:
    """Let the fork server import the tests' modules, once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        PROCESSES.set_forkserver_preload(["tests.store.crash"])
        Child(crash.watch, Path("/nonexistent")).process.join(60)
        yield
