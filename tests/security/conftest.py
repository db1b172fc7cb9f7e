"""The bus of tests/bus: real ZooKeeper, real TLS, real coordinators."""

from __future__ import annotations

from tests.bus.conftest import configure, nothing_left, own_bus

__all__ = ["configure", "nothing_left", "own_bus"]
