"""Where reading begins, and positions that do not fit: data loss is named, never waited for and never skipped."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from jobpipe.errors import DataLoss
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.store.reading.boundary import COMMITTED, EARLIEST, LATEST, ReadLimits
from jobpipe.subscribing.subscriber_session import SubscriberSession
from jobpipe.testing import Checker, NumberedRows
from tests.bus.kit import PATIENCE, Bus, publish, read, until

AT_ONCE = {"retention.time": "0s", "retention.bytes": "0", "retention.ack_grace": "0s"}


@pytest.mark.slow
def test_topic_wiped_and_made_again(own_bus: Bus) -> None:
    """Case 55: a subscriber that was away holds a position of a log that is gone: told by the log's random id."""
    rows = NumberedRows(own_bus.topic)
    publisher = own_bus.publisher()
    publish(publisher, rows, own_bus.journal, range(3))
    client, checker = own_bus.subscribe("billing"), Checker(rows, own_bus.journal)
    read(client, checker, 30)
    session = SubscriberSession.open(own_bus.config(), [own_bus.topic], "spark")
    start = session.first_position(own_bus.topic, EARLIEST)
    old = publisher.log_id
    end_coordinators()
    shutil.rmtree(publisher.config.spool_dir / own_bus.topic)
    again = own_bus.publisher()
    assert (again.log_id != old, again.epoch > publisher.epoch) == (True, True)
    for batch_id in range(5):  # so many that the old offset would fit
        again.seal("q2", batch_id, rows.tables(100 + batch_id), run_id="r1")
    with pytest.raises(DataLoss, match=old) as caught:
        list(client.batches(timeout=20))
    assert {key: caught.value.fields[key] for key in ("topic", "reason", "log")} == {
        "topic": own_bus.topic,
        "reason": "log",
        "log": again.log_id,
    }
    assert caught.value.fields["position"]["n"] == 3
    until(lambda: session.connected, PATIENCE, "the session is connected again")
    with pytest.raises(DataLoss) as caught:
        session.plan(own_bus.topic, start, ReadLimits())
    assert caught.value.fields["reason"] == "log"
    session.close()


@pytest.mark.slow
def test_position_removed_by_retention(bus: Bus) -> None:
    """Case 54: an old checkpoint asks for what was acknowledged and removed: the error has the exact range."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher(AT_ONCE)
    session = SubscriberSession.open(bus.config(), [bus.topic], "spark")
    start = session.first_position(bus.topic, EARLIEST)
    publish(publisher, rows, bus.journal, range(4))
    end = session.head(bus.topic)
    session.acknowledge(bus.topic, replace(end, n=3))
    until(lambda: publisher.status()["tail"] == 3, PATIENCE, lambda: str(publisher.status()))
    for ask in (
        lambda: session.plan(bus.topic, start, ReadLimits()),
        lambda: session.describe(bus.topic, start, end),
    ):
        with pytest.raises(DataLoss, match="batches 0 to 2 are missing") as caught:
            ask()
        assert caught.value.fields["reason"] == "removed"
        assert (caught.value.fields["position"]["n"], caught.value.fields["earliest"]["n"]) == (0, 3)
    assert session.plan(bus.topic, replace(end, n=3), ReadLimits()).rows == 10
    session.close()


def test_position_beyond_the_head_and_of_another_epoch(bus: Bus) -> None:
    """Case 34: the spool is an older copy: it must not be waited for until the offsets fit again."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(2))
    session = SubscriberSession.open(bus.config(), [bus.topic], "spark")
    head = session.head(bus.topic)
    for position, reason in (
        (replace(head, n=7), "beyond head"),
        (replace(head, epoch=head.epoch + 5), "epoch"),
        (replace(head, n=1, r=9), "beyond batch"),
    ):
        with pytest.raises(DataLoss) as caught:
            session.plan(bus.topic, position, ReadLimits())
        assert caught.value.fields["reason"] == reason
    session.close()


