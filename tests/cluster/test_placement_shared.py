"""``spool.placement=shared``: the driver moves to another host, and goes on with the same log.

One pair of applications goes through all moves; the tests may run in any order but the last.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.cluster.cluster import Cluster, host_of
from tests.cluster.flights import ROWS
from tests.cluster.hosts import Host, until
from tests.cluster.pair import PATIENCE, Pair

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def pair(cluster: Cluster, table: pa.Table) -> Iterator[Pair]:
    """Both applications, running."""
    options = {"parallelism": 3, "spool_placement": "shared", "spool_dir": str(cluster.network.shared / "spool")}
    pair = Pair(cluster, table, "shared", options=options, movable=True)
    try:
        pair.start(cluster.edges[0], cluster.edges[2])
        yield pair
    finally:
        pair.kill()
        cluster.edges[0].mend()
        for edge in cluster.edges:
            if not edge.up:
                edge.boot()


def place(pair: Pair) -> Host:
    """Return where the publisher's driver is."""
    return pair.publisher.driver.host


def other_place(pair: Pair) -> Host:
    """Return where the publisher's driver may move to."""
    return next(edge for edge in pair.cluster.edges[:2] if edge is not place(pair))


def check_same_log(pair: Pair, before: dict[str, object]) -> None:
    """Check who serves the topic now, and that everything arrived."""
    pair.give(1)
    after = pair.described(pair.cluster.master)
    assert after["log"] == before["log"]
    assert after["epoch"] > before["epoch"]
    assert host_of(after["endpoint"]) == host_of(after["data"]) == place(pair).address
    assert pair.check()["offsets"] == pair.feed.given


def test_tasks_write_into_the_shared_folder(pair: Pair) -> None:
    """Where a task sees the spool it needs nobody to send its rows to."""
    pair.give(1)
    assert list((pair.network.shared_disk / "spool" / pair.topic / "segments").iterdir())
    assert not (place(pair).disk / "spool" / pair.topic).exists()
    assert host_of(pair.described(pair.cluster.master)["data"]) == place(pair).address
    assert pair.status()["served"]["data process"] > 0  # of what was read before the last batch was sealed
    assert pair.check()["offsets"] == pair.feed.given


def test_driver_is_ended_and_started_on_another_host(pair: Pair) -> None:
    """Case 7: SIGTERM in the middle of a batch; the coordinator that stays there hands over at once."""
    before = pair.described(pair.cluster.master)
    with pair.holding("writing") as holders:
        pair.feed.give(1)
        until(holders, "a task that is writing", PATIENCE)
        pair.publisher.driver.terminate(PATIENCE)
    pair.publish(other_place(pair))
    check_same_log(pair, before)


def test_host_of_the_driver_is_lost(pair: Pair) -> None:
    """Cases 1 and 23: nobody is left there to ask; its registrations outlive it, and nothing else does."""
    before, lost = pair.described(pair.cluster.master), place(pair)
    with pair.holding("writing") as holders:
        pair.feed.give(1)
        until(holders, "a task that is writing", PATIENCE)
        lost.cut()  # as without power, it says nothing to anybody
        lost.kill()
    pair.publish(other_place(pair))
    lost.boot()
    check_same_log(pair, before)


def test_host_of_the_driver_is_cut_off(pair: Pair) -> None:
    """Cases 5, 50 and 52: in the middle of a batch, which its successor publishes; back again, it must not seal it."""
    before, cut, old = pair.described(pair.cluster.master), place(pair), pair.publisher.driver
    with pair.holding("writing") as holders:
        pair.feed.give(1)
        until(holders, "a task that is writing", PATIENCE)
        cut.cut()
        pair.publish(other_place(pair))
    pair.until_arrived()
    cut.mend()
    assert old.wait(PATIENCE) != 0
    check_same_log(pair, before)


def test_all_flights(pair: Pair) -> None:
    """The rest of them, up to the end mark."""
    found = pair.end()
    assert found["rows"] == ROWS
    assert found["offsets"] == pair.feed.given
