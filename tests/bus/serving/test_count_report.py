"""What a worker reports of the rows that it has read: once it was taken whole, and never at the price of the rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.config import Config, load
from jobpipe.errors import JobpipeError, LinkClosed, NotAuthorized, RemoteProtocolError
from jobpipe.operations.data_operations import CountRequest, PieceCount
from jobpipe.store.catalog.position import Position
from jobpipe.subscribing.fetching import count_report
from jobpipe.subscribing.fetching.count_report import CountedRange, counted
from jobpipe.subscribing.fetching.part_fetch import FetchRange

START, END = (Position("0123456789abcdef", 1, n) for n in (3, 5))
COUNTS = CountedRange("billing", START, END, "a" * 32)
PART = FetchRange("orders", START, END, 1, "localhost:1", COUNTS.part(5))
BATCH = FetchRange("orders", START, END, 1, "localhost:1")  # a batch read


class DataProcess:
    """Stands in for links: what it was asked, and what it answers next."""

    def __init__(self) -> None:
        self.asked: list[CountRequest] = []
        self.errors: list[JobpipeError] = []

    def link(self, *_: object) -> AbstractContextManager[None]:
        return nullcontext()

    def ask(self, link: None, request: CountRequest, *, timeout: float) -> None:
        self.asked.append(request)
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> DataProcess:
    found = DataProcess()
    monkeypatch.setattr(count_report, "pooled", found.link)
    monkeypatch.setattr(count_report, "ask_blocking", found.ask)
    return found


@pytest.fixture
def config() -> Config:
    return load(environ={})


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    for size in sizes:
        yield pa.record_batch({"a": list(range(size))})


def test_a_part_is_reported_once_all_of_it_was_taken(there: DataProcess, config: Config) -> None:
    reading = counted(batches(3, 4), PART, config)
    assert [next(reading).num_rows, next(reading).num_rows] == [3, 4]
    assert not there.asked
    assert next(reading, None) is None
    assert there.asked == [CountRequest("billing", START, END, "a" * 32, (PieceCount(5, 1, 7),))]


def test_what_is_not_read_to_its_end_is_not_reported(there: DataProcess, config: Config) -> None:
    reading: Any = counted(batches(3, 4), PART, config)
    next(reading)
    reading.close()
    assert len(list(counted(batches(3), BATCH, config))) == 1
    assert not there.asked
    assert len(list(counted(batches(3), PART, config))) == 1
    assert len(there.asked) == 1


@pytest.mark.parametrize(
    ("errors", "asked"),
    [
        ([LinkClosed("cut")], 2),
        ([LinkClosed("cut"), LinkClosed("cut")], 2),
        ([RemoteProtocolError("unknown operation 'count'")], 1),
        ([NotAuthorized("no")], 1),
    ],
    ids=["a cut link", "no link", "an older data process", "no right"],
)
def test_a_report_that_fails_costs_no_row(
    there: DataProcess, config: Config, errors: list[JobpipeError], asked: int, caplog: pytest.LogCaptureFixture
) -> None:
    there.errors = list(errors)
    with caplog.at_level(logging.WARNING):
        assert sum(batch.num_rows for batch in counted(batches(3, 4), PART, config)) == 7
    assert len(there.asked) == asked
    assert not caplog.records
