"""Rows of real topics, read as the control server does: where they begin, what bounds them, what they leave behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.control.rows import row_walk
from jobpipe.control.rows.rows_query import PAGE_BOUNDS, Ended, RowPlace, RowsQuery
from jobpipe.control.rows.topic_rows import MOST_READS, TopicRows
from jobpipe.errors import ConfigError, TopicAway, TopicNotFound, WaitTimeout
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.subscribing.python_client import subscribe
from jobpipe.subscribing.topic_reader import TopicReader
from tests.control.rows.rows_kit import RowsTopic, values

pytestmark = pytest.mark.zookeeper

DEADLINE = 30.0
AT_ONCE = {f"jobpipe.retention.{key}": "0" for key in ("time", "bytes", "ack_grace")}


def walked(orders: RowsTopic, place: RowPlace | None, step: str, **more: Any) -> list[int]:
    """Return all rows from a place on, or before it, page by page."""
    found = []
    for _ in range(1000):
        if place is None:
            return found
        page = orders.read(str(place), **more)
        rows = values(page)
        found = rows + found if step == "older" else found + rows
        place = getattr(page, step)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("is_large", [False, True], ids=["small batches", "large batches"])
@pytest.mark.parametrize("limit", [6, 500])
def test_page_by_page_every_row_comes_once(
    orders: RowsTopic, monkeypatch: pytest.MonkeyPatch, is_large: bool, limit: int
) -> None:
    """In both directions, whatever the batches are like: some without rows, some with several record batches."""
    if is_large:
        monkeypatch.setattr(row_walk, "SMALL_ROWS", 0)
        monkeypatch.setattr(row_walk, "GROUP", 2)
    else:
        monkeypatch.setattr(row_walk, "SMALL_ROWS", 12)
    with monkeypatch.context() as patch:
        patch.setattr("jobpipe.store.spool.partition_writer.MAX_RECORD_BATCH_ROWS", 3)
        orders.publish((2, 1), (0, 0), (10, 0), (0, 4), (1, 8))
    every = list(range(26))
    assert walked(orders, RowPlace.of("earliest"), "newer", limit=limit) == every
    assert walked(orders, RowPlace.of("newest"), "older", limit=limit) == every
    assert walked(orders, RowPlace.of("earliest"), "newer", limit=limit, where="n % 3 = 0") == every[::3]
    assert walked(orders, RowPlace.of("newest"), "older", limit=limit, where="n % 3 = 0") == every[::3]
    page = orders.read("1", limit=5)
    assert values(page) == [3, 4, 5, 6, 7]
    assert [(place.offset, place.partition, place.number) for place in page.places] == [(1, 0, n) for n in range(5)]
    assert page.older is not None
    assert page.newer is not None
    assert values(orders.read(str(page.older), limit=5)) == [0, 1, 2]
    assert values(orders.read(str(page.newer), limit=6)) == [8, 9, 10, 11, 12, 13]


def test_of_a_large_batch_only_what_is_wanted_is_fetched(orders: RowsTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the record batch on at which a page begins, or ends."""
    monkeypatch.setattr(row_walk, "SMALL_ROWS", 0)
    monkeypatch.setattr(row_walk, "GROUP", 2)
    with monkeypatch.context() as patch:
        patch.setattr("jobpipe.store.spool.partition_writer.MAX_RECORD_BATCH_ROWS", 3)
        orders.publish((30, 3))
    fetched = []
    fetch = TopicReader.fetch_partition

    def fetch_partition(reader: TopicReader, plan: Any, data: str, partition: int, skip: int) -> Any:
        fetched.append((partition, skip))
        return fetch(reader, plan, data, partition, skip)

    monkeypatch.setattr(TopicReader, "fetch_partition", fetch_partition)
    assert values(orders.read("0-0-7-1", limit=2)) == [22, 23]
    assert fetched == [(0, 7)]
    fetched.clear()
    assert values(orders.read("before 0-0-7-1", limit=2)) == [20, 21]
    assert fetched == [(0, 0), (0, 6)]  # the first is asked how many there are


def test_newest_rows_are_the_last_ones(orders: RowsTopic) -> None:
    """With where they are, and what there is besides."""
    orders.publish((3, 1), (3, 1))
    page = orders.read(limit=3)
    assert values(page) == [5, 6, 7]
    assert [(place.offset, place.partition, place.number) for place in page.places] == [(1, 0, 1), (1, 0, 2), (1, 1, 0)]
    assert (page.ended, page.looked_rows, page.first, page.last, page.there) == (Ended.LIMIT, 3, 1, 1, 8)
    assert page.newer is None
    assert values(orders.read(str(page.older))) == [0, 1, 2, 3, 4]
    whole = orders.read(limit=8)
    assert (values(whole), whole.ended) == (list(range(8)), Ended.LIMIT)
    assert orders.read(limit=9).ended is Ended.ALL
    assert orders.read(limit=9).older is None


