"""Appenders over real links: next to a publisher that goes on, large and small batches, publishers that come and go."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from jobpipe.config import Config
from jobpipe.errors import AlreadyRedriven, JobpipeError, RowTooLarge
from jobpipe.publishing.appender import Appender, BatchShape, Make, NewRows
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.serving.spool_server import SpoolServer
from jobpipe.store.catalog.batches import APPENDERS
from jobpipe.store.catalog.redrive_marks import SourceRow
from jobpipe.testing import SCHEMA, Checker, Journal, NumberedRows
from tests.bus.kit import Bus, coordinator_of, kill, publish, read
from tests.docs.troubleshooting import on_page


def rows_of(rows: NumberedRows, batch_id: int, marks: tuple[SourceRow, ...] = ()) -> Make:
    """Return what makes a batch of numbered rows, each in its own partition."""

    def make(shape: BatchShape) -> NewRows:
        assert pa.ipc.read_schema(pa.py_buffer(shape.arrow)).equals(SCHEMA)
        tables = rows.tables(batch_id)
        found = [(batch, number) for number, table in enumerate(tables) for batch in table.to_batches()]
        return NewRows(SCHEMA, found, marks)

    return make


def mark(offset: int, rows: int) -> tuple[SourceRow, ...]:
    return tuple(SourceRow(offset, 7, 0, number) for number in range(rows))


def marked(made: Appender) -> list[int]:
    """Return the offsets of which the first row is marked."""
    return sorted(row.offset for row in made.redriven([row for offset in range(9) for row in mark(offset, 1)]))


def appender(config: Config, topic: str) -> Appender:
    return Appender(config, topic, f"{APPENDERS}{uuid.uuid4().hex}")


@pytest.mark.slow
@pytest.mark.parametrize("payload", [16, 4000, 80_000])
def test_batches_of_a_publisher_and_an_appender(bus: Bus, tmp_path: Path, payload: int) -> None:
    """All of a batch travels with its seal: some KiB go into the catalog, more, up to 8 MiB, into a file."""
    config = bus.config({"spool.dir": str(tmp_path / "elsewhere")})
    rows = NumberedRows(bus.topic, partitions=2, rows=20, payload=payload)
    publisher = bus.publisher(parallelism=2)
    subscription = bus.subscribe("billing")
    publish(publisher, rows, bus.journal, [0])
    with appender(config, bus.topic) as beside:
        for number in (1, 3, 5):
            with bus.journal.sealing(number, rows.ranges(number)):
                assert beside.append(number, rows_of(rows, number, mark(number, rows.partitions * rows.rows)))
            assert not beside.append(number, rows_of(rows, number, mark(number, rows.partitions * rows.rows)))
            publish(publisher, rows, bus.journal, [number + 1])
        assert beside.last_batch() == 5
        assert marked(beside) == [1, 3, 5]
    checker = Checker(rows, bus.journal)
    read(subscription, checker, 7 * 2 * 20)
    checker.check()
    assert publisher.last_sealed("q") is not None


@pytest.mark.slow
def test_a_publisher_that_goes_on_meanwhile(bus: Bus) -> None:
    """Each loses and doubles nothing: 40 batches of one, and 20 of two others who want to publish the same rows."""
    rows = NumberedRows(bus.topic, rows=5)
    other, journal = NumberedRows(bus.topic, rows=5), Journal()
    publisher = bus.publisher()
    subscription = bus.subscribe("billing")
    publish(publisher, rows, bus.journal, [0])
    published: list[int] = []
    failures: list[BaseException] = []

    def beside() -> None:
        try:
            with appender(bus.config(), bus.topic) as made:
                for number in range(20):
                    try:
                        rows = NewRows(SCHEMA, [(table_of(other, number), 0)], mark(number, 5))
                        made.append(number, lambda _, rows=rows: rows)  # type: ignore[misc]
                    except AlreadyRedriven:
                        continue
                    published.append(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=beside) for _ in range(2)]
    for thread in threads:
        thread.start()
    publish(publisher, rows, bus.journal, range(1, 40))
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert sorted(published) == list(range(20))
    seen: list[tuple[int, int]] = []
    while len(seen) < 300:
        for batch in subscription.batches(timeout=0.5):
            seen += zip(batch["partition"].to_pylist(), batch["number"].to_pylist(), strict=True)
    assert [number for partition, number in seen if partition == 0] == list(range(200))
    assert sorted(number for partition, number in seen if partition == 1) == list(range(100))
    assert journal.sealed() == {}


def table_of(rows: NumberedRows, number: int) -> pa.RecordBatch:
    """Return rows that say that they are of partition 1."""
    (batch,) = rows.table(1, number * 5, number * 5 + 5).to_batches()
    return batch


@pytest.mark.slow
def test_publishers_that_come_and_go(own_bus: Bus) -> None:
    """Beside a stand-in, then a publisher that takes the topic over, then a coordinator that was killed."""
    bus = own_bus
    rows = NumberedRows(bus.topic, rows=5)
    subscription = bus.subscribe("billing")
    first = bus.publisher()
    publish(first, rows, bus.journal, [0])
    first.close()
    end_coordinators()
    with appender(bus.config(), bus.topic) as beside:
        with SpoolServer(bus.config(), bus.topic):
            _append(beside, rows, bus.journal, 1)
            second = bus.publisher()
            _append(beside, rows, bus.journal, 2)
            publish(second, rows, bus.journal, [3])
        kill(coordinator_of(second))
        _append(beside, rows, bus.journal, 4)
        publish(second, rows, bus.journal, [5])
        assert marked(beside) == [1, 2, 4]
    checker = Checker(rows, bus.journal)
    read(subscription, checker, 30)
    checker.check()


def test_a_batch_that_is_too_large(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = NumberedRows(bus.topic, rows=20, payload=100)
    publish(bus.publisher(), rows, bus.journal, [0])
    with appender(bus.config(), bus.topic) as beside:
        with monkeypatch.context() as patch:
            patch.setattr("jobpipe.publishing.appender.MAX_APPENDED", 1000)
            with pytest.raises(RowTooLarge) as refused:
                beside.append(1, rows_of(rows, 1))
        on_page(refused.value, "RowTooLarge: topic '…': rows that are published next to its publisher come in batches")
        assert beside.append(1, rows_of(rows, 1))


def _append(beside: Appender, rows: NumberedRows, journal: Journal, number: int) -> None:
    with journal.sealing(number, rows.ranges(number)):
        assert beside.append(number, rows_of(rows, number, mark(number, rows.partitions * rows.rows)))


def test_a_topic_that_is_not_served(bus: Bus) -> None:
    rows = NumberedRows(bus.topic, rows=1)
    with (
        appender(bus.config({"discovery.timeout": "0.3s"}), bus.topic) as beside,
        pytest.raises(JobpipeError, match="no publisher registered it"),
    ):
        beside.append(0, rows_of(rows, 0))
    publish(bus.publisher(), rows, bus.journal, [0])
    with appender(bus.config(), bus.topic) as beside:
        assert beside.append(1, rows_of(rows, 1))
