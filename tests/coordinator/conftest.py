"""Fixtures of the coordinator's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.coordinator.kit import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A registry in memory and a folder for spools."""
    made = World(tmp_path)
    yield made
    made.close()
