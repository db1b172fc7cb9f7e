"""Replays by Spark: what was sealed once is never published again."""

from __future__ import annotations

import pytest

from jobpipe.errors import CheckpointTooOld, DuplicateCall, SegmentCorrupt
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.testing import Checker, NumberedRows
from tests.bus.kit import PATIENCE, Bus, publish, read, until
from tests.docs.troubleshooting import on_page

AT_ONCE = {"retention.time": "0s", "retention.bytes": "0", "retention.ack_grace": "0s"}


@pytest.mark.slow
def test_replay_by_a_new_run_publishes_nothing(bus: Bus) -> None:
    """Case 45: a crash after the sink returned, before Spark's commit."""
    rows = NumberedRows(bus.topic, partitions=2)
    publisher = bus.publisher(parallelism=2)
    (*_, last) = publish(publisher, rows, bus.journal, range(3))
    again = publisher.seal("q", 2, rows.tables(2), run_id="r2")
    assert (again.replayed, again.rows, again.position.n) == (True, 0, last.position.n)
    publish(publisher, rows, bus.journal, [3])
    publisher.close(final=True)
    assert Checker(rows, bus.journal).take_all(bus.subscribe("all").batches(timeout=30)).check().rows == 4 * 20


@pytest.mark.slow
def test_replay_with_other_rows_and_partitions(bus: Bus) -> None:
    """Case 46: a batch is told by its id, not by its rows; the first version wins."""
    rows = NumberedRows(bus.topic, partitions=3)
    publisher = bus.publisher(parallelism=3)
    publish(publisher, rows, bus.journal, [0])
    other = NumberedRows(bus.topic, partitions=1, rows=77)
    assert publisher.seal("q", 0, other.tables(5), run_id="r2").replayed
    publisher.close(final=True)
    assert Checker(rows, bus.journal).take_all(bus.subscribe("all").batches(timeout=30)).check().rows == 30


@pytest.mark.slow
def test_replay_after_retention_removed_the_batch(bus: Bus) -> None:
    """The row that remembers it is permanent; the batch itself need not be there."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher(AT_ONCE)
    checker, client = Checker(rows, bus.journal), bus.subscribe("all")
    client.position()
    publish(publisher, rows, bus.journal, range(2))
    read(client, checker, 20)
    until(lambda: publisher.status()["batches"] == 0, PATIENCE, lambda: str(publisher.status()))
    assert publisher.status()["tail"] == publisher.status()["head"] == 2
    assert publisher.seal("q", 1, rows.tables(1), run_id="r2").replayed
    publish(publisher, rows, bus.journal, [2])
    publisher.close(final=True)
    checker.take_all(client.batches(timeout=30))
    assert checker.check().rows == 30


def test_replay_by_the_next_publisher(bus: Bus) -> None:
    """The job restarts: new epoch, the same memory of what was sealed."""
    rows = NumberedRows(bus.topic)
    first = bus.publisher()
    publish(first, rows, bus.journal, range(2))
    first.close()
    second = bus.publisher()
    assert second.epoch > first.epoch
    assert second.log_id == first.log_id
    assert second.seal("q", 1, rows.tables(1), run_id="r2").replayed
    publish(second, rows, bus.journal, [2])
    second.close(final=True)
    assert Checker(rows, bus.journal).take_all(bus.subscribe("all").batches(timeout=30)).check().rows == 30


def test_older_checkpoint_is_refused(bus: Bus) -> None:
    """A copy of an old checkpoint replays a batch below the last one: loud, and nothing is published."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(4))
    with pytest.raises(CheckpointTooOld, match="old copy") as caught:
        publisher.seal("q", 2, rows.tables(2), run_id="r2")
    on_page(caught.value, "CheckpointTooOld: topic")
    assert {key: caught.value.fields[key] for key in ("topic", "query_id", "batch_id", "last_batch_id")} == {
        "topic": bus.topic,
        "query_id": "q",
        "batch_id": 2,
        "last_batch_id": 3,
    }
    assert publisher.status()["head"] == 4


def test_two_calls_in_one_run_are_an_error(bus: Bus) -> None:
    """Two calls of the sink in one callback are a mistake, not a replay: rows of the second would vanish."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, [0])
    with pytest.raises(DuplicateCall, match="once in each foreachBatch") as caught:
        publisher.seal("q", 0, rows.tables(1), run_id="r1")
    on_page(caught.value, "DuplicateCall: topic")
    assert publisher.status()["head"] == 1


def test_new_query_appends(bus: Bus) -> None:
    """Case 49: a deleted checkpoint is a new query; its batch 0 is new, whatever the old query sealed."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(3))
    bus.journal.intend(3, rows.ranges(3))
    sealed = publisher.seal("another query", 0, rows.tables(3), run_id="r9")
    bus.journal.seal(3)
    assert (sealed.replayed, sealed.position.n) == (False, 4)
    publisher.close(final=True)
    assert Checker(rows, bus.journal).take_all(bus.subscribe("all").batches(timeout=30)).check().rows == 40


def test_lost_answer_of_a_seal_is_asked_again(bus: Bus) -> None:
    """Case 17: the same call twice, since its answer was lost, is neither a duplicate nor an error."""
    rows = NumberedRows(bus.topic, rows=2000, payload=100)
    publisher = bus.publisher()
    assert publisher.begin(BatchKey("q", 0, "r1")) is None
    target = publisher.target()
    (table,) = rows.tables(0)
    segments = target.write(table.schema, ((batch, 0) for batch in table.to_batches()), "0")
    with bus.journal.sealing(0, rows.ranges(0)):
        first = publisher.commit(BatchKey("q", 0, "r1"), target, table.schema, None, segments)
    second = publisher.commit(BatchKey("q", 0, "r1"), target, table.schema, None, segments)
    assert first.position == second.position
    publisher.close(final=True)
    assert Checker(rows, bus.journal).take_all(bus.subscribe("all").batches(timeout=30)).check().rows == 2000


def test_files_of_a_lost_attempt_are_refused(bus: Bus) -> None:
    """Case 47: a batch whose files are not there, or too short, is never sealed."""
    rows = NumberedRows(bus.topic, rows=2000, payload=100)
    publisher = bus.publisher()
    publisher.begin(BatchKey("q", 0, "r1"))
    target = publisher.target()
    (table,) = rows.tables(0)
    segments = target.write(table.schema, ((batch, 0) for batch in table.to_batches()), "0")
    (file,) = (publisher.config.spool_dir / bus.topic / "segments").iterdir()
    file.rename(file.with_suffix(".away"))
    with pytest.raises(SegmentCorrupt):
        publisher.commit(BatchKey("q", 0, "r1"), target, table.schema, None, segments)
    assert publisher.status()["head"] == 0
    file.with_suffix(".away").rename(file)
    with bus.journal.sealing(0, rows.ranges(0)):
        publisher.commit(BatchKey("q", 0, "r1"), target, table.schema, None, segments)
    publisher.close(final=True)
    assert Checker(rows, bus.journal).take_all(bus.subscribe("all").batches(timeout=30)).check().rows == 2000
