"""The end of a job: drain, end mark, and when the coordinator process goes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from jobpipe.errors import LinkClosed, WaitTimeout
from jobpipe.publishing import topic_publisher
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.bus.kit import PATIENCE, Bus, Driver, alive, coordinator_of, data_process_of, publish, read, until


@pytest.mark.slow
def test_drain_waits_for_all_and_names_who_lags(own_bus: Bus) -> None:
    """Every subscription, required or not; with a time-out it tells who is behind."""
    rows = NumberedRows(own_bus.topic)
    publisher = own_bus.publisher(required_subscribers=["billing"])
    publish(publisher, rows, own_bus.journal, range(3))
    with pytest.raises(WaitTimeout, match=r"billing \(3 batches behind\)") as caught:
        publisher.drain(timeout=0.2)
    assert caught.value.fields["lagging"] == {"billing": 3}
    reader = own_bus.reader("billing", rows)
    publisher.drain(timeout=PATIENCE)
    assert reader.checker.check().rows == 30


@pytest.mark.slow
def test_end_mark_ends_the_iteration(own_bus: Bus) -> None:
    """Without rows, once, whether the reader waits for it or comes later; what follows it is read by the next."""
    rows = NumberedRows(own_bus.topic)
    publisher = own_bus.publisher()
    early = own_bus.reader("early", rows)
    publish(publisher, rows, own_bus.journal, range(2))
    early.wait_rows(20)
    publisher.close(final=True)
    publisher.close(final=True)  # idempotent
    early.join()
    with pytest.raises(LinkClosed, match="closed"):
        publisher.seal("q", 2, rows.tables(2), run_id="r1")
    again = own_bus.publisher()
    assert again.status()["ended"] is True
    publish(again, rows, own_bus.journal, [2])
    assert again.status()["ended"] is False
    late = Checker(rows, own_bus.journal)
    read(own_bus.subscribe("late"), late, 30)
    assert late.check().rows == 30
    assert early.checker.report().faults.keys() == {"lost"}  # the batch behind its end


@pytest.mark.slow
def test_closed_and_read_ends_the_coordinator(own_bus: Bus) -> None:
    """Both processes, although a subscriber stays connected and asks for more; and they end with exit code 0."""
    rows = NumberedRows(own_bus.topic)
    publisher = own_bus.publisher()
    reader = own_bus.reader("all", rows)
    publish(publisher, rows, own_bus.journal, range(3))
    reader.wait_rows(30)
    process = publisher.coordinator.process
    data = psutil.Process(data_process_of(process.pid))
    publisher.close()
    assert process.wait(20) == 0
    until(lambda: not alive(data.pid), 10, "the data process ends with it")


@pytest.mark.slow
def test_an_end_before_the_answer_is_read_opens_nothing_again(own_bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher's thread that watches for a dead coordinator must not take a closed topic for an orphan."""
    publisher = own_bus.publisher()
    process = publisher.coordinator.process
    (guard,) = (thread for thread in threading.enumerate() if thread.name == f"guard-{own_bus.topic}")

    def read_late(*_: object) -> None:
        assert process.wait(PATIENCE) == 0
        guard.join(PATIENCE)
        assert not guard.is_alive()

    monkeypatch.setattr(topic_publisher, "closing_warning", read_late)
    publisher.close()
    assert publisher.coordinator.process is process


@pytest.mark.slow
def test_closed_and_not_read_lingers(own_bus: Bus) -> None:
    """It goes on serving while somebody reads on, and ends after ``linger`` seconds without progress."""
    rows = NumberedRows(own_bus.topic)
    publisher = own_bus.publisher({"coordinator.linger": "3s"}, required_subscribers=["billing", "never"])
    publish(publisher, rows, own_bus.journal, range(3))
    process = publisher.coordinator.process
    publisher.close(final=True)
    closed = time.monotonic()
    reader = own_bus.reader("billing", rows)
    reader.join()
    assert reader.checker.check().rows == 30
    assert process.wait(PATIENCE) == 0
    assert time.monotonic() - closed > 2.5
    again = own_bus.publisher()  # what was not read is still there
    lines = {line["name"]: line["lag"]["batches"] for line in again.status()["subscriptions"]}
    assert lines == {"billing": 0, "never": 4}


@pytest.mark.slow
def test_killed_job_lingers(own_bus: Bus, drive: Callable[..., Driver], tmp_path: Path) -> None:
    """Case 1: nobody reads: the coordinator of a dead driver ends after ``linger``, and leaves nothing registered."""
    driver = drive({"coordinator.linger": "2s"})
    driver.ask("open", topic="orders", journal=str(tmp_path / "journal"), partitions=1, rows=10, payload=16)
    driver.ask("seal", first=0, count=2)
    (coordinator,) = driver.coordinators
    data = data_process_of(coordinator)
    driver.kill()
    killed = time.monotonic()
    until(lambda: not alive(coordinator) and not alive(data), PATIENCE, "both end")
    assert time.monotonic() - killed > 1.5
    journal = Journal(tmp_path / "journal")
    rows = NumberedRows("orders")
    own_bus.publisher()
    checker = Checker(rows, journal)
    read(own_bus.subscribe("all"), checker, 20)
    assert checker.check().rows == 20


@pytest.mark.slow
def test_one_coordinator_for_all_topics_of_a_job(own_bus: Bus) -> None:
    """It ends with the last of them; the next sink starts another one, even while the old one is ending."""
    first, second = own_bus.publisher(topic="a"), own_bus.publisher(topic="b")
    pid = coordinator_of(first)
    assert coordinator_of(second) == pid
    first.close()
    publish(second, NumberedRows("b"), Journal(), [0])
    assert alive(pid)
    second.close()
    seen = {pid}
    for batch_id, pause in enumerate((0.0, 1.0, 1.4, 1.8)):  # it ends a second or two after the last question
        time.sleep(pause)
        publisher = own_bus.publisher(topic="c")
        seen.add(coordinator_of(publisher))
        publish(publisher, NumberedRows("c"), Journal(), [batch_id])
        publisher.close()
    until(lambda: not alive(pid), PATIENCE, "the first one ends")
    publish(own_bus.publisher(topic="c"), NumberedRows("c"), Journal(), [9])


@pytest.mark.slow
def test_sigterm_ends_in_bounded_time(own_bus: Bus) -> None:
    """Case 7: with a reader in the middle, whose acknowledgements survive; exit code 0."""
    rows = NumberedRows(own_bus.topic, rows=2000, payload=100)
    publisher = own_bus.publisher()
    reader = own_bus.reader("all", rows, pause=0.05)
    publish(publisher, rows, own_bus.journal, range(6))
    reader.wait_rows(4000)
    process = publisher.coordinator.process
    began = time.monotonic()
    end_coordinators()
    assert process.wait(1) == 0
    assert time.monotonic() - began < 10
    publish(publisher, rows, own_bus.journal, range(6, 8))  # goes on with the next one
    publisher.close(final=True)
    reader.join()
    assert reader.checker.check().rows == 16_000
