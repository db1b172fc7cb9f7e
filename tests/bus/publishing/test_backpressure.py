"""A full spool, slow subscribers, and acks=all: the publisher waits, names whom it waits for, and goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest

from jobpipe.errors import ConfigError, DataLoss, SpoolFull, WaitTimeout
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing import Checker, NumberedRows
from tests.bus.kit import PATIENCE, Bus, publish, read, until
from tests.docs.troubleshooting import on_page

SMALL = {  # one batch has about 125 KB
    "spool.max_bytes": "400KB",
    "segment.max_bytes": "100KB",
    "retention.ack_grace": "0s",
    "acks.timeout": "1s",
}


def rows_of(bus: Bus) -> NumberedRows:
    """Return rows whose batches are large for the cap."""
    return NumberedRows(bus.topic, rows=1000, payload=100)


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Run work in a thread; return it and where its error goes."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


def finish(thread: threading.Thread, errors: list[BaseException]) -> None:
    """Wait for the end of the work; raise its error."""
    thread.join(PATIENCE)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def fill(publisher: Publisher, bus: Bus, rows: NumberedRows) -> int:
    """Publish until the cap is reached; return the next batch id."""
    batch_id = 0
    while publisher.status()["stored_bytes"] < publisher.config.spool_max_bytes:
        publish(publisher, rows, bus.journal, [batch_id])
        batch_id += 1
    return batch_id


@pytest.mark.slow
def test_full_spool_blocks_and_names_the_slow_subscription(bus: Bus) -> None:
    """Cases 56 and 57: the wait ends with the name, nothing is lost, and after an acknowledgement it goes on."""
    rows = rows_of(bus)
    publisher = bus.publisher(SMALL, required_subscribers=["slow"])
    quick = bus.reader("quick", rows)
    next_id = fill(publisher, bus, rows)
    assert next_id == 4
    began = time.monotonic()
    with pytest.raises(SpoolFull, match="'slow' is slowest, 4 batches behind") as caught:
        publisher.seal("q", next_id, rows.tables(next_id), run_id="r1")
    on_page(caught.value, "SpoolFull: topic '…': no room within … s: the spool is full (… bytes); subscription")
    assert 0.9 < time.monotonic() - began < 20
    quick.wait_rows(4000)  # one that keeps up has all there is
    assert "'slow'" in publisher.status()["waiting"]

    slow, checker = bus.subscribe("slow"), Checker(rows, bus.journal)
    read(slow, checker, 4000)
    publish(publisher, rows, bus.journal, [next_id])
    assert publisher.status()["waiting"] is None
    read(slow, checker, 5000)
    publisher.close(final=True)
    quick.join()
    assert (checker.check().rows, quick.checker.check().rows) == (5000, 5000)


@pytest.mark.slow
def test_blocked_publisher_goes_on_by_itself(bus: Bus) -> None:
    """A publisher under way at the cap needs no retry: the reader's acknowledgements let it through."""
    rows = rows_of(bus)
    publisher = bus.publisher({**SMALL, "acks.timeout": "60s"}, required_subscribers=["slow"])
    fill(publisher, bus, rows)
    thread, errors = in_thread(lambda: publish(publisher, rows, bus.journal, range(4, 12)))
    reader = bus.reader("slow", rows, pause=0.05)
    finish(thread, errors)
    publisher.close(final=True)
    reader.join()
    assert reader.checker.check().rows == 12_000
    assert publisher.config.spool_max_bytes == 400_000


@pytest.mark.slow
def test_stopped_query_ends_the_wait(bus: Bus) -> None:
    """Every wait of the sink looks at its query: a stop is not held up by a slow subscriber."""
    rows = rows_of(bus)
    publisher = bus.publisher({**SMALL, "acks.timeout": "60s"}, required_subscribers=["slow"])
    next_id = fill(publisher, bus, rows)
    began = time.monotonic()
    stopping = publisher.while_active(lambda: time.monotonic() - began < 0.5)
    with pytest.raises(WaitTimeout, match="'slow'"), stopping:
        publisher.begin(BatchKey("q", next_id, "r1"))
    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_drop_oldest(bus: Bus) -> None:
    """The publisher never waits; the subscription that needed the oldest batches is told exactly what is missing."""
    rows = rows_of(bus)
    publisher = bus.publisher({**SMALL, "spool.on_full": "drop_oldest"}, required_subscribers=["slow"])
    publish(publisher, rows, bus.journal, range(8))
    status = publisher.status()
    assert status["head"] == 8
    assert status["tail"] >= 4
    assert status["stored_bytes"] < 400_000 + 200_000
    slow = bus.subscribe("slow", starting="committed")
    with pytest.raises(DataLoss, match=f"batches 0 to {status['tail'] - 1} are missing") as caught:
        list(slow.batches(timeout=5))
    on_page(caught.value, "DataLoss: topic '…': position")
    assert caught.value.fields["reason"] == "removed"


