"""A seal admits the next batch: a quick query asks its coordinator once a batch, and never past what must be asked."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe.errors import DuplicateCall, SpoolFull
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.publishing import batch_admission
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing import Checker, NumberedRows
from tests.bus.kit import PATIENCE, Bus, kill, publish


def asked(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each operation that the publisher asks for."""
    ops: list[str] = []
    call = publisher._channel.call

    def noted(request: Any) -> Any:
        ops.extend(name for name, operation in CONTROL.items() if operation.request is type(request))
        return call(request)

    monkeypatch.setattr(publisher._channel, "call", noted)
    return ops


@pytest.mark.slow
def test_one_question_a_batch(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch of a query asks, those after it do not; a second call in the run still is a mistake."""
    rows, publisher = NumberedRows(bus.topic), bus.publisher()
    ops = asked(publisher, monkeypatch)
    publish(publisher, rows, bus.journal, range(3))
    assert ops == ["begin", "seal", "seal", "seal"]
    with pytest.raises(DuplicateCall):
        publisher.seal("q", 2, rows.tables(2), run_id="r1")
    assert publisher.seal("q", 2, rows.tables(2), run_id="r2").replayed
    publish(publisher, rows, bus.journal, [3])
    assert ops[4:] == ["begin", "begin", "begin", "seal"]
    publisher.close(final=True)
    assert Checker(rows, bus.journal).take_all(bus.subscribe("all").batches(timeout=30)).check().rows == 40


def test_another_query_asks(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sealed of one query says nothing of another's last batch."""
    rows, publisher = NumberedRows(bus.topic), bus.publisher()
    ops = asked(publisher, monkeypatch)
    publisher.seal("one", 7, rows.tables(0))
    publisher.seal("two", 8, rows.tables(1))
    assert ops == ["begin", "seal", "begin", "seal"]


@pytest.mark.slow
@pytest.mark.parametrize("opened", [True, False], ids=["the next one serves", "nobody serves"])
def test_an_old_admission_is_void(bus: Bus, monkeypatch: pytest.MonkeyPatch, opened: bool) -> None:
    """After a while, and without its coordinator: the next one knows of no batch in progress."""
    rows, publisher = NumberedRows(bus.topic), bus.publisher()
    ops = asked(publisher, monkeypatch)
    publish(publisher, rows, bus.journal, [0])
    with monkeypatch.context() as patch:
        patch.setattr(batch_admission, "ADMISSION_SECONDS", 0.0)
        publish(publisher, rows, bus.journal, [1])
    monkeypatch.setattr(batch_admission, "ADMISSION_SECONDS", PATIENCE)
    first = publisher.coordinator
    kill(first.process.pid)
    assert first.ended(PATIENCE)
    if opened:
        publisher.status()
        assert publisher.coordinator.instance != first.instance
    publish(publisher, rows, bus.journal, [2])
    assert [op for op in ops if op != "status"] == ["begin", "seal"] * 3
    publisher.close(final=True)
    assert Checker(rows, bus.journal).take_all(bus.subscribe("all").batches(timeout=30)).check().rows == 30


def test_a_full_spool_admits_nobody(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that fills the spool is the last one until somebody reads."""
    rows = NumberedRows(bus.topic)
    full = {"spool.max_bytes": "64KiB", "segment.max_bytes": "64KiB", "acks.timeout": "0.5s"}
    publisher = bus.publisher(full, required_subscribers="slow")
    ops = asked(publisher, monkeypatch)
    sealed = seal_all(publisher, rows, 1000)
    assert 1 < sealed < 1000
    assert ops[: sealed + 1] == ["begin"] + ["seal"] * sealed
    assert set(ops[sealed + 1 :]) == {"begin"}


def seal_all(publisher: Publisher, rows: NumberedRows, most: int) -> int:
    """Seal until there is no room; return how many batches were sealed."""
    for batch_id in range(most):
        try:
            publisher.seal("q", batch_id, rows.tables(batch_id))
        except SpoolFull:
            return batch_id
    return most
