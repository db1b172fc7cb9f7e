"""``spool.placement=driver`` over the network: tasks of any host send their segments to the coordinator's host."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.cluster.cluster import Cluster, host_of
from tests.cluster.pair import Pair

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def pair(cluster: Cluster, table: pa.Table) -> Iterator[Pair]:
    """Both applications, running."""
    pair = Pair(cluster, table, "driver", options={"parallelism": 4})
    pair.publish(cluster.edges[0])
    pair.subscribe(cluster.edges[1])
    yield pair
    for side in (pair.publisher, pair.subscriber):
        side.driver.kill()


def test_flights(pair: Pair) -> None:
    pair.give(8)
    print(pair.check())
    print(pair.status())
    print(pair.described(pair.cluster.master))
    print(pair.publisher.executors(), pair.subscriber.executors())
    print(pair.end())
