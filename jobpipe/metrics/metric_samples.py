"""What metrics are made from: typed, and independent of where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobpipe.errors import JobpipeError
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.pipelines.model.job_states import JobState


@dataclass(frozen=True)
class TopicsSnapshot:
    """How all topics that are served stand.

    Attributes:
        topics: by name; an error where the coordinator does not answer.
        seconds: that it took to ask.
        error: why the registry did not answer; then there are no topics.
    """

    topics: Mapping[str, TopicStatus | JobpipeError]
    seconds: float
    error: JobpipeError | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduleSample:
    """How a schedule stands; ``next_due`` in seconds since 1970, None if that is never or not known."""

    next_due: float | None
    waiting: int
    running: int
    failed: int
    paused: bool
    problem: bool


@dataclass(frozen=True, kw_only=True)
class JobSample:
    """How a job stands.

    Attributes:
        since: seconds since 1970.
        attempts: of all its runs.
        rows, batches: of its newest run; None: not known.
        durations: micro-batches of its present attempt by how long each took, as
            :class:`jobpipe.jobs.workloads.progress_reports.Report` has them.
        duration_seconds: the sum of those times.
        dead_letters: the topic of its dead letters; None if it has none.
        dead_letter_rows: of that topic, as it was last seen; None: not known.
    """

    pipeline: str
    job: str
    state: JobState
    since: float
    wanted: bool
    attempts: int
    rows: int | None
    batches: int | None
    durations: tuple[int, ...] = ()
    duration_seconds: float = 0.0
    dead_letters: str | None = None
    dead_letter_rows: int | None = None
    schedule: ScheduleSample | None = None


@dataclass(frozen=True)
class CertificateSample:
    """When a certificate ends, in seconds since 1970; ``key`` of the configuration names its file."""

    key: str
    expires: float


@dataclass(frozen=True, kw_only=True)
class LineageSample:
    """Lineage events: how many wait, and how many were sent and dropped since the server's start."""

    waiting: int
    sent: int
    dropped: int


@dataclass(frozen=True)
class MetricSamples:
    """All that one answer is made from.

    Attributes:
        jobs_known: whether what is kept of jobs can be read; None where no jobs are kept.
        lineage: None where no lineage is reported.
    """

    topics: TopicsSnapshot
    jobs: tuple[JobSample, ...] = ()
    certificates: tuple[CertificateSample, ...] = ()
    jobs_known: bool | None = None
    lineage: LineageSample | None = None
