"""A position that does not fit the log ends the query in words; it is neither waited for nor skipped."""

from __future__ import annotations

import shutil

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.kit import Place, Received, run_to_end, running, until

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
                (checkpoint / folder / str(number)).unlink()
        place.seal(publisher, [3])
        until(lambda: publisher.status()["tail"] == 3, "retention")
        with (
            running(stream, Received(), checkpoint) as query,
            pytest.raises(StreamingQueryException, match="DataLoss: topic 'gone'") as caught,
        ):
            query.awaitTermination(60)
        assert "batches 1 to 2 are missing" in str(caught.value)
