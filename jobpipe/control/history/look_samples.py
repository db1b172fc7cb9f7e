"""What a look at topics and jobs adds to the history, given the look before it. Pure.

A rate is of two looks that follow each other: what one of them does not know has none, and is a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from jobpipe.control.history.series import SeriesKey
from jobpipe.errors import JobpipeError
from jobpipe.graph.namespace_graph import SHORTEST_SECONDS, TopicRates
from jobpipe.jobs.workloads.progress_reports import Report
from jobpipe.operations.status_operations import TopicStatus


@dataclass(frozen=True)
class AttemptReport:
    """The newest report of a job's present attempt, and the number of that attempt."""

    attempt: int
    report: Report


JobReports = Mapping[tuple[str, str], AttemptReport]
"""By pipeline and job."""


@dataclass(frozen=True)
class Look:
    """What was found at one time.

    Attributes:
        at: seconds of a clock that never goes back.
        topics: by name; an error where it is not known how one stands.
    """

    at: float
    topics: Mapping[str, TopicStatus | JobpipeError] = field(default_factory=dict)
    jobs: JobReports = field(default_factory=dict)


def look_samples(now: Look, before: Look | None) -> dict[SeriesKey, float]:
    """Return the value of each series that a look knows."""
    before = before or Look(now.at)
    found: dict[SeriesKey, float] = {}
    for topic, status in now.topics.items():
        if isinstance(status, TopicStatus):
            found.update(_of_topic(status, before.topics.get(topic)))
    for key, report in now.jobs.items():
        earlier = before.jobs.get(key)
        if earlier is not None and earlier.attempt == report.attempt:
            found.update(_of_job(key, report.report, earlier.report, now.at - before.at))
    return found


def _of_topic(now: TopicStatus, before: TopicStatus | JobpipeError | None) -> Iterator[tuple[SeriesKey, float]]:
    if (rate := TopicRates(now, before).published()) is not None:
        yield SeriesKey.published(now.topic), rate
    for line in now.subscriptions:
        yield SeriesKey.lag_rows(now.topic, line.name), max(0, line.lag.rows)  # below zero by what was taken back
        yield SeriesKey.lag_seconds(now.topic, line.name), line.lag.seconds


def _of_job(key: tuple[str, str], now: Report, before: Report, seconds: float) -> Iterator[tuple[SeriesKey, float]]:
    """Yield what an attempt did between two reports. It reports after each micro-batch: all its rows count then."""
    # An attempt that has told of no rows may be a BATCH job, which does not count them.
    if now.rows and now.rows >= before.rows and seconds >= SHORTEST_SECONDS:
        yield SeriesKey.read(*key), (now.rows - before.rows) / seconds
    batches = sum(now.durations) - sum(before.durations)
    took = now.duration_seconds - before.duration_seconds
    if batches > 0 and took >= 0:
        yield SeriesKey.batch_seconds(*key), took / batches
