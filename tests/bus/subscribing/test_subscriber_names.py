"""One live subscriber a name, and grants that fence the holder before."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobpipe.coordinator.topic.topic_subscribers import UNDECIDED_SECONDS
from jobpipe.errors import ConfigError, Fenced, NameTaken
from jobpipe.store.reading.boundary import EARLIEST, LATEST
from jobpipe.subscribing.python_client import Subscription
from jobpipe.subscribing.subscriber_session import SubscriberSession
from jobpipe.testing import Checker, NumberedRows
from tests.bus.kit import PATIENCE, Bus, Driver, named_link, publish, read, stopped, until
from tests.docs.troubleshooting import on_page


@pytest.mark.slow
def test_second_live_subscriber_is_refused(bus: Bus) -> None:
    """Case 51: the error names the first; closed, it lets the name go, and the position stays."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(3))
    checker = Checker(rows, bus.journal)
    first = bus.subscribe("billing")
    read(first, checker, 30)
    with pytest.raises(NameTaken, match="'billing'") as caught:
        bus.subscribe("billing").position()
    on_page(caught.value, "NameTaken: topic '…':")
    assert caught.value.fields["holder"]["pid"] == os.getpid()
    assert caught.value.fields["holder"]["host"] == os.uname().nodename
    publish(publisher, rows, bus.journal, [3])
    first.close()
    second = bus.subscribe("billing", starting="committed")
    read(second, checker, 40)
    assert checker.check().rows == 40
    other = Checker(rows, bus.journal)
    read(bus.subscribe("shipping"), other, 40)  # another name has nothing to do with it
    assert other.check().rows == 40


@pytest.mark.slow
def test_name_of_a_dead_process_passes_on(own_bus: Bus, drive: Callable[..., Driver], tmp_path: Path) -> None:
    """Killed, or only stopped: the newcomer waits for no time-out longer than a ping."""
    rows = NumberedRows(own_bus.topic)
    publisher = own_bus.publisher()
    publish(publisher, rows, own_bus.journal, range(2))
    checker = Checker(rows, own_bus.journal)
    holder = drive()
    holder.ask("take_name", topic=own_bus.topic, name="billing", starting="earliest")
    with pytest.raises(NameTaken) as caught:
        own_bus.subscribe("billing").position()
    assert caught.value.fields["holder"]["pid"] == holder.pid
    with stopped(holder.pid):
        client = own_bus.subscribe("billing")
        read(client, checker, 20)
    with pytest.raises(Fenced, match="taken over"):
        holder.ask("use_name")
    client.close()
    second = drive()
    second.ask("take_name", topic=own_bus.topic, name="billing", starting="committed")
    second.kill()
    publish(publisher, rows, own_bus.journal, [2])
    read(own_bus.subscribe("billing", starting="committed"), checker, 30)
    assert checker.check().rows == 30


@pytest.mark.slow
def test_grants_fence_the_older_holder(bus: Bus) -> None:
    """Cases 16 and 76: a late acknowledgement under an old grant, or of another's name, changes nothing."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(3))
    config = bus.config()
    old = named_link(config, bus.topic, "billing", "instance-1")
    grant = old.call("grant", {"host": "a", "pid": 1}, timeout=10).result["grant"]
    start = old.call("first", {"grant": grant, "start": EARLIEST.to_json()}, timeout=10).result["position"]
    old.abort()
    until(lambda: publisher.status()["subscriptions"][0]["state"] == "reconnecting", PATIENCE, "the cut is seen")
    new = named_link(config, bus.topic, "billing", "instance-2")
    fresh = new.call("grant", {"host": "b", "pid": 2}, timeout=10).result["grant"]
    assert fresh == grant + 1
    head = {**start, "epoch": publisher.epoch, "n": 3}
    late = named_link(config, bus.topic, "billing", "instance-1")
    for op, args in (("ack", {"position": head}), ("plan", {"start": head}), ("first", {"start": LATEST.to_json()})):
        with pytest.raises(Fenced, match="taken over"):
            late.call(op, {"grant": grant, **args}, timeout=10)
    stranger = named_link(config, bus.topic, "shipping", "instance-3")
    with pytest.raises(Fenced):
        stranger.call("ack", {"grant": fresh, "position": head}, timeout=10)
    assert publisher.status()["subscriptions"][0]["position"] == 0
    new.call("ack", {"grant": fresh, "position": head}, timeout=10)
    assert publisher.status()["subscriptions"][0]["position"] == 3
    for link in (new, late, stranger):
        link.close()


@pytest.mark.slow
def test_two_newcomers_at_once(bus: Bus) -> None:
    """Of several that take one name at the same moment exactly one gets it; none is fenced later."""
    publish(bus.publisher(), NumberedRows(bus.topic), bus.journal, [0])
    clients = [bus.subscribe("billing") for _ in range(4)]
    barrier = threading.Barrier(len(clients))

    def take(client: Subscription) -> str:
        barrier.wait(PATIENCE)
        try:
            client.position()
        except NameTaken:
            return "refused"
        return "granted"

    with ThreadPoolExecutor(len(clients)) as pool:
        outcomes = list(pool.map(take, clients))
    assert sorted(outcomes) == ["granted", "refused", "refused", "refused"]
    assert len(list(clients[outcomes.index("granted")].batches(timeout=0.2))) == 1


def test_several_topics_are_taken_all_or_none(bus: Bus) -> None:
    """A session that cannot have one of its topics lets the others go."""
    topics = [f"{bus.topic}-{letter}" for letter in "ab"]
    for topic in topics:
        bus.publisher(topic=topic)
    holder = bus.subscribe("merged", topic=topics[1])
    holder.position()
    with pytest.raises(NameTaken, match=topics[1]):
        SubscriberSession.open(bus.config(), topics, "merged")
    free = bus.subscribe("merged", topic=topics[0])
    assert free.position().n == 0
    free.close()
    holder.close()
    session = SubscriberSession.open(bus.config(), topics, "merged")
    assert session.connected
    session.close()


@pytest.mark.parametrize(("name", "starting"), [("", "earliest"), ("billing", "first"), ("a/b", "earliest")])
def test_names_and_starts_that_cannot_be(bus: Bus, name: str, starting: str) -> None:
    """Refused with what was expected."""
    bus.publisher()
    with pytest.raises(ConfigError):
        bus.subscribe(name, starting=starting).position()


@pytest.mark.slow
def test_a_name_that_never_stood_anywhere_keeps_nothing(bus: Bus) -> None:
    """A reader that took it and went, not liking the schema, must not fill the publisher's disk for a day."""
    publisher = bus.publisher()
    reader = bus.subscribe("picky")
    reader._follower.start()
    reader._follower.connected(PATIENCE)
    names = lambda: [line["name"] for line in publisher.status()["subscriptions"]]  # noqa: E731
    assert names() == ["picky"]
    reader.close()
    until(lambda: names() == [], PATIENCE, "its end")
    again = bus.subscribe("picky")
    assert again.position().n == 0
    again.close()
    time.sleep(2 * UNDECIDED_SECONDS)  # it stands somewhere now: it stays
    assert names() == ["picky"]