@pytest.mark.slow
def test_batch_larger_than_the_cap_fails_at_once(bus: Bus) -> None:
    """It could wait for ever; nothing of it is visible, and the next batch passes."""
    rows = rows_of(bus)
    publisher = bus.publisher(SMALL)
    huge = NumberedRows(bus.topic, rows=4000, payload=100)
    began = time.monotonic()
    with pytest.raises(SpoolFull, match="batch 0 alone") as caught:
        publisher.seal("q", 0, huge.tables(0), run_id="r1")
    assert time.monotonic() - began < 20
    assert caught.value.fields["size"] > caught.value.fields["limit"] == 400_000
    assert publisher.status()["head"] == 0
    publish(publisher, rows, bus.journal, [0])
    checker = Checker(rows, bus.journal)
    read(bus.subscribe("all"), checker, 1000)
    assert checker.check().rows == 1000


def test_acks_all_waits_for_the_required(bus: Bus) -> None:
    """The call returns when the required subscription has committed the batch, another one does not count."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher({"acks": "all", "acks.timeout": "60s"}, required_subscribers=["billing"])
    other = bus.reader("other", rows)
    thread, errors = in_thread(lambda: publish(publisher, rows, bus.journal, range(3)))
    other.wait_rows(10)  # stored, and visible, long before it is acknowledged
    assert thread.is_alive()
    billing = bus.reader("billing", rows)
    finish(thread, errors)
    publisher.close(final=True)
    for reader in (billing, other):
        reader.join()
        assert reader.checker.check().rows == 30


def test_acks_timeout_names_the_missing(bus: Bus) -> None:
    """Stored, not committed: the batch is there, and the next run's replay only waits for it."""
    rows = NumberedRows(bus.topic)
    options = {"required_subscribers": ["billing"], "min_subscribers": 2}
    publisher = bus.publisher({"acks": "all", "acks.timeout": "1s"}, **options)
    with pytest.raises(WaitTimeout, match="billing, 2 more of min_subscribers=2") as caught:
        publisher.seal("q", 0, rows.tables(0), run_id="r1")
    assert caught.value.fields["missing"][0] == "billing"
    bus.journal.intend(0, rows.ranges(0))
    bus.journal.seal(0)
    readers = [bus.reader(name, rows) for name in ("billing", "other")]
    for reader in readers:
        reader.wait_rows(10)
    until(lambda: all(line["position"] == 1 for line in publisher.status()["subscriptions"]), PATIENCE, "both read")
    assert publisher.seal("q", 0, rows.tables(0), run_id="r2").replayed
    publisher.close(final=True)
    for reader in readers:
        reader.join()
        assert reader.checker.check().rows == 10


@pytest.mark.parametrize(
    ("changes", "options"),
    [({"acks": "all"}, {}), ({"acks": "all", "spool.on_full": "drop_oldest"}, {"min_subscribers": 1})],
)
def test_acks_all_without_anybody_to_wait_for(bus: Bus, changes: dict[str, str], options: dict[str, object]) -> None:
    """A promise that nobody could keep is a configuration error."""
    with pytest.raises(ConfigError):
        bus.publisher(changes, **options)


@pytest.mark.slow
def test_who_waits_says_for_whom(bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Promise 4: the publisher waits, naming the slow subscription; also to those who do not ask."""
    monkeypatch.setattr("jobpipe.publishing.publisher_messages.FIRST_SECONDS", 0.3)
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher({"acks": "all", "acks.timeout": "2s"}, required_subscribers="billing")  # no list needed
    with (
        caplog.at_level(logging.WARNING, "jobpipe.publishing.publisher_messages"),
        pytest.raises(WaitTimeout, match="billing"),
    ):
        publisher.seal("q", 0, rows.tables(0), run_id="r1")
    (record,) = caplog.records
    assert "not yet acknowledged by billing" in record.getMessage()
    with pytest.raises(ConfigError, match="bad name"):
        bus.publisher(required_subscribers=["bad name"])
