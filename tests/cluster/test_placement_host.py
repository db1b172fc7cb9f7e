"""``spool.placement=host``: segments stay on the hosts that wrote them, with the host server of each worker host.

One pair of applications goes through all faults; the tests may run in any order but the last.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.flights import ROWS
from tests.cluster.hosts import Host, until
from tests.cluster.pair import PATIENCE, Pair

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
CUT_SECONDS = 15.0
LOST_SECONDS = 30  # longer than a cut


@dataclass
class Place:
    """The pair, and its host servers."""

    pair: Pair
    ids: dict[str, str]  # of the host servers, by the names of their hosts

    def kept(self) -> dict[str, dict[str, Any]]:
        """Return what ``jobpipe topics describe`` says of each host server, by the names of their hosts."""
        hosts = self.pair.described(self.pair.cluster.master)["hosts"]
        return {name: hosts.get(id_, {"segments": 0, "bytes": 0}) for name, id_ in self.ids.items()}

    def give_unread(self, files: int) -> dict[str, int]:
        """Give files of which nobody reads a row; return how many more segments each host keeps then."""
        before, sealed = self.kept(), self.pair.publisher.count("sealed")
        self.pair.feed.give(files)
        self.pair.publisher.until_noted("sealed", sealed + files)
        after = self.kept()
        return {name: after[name]["segments"] - before[name]["segments"] for name in self.ids}

    def bring_back(self, host: Host) -> None:
        """Start a host that was lost, with its disk, worker and host server."""
        self.pair.cluster.restart(host)
        assert start_server(self.pair.cluster, host) == self.ids[host.name]


def start_server(cluster: Cluster, host: Host) -> str:
    """Start the host server of a host; return its id."""
    command = ("python", "-m", "jobpipe.cli.main", "server", "host")
    server = host.start("host-server", *command, environ={**cluster.environ(host), "PYTHONUNBUFFERED": "1"})
    server.until_said("keeps segments in", PATIENCE)
    return server.log.read_text().split("host server ")[-1].split()[0]


def numbers(spans: str) -> set[int]:
    """Return the numbers that a text such as ``3-5, 8`` names."""
    pairs = [span.split("-") for span in spans.split(", ")]
    return {n for pair in pairs for n in range(int(pair[0]), int(pair[-1]) + 1)}


def segment_bytes(folder: Path) -> int:
    """Return the size of all segment files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*.seg"))


@pytest.fixture(scope="module")
def place(cluster: Cluster, table: pa.Table) -> Iterator[Place]:
    """Both applications, running, and a host server on each worker host."""
    options = {"parallelism": 3, "spool_placement": "host", "hostserver_lost_after": f"{LOST_SECONDS}s"}
    options["retention_time"] = "1h"  # what is kept is counted
    pair = Pair(cluster, table, "host", options=options)
    place = Place(pair, {host.name: start_server(cluster, host) for host in cluster.workers})
    try:
        pair.start(cluster.edges[0], cluster.edges[2])
        yield place
    finally:
        pair.kill()
        for host in cluster.workers:
            host.mend() if host.up else cluster.restart(host)


def test_flights_stay_where_they_were_written(place: Place) -> None:
    """The status tells what each host keeps, and how much each process has served."""
    pair = place.pair
    with pair.holding("writing") as holders:
        pair.feed.give(1)
        until(holders, "a task that is writing", PATIENCE)
        writers = {holder.host.name for holder in holders()}
    pair.until_arrived()
    before = place.kept()
    pair.give(1)
    assert pair.check()["offsets"] == pair.feed.given
    kept, served = place.kept(), pair.status()["served"]
    assert all(kept[name]["segments"] for name in writers)
    assert sum(at["segments"] for at in kept.values()) >= 3 * pair.feed.given
    for host in pair.cluster.workers:
        at, there = kept[host.name], segment_bytes(host.disk / "home" / "hostserver")
        assert at["bytes"] == there, host
        # The last batch may not have been read when the status was asked for.
        assert served[place.ids[host.name]] >= before[host.name]["bytes"], host
    assert segment_bytes(pair.cluster.edges[0].disk / "spool" / pair.topic) == 0
    assert served["data process"] < min(at["bytes"] for at in kept.values() if at["bytes"])