def test_first_position_is_repeated_until_something_beyond_it_is_acknowledged(bus: Bus) -> None:
    """Spark asks twice in batch 0, and again after a restart; then the question means a new checkpoint."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(2))
    session = SubscriberSession.open(bus.config(), [bus.topic], "spark")
    first = session.first_position(bus.topic, LATEST)
    publish(publisher, rows, bus.journal, range(2, 4))
    assert session.first_position(bus.topic, LATEST) == first
    session.close()
    session = SubscriberSession.open(bus.config(), [bus.topic], "spark")
    assert session.first_position(bus.topic, LATEST) == first
    assert first.n == 2
    session.acknowledge(bus.topic, session.head(bus.topic))
    assert session.first_position(bus.topic, LATEST).n == 4
    assert session.first_position(bus.topic, COMMITTED).n == 4
    session.close()


def test_starting_positions(bus: Bus) -> None:
    """A new name starts at the end unless told otherwise; a known one where it stopped."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(3))
    assert bus.subscribe("new").position().n == 0
    assert bus.subscribe("latest", starting="latest").position().n == 3
    client = bus.subscribe("committed", starting="committed")
    assert client.position().n == 3
    publish(publisher, rows, bus.journal, range(3, 5))
    assert sum(batch.num_rows for batch in client.batches(timeout=0.3)) == 20
    client.close()
    publish(publisher, rows, bus.journal, [5])
    again = bus.subscribe("committed", starting="committed")
    assert again.position().n == 5
    assert sum(batch.num_rows for batch in again.batches(timeout=0.3)) == 10
    again.close()
    assert bus.subscribe("committed", starting="earliest").position().n == 0


def test_acknowledged_when_the_next_is_asked_for(bus: Bus) -> None:
    """At least once: what was handed out last comes again, and nothing before it."""
    rows = NumberedRows(bus.topic, rows=1)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, [0])
    client = bus.subscribe("billing")
    batches = client.batches()
    assert next(batches).column("number").to_pylist() == [0]
    publish(publisher, rows, bus.journal, [1])
    assert next(batches).column("number").to_pylist() == [1]
    client.close()  # 1 was handed out, never confirmed
    again = bus.subscribe("billing", starting="committed")
    assert [batch.column("number").to_pylist() for batch in again.batches(timeout=0.3)] == [[1]]


@pytest.mark.slow
def test_required_subscribers_exist_from_the_start(bus: Bus) -> None:
    """They hold all rows although they never came; a reader that has acknowledged all does not free them."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher(AT_ONCE, required_subscribers=["billing"])
    publish(publisher, rows, bus.journal, range(3))
    other = Checker(rows, bus.journal)
    read(bus.subscribe("other"), other, 30)
    before = publisher.status()
    lines = {line["name"]: line for line in before["subscriptions"]}
    assert (lines["billing"]["required"], lines["billing"]["lag"]["batches"]) == (True, 3)
    until(lambda: publisher.status()["uptime"] > before["uptime"] + 2.5, PATIENCE, "two looks at retention")
    assert publisher.status()["batches"] == 3
    checker, billing = Checker(rows, bus.journal), bus.subscribe("billing", starting="committed")
    read(billing, checker, 30)
    assert checker.check().rows == 30
    until(lambda: publisher.status()["batches"] == 0, PATIENCE, "all is acknowledged, all may go")


@pytest.mark.slow
def test_min_subscribers_hold_retention(bus: Bus) -> None:
    """Nothing goes before so many subscriptions exist; what the first one read is there for the second."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher(AT_ONCE, min_subscribers=2)
    publish(publisher, rows, bus.journal, range(3))
    first = Checker(rows, bus.journal)
    read(bus.subscribe("first"), first, 30)
    uptime = publisher.status()["uptime"]
    until(lambda: publisher.status()["uptime"] > uptime + 2.5, PATIENCE, "two looks at retention")
    second = Checker(rows, bus.journal)
    read(bus.subscribe("second"), second, 30)
    assert (first.check().rows, second.check().rows) == (30, 30)
    until(lambda: publisher.status()["batches"] == 0, PATIENCE, "both have read, all may go")


@pytest.mark.slow
def test_expired_subscription_fails_loudly_when_it_returns(bus: Bus) -> None:
    """Promise 1: its rows are not kept for ever; its checkpoint does not fit any more, and that is told."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher({**AT_ONCE, "subscription.expiry": "1s", "read.timeout": "500ms"})
    session = SubscriberSession.open(bus.config(), [bus.topic], "spark")
    start = session.first_position(bus.topic, EARLIEST)
    publish(publisher, rows, bus.journal, range(2))
    assert session.plan(bus.topic, start, ReadLimits()).rows == 20
    session.close()
    until(lambda: not publisher.status()["subscriptions"], PATIENCE, "it expires")
    until(lambda: publisher.status()["batches"] == 0, PATIENCE, "nobody holds the rows any more")
    session = SubscriberSession.open(bus.config(), [bus.topic], "spark")
    with pytest.raises(DataLoss, match="batches 0 to 1 are missing"):
        session.plan(bus.topic, start, ReadLimits())
    session.close()


def test_without_any_subscriber_retention_is_by_time_alone(bus: Bus) -> None:
    """Nobody ever came: the topic does not grow for ever."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher(AT_ONCE)
    publish(publisher, rows, bus.journal, range(3))
    until(lambda: publisher.status()["batches"] == 0, PATIENCE, "nobody holds it")
    assert bus.subscribe("late").position().n == 3
