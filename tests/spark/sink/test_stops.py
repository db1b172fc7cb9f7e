"""``query.stop()`` of a publisher ends whatever its sink waits for within 10 s, without an error or a loss."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.faults.points import INJECT
from tests.spark.kit import ROOT, Job, Place, start_job

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SECONDS = 10.0
TOPICS = [
    "full",
    "acks",
    "still-begin",
    "still-seal",
    "hangs-collect-before-commit",
    "hangs-collect-before-fsync",
    "hangs-tasks-before-fsync",
]


@pytest.fixture(scope="module")
def job(place: Place) -> Job:
    """The application, at its end; both its queries, of publisher and subscriber, are Spark's."""
    paths = {"PYTHONPATH": f"{INJECT}{os.pathsep}{ROOT}", "JOBPIPE_TESTS_FAULT": str(place.folder / "fault-order")}
    job = start_job(place, "stops", place.folder / "stops", **paths)
    job.process.wait(380)
    return job


@pytest.fixture(scope="module")
def outcome(job: Job) -> dict[str, Any]:
    """What it says."""
    result: dict[str, Any] = job.result()
    return result


@pytest.mark.parametrize("topic", TOPICS)
def test_a_stop_ends_every_wait(outcome: dict[str, Any], topic: str) -> None:
    """Cases 7, 36, 38: full spool, nobody who acknowledges, a coordinator or a disk that stands still."""
    stop = outcome[topic]
    assert (stop["error"], stop["active"]) == ("", False)
    assert stop["seconds"] < SECONDS


@pytest.mark.parametrize("topic", TOPICS)
def test_nothing_is_lost_or_doubled_by_it(outcome: dict[str, Any], topic: str) -> None:
    """The oracle's verdict, after the query went on from its checkpoint to a subscriber's query."""
    assert outcome[topic]["rows"] == 2 * outcome[topic]["size"] * 6


def test_no_stop_looks_like_a_failure(job: Job) -> None:
    """Neither in Spark's log."""
    assert "StackOverflowError" not in job.errors
    assert "ERROR MicroBatchExecution" not in job.errors
