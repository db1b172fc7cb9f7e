"""Rows of the store as the views of :mod:`jobpipe.control.control_service`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from jobpipe.control.control_service import AttemptView, JobStatus, PipelineStatus, RevisionView, RunView, ScheduleView
from jobpipe.control.history.look_samples import AttemptReport
from jobpipe.errors import PipelineNotFound
from jobpipe.jobs.storage.job_rows import AttemptRow, DefinitionRow, JobRow, PipelineRow, RunRow
from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.dispatcher import Dispatcher
from jobpipe.jobs.supervision.restart_policy import restart_note
from jobpipe.jobs.workloads.progress_reports import Report, read_report
from jobpipe.pipelines.checkpoints.checkpoint_owner import keeps_checkpoint
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.model.paths import PipelinePaths


def revision_view(row: DefinitionRow) -> RevisionView:
    """Return a version of a file."""
    return RevisionView(
        pipeline=row.pipeline,
        version=row.version,
        submitted=row.submitted,
        by=row.submitter,
        file=row.file,
        **asdict(row.changes),
    )


class Serializers:
    """Makes the views; each method is called inside a change of the store, so that all is of one moment.

    Args:
        home: where attempts of this host report how far they are.
        clock: seconds since 1970.
        schedule_of: returns how a job's schedule stands.
    """

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        home: Path,
        clock: Callable[[], float],
        schedule_of: Callable[[JobRow], ScheduleView | None] = lambda _: None,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._home = home
        self._clock = clock
        self._schedule_of = schedule_of

    def pipeline(self, pipeline: PipelineRow) -> PipelineStatus:
        """Return how a pipeline stands; of jobs that its file does not have any more, those that still end."""
        definition = self._store.definition(pipeline.name, pipeline.version)
        if definition is None:
            raise PipelineNotFound(f"pipeline {pipeline.name} was deleted just now", pipeline=pipeline.name)
        return PipelineStatus(
            name=pipeline.name,
            file=definition.file,
            version=pipeline.version,
            want=pipeline.want,
            submitted=pipeline.submitted,
            jobs=tuple(self._job(pipeline, job, definition.tree) for job in self._store.jobs(pipeline.name)),
        )

    def _job(self, pipeline: PipelineRow, job: JobRow, tree: str) -> JobStatus:
        run = self._store.run(job.run) or self._store.run(job.next_run)
        if run is not None and run.is_over and job.next_run is not None:
            run = self._store.run(job.next_run) or run
        since = pipeline.submitted if run is None else run.since
        done = None if job.kind == "application" else self._done(run)  # such a program tells nothing of its rows
        return JobStatus(
            pipeline=job.pipeline,
            name=job.name,
            kind=job.kind,
            state=JobState.STOPPED if run is None else run.state,
            want=job.want,
            known_at=self._dispatcher.known_at((job.pipeline, job.name)) or since,
            since=since,
            detail=self._detail(job, run),
            run=None if run is None else run.id,
            attempt=0 if run is None else run.attempts,
            attempts=job.last_attempt,
            mode=_mode(job, tree),
            scheduled=job.scheduled,
            on_demand=job.on_demand,
            new_checkpoint=job.reset_checkpoint,
            removed=not job.in_definition,
            batches=None if done is None else done.batches,
            rows=None if done is None or job.kind == "flow" else _rows(done),  # a flow counts batches alone
            reads=job.reads,
            publishes=job.publishes,
            schedule=self._schedule_of(job) if job.scheduled else None,
        )

    def _done(self, run: RunRow | None) -> Report | None:
        """Return what all attempts of a run did, the present one too; None: that is not known."""
        if run is None:
            return Report()
        done = Report(batches=run.batches, rows=run.rows)
        for attempt in [] if run.is_over else self._store.attempts(run.id, 1):
            if attempt.ended is None:
                newest = self._reported(attempt)
                if newest is None:
                    return None
                done = Report(batches=done.batches + newest.batches, rows=done.rows + newest.rows)
        return done

    def present_report(self, pipeline: str, job: str) -> Report | None:
        """Return the newest report of the attempt of a job that has not ended; None if there is none."""
        attempt = self._store.open_attempt(pipeline, job)
        return None if attempt is None else self._reported(attempt)

    def attempt_reports(self) -> dict[tuple[str, str], AttemptReport]:
        """Return the newest report of each attempt that has not ended, by pipeline and job."""
        attempts = [self._store.open_attempt(job.pipeline, job.name) for job in self._store.jobs()]
        reports = ((each, self._reported(each)) for each in attempts if each is not None)
        return {
            (each.pipeline, each.job): AttemptReport(each.number, report)
            for each, report in reports
            if report is not None
        }

    def _reported(self, attempt: AttemptRow) -> Report | None:
        return read_report(PipelinePaths.of(self._home, attempt.pipeline).report(attempt.job, attempt.number))

    def _detail(self, job: JobRow, run: RunRow | None) -> str:
        """Return what is to be said of a job: of one that was restarted, for a while why."""
        if run is None and job.on_demand:
            return f"it runs over a range: jobpipe runs start {job.pipeline}/{job.name} --lower LOWER --upper UPPER"
        if run is None or run.detail or run.state is not JobState.RUNNING:
            return "" if run is None else run.detail
        attempts = self._store.attempts(run.id, 2)
        if len(attempts) < 2:
            return ""
        before, newest = attempts
        since = newest.began if newest.holder is None else newest.holder.since or newest.began
        return restart_note(before.detail or before.error, self._clock() - since)

    def run(self, run: RunRow) -> RunView:
        """Return a run with its attempts, numbered from 1."""
        attempts = self._store.attempts(run.id)
        first = run.attempts - len(attempts) + 1
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
            attempts=tuple(self._attempt(number, attempt, run) for number, attempt in enumerate(attempts, first)),
        )

    def _attempt(self, number: int, attempt: AttemptRow, run: RunRow) -> AttemptView:
        done: Report | AttemptRow | None = attempt if attempt.ended is not None else self._reported(attempt)
        return AttemptView(
            number=number,
            state=run.state if attempt.ended is None else attempt.state,
            began=attempt.began,
            ended=attempt.ended,
            launched=attempt.launched,
            application=attempt.application,
            error=attempt.error,
            detail=attempt.detail,
            exit_code=attempt.exit_code,
            batches=None if done is None else done.batches,
            rows=None if done is None else _rows(done),
        )


def _mode(job: JobRow, tree: str) -> Mode | None:
    """Return how a job runs; None of one that is no query, or that the file does not have any more."""
    mode = _modes(tree).get(job.name)
    return mode if job.kind == "query" else None


@lru_cache(maxsize=128)  # statuses are made each second, of the same files
def _modes(tree: str) -> Mapping[str, Mode]:
    """Return how queries of a file run, by its text: it may be one that can no longer be loaded here."""
    jobs = json.loads(tree).get("jobs") or {}
    return {name: Mode.STREAMING if keeps_checkpoint(job) else Mode.BATCH for name, job in jobs.items()}


def _rows(done: Report | AttemptRow) -> int | None:
    """Return how many rows were read; None: a BATCH job does not count them. A stream counts only batches with rows."""
    return None if done.batches and not done.rows else done.rows
