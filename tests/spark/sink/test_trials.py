"""What happens to a publisher's tasks and queries, in one application of its own: retries, size, stops, its end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.bus.kit import alive
from tests.spark.kit import Job, Place, start_job, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


LINGER = 20.0  # a busy machine takes long from the driver's end to the first look


@pytest.fixture(scope="module")
def job(spark: SparkSession, place: Place) -> Iterator[Job]:
    """The application, begun."""
    job = start_job(place, "trials", place.folder / "trials", JOBPIPE__COORDINATOR__LINGER=f"{LINGER:g}s")
    with place.publisher("warm") as publisher:  # what comes right behind the end of the application must be fast
        place.seal(publisher, [0])
        assert place.read(spark, "warm").count() == 10
    yield job
    job.kill()


@pytest.fixture(scope="module")
def outcome(job: Job) -> dict[str, Any]:
    """What the application says, at its end."""
    result: dict[str, Any] = job.result()
    return result


def test_the_coordinator_serves_on_and_ends(spark: SparkSession, place: Place, outcome: dict[str, Any]) -> None:
    """The driver ended without closing its sink: what is sealed is served for ``coordinator.linger``, no longer."""
    (pid,) = outcome["coordinators"]
    assert psutil.pid_exists(pid), "it did not linger"
    assert place.read(spark, "left-open", discoveryTimeout="5s").count() == 10
    until(lambda: not psutil.pid_exists(pid), "the coordinator's end", LINGER + 30)
    assert time.time() - outcome["ended"] > LINGER


def _rows(spark: SparkSession, place: Place, topic: str) -> Counter[int]:
    with place.publisher(topic):  # serves what the application left
        return Counter(row.id for row in place.read(spark, topic).select("id").collect())


def _rows_of_format(spark: SparkSession, place: Place, topic: str, outcome: dict[str, Any]) -> Counter[int]:
    until(lambda: not alive(outcome["jvm"]), "the end of the JVM, which has the topic")
    return _rows(spark, place, topic)


def test_task_retries(spark: SparkSession, place: Place, outcome: dict[str, Any]) -> None:
    """Only the winning attempt's rows are published."""
    assert outcome["retries"]["tasks"] == outcome["retries"]["batches"] == 2
    assert _rows(spark, place, "retries") == Counter(dict.fromkeys(range(8_000), 2))


@pytest.mark.parametrize("topic", ["saved", "streamed"])
def test_task_retries_by_format(spark: SparkSession, place: Place, outcome: dict[str, Any], topic: str) -> None:
    """``write.format("jobpipe")`` and ``writeStream.format("jobpipe")``: the same."""
    assert outcome[f"failed {topic}"] >= 2
    assert _rows_of_format(spark, place, topic, outcome) == Counter(range(8_000))


def test_a_batch_too_large_for_the_driver(spark: SparkSession, place: Place, outcome: dict[str, Any]) -> None:
    """``write_path=collect`` falls back to tasks for it, and counts that; nothing is doubled."""
    counts = outcome["large"]
    assert (counts["too_large_to_collect"], counts["tasks"], counts["collect"]) == (1, 1, 1)
    rows = _rows(spark, place, "large")
    assert (len(rows), sum(rows.values())) == (60_000, 60_010)


@pytest.mark.parametrize("topic", ["stop-collect", "stop-tasks", "stop-format", "stop-acks", "reader", "chained"])
def test_a_stopped_query_has_no_error(outcome: dict[str, Any], topic: str) -> None:
    """``query.stop()`` in the middle of a batch ends the query at once, as a stop and not as a failure."""
    for stop in outcome[topic]:
        assert (stop["error"], stop["active"]) == ("", False)
        assert stop["seconds"] < 20


@pytest.mark.parametrize("topic", ["stop-collect", "stop-tasks"])
def test_nothing_is_lost_or_doubled_by_stops(
    spark: SparkSession, place: Place, outcome: dict[str, Any], topic: str
) -> None:
    """The batches that were stopped are run again, and published once."""
    assert _rows(spark, place, topic) == Counter(range(300))


def test_nothing_is_lost_or_doubled_by_stops_of_a_format(
    spark: SparkSession, place: Place, outcome: dict[str, Any]
) -> None:
    """What its tasks had written is given up; the batch is run again, and published once."""
    assert _rows_of_format(spark, place, "stop-format", outcome) == Counter(range(300))


def test_a_chained_query_stopped_and_run_again(spark: SparkSession, place: Place, outcome: dict[str, Any]) -> None:
    """Subscriber and publisher in one query: stopped in the middle of batches, it passes every row on, once."""
    assert _rows(spark, place, "chained") == _rows(spark, place, "retries")


def test_a_stop_while_subscribers_are_awaited(outcome: dict[str, Any]) -> None:
    """The batch is sealed by then; it is only the wait that ends."""
    assert outcome["stop-acks sink"]["batches"] == 1


def test_stops_leave_no_stack_overflow(job: Job, outcome: dict[str, Any]) -> None:
    """Spark looks for an interruption in the error's text with an expression that overflows on a long one."""
    assert "StackOverflowError" not in job.errors
    assert "ERROR MicroBatchExecution" not in job.errors
