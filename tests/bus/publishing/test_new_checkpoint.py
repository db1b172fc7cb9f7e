"""U2: a query that is new to a topic with batches: its checkpoint may have been deleted."""

from __future__ import annotations

import logging
import uuid

import pyarrow as pa
import pytest

import jobpipe
from jobpipe.admin import Admin
from jobpipe.errors import NewCheckpoint
from jobpipe.operations.publisher_operations import NewestQuery
from jobpipe.testing import NumberedRows
from tests.bus.kit import Bus
from tests.docs.troubleshooting import on_page

FIRST, SECOND = (str(uuid.UUID(int=number)) for number in (1, 2))  # as Spark's queries have them


@pytest.mark.slow
def test_a_new_query_is_told_with_both_ids(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """U2: once, by the publisher's log; and the topic tells which query published last."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    with caplog.at_level(logging.WARNING, "jobpipe.publishing"):
        for batch_id in range(2):
            publisher.seal(FIRST, batch_id, rows.tables(batch_id))
        assert not caplog.records
        for batch_id in range(2):
            publisher.seal(SECOND, batch_id, rows.tables(2 + batch_id))
        assert publisher.seal(FIRST, 2, rows.tables(4)).position.n == 5  # known
    (record,) = caplog.records
    on_page(record.getMessage(), "topic '…': query …")
    assert record.getMessage() == (
        f"topic {bus.topic!r}: query {SECOND} publishes here for the first time, after query {FIRST}, whose "
        "last batch is 1 (up to offset 2). If it is the same job with a new or deleted checkpoint, it publishes the "
        "rows of its source again. on_new_checkpoint='refuse' forbids that"
    )
    with Admin(bus.config()) as admin:
        assert admin.status(bus.topic).last_query == NewestQuery(FIRST, 2, 5)


def test_a_new_query_is_refused_when_asked(bus: Bus) -> None:
    """U2: before anything is published; the query of the old checkpoint goes on."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher(on_new_checkpoint="refuse")
    publisher.seal(FIRST, 7, rows.tables(0))
    with pytest.raises(NewCheckpoint, match=f"query {SECOND} .* after query {FIRST}") as caught:
        publisher.seal(SECOND, 0, rows.tables(1))
    on_page(caught.value, "NewCheckpoint: topic")
    assert caught.value.fields == {
        "topic": bus.topic,
        "query_id": SECOND,
        "before": FIRST,
        "batch_id": 7,
        "offset": 1,
    }
    assert publisher.seal(FIRST, 8, rows.tables(1)).position.n == 2
    publisher.close()
    later = bus.publisher(on_new_checkpoint="refuse")
    with pytest.raises(NewCheckpoint):
        later.seal(SECOND, 0, rows.tables(2))


def test_what_has_no_checkpoint_is_not_told(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """U2: a batch that was appended outside of a query, and the first query of an empty topic."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    with caplog.at_level(logging.WARNING, "jobpipe.publishing"):
        publisher.seal("empty", 0, [rows.table(0, 0, 0)])  # without rows: no offset
        publisher.seal("query", 0, rows.tables(0))
        publisher.seal("batch-1234", 0, rows.tables(1))
    assert not caplog.records


def test_a_plain_publisher_is_no_query(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """By its name, and without advice that holds for checkpoints."""
    table = pa.table({"a": [1]})
    with caplog.at_level(logging.WARNING, "jobpipe.publishing.first_publish_check"):
        for name in ("till-7", None, "till-8"):
            with jobpipe.publisher(bus.topic, name=name, config=bus.config()) as publisher:
                publisher.write(table, batch_id=None if name is None else 0)
    (record,) = [record for record in caplog.records if record.name == "jobpipe.publishing.first_publish_check"]
    assert record.getMessage() == (
        f"topic {bus.topic!r}: publisher till-8 publishes here for the first time, after an unnamed publisher, whose "
        "last batch is 1 (up to offset 2). Batch ids belong to a name: if it is the same program under another name, "
        "what it writes again is published again"
    )
