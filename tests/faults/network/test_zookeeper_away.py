"""ZooKeeper killed, stopped, cut off from one side, its sessions expired, its tree in disorder: data flow on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from jobpipe.discovery.topic_lookup import Location, locate
from jobpipe.errors import RegistryUnavailable, TopicNotFound
from jobpipe_registry.zookeeper.kazoo_client import TlsHandler
from tests.faults.rig import (
    OWN_ZOOKEEPER,
    PATIENCE,
    PAUSE,
    SESSION,
    another_publisher,
    chance,
    conclude,
    later_rows,
    more,
    running,
)
from tests.harness.processes import Harness
from tests.harness.proxies.proxy import FaultProxy

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]


@contextmanager
def tree(rig: Harness) -> Iterator[KazooClient]:
    """Look at, and change, ZooKeeper's nodes with a client of our own."""
    handler = TlsHandler(rig.zookeeper.tls)
    client = KazooClient(hosts=rig.zookeeper.endpoint, timeout=10.0, handler=handler, use_ssl=True)
    client.start(PATIENCE)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def node(rig: Harness) -> str:
    """Return the topic's node."""
    return f"{rig.config.namespace}/{rig.topic}"


def registered(rig: Harness) -> Location:
    """Wait until the topic can be found, and return where it is."""

    def found() -> Location | None:
        try:
            return locate(rig.config, rig.topic, 1.0)
        except (TopicNotFound, RegistryUnavailable):
            return None

    location = rig.wait_until(found, "the topic is registered")
    assert location is not None
    return location


def newcomer(rig: Harness, name: str) -> None:
    """See that a new subscriber finds the topic and reads on."""
    rig.consumer(name).start()
    more(rig, name)


def test_killed_and_back(tmp_path: Path) -> None:
    """Case 21: twice, once for less and once for more than a session; nobody waits for it meanwhile."""
    moments = chance()
    with running(tmp_path, **OWN_ZOOKEEPER) as rig:
        for away in (1.0, 1.5 * SESSION):
            time.sleep(moments.uniform(0.0, 0.5))
            before = registered(rig)
            rig.zookeeper.kill()
            began = time.monotonic()
            while time.monotonic() - began < away:
                assert more(rig, rows=300, timeout=10.0) < 5.0
            rig.zookeeper.start()
            assert registered(rig).epoch == before.epoch
        newcomer(rig, "late")
        conclude(rig, "all", "late")


@pytest.mark.slow
def test_publisher_and_subscriber_end_and_begin_while_it_is_away(tmp_path: Path) -> None:
    """Case 21: those who need it wait for it, and go on when it is back; the others do not notice."""
    settings = {"registerserver.connect.timeout": "30s"}
    with running(tmp_path, consumers=("all", "two"), settings=settings, **OWN_ZOOKEEPER) as rig:
        rig.zookeeper.kill()
        rig.consumer("two").kill()
        rig.consumer("two").start()
        more(rig, rows=2000)
        rig.zookeeper.start()
        assert later_rows(rig, "two", 30.0) < 20.0
        conclude(rig, "all", "two")


@pytest.mark.core
def test_sessions_expired(tmp_path: Path) -> None:
    """Case 22: all sessions at once; the publisher keeps its epoch, and registers again, so that newcomers find it."""
    with running(tmp_path) as rig:
        before = registered(rig)
        with tree(rig) as client:
            owner = client.get(f"{node(rig)}/parallel-1")[1].ephemeralOwner
        rig.zookeeper.proxy.pause()
        began = time.monotonic()
        while time.monotonic() - began < 1.75 * SESSION:
            more(rig, rows=300, timeout=10.0)
        rig.zookeeper.proxy.reset()
        rig.zookeeper.proxy.resume()
        with tree(rig) as client:

            def again() -> bool:
                try:
                    return bool(client.get(f"{node(rig)}/parallel-2")[1].ephemeralOwner != owner)
                except NoNodeError:
                    return False

            rig.wait_until(again, "registered by a new session", 30.0)
        after = registered(rig)
        assert (after.epoch, after.instance) == (before.epoch, before.instance)
        newcomer(rig, "late")
        conclude(rig, "all", "late")