def test_host_cut_off_and_back(place: Place) -> None:
    """Case 11: what it keeps is waited for, for as long as it takes to come back, and served again."""
    pair = place.pair
    with pair.holding("reading") as holders:
        pair.feed.give(1)
        [reader, *_] = until(holders, "a task that is reading", PATIENCE)
        more = place.give_unread(1)
        keepers = [name for name, segments in more.items() if segments]
        away = pair.network[next((name for name in keepers if name != reader.host.name), keepers[0])]
        away.cut()
    try:
        time.sleep(CUT_SECONDS)
        assert pair.arrived < pair.wanted
    finally:
        away.mend()
    pair.give(1)
    assert pair.check()["offsets"] == pair.feed.given
    assert place.kept()[away.name]["state"] == "registered"


def test_host_gone_for_good(place: Place) -> None:
    """The query fails with topic, exact offsets and host; with failOnDataLoss=false it goes on, and counts."""
    pair = place.pair
    pair.subscriber.driver.kill()
    first = pair.feed.given
    more = place.give_unread(2)
    gone = pair.network[max(more, key=lambda name: more[name])]
    gone.kill()
    until(lambda: place.kept()[gone.name]["state"] == "lost", f"{gone} counts as lost", PATIENCE, every=2.0)
    pair.subscribe(pair.cluster.edges[2])
    driver = pair.subscriber.driver
    assert driver.wait(PATIENCE) != 0
    message = driver.log.read_text()
    assert f"topic '{pair.topic}': host server {place.ids[gone.name]} is lost" in message, driver.log_end(60)
    [offsets] = set(re.findall(r"batches at offsets ([0-9, -]+) \(", message))
    lost = numbers(offsets)
    assert lost
    assert lost <= {first, first + 1}
    rows = sum(pair.feed.rows_of(n) for n in lost)
    assert f"({rows} rows)" in message
    pair.lost |= lost
    pair.subscribe(pair.cluster.edges[2], failOnDataLoss="false")
    pair.give(1)
    assert pair.check()["offsets"] == pair.feed.given - len(pair.lost)
    assert (pair.link()["losses"], pair.link()["lost_rows"]) == (len(lost), rows)
    place.bring_back(gone)


def test_host_gone_for_good_with_acks_all(place: Place) -> None:
    """Spark holds the batch until the subscriber has it: published again, it is read, and nothing is lost."""
    pair = place.pair
    pair.publisher.driver.kill()
    pair.publish(pair.cluster.edges[0], acks="all", required_subscribers="keeper", hostserver_lost_after="5s")
    lost = set(pair.lost)
    with pair.holding("reading") as holders:
        before = place.kept()
        pair.feed.give(1)
        [reader, *_] = until(holders, "a task that is reading", PATIENCE)
        after = place.kept()
        keepers = [name for name in place.ids if after[name]["segments"] > before[name]["segments"]]
        gone = pair.network[next((name for name in keepers if name != reader.host.name), keepers[0])]
        pair.subscriber.driver.kill()
        gone.kill()
    failed = pair.publisher.driver
    assert failed.wait(PATIENCE) != 0
    assert place.ids[gone.name] in failed.log.read_text(), failed.log_end(60)
    pair.publish(pair.cluster.edges[0])
    others = [name for name in place.ids if name != gone.name]
    until(
        lambda: sum(place.kept()[name]["segments"] - after[name]["segments"] for name in others) > 0,
        "the batch, written anew",
        PATIENCE,
        every=2.0,
    )
    pair.subscribe(pair.cluster.edges[2], failOnDataLoss="true")
    pair.feed.give(1)
    again = pair.subscriber.driver
    until(lambda: pair.arrived == pair.wanted or not again.alive, "all rows, or the end of the query", PATIENCE)
    if not again.alive:  # it was in the middle of that batch, whose rows may lie in other record batches now
        assert again.said("sealed again"), again.log_end(60)
        pair.subscribe(pair.cluster.edges[2])
        pair.until_arrived()
    assert pair.lost == lost
    assert pair.check()["offsets"] == pair.feed.given - len(pair.lost)
    place.bring_back(gone)


def test_all_flights(place: Place) -> None:
    """The rest of them, up to the end mark; but for those that were lost, and counted."""
    found = place.pair.end()
    assert found["rows"] == ROWS - sum(place.pair.feed.rows_of(n) for n in place.pair.lost)
