"""Samples for the tests of metrics: all is well, unless a test says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jobpipe.errors import JobpipeError
from jobpipe.metrics.metric_samples import (
    CertificateSample,
    JobSample,
    LineageSample,
    MetricSamples,
    ScheduleSample,
    TopicsSnapshot,
)
from jobpipe.operations.messages.ledger_messages import HopCounts, RowDifference
from jobpipe.operations.messages.source_messages import SourceStatus
from jobpipe.operations.status_operations import SubscriptionStatus, TopicStatus
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.store.subscriptions.hop_times import BUCKETS
from tests.statuses import subscription_status, topic_status

YEAR = 365 * 86_400.0
COUNTS = HopCounts(committed=1_000, read=1_000)


def topic(name: str = "orders", **given: Any) -> TopicStatus:
    """A topic with a subscription that has read all, and much room."""
    about: dict[str, Any] = {
        "rows": 1_000,
        "bytes": 64_000,
        "head": 10,
        "tail": 4,
        "batches": 6,
        "stored_bytes": 32_000,
        "spool_limit": 1_000_000,
        "subscriptions": (reader(),),
        "source": source(),
    }
    return topic_status(name, **{**about, **given})


def source(**given: Any) -> SourceStatus:
    """A database whose changes are published, and whose log has a limit."""
    about: dict[str, Any] = {
        "position": "0/1A2B3C8",
        "behind_bytes": 0,
        "behind_seconds": 0.0,
        "retained_bytes": 16 << 20,
        "safe_bytes": 240 << 20,
        "age": 1.5,
    }
    return SourceStatus(**{**about, **given})


def reader(**given: Any) -> SubscriptionStatus:
    """A subscription that has read all of it, and is required."""
    about: dict[str, Any] = {"required": True, "hops": (1,) * (len(BUCKETS) + 1), "counts": COUNTS}
    return subscription_status("billing", **{**about, **given})


def different(found: float) -> HopCounts:
    """The counts of a hop that has lost a row, which was found at that time."""
    newest = RowDifference(first=3, end=4, published=100, read=99, partitions=(0,), found=found, reason="counted")
    return replace(COUNTS, read=999, lost=1, differences=1, newest=newest)


def job(**given: Any) -> JobSample:
    """A job that runs."""
    about: dict[str, Any] = {
        "pipeline": "shop",
        "job": "report",
        "state": JobState.RUNNING,
        "since": 1_000.0,
        "wanted": True,
        "attempts": 1,
        "rows": 500,
        "batches": 5,
        "durations": (0, 4, *[0] * (len(BUCKETS) - 2), 1),
        "duration_seconds": 500.0,
        "dead_letters": "letters",
        "dead_letter_rows": 7,
        "schedule": schedule(),
    }
    return JobSample(**{**about, **given})


def schedule(**given: Any) -> ScheduleSample:
    """A schedule whose next interval is due next year."""
    about: dict[str, Any] = {
        "next_due": YEAR,
        "waiting": 0,
        "running": 0,
        "failed": 0,
        "paused": False,
        "problem": False,
    }
    return ScheduleSample(**{**about, **given})


def samples(
    *topics: TopicStatus,
    jobs: tuple[JobSample, ...] | None = None,
    expires: float = YEAR,
    down: tuple[str, ...] = (),
    error: JobpipeError | None = None,
) -> MetricSamples:
    """One answer; topics in ``down`` have a coordinator that does not answer."""
    answers: dict[str, TopicStatus | JobpipeError] = {status.topic: status for status in topics or (topic(),)}
    answers.update({name: JobpipeError("it does not answer") for name in down})
    return MetricSamples(
        TopicsSnapshot({} if error else answers, 0.25, error),
        jobs=(job(),) if jobs is None else jobs,
        certificates=(CertificateSample("jobpipe.ssl.cert", expires),),
        jobs_known=True,
        lineage=LineageSample(waiting=3, sent=100, dropped=1),
    )
