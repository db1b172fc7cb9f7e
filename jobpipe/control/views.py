"""Rows of the store as the views of :mod:`jobpipe.control.interface`."""

from __future__ import annotations

from jobpipe.control.interface import AttemptView, JobStatus, PipelineStatus, RunView
from jobpipe.control.records import AttemptRow, JobRow, PipelineRow, RunRow
from jobpipe.control.store import Store
from jobpipe.control.supervisor import Supervisor
from jobpipe.errors import PipelineNotFound
from jobpipe.pipelines.checks import NOT_FIRED
from jobpipe.pipelines.states import JobState


def pipeline_status(store: Store, supervisor: Supervisor, pipeline: PipelineRow) -> PipelineStatus:
    """Return how a pipeline stands; of jobs that its file does not have any more, those that still end."""
    definition = store.definition(pipeline.name, pipeline.version)
    if definition is None:
        raise PipelineNotFound(f"pipeline {pipeline.name} was deleted just now", pipeline=pipeline.name)
    return PipelineStatus(
        name=pipeline.name,
        file=definition.file,
        version=pipeline.version,
        want=pipeline.want,
        submitted=pipeline.submitted,
        jobs=tuple(_job_status(store, supervisor, pipeline, job) for job in store.jobs(pipeline.name)),
    )


def _job_status(store: Store, supervisor: Supervisor, pipeline: PipelineRow, job: JobRow) -> JobStatus:
    run = store.run(job.run) or store.run(job.following)
    if run is not None and run.is_over and job.following is not None:
        run = store.run(job.following) or run
    since = pipeline.submitted if run is None else run.since
    return JobStatus(
        pipeline=job.pipeline,
        name=job.name,
        kind=job.kind,
        state=JobState.STOPPED if run is None else run.state,
        want=job.want,
        known_at=supervisor.known_at((job.pipeline, job.name)) or since,
        since=since,
        detail=_detail(job, run),
        run=None if run is None else run.id,
        attempt=0 if run is None or not run.attempts else job.numbers,
        scheduled=job.scheduled,
        batches=0 if run is None else run.batches,
        rows=0 if run is None else run.rows,
        reads=job.reads,
        publishes=job.publishes,
    )


def _detail(job: JobRow, run: RunRow | None) -> str:
    """Return what is to be said of a job; of one that only a schedule would start, that none does."""
    if job.scheduled and (run is None or (run.is_over and not run.detail)):
        return NOT_FIRED
    return "" if run is None else run.detail


def run_view(store: Store, run: RunRow) -> RunView:
    """Return a run with its attempts."""
    return RunView(
        id=run.id,
        pipeline=run.pipeline,
        job=run.job,
        state=run.state,
        began=run.began,
        ended=run.ended,
        detail=run.detail,
        lower=run.lower,
        upper=run.upper,
        attempts=tuple(_attempt_view(attempt, run) for attempt in store.attempts(run.id)),
    )


def _attempt_view(attempt: AttemptRow, run: RunRow) -> AttemptView:
    return AttemptView(
        number=attempt.number,
        state=run.state if attempt.ended is None else attempt.state,
        began=attempt.began,
        ended=attempt.ended,
        launched=attempt.launched,
        application=attempt.application,
        error=attempt.error,
        detail=attempt.detail,
        exit_code=attempt.exit_code,
        batches=attempt.batches,
        rows=attempt.rows,
    )