def test_rows_from_a_time_on(orders: RowsTopic) -> None:
    """The first batch that was published then or later; later than all there is an error that says so."""
    orders.publish((2, 0), (2, 0))
    published = [place.published for place in orders.read().places]
    at = datetime.fromtimestamp(published[-1], UTC).isoformat()
    expected = [n for n, when in zip(range(4), published, strict=True) if when >= published[-1]]
    assert values(orders.read(at)) == expected
    assert values(orders.read("1973-01-01T00:00:00Z")) == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="nothing was published at 2096"):
        orders.read("2096-10-02T07:06:40Z")


def test_a_topic_without_rows_and_one_that_ended(orders: RowsTopic) -> None:
    """Nothing follows: both are read to their ends at once."""
    orders.publisher.declare(pa.schema({"n": pa.int64()}))
    for place in ("newest", "earliest"):
        page = orders.read(place)
        assert (values(page), page.ended, page.older, page.newer) == ([], Ended.ALL, None, None)
    assert orders.read("7").notes == ("offset 7 is not there yet; nothing was published so far",)
    orders.publish((2, 0))
    assert values(orders.read()) == [0, 1]
    assert orders.read("7").notes == ("offset 7 is not there yet; the newest one is 0",)
    orders.publisher.close(final=True)
    assert values(orders.read("earliest")) == [0, 1]
    assert orders.read("earliest").ended is Ended.ALL


def test_a_topic_that_nobody_serves(orders: RowsTopic) -> None:
    """What is known of it is said, at once; nothing is started."""
    orders.publish((2, 0))
    assert values(orders.read()) == [0, 1]
    with pytest.raises(TopicNotFound, match="nobody has ever published it"):
        orders.reads().read(RowsQuery(topic="nosuch", place=RowPlace.of("newest")))
    with pytest.raises(ConfigError):
        orders.reads().read(RowsQuery(topic="../x", place=RowPlace.of("newest")))


