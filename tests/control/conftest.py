"""Fixtures of the control server's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a home, a registry in memory, and a cluster of the test's own."""
    found = World(tmp_path)
    yield found
    found.close()
