"""The stream reader: where it begins, how it goes on after a restart, how it ends. Publishers here need no Spark."""

from __future__ import annotations

import random
import threading
import time

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import jobpipe
from jobpipe.errors import WaitTimeout
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.testing import SCHEMA
from tests.spark.kit import PATIENCE, Place, Received, copy_checkpoint, forget_commit, run_to_end, running, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_start_before_the_publisher(spark: SparkSession, place: Place) -> None:
    """``load()`` waits for the publisher, learns the schema before the first batch, and all rows come."""
    rows, journal = place.rows("late", partitions=2, rows=5)
    come = threading.Event()

    def publish() -> None:
        time.sleep(1.0)
        with place.publisher("late", parallelism=2) as publisher:
            publisher.declare(SCHEMA)
            assert come.wait(60)
            place.seal(publisher, range(3))
            publisher.drain(60)

    thread = threading.Thread(target=publish)
    thread.start()
    stream = place.stream(spark, "late", "early bird".replace(" ", "-"))
    assert stream.schema.names == SCHEMA.names
    received = Received()
    with running(stream, received, place.checkpoint("late")) as query:
        until(lambda: query.lastProgress is not None or query.status["message"].startswith("Waiting"), "first look")
        time.sleep(0.5)  # a new name begins at latest, which is decided by now
        come.set()
        thread.join(90)
        assert not thread.is_alive(), "not drained"
    received.check(rows, journal)


def test_where_a_new_checkpoint_begins(spark: SparkSession, place: Place) -> None:
    """``earliest``, ``latest``, ``committed``; without the option a known name goes on, a new one begins at latest."""
    with place.publisher("start") as publisher:
        place.seal(publisher, range(3))

        def run(name: str, checkpoint: str, **options: str) -> list[int]:
            received = Received()
            run_to_end(place.stream(spark, "start", name, **options), received, place.checkpoint(f"start-{checkpoint}"))
            return [n for _, table in sorted(received.batches.items()) for n in table["number"].to_pylist()]

        assert run("one", "one", startingOffsets="earliest") == list(range(30))
        assert run("two", "two") == []
        assert run("three", "three", startingOffsets="latest") == []
        place.seal(publisher, [3])
        fourth = list(range(30, 40))
        assert run("one", "one", startingOffsets="earliest") == fourth  # the checkpoint wins
        assert run("two", "two-again") == fourth  # known: committed
        assert run("three", "three-again", startingOffsets="committed") == fourth
        assert run("one", "one-again", startingOffsets="earliest") == [*range(30), *fourth]
        assert run("one", "one-more") == []
        assert run("four", "four", startingOffsets="committed") == []  # new, and nothing committed: latest


