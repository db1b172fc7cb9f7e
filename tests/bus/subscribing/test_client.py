"""The plain client: what it acknowledges and when, and that it does not wait in silence."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobpipe.errors import TopicNotFound
from jobpipe.subscribing import wait_logging
from jobpipe.subscribing.subscriber_session import SubscriberSession
from jobpipe.testing import Checker, NumberedRows
from tests.bus.kit import PATIENCE, Bus, alive, coordinator_of, publish, read, until
from tests.docs.troubleshooting import on_page


@pytest.mark.slow
def test_a_backlog_is_acknowledged_batch_by_batch(bus: Bus) -> None:
    """Case 59: several batches of one plan, three partitions: whoever stops in one reads that one again, whole."""
    rows = NumberedRows(bus.topic, partitions=3, rows=2)
    publisher = bus.publisher(parallelism=3)
    publish(publisher, rows, bus.journal, range(5))
    first, taken = bus.subscribe("billing"), []
    for batch in first.batches():
        taken.append(batch)
        if len(taken) == 3 * 2 + 2:  # two batches, and two partitions of the third
            break
    assert first.position().n == 2
    first.close()
    # Now the acknowledged position is that of the third batch, however much was planned at once.
    until(lambda: publisher.status()["subscriptions"][0]["position"] == 2, PATIENCE, "two batches acknowledged")
    checker = Checker(rows, bus.journal)
    for batch in taken[:6]:
        checker.take(batch)
    again = bus.subscribe("billing", starting="committed")
    checker.take_all(again.batches(timeout=0.3))
    assert checker.check().rows == 5 * 3 * 2
    assert again.position().n == 5


@pytest.mark.slow
@pytest.mark.parametrize("resting", [True, False])
def test_a_topic_that_is_opened_again_by_the_same_job(bus: Bus, resting: bool) -> None:
    """Its coordinator lives on, and so does the link; the name must be got again, whether the client asks or rests."""
    rows = NumberedRows(bus.topic, rows=1)
    client, checker = bus.subscribe("billing"), Checker(rows, bus.journal)
    coordinators = set()
    for run in range(3):
        publisher = bus.publisher()
        coordinators.add(coordinator_of(publisher))
        publish(publisher, rows, bus.journal, range(run * 3, run * 3 + 3))
        if resting:
            publisher.close()
            read(client, checker, 3)
        else:
            with ThreadPoolExecutor(1) as pool:
                reading = pool.submit(read, client, checker, 3)
                publisher.close()
                reading.result(PATIENCE)
    assert len(coordinators) == 1
    bus.publisher().close(final=True)
    checker.take_all(client.batches(timeout=30.0))
    assert checker.check().rows == 9


@pytest.mark.slow
def test_iterating_anew_goes_on_at_the_batch_that_was_left(bus: Bus) -> None:
    """One subscription, two loops."""
    rows = NumberedRows(bus.topic, rows=1)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(4))
    client = bus.subscribe("billing")
    for batch in client.batches():
        if batch.column("number").to_pylist() == [2]:
            break
    assert [batch.column("number").to_pylist() for batch in client.batches(timeout=0.3)] == [[2], [3]]


@pytest.fixture
def quick_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a subscriber say ten times a second that it waits."""
    monkeypatch.setattr(wait_logging, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(wait_logging, "AGAIN_SECONDS", 0.1)


def test_the_first_subscriber_says_what_it_waits_for(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At WARNING, so that it is seen without any set-up: topic, registry, and how to see more; then rarely."""
    monkeypatch.setattr(wait_logging, "FIRST_SECONDS", 0.2)
    config = bus.config()
    with caplog.at_level(logging.WARNING, "jobpipe.subscribing.wait_logging"), pytest.raises(TopicNotFound):
        bus.subscribe("billing", changes={"discovery.timeout": "1500ms"}).position()
    (record,) = caplog.records
    for part in (
        repr(bus.topic),
        "a publisher",
        str(config.home),
        config.namespace,
        "jobpipe topics",
        "jobpipe doctor",
    ):
        assert part in record.getMessage()


@pytest.mark.slow
def test_who_does_not_wait_says_nothing(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No notice, and no thread that stays."""
    monkeypatch.setattr(wait_logging, "FIRST_SECONDS", 30.0)
    bus.publisher()
    with caplog.at_level(logging.WARNING, "jobpipe.subscribing.wait_logging"):
        bus.subscribe("billing").position()
    assert caplog.records == []
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("waiting-")], PATIENCE, "its end")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_notices")
def test_a_publisher_that_takes_longer_than_the_discovery(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """U9: `discovery.timeout` is for what does not exist: a topic that was published before is waited for."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(1))
    publisher.close()
    ends = coordinator_of(publisher)
    until(lambda: not alive(ends), PATIENCE, "nobody reads: it ends")
    client = bus.subscribe("billing", changes={"discovery.timeout": "300ms"})
    with pytest.raises(TopicNotFound, match="the last one had epoch"):  # a time limit of the caller's own holds
        next(bus.subscribe("clerk", changes={"discovery.timeout": "300ms"}).batches(timeout=0.1))
    config = bus.config({"discovery.timeout": "300ms"})
    with ThreadPoolExecutor(2) as pool, caplog.at_level(logging.WARNING, "jobpipe.subscribing.wait_logging"):
        first = pool.submit(client.position)
        stream = pool.submit(SubscriberSession.open, config, [bus.topic], "stream")
        until(lambda: len(caplog.records) > 16, PATIENCE, "it has waited for longer than the discovery may take")
        assert not first.done()
        assert not stream.done()
        bus.publisher()
        assert first.result(PATIENCE).n == 0
        stream.result(PATIENCE).close()
    with pytest.raises(TopicNotFound):
        bus.subscribe("audit", topic=f"{bus.topic}-not", changes={"discovery.timeout": "300ms"}).position()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_notices")
def test_a_publisher_that_goes_away_is_waited_for(own_bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """By a client that has read already, and has no timeout: for longer than `read.timeout`."""
    rows = NumberedRows(own_bus.topic)
    publisher = own_bus.publisher({"coordinator.linger": "0s"})
    publish(publisher, rows, own_bus.journal, range(1))
    client = own_bus.subscribe("billing", changes={"read.timeout": "300ms"})
    batches = iter(client)
    assert next(batches)["number"].to_pylist() == list(range(10))
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING, "jobpipe.subscribing.wait_logging"):
        following = pool.submit(lambda: next(batches))
        try:
            publisher.close()  # the reader acknowledges what it has read, and the coordinator ends
            until(lambda: len(caplog.records) > 8, PATIENCE, "it has waited for longer than the time to read may take")
            assert not following.done()
            publish(own_bus.publisher(), rows, own_bus.journal, range(1, 2))
            assert following.result(PATIENCE)["number"].to_pylist() == list(range(10, 20))
        finally:
            client.close()


@pytest.mark.slow
def test_a_misspelt_topic_is_suggested(bus: Bus) -> None:
    """U12: what exists under nearly that name is offered, served now or not."""
    bus.publisher()
    wrong = f"{bus.topic[:-1]}"
    with pytest.raises(TopicNotFound, match=f"did you mean {bus.topic}") as caught:
        bus.subscribe("billing", topic=wrong, changes={"discovery.timeout": "300ms"}).position()
    on_page(caught.value, "nobody has ever published it")
