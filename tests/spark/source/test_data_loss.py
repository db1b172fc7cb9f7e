"""A position that does not fit the log ends the query in words; it is neither waited for nor skipped."""

from __future__ import annotations

import shutil
import time

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.kit import Place, Received, forget_log, run_to_end, running, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def _wipe(place: Place, topic: str) -> None:
    shutil.rmtree(place.folder / "spool" / topic)


@pytest.mark.parametrize("batches", [1, 3, 5], ids=["fewer batches", "as many", "more"])
def test_a_topic_wiped_and_made_again_while_the_subscriber_was_away(
    spark: SparkSession, place: Place, batches: int
) -> None:
    """The new log has another id, whatever it holds."""
    topic, checkpoint = f"wiped-{batches}", place.checkpoint(f"wiped-{batches}")
    with place.publisher(topic) as publisher:
        place.seal(publisher, range(3))
        run_to_end(place.stream(spark, topic, "w", startingOffsets="earliest"), Received(), checkpoint)
    _wipe(place, topic)
    with place.publisher(topic) as publisher:
        place.seal(publisher, range(batches))
        received = Received()
        with running(place.stream(spark, topic, "w"), received, checkpoint) as query:
            with pytest.raises(StreamingQueryException, match="DataLoss") as caught:
                query.awaitTermination(60)
            text = str(caught.value)
        assert f"topic '{topic}'" in text
        assert received.rows == 0
        # A new checkpoint is a new beginning.
        again = place.checkpoint(f"{topic}-again")
        run_to_end(place.stream(spark, topic, "w2", startingOffsets="earliest"), received, again)
        assert received.rows == 10 * batches


def test_batches_that_retention_removed(spark: SparkSession, place: Place) -> None:
    """An older copy of a checkpoint asks for what was acknowledged and removed: the missing range is named."""
    settings = {"jobpipe.retention.time": "0s", "jobpipe.retention.ack_grace": "0s"}
    checkpoint = place.checkpoint("gone")
    with place.publisher("gone", required_subscribers=["g"], **settings) as publisher:
        place.seal(publisher, range(3))
        stream = place.stream(spark, "gone", "g", startingOffsets="earliest", maxRowsPerTrigger=10)
        run_to_end(stream, Received(), checkpoint)
        for number in (1, 2):  # the checkpoint as it was after its first batch
            for folder in ("commits", "offsets"):
                forget_log(checkpoint, folder, number)
        place.seal(publisher, [3])
        until(lambda: publisher.status()["tail"] == 3, "retention")
        with (
            running(stream, Received(), checkpoint) as query,
            pytest.raises(StreamingQueryException, match="DataLoss: topic 'gone'") as caught,
        ):
            query.awaitTermination(60)
        assert "batches 1 to 2 are missing" in str(caught.value)


def test_a_loss_is_passed_over_and_counted_when_asked(spark: SparkSession, place: Place) -> None:
    """failOnDataLoss=false: what is left is read once, and the query's progress counts the loss (case 54)."""
    settings = {"jobpipe.retention.time": "0s", "jobpipe.retention.ack_grace": "0s"}
    checkpoint = place.checkpoint("passed")
    with place.publisher("passed", required_subscribers=["p"], **settings) as publisher:
        place.seal(publisher, range(3))
        options = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
        run_to_end(place.stream(spark, "passed", "p", maxRowsPerTrigger=10, **options), Received(), checkpoint)
        for number in (1, 2):
            for folder in ("commits", "offsets"):
                forget_log(checkpoint, folder, number)
        place.seal(publisher, [3])
        until(lambda: publisher.status()["tail"] == 3, "retention")
        received = Received()
        with running(place.stream(spark, "passed", "p", **options), received, checkpoint) as query:
            until(lambda: received.rows == 10, "the rows that are left")
            until(lambda: '"losses": 1' in str(query.lastProgress), "the count of losses")
            assert query.exception() is None


def test_a_wiped_topic_is_read_from_its_beginning_when_asked(spark: SparkSession, place: Place) -> None:
    """failOnDataLoss=false over another log: its rows are read once, none of the old ones again (case 55)."""
    checkpoint = place.checkpoint("remade")
    options = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    with place.publisher("remade") as publisher:
        place.seal(publisher, range(3))
        run_to_end(place.stream(spark, "remade", "r", **options), Received(), checkpoint)
    _wipe(place, "remade")
    with place.publisher("remade") as publisher:
        place.seal(publisher, range(5, 7))
        received = Received()
        run_to_end(place.stream(spark, "remade", "r", **options), received, checkpoint)
        assert received.rows == 20


def test_a_range_by_time_whose_rows_retention_removed(spark: SparkSession, place: Place) -> None:
    """It does not begin at what is left, as a stream does that starts at such a time."""
    settings = {"jobpipe.retention.time": "0s", "jobpipe.retention.ack_grace": "0s"}
    begin = int(time.time() * 1000)
    with place.publisher("ranges", required_subscribers=["p"], **settings) as publisher:
        place.seal(publisher, range(3))
        sealed = time.time()
        until(lambda: time.time() > sealed + 0.005, "another millisecond")
        bounds = {"boundaryType": "TIME", "lowerBound": begin, "upperBound": int(time.time() * 1000)}
        whole = place.stream(spark, "ranges", "p", startingOffsets="earliest")
        run_to_end(whole, Received(), place.checkpoint("ranges"))
        place.seal(publisher, [3])
        until(lambda: publisher.status()["tail"] == 3, "retention")
        with pytest.raises(AnalysisException, match="was removed, and the range begins at"):
            place.read(spark, "ranges", **bounds).count()
        later = {**bounds, "lowerBound": bounds["upperBound"], "upperBound": int(time.time() * 1000)}
        assert place.read(spark, "ranges", **later).count() == 10
        assert place.read(spark, "ranges", failOnDataLoss="false", **bounds).count() == 0
