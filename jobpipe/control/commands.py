"""User commands as atomic changes of the store, each by what the store has at that moment."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jobpipe.control.control_service import Action, Plan, Submission, Submitted
from jobpipe.control.revisions.planning import (
    Asked,
    Known,
    decide,
    plan_of_removed,
    removed,
    revision_changes,
    rows_of,
    taken_settings,
)
from jobpipe.errors import ConfigError, ControlConflict, PipelineNotFound, RunNotFound
from jobpipe.jobs.definition_cache import DefinitionCache, digest_of
from jobpipe.jobs.storage.interval_store import IntervalStore
from jobpipe.jobs.storage.job_rows import DefinitionRow, JobRow, PipelineRow, RunRow, new_run_id
from jobpipe.jobs.storage.job_store import Store
from jobpipe.pipelines.file.problems import nearest
from jobpipe.pipelines.model.job_states import DesiredState, JobState
from jobpipe.pipelines.model.pipeline import Pipeline

log = logging.getLogger(__name__)

MOST_JOBS = 1000
MOST_SUBMITTER = 200  # characters


class PipelineCommands:
    """Changes of one store. Nothing here waits for a registry or a launcher."""

    def __init__(self, store: Store, definitions: DefinitionCache) -> None:
        self._store = store
        self._definitions = definitions

    # -- finding -------------------------------------------------------------------------------------------------------

    def pipeline(self, name: str) -> PipelineRow:
        """Return a pipeline.

        Raises:
            PipelineNotFound: it is not there.
        """
        row = self._store.pipeline(name)
        if row is None:
            known = [each.name for each in self._store.pipelines()]
            remedy = nearest(name, known) if known else "no pipeline has been submitted yet"
            raise PipelineNotFound(f"there is no pipeline {name!r:.120}; {remedy}", pipeline=name)
        return row

    def jobs(self, pipeline: str, job: str | None) -> list[JobRow]:
        """Return a job of a pipeline, or all that its newest file has.

        Raises:
            PipelineNotFound: one of them is not there.
        """
        self.pipeline(pipeline)
        present = [each for each in self._store.jobs(pipeline) if each.in_definition]
        if job is None:
            return present
        found = [each for each in present if each.name == job]
        if not found:
            remedy = nearest(job, [each.name for each in present])
            raise PipelineNotFound(f"pipeline {pipeline} has no job {job!r:.120}; {remedy}", pipeline=pipeline, job=job)
        return found

    def run(self, run: str) -> RunRow:
        """Return a run.

        Raises:
            RunNotFound: it is not there, or not kept any more.
        """
        row = self._store.run(run)
        if row is None:
            raise RunNotFound(f"there is no run {run!r:.120}; runs are kept only for a while", run=run)
        return row

    # -- changing ------------------------------------------------------------------------------------------------------

    def plan(self, submission: Submission, asked: Asked) -> Plan:
        """Return what :meth:`submit` would do; change nothing."""
        with self._store.write():
            known, rows = self._current_state(asked.pipeline), self._rows(asked.pipeline)
            decisions = decide(rows, known, asked)
            gone = [plan_of_removed(job, known) for job in removed(known, asked)]
            full, row = self._is_full(asked.pipeline, known), self._store.pipeline(asked.pipeline.name)
            return Plan(
                pipeline=asked.pipeline.name,
                version=known.version,
                born=0.0 if row is None else row.born,
                changed=not self._is_stored(submission, asked.pipeline.name),
                jobs=(*(each.plan for each in decisions), *gone),
                settings=taken_settings(known, asked),
                refused=() if full is None else (full.message,),
                warnings=tuple(asked.pipeline.warnings),
            )

    def submit(
        self,
        submission: Submission,
        asked: Asked,
        now: float,
        *,
        base: int | None = None,
        born: float | None = None,
        by: str = "",
    ) -> Submitted:
        """Take a pipeline in, or a changed file of one.

        Args:
            base, born: the version that it was planned for, 0 for a new pipeline, and the plan's ``born``; None: any.
            by: who submits it.
        """
        store, pipeline, name = self._store, asked.pipeline, asked.pipeline.name
        with store.write():
            known, row = self._current_state(pipeline), store.pipeline(name)
            _require_base(name, base, born, row)
            if (full := self._is_full(pipeline, known)) is not None:
                raise full
            decisions = decide(self._rows(pipeline), known, asked)
            for each in decisions:
                if each.refused is not None:
                    raise ControlConflict(each.refused, pipeline=name, job=each.row.name)
            same_file = self._is_stored(submission, name)
            version = known.version + (not same_file)
            want = DesiredState.RUN if row is None else row.want
            store.put_pipeline(PipelineRow(name=name, version=version, want=want, submitted=now, born=now))
            if not same_file:
                store.add_definition(
                    DefinitionRow(
                        pipeline=name,
                        version=version,
                        file=submission.file,
                        folder=submission.folder,
                        tree=json.dumps(dict(submission.tree)),
                        submitted=now,
                        submitter=by[:MOST_SUBMITTER],
                        changes=revision_changes(decisions, known, asked),
                    )
                )
            runs: dict[str, str] = {}
            for each in decisions:
                old = known.jobs.get(each.row.name)
                store.put_job(each.row)
                if old is not None and each.ends_others:
                    self._end_other_runs(old, now)
                if each.begins:
                    runs[each.row.name] = self._begin_next_run(each.row, now)
            unchanged = [each.row.name for each in decisions if each.plan.action is Action.UNCHANGED]
            self._add_subscription_tasks([each.row for each in decisions], known.jobs, unchanged)
            gone = removed(known, asked)
            for job in gone:
                store.put_job(replace(job, in_definition=False))
                self._drop_next_run(job, now)
            store.add_event(name, None, "submitted", detail=f"version {version}", fields={"version": version})
        return Submitted(
            pipeline=name,
            created=row is None,
            changed=not same_file,
            version=version,
            runs=runs,
            unchanged=tuple(unchanged),
            removed=tuple(job.name for job in gone),
            warnings=tuple(pipeline.warnings),
        )

    def _current_state(self, pipeline: Pipeline) -> Known:
        """Return what the store has of a pipeline."""
        row = self._store.pipeline(pipeline.name)
        jobs = self._store.jobs(pipeline.name)
        runs = {job.name: self._store.run(job.run) for job in jobs}
        intervals = IntervalStore(self._store)
        schedules = {job.name: intervals.schedule(pipeline.name, job.name) for job in jobs}
        return Known(
            version=0 if row is None else row.version,
            jobs={job.name: job for job in jobs},
            active=frozenset(name for name, run in runs.items() if run is not None and not run.is_over),
            ran_as={
                job.name: ran
                for job in jobs
                if job.reset_checkpoint and (ran := self._last_run_digest(job)) is not None
            },
            lost=frozenset(name for name, run in runs.items() if run is not None and run.state is JobState.LOST),
            schedules={name: each.spec for name, each in schedules.items() if each is not None},
            before=self._newest_file(pipeline.name),
        )

    def _last_run_digest(self, job: JobRow) -> str | None:
        """Return the digest of a job as its newest attempt ran it; None: that is not known."""
        attempts = [] if job.run is None else self._store.attempts(job.run, 1)
        if not attempts:
            return None
        try:
            pipeline = self._definitions.get(job.pipeline, attempts[-1].version)
        except ConfigError:
            return None
        found = pipeline.jobs.get(job.name)
        return None if found is None else digest_of(pipeline, found)

    def newest_definition(self, name: str) -> DefinitionRow | None:
        """Return the newest file of a pipeline as it is stored; None if there is none."""
        row = self._store.pipeline(name)
        return None if row is None else self._store.definition(name, row.version)

    def _newest_file(self, name: str) -> Pipeline | None:
        """Return the newest file of a pipeline; None if there is none, or it can no longer be loaded here."""
        row = self._store.pipeline(name)
        try:
            return None if row is None else self._definitions.get(name, row.version)
        except ConfigError as error:
            log.info("pipeline %s, version %d: %s", name, 0 if row is None else row.version, error)
            return None

    def _rows(self, pipeline: Pipeline) -> list[JobRow]:
        """Return the jobs of a file as they would be stored."""
        row = self._store.pipeline(pipeline.name)
        before = {job.name: job for job in self._store.jobs(pipeline.name)}
        return rows_of(pipeline, before, DesiredState.RUN if row is None else row.want)

    def _is_stored(self, submission: Submission, name: str) -> bool:
        """Whether a file is the newest one of the pipeline."""
        return _is_of(submission, self.newest_definition(name))

    def _is_full(self, pipeline: Pipeline, known: Known) -> ControlConflict | None:
        """Return the error if the jobs of a file would be too many."""
        added = len(pipeline.jobs.keys() - known.jobs.keys())
        if self._store.count_jobs() + added <= MOST_JOBS:
            return None
        return ControlConflict(f"one server has at most {MOST_JOBS} jobs; delete a pipeline", pipeline=pipeline.name)

    def stop(self, pipeline: str, job: str | None, now: float) -> list[JobRow]:
        """Let jobs end, and stay so."""
        with self._store.write():
            changed = [each for each in self.jobs(pipeline, job) if each.want is DesiredState.RUN or each.next_run]
            for each in changed:
                self._store.put_job(replace(each, want=DesiredState.STOP, next_run=None))
                self._drop_next_run(each, now)
                self._store.add_event(pipeline, each.name, "stop")
            self._set_desired_state(pipeline, job, DesiredState.STOP)
        return changed

    def resume(self, pipeline: str, job: str | None, now: float) -> list[JobRow]:
        """Let what was stopped, or has ended, run."""
        changed = []
        with self._store.write():
            for each in self.jobs(pipeline, job):
                run = self._store.run(each.run)
                goes_on = run is not None and not run.is_over and each.want is DesiredState.RUN and not run.stop
                if run is not None and run.state is JobState.LOST and not goes_on:
                    raise _lost(each)
                if goes_on or each.next_run is not None:
                    continue
                wanted = replace(each, want=DesiredState.RUN)
                self._store.put_job(wanted)
                self._store.add_event(pipeline, each.name, "resume")
                if each.begins_by_itself:
                    self._begin_next_run(wanted, now)
                changed.append(each)
            self._set_desired_state(pipeline, job, DesiredState.RUN)
        return changed

    def restart(self, pipeline: str, job: str | None, now: float, *, force: bool) -> list[JobRow]:
        """Stop jobs, and start them again as new runs; of jobs whose runs others make, only give up what is LOST."""
        with self._store.write():
            lost = {each.name for each in self.jobs(pipeline, job) if self._is_lost(each)}
            changed = [
                each
                for each in self.jobs(pipeline, job)
                if job is not None or each.begins_by_itself or (force and each.name in lost)
            ]
            for each in changed:
                if each.name in lost:
                    if not force:
                        raise _lost(each)
                    self._store.change_run(str(each.run), forced=True)
                elif not each.begins_by_itself:
                    raise _made_by_others(each)
                wanted = replace(each, want=DesiredState.RUN)
                self._store.put_job(wanted)
                self._store.add_event(pipeline, each.name, "restart", detail="forced" if force else "")
                if each.next_run is None and each.begins_by_itself:
                    self._begin_next_run(wanted, now)
            self._set_desired_state(pipeline, job, DesiredState.RUN)
        return changed

    def _is_lost(self, job: JobRow) -> bool:
        run = self._store.run(job.run)
        return run is not None and run.state is JobState.LOST

    def cancel(self, run: str, now: float) -> JobRow | None:
        """Stop one run; return its job, None if it has ended."""
        with self._store.write():
            row = self.run(run)
            job = self._store.job(row.pipeline, row.job)
            if row.is_over or job is None:
                return None
            if job.next_run == run:
                self._store.change_run(run, stop=True)
                self._store.put_job(replace(job, next_run=None))
                self._drop_next_run(job, now)
            else:
                self._store.change_run(run, stop=True)
            self._store.add_event(row.pipeline, row.job, "cancel", fields={"run": run})
        return job

    def start_run(self, pipeline: str, job: str, now: float, lower: str, upper: str) -> RunRow:
        """Let a run with these bounds begin; one that has them is returned, or made again if it has not succeeded."""
        with self._store.write():
            (row,) = self.jobs(pipeline, job)
            if row.scheduled:
                raise ControlConflict(
                    f"the runs of job {pipeline}.{job} are made by its schedule; `jobpipe schedules backfill` runs a "
                    "range",
                    pipeline=pipeline,
                    job=job,
                )
            known = self._store.run_over(pipeline, job, lower, upper)
            if known is not None and (not known.is_over or known.state is JobState.FINISHED):
                return known
            if self._is_lost(row):
                raise _lost(row)
            present = self._store.run(row.run)
            if row.next_run is not None or (present is not None and not present.is_over):
                state = JobState.SUBMITTED if present is None else present.state
                raise ControlConflict(
                    f"job {pipeline}.{job} is {state}: a run of it has not ended; wait for it, or cancel it",
                    pipeline=pipeline,
                    job=job,
                )
            if row.want is DesiredState.STOP:
                raise ControlConflict(
                    f"job {pipeline}.{job} is stopped; `jobpipe pipeline resume` lets it run",
                    pipeline=pipeline,
                    job=job,
                )
            again = self._range_id(row, lower, upper) if known is None else known.id
            return self.run(self.begin_run(row, now, lower, upper, again))

    def _range_id(self, job: JobRow, lower: str, upper: str) -> str:
        """Return the id of a run over a range, the same also when its row is not kept any more.

        A pipeline that was deleted and submitted again is another one: its topics would take the same id for rows that
        they have.
        """
        born = self.pipeline(job.pipeline).born
        parts = (job.pipeline, job.name, lower, upper, *([repr(born)] if born else []))
        return f"range-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"

    def delete(self, pipeline: str, *, keep_subscriptions: bool) -> list[JobRow]:
        """Forget a pipeline; what is to be dropped elsewhere becomes cleanup tasks."""
        store = self._store
        with store.write():
            self.pipeline(pipeline)
            jobs = store.jobs(pipeline)
            for job in jobs:
                run = store.run(job.run)
                why, ending = None, False
                if job.next_run or (run is not None and not run.is_over):
                    why = f"is {JobState.SUBMITTED if run is None else run.state}: stop the pipeline first"
                elif store.open_attempt(pipeline, job.name) is not None:
                    why, ending = "has ended, but its processes are still ending: try again in a few seconds", True
                if why is not None:
                    raise ControlConflict(
                        f"job {pipeline}.{job.name} {why}",
                        pipeline=pipeline,
                        job=job.name,
                        ending=ending,
                    )
            for job in jobs:
                for subscription in (*(() if keep_subscriptions else job.subscriptions), None):
                    store.add_cleanup_task(pipeline, job.name, subscription)
            store.remove_pipeline(pipeline)
            store.add_event(pipeline, None, "deleted")
        return jobs

    def _add_subscription_tasks(
        self, rows: Sequence[JobRow], before: Mapping[str, JobRow], unchanged: Sequence[str]
    ) -> None:
        """Keep as cleanup tasks what running publishers must learn: they only know the readers of their start."""
        run_on = {topic for job in rows if job.name in unchanged for topic in job.publishes}
        for job in rows:
            self._store.remove_cleanup_tasks_of(job)
            old = before.get(job.name)
            had = set() if old is None else set(old.subscriptions)
            added = set(job.subscriptions) - (had if old is not None and old.in_definition else set())
            gone = had - set(job.subscriptions)
            for subscription in (*gone, *(each for each in added if each.topic in run_on)):
                self._store.add_cleanup_task(job.pipeline, job.name, subscription)

    def _set_desired_state(self, pipeline: str, job: str | None, want: DesiredState) -> None:
        row = self._store.pipeline(pipeline)
        if job is None and row is not None:
            self._store.put_pipeline(replace(row, want=want))

    def _begin_next_run(self, job: JobRow, now: float, lower: str | None = None, upper: str | None = None) -> str:
        """Add the run that begins when the present one has ended; return its id."""
        stored = self._store.job(job.pipeline, job.name) or job
        if stored.next_run is not None:
            return stored.next_run
        run = new_run_id(now)
        self._add_run(job, run, now, lower, upper)
        self._store.put_job(replace(stored, next_run=run))
        return run

    def _add_run(self, job: JobRow, run: str, now: float, lower: str | None, upper: str | None) -> None:
        self._store.add_run(
            RunRow(
                id=run,
                pipeline=job.pipeline,
                job=job.name,
                state=JobState.SUBMITTED,
                began=now,
                since=now,
                lower=lower,
                upper=upper,
            )
        )

    def begin_run(self, job: JobRow, now: float, lower: str | None, upper: str | None, again: str | None) -> str:
        """Let a run of a schedule begin; return its id.

        Args:
            again: the run that is made once more, under its id, so that sinks that have its rows know them; None: a new
                one.
        """
        known = self._store.run(again)
        if again is None:
            return self._begin_next_run(job, now, lower, upper)
        if known is None:
            self._add_run(job, again, now, lower, upper)
        else:
            fresh = {"began": now, "since": now, "ended": None, "detail": "", "stop": False, "forced": False}
            fresh |= {"failures": 0, "next_at": 0.0, "delay": 0.0, "before": known.attempts}
            fresh |= {"lower": lower, "upper": upper}
            self._store.change_run(again, state=JobState.SUBMITTED, **fresh)
            self._store.make_newest(again)
        present = None if job.run == again else job.run  # one that follows itself would be told to end
        self._store.put_job(replace(job, run=present, next_run=again))
        return again

    def _end_other_runs(self, job: JobRow, now: float) -> None:
        """End the runs of a job that gets a schedule, or loses it: they are not those that it has from now on."""
        self._drop_next_run(job, now)
        run = self._store.run(job.run)
        if run is not None and not run.is_over:
            self._store.change_run(run.id, stop=True)

    def _drop_next_run(self, job: JobRow, now: float) -> None:
        """End the run that was to begin."""
        if job.next_run is not None:
            stored = self._store.job(job.pipeline, job.name)
            if stored is not None and stored.next_run is not None:
                self._store.put_job(replace(stored, next_run=None))
            self._store.change_run(job.next_run, state=JobState.STOPPED, since=now, ended=now)
            run = self._store.run(job.next_run)
            if run is not None:
                IntervalStore(self._store).run_ended(run, JobState.STOPPED, now)
                self._store.add_event(
                    job.pipeline, job.name, "state", state=JobState.STOPPED, fields={"run": job.next_run}
                )


def _require_base(name: str, base: int | None, born: float | None, row: PipelineRow | None) -> None:
    version = 0 if row is None else row.version
    is_other = born is not None and row is not None and born != row.born
    if (base is None or base == version) and not is_other:
        return
    planned = f"version {base}" if base else "a new pipeline"
    now = f"version {version} now" if version else "no pipeline of that name now"
    if base and is_other:
        now = f"{now}, of a pipeline that was submitted after that one was deleted"
    raise ControlConflict(
        f"pipeline {name}: this was planned for {planned}, and there is {now}: another submission came in between; "
        "look at `jobpipe pipeline history`, then submit again",
        pipeline=name,
        version=version,
    )


def _is_of(submission: Submission, stored: DefinitionRow | None) -> bool:
    """Whether a file is the one that is stored."""
    if stored is None or (stored.file, stored.folder) != (submission.file, submission.folder):
        return False
    return bool(json.loads(stored.tree) == json.loads(json.dumps(dict(submission.tree))))


def _made_by_others(job: JobRow) -> ControlConflict:
    name = f"{job.pipeline}/{job.name}"
    how = f"`jobpipe runs list {name}` shows them, and `jobpipe runs retry RUN` repeats one"
    said = f"the runs of job {job.pipeline}.{job.name} are made by its schedule: {how}"
    if not job.scheduled:
        said = f"job {job.pipeline}.{job.name} runs over ranges: `jobpipe runs start {name}` begins one"
    return ControlConflict(said, pipeline=job.pipeline, job=job.name)


def _lost(job: JobRow) -> ControlConflict:
    return ControlConflict(
        f"job {job.pipeline}.{job.name} is LOST: it may still be running. Make sure that it has ended, then "
        "restart it with --force",
        pipeline=job.pipeline,
        job=job.name,
    )
