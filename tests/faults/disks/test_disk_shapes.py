"""Batches of odd shapes, through files and processes: no rows, a row larger than a segment, another schema midway."""

from __future__ import annotations

import pyarrow as pa
import pytest

from jobpipe.errors import JobpipeError
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing import NumberedRows
from tests.bus.kit import Bus, coordinator_of, publish

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]

CHANGES = {"segment.max_bytes": "64KiB"}


def received(bus: Bus, rows: int) -> list[pa.RecordBatch]:
    """Read so many rows with a fresh name."""
    found: list[pa.RecordBatch] = []
    for batch in bus.subscribe(f"s{rows}").batches(timeout=30.0):
        found.append(batch)
        if sum(one.num_rows for one in found) >= rows:
            break
    return found


@pytest.mark.core
def test_empty_batches(bus: Bus) -> None:
    """Case 60: they take no offset, are not repeated by a replay, and one empty partition of two is no matter."""
    rows = NumberedRows(bus.topic, partitions=2)
    publisher = bus.publisher(parallelism=2)
    empty = [rows.table(0, 0, 0), rows.table(1, 0, 0)]
    assert publisher.seal("q", 0, empty, run_id="r1").rows == 0
    publish(publisher, rows, bus.journal, [1])
    publisher.seal("q", 2, empty, run_id="r1")
    assert publisher.seal("q", 2, empty, run_id="r2").replayed
    with bus.journal.sealing(3, {0: rows.ranges(3)[0]}):
        publisher.seal("q", 3, [rows.tables(3)[0], empty[1]], run_id="r2")
    reader = bus.reader("all", rows)
    publisher.close(final=True)
    assert publisher.epoch > 0
    reader.join()
    assert reader.checker.check().rows == 30


@pytest.mark.core
def test_huge_row(bus: Bus) -> None:
    """Case 60: 8 MB in one row, with segments of 64 KiB, frames of 256 KiB and small rows on both sides of it."""
    publisher = bus.publisher(CHANGES)
    texts = ["small", "x" * 8_000_000, "", None, "y" * 300_000, "small"]
    publisher.seal("q", 0, [pa.table({"text": pa.array(texts, pa.string())})], run_id="r1")
    found = received(bus, len(texts))
    assert [text for batch in found for text in batch.column("text").to_pylist()] == texts


def test_row_beyond_the_cap(bus: Bus) -> None:
    """Case 60: an error of the publisher that names the cap; nothing is visible, and smaller batches go on."""
    publisher = bus.publisher({"spool.max_bytes": "1MB", **CHANGES})
    coordinator = coordinator_of(publisher)
    with pytest.raises(JobpipeError, match=r"spool\.max_bytes=1000000"):
        publisher.seal("q", 0, [pa.table({"text": ["x" * 2_000_000]})], run_id="r1")
    assert publisher.status()["head"] == 0
    publisher.seal("q", 0, [pa.table({"text": ["x"]})], run_id="r1")
    assert received(bus, 1)[0].column("text").to_pylist() == ["x"]
    assert coordinator_of(publisher) == coordinator


def test_schema_changes(bus: Bus) -> None:
    """Case 60: each batch has the schema it was sealed with, in order, and so has a replay by the next publisher."""
    tables = [
        pa.table({"id": pa.array([1, 2], pa.int32())}),
        pa.table({"id": pa.array([3], pa.int64()), "text": ["a"]}),
        pa.table({"id": pa.array([4], pa.int64()), "list": [[1, None]], "struct": [{"x": 1.5}]}),
        pa.table({"id": pa.array([5], pa.int32())}),
    ]
    publisher = bus.publisher()
    for batch_id, table in enumerate(tables[:3]):
        publisher.seal("q", batch_id, [table], run_id="r1")
    publisher.close()
    again: Publisher = bus.publisher()
    assert again.seal("q", 2, [tables[3]], run_id="r2").replayed
    again.seal("q", 3, [tables[3]], run_id="r2")
    found = received(bus, 5)
    assert [pa.Table.from_batches([batch]).to_pydict() for batch in found] == [table.to_pydict() for table in tables]
    assert [batch.schema.field("id").type for batch in found] == [pa.int32(), pa.int64(), pa.int64(), pa.int32()]
