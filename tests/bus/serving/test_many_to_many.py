"""M:N: partitions, several publishers into one subscriber, one publisher into several."""

from __future__ import annotations

import pytest

from jobpipe.errors import ConfigError
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.bus.kit import Bus, publish, read


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 2, 3, 5])
def test_partitions(bus: Bus, partitions: int) -> None:
    """Every row of every partition, in order, while the publisher goes on; small batches and ones with files."""
    rows = NumberedRows(bus.topic, partitions=partitions, rows=400, payload=100)
    publisher = bus.publisher(parallelism=partitions)
    reader = bus.reader("all", rows)
    publish(publisher, rows, bus.journal, range(8))
    reader.wait_rows(8 * 400 * partitions)
    publish(publisher, rows, bus.journal, range(8, 12))
    publisher.close(final=True)
    reader.join()
    assert reader.checker.check().rows == 12 * 400 * partitions


@pytest.mark.slow
def test_parallelism_changes_between_runs(bus: Bus) -> None:
    """Case 53: partitions belong to a batch; a range never crosses a change."""
    totals = {}
    checker = None
    subscription = bus.subscribe("all")
    wide = NumberedRows(bus.topic, partitions=5, rows=20)
    for run, partitions in enumerate((2, 5, 1)):
        publisher = bus.publisher(parallelism=partitions)
        batch_ids = range(run * 4, run * 4 + 4)
        for batch_id in batch_ids:
            ranges = {part: extent for part, extent in wide.ranges(batch_id).items() if part < partitions}
            with bus.journal.sealing(batch_id, ranges):
                publisher.seal("q", batch_id, wide.tables(batch_id)[:partitions], run_id=f"r{run}")
        totals[run] = publisher.epoch
        publisher.close()
        if checker is None:
            checker = Checker(wide, bus.journal)
            read(subscription, checker, 4 * 2 * 20)
    assert checker is not None
    bus.publisher(parallelism=1).close(final=True)
    checker.take_all(subscription.batches(timeout=30))
    assert checker.check().rows == 4 * 20 * (2 + 5 + 1)
    assert sorted(totals.values()) == list(totals.values())
    assert len(set(totals.values())) == 3


@pytest.mark.slow
def test_three_publishers_into_one_subscriber(bus: Bus) -> None:
    """Three topics of one job, one name: each topic has its own subscription and keeps its own order."""
    topics = [f"{bus.topic}-{letter}" for letter in "abc"]
    kinds = {topic: NumberedRows(topic, partitions=number + 1, rows=50) for number, topic in enumerate(topics)}
    journals = {topic: Journal() for topic in topics}
    publishers = {topic: bus.publisher(topic=topic, parallelism=kinds[topic].partitions) for topic in topics}
    checkers = {topic: Checker(kinds[topic], journals[topic]) for topic in topics}
    clients = {topic: bus.subscribe("merged", topic=topic) for topic in topics}
    for batch_id in range(6):
        for topic in topics:
            publish(publishers[topic], kinds[topic], journals[topic], [batch_id])
    for topic in topics:
        publishers[topic].close(final=True)
        checkers[topic].take_all(clients[topic].batches(timeout=30))
    assert [checkers[topic].check().rows for topic in topics] == [6 * 50, 6 * 100, 6 * 150]


@pytest.mark.slow
def test_one_publisher_into_three_subscribers(bus: Bus) -> None:
    """Each name gets everything, at its own pace, and none waits for another."""
    rows = NumberedRows(bus.topic, partitions=2, rows=100)
    publisher = bus.publisher(parallelism=2)
    fast, other = bus.reader("fast", rows), bus.reader("other", rows)
    slow = bus.reader("slow", rows, pause=0.05)
    publish(publisher, rows, bus.journal, range(20))
    fast.wait_rows(4000)
    other.wait_rows(4000)
    publisher.close(final=True)
    for reader in (fast, other, slow):
        reader.join()
        assert reader.checker.check().rows == 4000


@pytest.mark.slow
def test_late_subscriber_gets_all_that_is_kept(bus: Bus) -> None:
    """One that comes after the end, with ``earliest``, has every row that another one read before."""
    rows = NumberedRows(bus.topic, partitions=3, rows=10)
    publisher = bus.publisher(parallelism=3)
    publish(publisher, rows, bus.journal, range(5))
    early = Checker(rows, bus.journal)
    read(bus.subscribe("early"), early, 150)
    publish(publisher, rows, bus.journal, range(5, 8))
    publisher.close(final=True)
    late = Checker(rows, bus.journal).take_all(bus.subscribe("late").batches(timeout=30))
    assert late.check().rows == 240


def test_batches_without_rows(bus: Bus) -> None:
    """Case 60: an empty batch takes no offset, is a replay all the same, and empty partitions do no harm."""
    rows = NumberedRows(bus.topic, partitions=3, rows=4)
    publisher = bus.publisher(parallelism=3)
    empty = [table.slice(0, 0) for table in rows.tables(0)]
    assert publisher.seal("q", 0, empty, run_id="r1").rows == 0
    assert publisher.seal("q", 0, rows.tables(0), run_id="r2").replayed
    bus.journal.intend(1, {1: rows.ranges(1)[1]})
    first, second, third = rows.tables(1)
    publisher.seal("q", 1, [first.slice(0, 0), second, third.slice(0, 0)], run_id="r1")
    bus.journal.seal(1)
    publisher.close(final=True)
    checker = Checker(rows, bus.journal).take_all(bus.subscribe("all").batches(timeout=30))
    assert checker.check().rows == 4


@pytest.mark.parametrize("topic", ["", "a/b", "..", "über", "x" * 129])
def test_topic_names_that_cannot_be(bus: Bus, topic: str) -> None:
    """Case 74: refused before anything is made."""
    with pytest.raises(ConfigError, match="topic"):
        bus.publisher(topic=topic or "-")