def test_restarts_at_random_points(spark: SparkSession, place: Place) -> None:
    """Whatever batch a run ends in, and whether it ends by a failure or a stop, nothing is lost or doubled."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    received = Received()
    with place.publisher("restarts", parallelism=3) as publisher:
        rows, journal = place.rows("restarts", partitions=3, rows=40)
        place.seal(publisher, range(2))
        sealed = 2
        for _ in range(5):
            stream = place.stream(
                spark, "restarts", "r", startingOffsets="earliest", maxRowsPerTrigger=chance.choice([50, 130, 1000])
            )
            done = max(received.batches, default=-1)
            fails = chance.random() < 0.5
            received.fail_at = done + 1 if fails else None  # there is at least one more
            with running(stream, received, place.checkpoint("restarts")) as query:
                more = chance.randint(1, 4)
                place.seal(publisher, range(sealed, sealed + more))
                sealed += more
                if fails:
                    with pytest.raises(StreamingQueryException, match="the test wants"):
                        query.awaitTermination(int(PATIENCE))
                else:
                    at = done + chance.randint(1, 3)
                    until(
                        lambda at=at: max(received.batches, default=-1) >= at or received.rows == journal.rows, "rows"
                    )
        received.fail_at = None
        run_to_end(place.stream(spark, "restarts", "r"), received, place.checkpoint("restarts"))
        received.check(rows, journal)
        publisher.drain(5)


@pytest.mark.core
def test_a_batch_that_was_not_committed_is_read_again_as_it_was(spark: SparkSession, place: Place) -> None:
    """A replay has the same range, although more was sealed since, and although the commit only was lost."""
    checkpoint = place.checkpoint("again")
    with place.publisher("again", parallelism=2) as publisher:
        rows, journal = place.rows("again", partitions=2)
        place.seal(publisher, range(2))
        received = Received(fail_at=0)
        with (
            running(place.stream(spark, "again", "a", startingOffsets="earliest"), received, checkpoint) as query,
            pytest.raises(StreamingQueryException, match="the test wants"),
        ):
            query.awaitTermination(int(PATIENCE))
        place.seal(publisher, range(2, 4))
        run_to_end(place.stream(spark, "again", "a", startingOffsets="earliest"), received, checkpoint)
        assert received.replayed == [0]
        assert received.sizes() == [40, 40]
        forget_commit(checkpoint, 1)
        place.seal(publisher, [4])
        run_to_end(place.stream(spark, "again", "a", maxRowsPerTrigger=1), received, checkpoint)
        assert received.replayed == [0, 1]
        received.check(rows, journal)


def test_a_limit_smaller_than_a_batch(spark: SparkSession, place: Place) -> None:
    """A large batch is split between record batches, each micro-batch within the limit, restarts in its middle too."""
    checkpoint = place.checkpoint("split")
    with place.publisher("split", parallelism=2) as publisher:
        rows, journal = place.rows("split", partitions=2, rows=100)
        for batch_id in range(2):
            pieces = [piece for table in rows.tables(batch_id) for piece in table.to_batches(max_chunksize=10)]
            with journal.sealing(batch_id, rows.ranges(batch_id)):
                assert publisher.begin(BatchKey("q", batch_id, "run")) is None
                target = publisher.target()
                written = target.write(SCHEMA, [(piece, piece["partition"][0].as_py()) for piece in pieces], "0")
                publisher.commit(BatchKey("q", batch_id, "run"), target, SCHEMA, None, written)
        received = Received(fail_at=2)
        for limit in (35, 35, 45, 15):
            stream = place.stream(spark, "split", "s", startingOffsets="earliest", maxRowsPerTrigger=limit)
            before = len(received.batches)
            with running(stream, received, checkpoint) as query:
                if received.fail_at == 2:
                    with pytest.raises(StreamingQueryException):
                        query.awaitTermination(int(PATIENCE))
                else:
                    until(lambda before=before: len(received.batches) >= before + 3, "three more")
            assert received.sizes()[-1] <= limit
        assert 2 in received.replayed
        run_to_end(place.stream(spark, "split", "s", maxRowsPerTrigger=25), received, checkpoint)
        assert max(received.sizes()) <= 45
        received.check(rows, journal)
        publisher.drain(5)


def test_available_now_ends_and_acknowledges_its_last_batch(spark: SparkSession, place: Place) -> None:
    """It reads up to the head at its start, in several micro-batches, and leaves no lag behind."""
    with place.publisher("now") as publisher:
        rows, journal = place.rows("now")
        place.seal(publisher, range(6))
        received = Received()

        def callback(df: object, batch_id: int) -> None:
            received(df, batch_id)  # type: ignore[arg-type]
            if batch_id == 0:
                place.seal(publisher, [6])  # comes too late for this run

        stream = place.stream(spark, "now", "n", startingOffsets="earliest", maxRowsPerTrigger=20)
        run_to_end(stream, callback, place.checkpoint("now"))
        assert received.sizes() == [20, 20, 20]
        (line,) = publisher.status()["subscriptions"]
        assert (line["position"], line["lag"]["batches"]) == (6, 1)
        run_to_end(stream, received, place.checkpoint("now"))
        received.check(rows, journal)
        publisher.drain(0.1)


def test_a_checkpoint_from_a_backup_goes_on_from_there(spark: SparkSession, place: Place) -> None:
    """An older copy asks for batches that were acknowledged; while they are kept, they come again."""
    with place.publisher("backup") as publisher:
        rows, journal = place.rows("backup")
        place.seal(publisher, range(2))
        received = Received()
        stream = place.stream(spark, "backup", "b", startingOffsets="earliest")
        run_to_end(stream, received, place.checkpoint("backup"))
        copy = copy_checkpoint(place.checkpoint("backup"), place.checkpoint("backup-copy"))
        for batch_id in (2, 3):
            place.seal(publisher, [batch_id])
            run_to_end(stream, received, place.checkpoint("backup"))
        again = Received()
        again.batches[0] = received.batches[0]
        run_to_end(stream, again, copy)
        again.check(rows, journal)


def test_await_end(spark: SparkSession, place: Place) -> None:
    """It stops a query behind the end marks of all its topics, all rows acknowledged, and not before."""
    received = Received()
    with place.publisher("end-a") as one, place.publisher("end-b", parallelism=2) as two:
        place.seal(one, range(2))
        place.seal(two, range(1), partitions=2)
        stream = place.stream(spark, "end-a, end-b", "both", startingOffsets="earliest", includeMetadata=True)
        with running(stream, received, place.checkpoint("end")) as query:
            one.close(final=True)
            until(lambda: received.rows == 40, "the rows of both")
            with pytest.raises(WaitTimeout, match="not at the end of its topics"):
                jobpipe.await_end(query, timeout=1.0)
            assert query.isActive
            place.seal(two, range(1, 3))
            two.close(final=True)
            jobpipe.await_end(query, timeout=60)
            assert not query.isActive
            assert query.exception() is None
    by_topic = {topic: Received() for topic in ("end-a", "end-b")}
    for batch_id, table in received.batches.items():
        topics = [value["topic"] for value in table["_jobpipe"].to_pylist()]
        for topic, part in by_topic.items():
            part.batches[batch_id] = table.filter(pa.array([name == topic for name in topics], pa.bool_()))
    for topic, part in by_topic.items():
        part.check(*place.rows(topic))
    assert by_topic["end-a"].rows == 20


def test_await_end_tells_the_querys_own_failure(spark: SparkSession, place: Place) -> None:
    """A query that fails while it is awaited raises its own error."""
    with place.publisher("fails") as publisher:
        place.seal(publisher, [0])
        publisher.close(final=True)
        stream = place.stream(spark, "fails", "f", startingOffsets="earliest")
        with (
            running(stream, Received(fail_at=0), place.checkpoint("fails")) as query,
            pytest.raises(StreamingQueryException, match="the test wants"),
        ):
            jobpipe.await_end(query, timeout=60)


def test_empty_batches(spark: SparkSession, place: Place) -> None:
    """Batches without rows, and a topic without any, neither stop a query nor its end."""
    empty = SCHEMA.empty_table()
    with place.publisher("empty") as publisher:
        rows, journal = place.rows("empty")
        place.seal(publisher, [0])
        for batch_id in (1, 2):
            publisher.seal("q", batch_id, [empty])
        received = Received()
        stream = place.stream(spark, "empty", "e", startingOffsets="earliest", maxRowsPerTrigger=10)
        with running(stream, received, place.checkpoint("empty")) as query:
            until(lambda: received.rows == 10, "the first rows")
            publisher.seal("q", 3, [empty])
            place.seal(publisher, [4])
            until(lambda: received.rows == 20, "the rows behind the empty batches")
            publisher.close(final=True)
            jobpipe.await_end(query, timeout=60)
        received.check(rows, journal)
