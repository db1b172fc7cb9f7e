"""``spool.placement=driver`` over the network: tasks of any host send their segments to the coordinator's host.

One pair of applications goes through all faults; the tests may run in any order but the last.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.cluster.cluster import WORKERS, Cluster, host_of, port_of
from tests.cluster.flights import ROWS
from tests.cluster.hosts import until
from tests.cluster.pair import IDLE, PATIENCE, Pair, kill_coordinators

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
CUT_SECONDS = 15.0


@pytest.fixture(scope="module")
def pair(cluster: Cluster, table: pa.Table) -> Iterator[Pair]:
    """Both applications, running: drivers on two hosts, executors on others."""
    pair = Pair(cluster, table, "driver", options={"parallelism": 4})
    try:
        pair.start(cluster.edges[0], cluster.edges[2])
        yield pair
    finally:
        pair.kill()


def test_flights_go_from_hosts_to_hosts(pair: Pair) -> None:
    """Cases 19 and 53: executors come when there is work; each batch is written by another number of them."""
    edge, other = pair.cluster.edges[0], pair.cluster.edges[2]
    with pair.holding("writing") as holders:
        pair.feed.give(1)
        until(lambda: len(holders()) >= 2, "two tasks that are writing", PATIENCE)
        workers = {holder.host.name for holder in holders()}
    pair.give(3)
    found = pair.check()
    assert found["offsets"] == pair.feed.given
    assert found["parallelism"] == [4]
    workers |= {executor.host.name for executor in pair.subscriber.executors()}
    assert len(workers) > 1
    assert workers <= set(WORKERS)  # where no driver is
    described = pair.described(pair.cluster.master)  # asked from a third host, by the registered address
    assert host_of(described["endpoint"]) == host_of(described["data"]) == edge.address
    [line] = described["subscriptions"]
    assert (line["state"], line["where"]["host"]) == ("connected", other.name)
    status = pair.status()
    assert status["sink"]["tasks"] == pair.feed.given
    assert list(status["served"]) == ["data process"]
    assert status["served"]["data process"] > 0  # of what was read before the last batch was sealed
    assert list((edge.disk / "spool" / pair.topic / "segments").iterdir())  # all of it came here


def test_executors_killed(pair: Pair) -> None:
    """Cases 4 and 47: one that writes, then one that reads, each in the middle of its rows."""
    for what in ("writing", "reading"):
        with pair.holding(what) as holders:
            pair.feed.give(1)
            [first, *_] = until(holders, f"a task that is {what}", PATIENCE)
            victim = first.executor()
            victim.kill()
            victim.wait(PATIENCE)
        pair.until_arrived()
    assert pair.check()["offsets"] == pair.feed.given


def test_worker_host_cut_off(pair: Pair) -> None:
    """Case 11: in the middle of a batch, for longer than a link lives in silence, and back."""
    with pair.holding("writing") as holders:
        pair.feed.give(1)
        [first, *_] = until(holders, "a task that is writing", PATIENCE)
        first.host.cut()
    try:
        time.sleep(CUT_SECONDS)  # its task goes on, and cannot send what it wrote
    finally:
        first.host.mend()
    pair.give(1)
    assert pair.check()["offsets"] == pair.feed.given


def test_driver_killed_and_ports_taken(pair: Pair) -> None:
    """Cases 1, 19, 20 and 53: kill -9 of driver and coordinator in the middle of a batch.

    Strangers listen at the old ports when the publisher comes back, with half the partitions, and advertises a name.
    """
    edge = pair.cluster.edges[0]
    before = pair.described(edge)
    with pair.holding("writing") as holders:
        pair.feed.give(1)
        until(holders, "a task that is writing", PATIENCE)
        pair.publisher.driver.kill()
        kill_coordinators(edge)
    strangers = []
    for place in (before["endpoint"], before["data"]):
        server = ("python", "-m", "http.server", str(port_of(place)), "--bind", edge.address)
        strangers.append(edge.start(f"stranger-{port_of(place)}", *server, environ={"PYTHONUNBUFFERED": "1"}))
        strangers[-1].until_said("Serving", PATIENCE)
    pair.publish(edge, conf={IDLE: "3s"}, parallelism=2, sinkserver_advertise=edge.name)
    pair.give(1)
    found = pair.check()
    assert found["offsets"] == pair.feed.given
    assert found["parallelism"][0] == 2
    after = pair.described(pair.cluster.master)
    assert after["log"] == before["log"]
    assert after["epoch"] > before["epoch"]
    assert host_of(after["endpoint"]) == edge.name
    assert {port_of(after[key]) for key in ("endpoint", "data")}.isdisjoint(
        {port_of(before[key]) for key in ("endpoint", "data")}
    )
    until(lambda: len(pair.publisher.executors()) == 1, "executors that have nothing to do are gone", PATIENCE)
    for stranger in strangers:
        stranger.kill()


def test_all_flights(pair: Pair) -> None:
    """The rest of them, up to the end mark."""
    found = pair.end()
    assert found["rows"] == ROWS
    assert found["offsets"] == pair.feed.given