@pytest.mark.slow
def test_a_topic_whose_publisher_is_gone(orders: RowsTopic) -> None:
    orders.publish((2, 0))
    orders.publisher.close()
    end_coordinators()
    deadline = time.monotonic() + DEADLINE
    while any(line.name == orders.topic and line.location for line in orders.admin.topics()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(TopicAway, match="jobpipe topics serve"):
        orders.read()
    assert not any(line.name == orders.topic and line.location for line in orders.admin.topics())


@pytest.mark.slow
def test_rows_that_retention_has_removed(open_topic: Callable[..., RowsTopic]) -> None:
    """It is said from which offset on there are rows, and they are shown."""
    orders = open_topic(**AT_ONCE)
    with subscribe(orders.topic, name="billing", starting="earliest", config=orders.config) as billing:
        billing.position()  # so that it stands somewhere
        orders.publish((2, 0), (2, 0), (2, 0), (2, 0))
        for batch in billing.batches(timeout=DEADLINE):  # what comes before the third one is acknowledged
            if batch.column("n")[-1].as_py() == 5:
                break
    deadline = time.monotonic() + DEADLINE
    while orders.publisher.status()["tail"] != 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    page = orders.read("0", limit=3)
    assert values(page) == [4, 5, 6]
    assert page.notes == ("offset 0 was removed; the topic has rows from offset 2 on",)
    assert page.older is None
    back = orders.read("before 1")
    assert (values(back), back.notes) == ([], ("offset 1 was removed; the topic has rows from offset 2 on",))
    assert back.newer is not None
    assert values(orders.read(str(back.newer))) == [4, 5, 6, 7]


def test_bounds_end_a_search(orders: RowsTopic) -> None:
    """It says why, and where to go on; a condition that holds for nothing does not look at everything."""
    orders.publish(*[(10, 0)] * 10)
    rows = replace(PAGE_BOUNDS, rows=25)
    page = orders.read("earliest", where="n = 1000", bounds=rows)
    assert (values(page), page.ended, page.looked_rows, page.first, page.last) == ([], Ended.ROWS, 25, 0, 2)
    assert str(page.newer) == "2-0-0-5"
    back = orders.read(where="n = 1000", bounds=rows)
    assert (back.ended, back.looked_rows, back.first, back.last) == (Ended.ROWS, 25, 7, 9)
    assert walked(orders, back.older, "older", where="n < 75", bounds=rows) == list(range(75))
    assert orders.read("earliest", bounds=replace(PAGE_BOUNDS, bytes=1)).ended is Ended.BYTES
    assert orders.read("earliest", bounds=replace(PAGE_BOUNDS, kept_bytes=1)).ended is Ended.BYTES
    late = orders.read("earliest", bounds=replace(PAGE_BOUNDS, seconds=0.0))
    assert (late.ended, values(late)) == (Ended.TIME, list(range(10)))
    assert orders.read("earliest", limit=100).looked_rows == 100


def test_a_page_has_rows_of_one_schema(orders: RowsTopic) -> None:
    orders.publish((2, 0))
    orders.publish((2, 0), text=str)
    page = orders.read("earliest")
    assert (values(page), page.ended) == ([0, 1], Ended.SCHEMA)
    assert values(orders.read(str(page.newer))) == [2, 3]
    back = orders.read(where="text = '3'")
    assert (values(back), back.ended) == ([3], Ended.SCHEMA)
    assert values(orders.read(str(back.older))) == [0, 1]


def test_masked_columns_are_nowhere(orders: RowsTopic) -> None:
    """Neither in the rows nor in what a condition can ask; the same condition holds where nothing is masked."""
    orders.publish((3, 0), card=lambda n: f"card-{n}", buyer=lambda n: {"name": f"b{n}", "iban": f"DE{n}"})
    masked = ("CARD", f"{orders.topic}.buyer.iban")
    for where in ("card = 'card-1'", "buyer ->> '$.iban' = 'DE1'"):
        assert values(orders.read(where=where)) == [1]
    with pytest.raises(ConfigError, match=r"no such column: card. Columns: n, buyer"):
        orders.read(where="card = 'card-1'", masked=masked)
    assert values(orders.read(where="buyer ->> '$.iban' = 'DE1'", masked=masked)) == []
    page = orders.read(masked=masked)
    assert page.schema is not None
    assert page.schema.names == ["n", "buyer"]
    assert values(page, "buyer") == [{"name": f"b{n}"} for n in range(3)]
    assert page.masked == ("card", "buyer.iban")


def test_nothing_is_left_in_the_topic(orders: RowsTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease keeps rows while they are read; then, also after an error, there is neither lease nor subscription."""
    orders.publish((10, 0))
    seen = []

    class Broken(Exception):
        pass

    def look(*_: Any) -> None:
        seen.append(orders.admin.status(orders.topic).lease_count)
        raise Broken

    assert values(orders.read()) == list(range(10))
    monkeypatch.setattr("jobpipe.control.rows.topic_rows._Search._note", look)
    with suppress(Broken):
        orders.read()
    assert seen == [1]
    status = orders.admin.status(orders.topic)
    assert (status.lease_count, len(status.subscriptions)) == (0, 0)


def test_others_wait_or_are_refused(orders: RowsTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two read at a time; once they are done, another one may."""
    monkeypatch.setattr("jobpipe.control.rows.topic_rows.WAIT_SECONDS", 0.01)
    orders.publish((1, 0))
    begun, goes_on = threading.Semaphore(0), threading.Event()

    def locate(topic: str) -> None:
        begun.release()
        assert goes_on.wait(DEADLINE)

    rows = TopicRows(orders.config, locate)
    query = RowsQuery(topic=orders.topic, place=RowPlace.of("newest"))
    readers = [threading.Thread(target=rows.read, args=(query,)) for _ in range(MOST_READS)]
    for reader in readers:
        reader.start()
    try:
        for _ in readers:
            assert begun.acquire(timeout=DEADLINE)
        with pytest.raises(WaitTimeout, match="2 others read rows"):
            rows.read(query)
    finally:
        goes_on.set()
        for reader in readers:
            reader.join(DEADLINE)
    assert values(rows.read(query)) == [0]
    for _ in range(MOST_READS + 1):  # one that fails gives its place back as well
        with pytest.raises(ConfigError):
            rows.read(replace(query, where="nosuch = 1"))
    assert values(rows.read(query)) == [0]


@pytest.mark.parametrize("is_large", [False, True], ids=["small batches", "large batches"])
def test_a_place_where_no_row_is(orders: RowsTopic, monkeypatch: pytest.MonkeyPatch, is_large: bool) -> None:
    """Someone typed it: what comes after it is shown, and what comes before."""
    if is_large:
        monkeypatch.setattr(row_walk, "SMALL_ROWS", 0)
    orders.publish((3, 2), (1, 1))
    for place, count in (("0-5-0-0", 5), ("0-0-999999999999-5", 3), ("0-0-0-999999999999", 3), ("1-1-7-0", 7)):
        assert values(orders.read(place)) == list(range(count, 7))
        assert values(orders.read(f"before {place}")) == list(range(count))
