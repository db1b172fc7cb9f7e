"""The jobs of the control server as samples of metrics."""

from __future__ import annotations

from collections.abc import Iterable

from jobpipe.control.control_service import JobStatus, PipelineStatus, ScheduleView
from jobpipe.metrics.metric_samples import JobSample, ScheduleSample
from jobpipe.pipelines.model.job_states import DesiredState


def job_samples(pipelines: Iterable[PipelineStatus]) -> tuple[JobSample, ...]:
    """Return a sample of each job."""
    return tuple(_job(job) for pipeline in pipelines for job in pipeline.jobs)


def _job(status: JobStatus) -> JobSample:
    return JobSample(
        pipeline=status.pipeline,
        job=status.name,
        state=status.state,
        since=status.since,
        wanted=status.want is DesiredState.RUN,
        attempts=status.attempts,
        rows=status.rows,
        batches=status.batches,
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
