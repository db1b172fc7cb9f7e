"""One cluster for all its tests: starting it takes longer than most faults."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.cluster.cluster import NAMES, Cluster
from tests.cluster.flights import flights
from tests.cluster.hosts import Network, why_impossible


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, with everything up; skipped where no hosts can be made."""
    if why := why_impossible():
        pytest.skip(f"no cluster of hosts on this machine: {why}")
    with Network(NAMES, tmp_path_factory.mktemp("logs")) as network, Cluster(network) as started:
        yield started


@pytest.fixture(scope="session")
def table() -> pa.Table:
    """All flights."""
    return flights()