@pytest.mark.slow
def test_publisher_cut_off_and_replaced(tmp_path: Path) -> None:
    """Cases 12 and 50: it publishes on without ZooKeeper, until a second one takes its topic over; then it ends."""
    with running(tmp_path, consumers=()) as rig:
        with closing(FaultProxy(rig.zookeeper.proxy.upstream)) as own:
            settings = {**rig.config.to_dict(), "jobpipe.registerserver.connect": own.endpoint}
            rig.publisher.kill()
            rig.wait_until(lambda: not rig.publisher.alive, "the first one ends")
            cut_off = another_publisher(rig, "publisher-cut-off")
            rig.publisher = cut_off
            cut_off.start(pause=PAUSE, config=settings)
            rig.consumer().start()
            more(rig)
            own.pause()
            own.refuse()
            began = time.monotonic()
            while time.monotonic() - began < 2.5 * SESSION:
                more(rig, rows=300, timeout=10.0)
            rig.publisher = another_publisher(rig)
            rig.publisher.start(pause=PAUSE)
            rig.wait_until(lambda: not cut_off.alive, "the one without ZooKeeper ends", 40.0)
            assert cut_off.process.returncode != 0
            more(rig)
            own.heal()
            more(rig)
        conclude(rig)


@pytest.mark.slow
def test_a_lost_answer_to_a_start(tmp_path: Path) -> None:
    """Case 24: ZooKeeper does what it is asked, but its answers vanish; claims and registrations were made already."""
    moments = chance()
    with running(tmp_path) as rig:
        for _ in range(3):
            rig.publisher.kill()
            rig.publisher.start(pause=PAUSE)
            time.sleep(moments.uniform(0.8, 2.0))  # while the new coordinator claims and registers
            rig.zookeeper.proxy.drop("down")
            time.sleep(moments.uniform(0.2, 1.0))
            rig.zookeeper.proxy.heal()
            rig.zookeeper.proxy.reset()
            sealed = rig.journal.batches
            rig.wait_until(lambda: rig.journal.batches > sealed + 1, "the publisher goes on", 40.0)  # noqa: B023
            later_rows(rig)
        conclude(rig)


@pytest.mark.slow
def test_the_topics_nodes_deleted(tmp_path: Path) -> None:
    """Cases 25 to 27: some, the topic's, the bus's; they are made again at once, for newcomers. Running links stay."""
    with running(tmp_path) as rig, tree(rig) as client:
        epoch = registered(rig).epoch
        everything = "/" + node(rig).split("/")[1]
        for number, what in enumerate((f"{node(rig)}/parallel-1", node(rig), everything)):
            client.delete(what, recursive=True)
            both = [f"{node(rig)}/parallel-{index}" for index in (1, 2)]
            rig.wait_until(lambda: all(map(client.exists, both)), "registered again", 5.0)  # noqa: B023
            newcomer(rig, f"late-{number}")
            more(rig)
        assert registered(rig).epoch == epoch
        conclude(rig, "all", "late-0", "late-1", "late-2")


@pytest.mark.slow
def test_registrations_that_are_none(tmp_path: Path) -> None:
    """Cases 27, 30: rubbish, half a set, a huge node, a foreign one; ignored by those who read and by newcomers."""
    with running(tmp_path) as rig, tree(rig) as client:
        good = json.loads(client.get(f"{node(rig)}/parallel-1")[0])
        half = {**good, "parallelism": 3, "index": 3, "epoch": good["epoch"] + 1}  # one of three
        rubbish = {
            "parallel-3": json.dumps(half).encode(),
            "parallel-4": b"",
            "parallel-5": b"{not json",
            "parallel-6": b"x" * 900_000,
            "parallel-7": json.dumps({**good, "port": "no port", "index": 7}).encode(),
            "parallel-8": json.dumps([1, 2]).encode(),
            "parallel-0": b"\xff\xfe",
            "somebody-else": b"",
        }
        for name, data in rubbish.items():
            client.create(f"{node(rig)}/{name}", data)
        newcomer(rig, "late")
        rig.consumer().kill()
        rig.consumer().start()
        more(rig)
        for name in rubbish:
            client.delete(f"{node(rig)}/{name}")
        conclude(rig, "all", "late")


@pytest.mark.slow
def test_registrations_replaced_by_rubbish(tmp_path: Path) -> None:
    """Case 26: the publisher's own nodes are overwritten, and replaced under the same name; running links stay."""
    with running(tmp_path) as rig, tree(rig) as client:
        data = client.get(f"{node(rig)}/parallel-1")[0]
        client.set(f"{node(rig)}/parallel-1", b"rubbish")
        more(rig)
        change = client.transaction()
        change.delete(f"{node(rig)}/parallel-1")
        change.create(f"{node(rig)}/parallel-1", data)
        change.commit()
        newcomer(rig, "late")
        conclude(rig, "all", "late")
