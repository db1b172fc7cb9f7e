"""The jobs of the control server as samples of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jobpipe.control.control_service import JobStatus, PipelineStatus, ScheduleView
from jobpipe.jobs.workloads.progress_reports import Report
from jobpipe.metrics.metric_samples import JobSample, ScheduleSample
from jobpipe.pipelines.model.job_states import DesiredState

Reported = Callable[[str, str], Report | None]
DeadLetterTopic = Callable[[PipelineStatus, str], str | None]
DeadLetterRows = Callable[[str], int | None]


def job_samples(
    pipelines: Iterable[PipelineStatus],
    reported: Reported,
    dead_letter_topic: DeadLetterTopic,
    dead_letter_rows: DeadLetterRows,
) -> tuple[JobSample, ...]:
    """Return a sample of each job.

    Args:
        pipelines: how they stand.
        reported: the newest report of the present attempt of a job, by pipeline and name; None if there is none.
        dead_letter_topic: the topic of a job's dead letters; None if it has none, or that is not known.
        dead_letter_rows: the rows of such a topic; None if that is not known.
    """
    found = []
    for pipeline in pipelines:
        for job in pipeline.jobs:
            topic = dead_letter_topic(pipeline, job.name)
            rows = None if topic is None else dead_letter_rows(topic)
            found.append(_job(job, reported(job.pipeline, job.name), topic, rows))
    return tuple(found)


def _job(status: JobStatus, report: Report | None, dead_letters: str | None, dead_rows: int | None) -> JobSample:
    return JobSample(
        pipeline=status.pipeline,
        job=status.name,
        state=status.state,
        since=status.since,
        wanted=status.want is DesiredState.RUN,
        attempts=status.attempts,
        rows=status.rows,
        batches=status.batches,
        durations=() if report is None else report.durations,
        duration_seconds=0.0 if report is None else report.duration_seconds,
        dead_letters=dead_letters,
        dead_letter_rows=dead_rows,
        schedule=None if status.schedule is None else _schedule(status.schedule),
    )


def _schedule(view: ScheduleView) -> ScheduleSample:
    return ScheduleSample(
        next_due=view.next_due,
        waiting=view.waiting,
        running=view.running,
        failed=view.failed,
        paused=view.paused,
        problem=bool(view.problem),
    )
