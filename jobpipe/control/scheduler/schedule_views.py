"""Schedules as the views of :mod:`jobpipe.control.control_service`; and what their jobs need of topics."""

from __future__ import annotations

import logging
from datetime import datetime

from jobpipe.control.control_service import BackfillView, IntervalView, ScheduleView
from jobpipe.control.scheduler.hold_keeper import Needed
from jobpipe.control.scheduler.scheduler import Scheduler
from jobpipe.errors import ConfigError
from jobpipe.jobs.schedules.schedule_decisions import Backfill, IntervalState
from jobpipe.jobs.storage.interval_store import IntervalRow, IntervalStore, ScheduleRow, shown_time
from jobpipe.jobs.storage.job_rows import JobRow
from jobpipe.jobs.storage.job_store import Store
from jobpipe.pipelines.file.spec import ScheduleSpec
from jobpipe.pipelines.model.job_states import DesiredState

log = logging.getLogger(__name__)

_ENDED = (IntervalState.SUCCEEDED, IntervalState.FAILED, IntervalState.SKIPPED)


class ScheduleViews:
    """Makes the views; each method is called inside a change of the store, so that all is of one moment."""

    def __init__(self, store: Store, scheduler: Scheduler) -> None:
        self._store = store
        self._intervals = IntervalStore(store)
        self._scheduler = scheduler

    def schedules(self, pipeline: str | None) -> tuple[ScheduleView, ...]:
        """Return those of a pipeline, or all."""
        return tuple(self.schedule(row) for row in self._intervals.schedules(pipeline))

    def of_job(self, job: JobRow) -> ScheduleView | None:
        """Return that of a job, None if it has none."""
        row = self._intervals.schedule(job.pipeline, job.name)
        return None if row is None else self.schedule(row)

    def schedule(self, row: ScheduleRow) -> ScheduleView:
        key = (row.pipeline, row.job)
        job, counts = self._store.job(*key), self._intervals.counts(*key)
        active = job is not None and job.in_definition and job.want is DesiredState.RUN and not row.paused
        due = self._next_due(row) if active else None
        last = self._intervals.last(*key, *_ENDED)
        return ScheduleView(
            pipeline=row.pipeline,
            job=row.job,
            rule=rule_text(row.spec),
            paused=row.paused,
            active=active,
            accepted=shown_time(row.accepted),
            next_due=None if due is None else due.timestamp(),
            waiting=counts[IntervalState.WAITING],
            running=counts[IntervalState.RUNNING],
            failed=counts[IntervalState.FAILED],
            last=None if last is None else self.interval(last),
            problem=row.problem or self._scheduler.engine_problem(row),
            engine=row.spec.engine.type,
        )

    def _next_due(self, row: ScheduleRow) -> datetime | None:
        try:
            return self._scheduler.next_due(row)
        except ConfigError:
            return None

    def intervals(self, pipeline: str, job: str, limit: int) -> tuple[IntervalView, ...]:
        """Return the newest ones."""
        return tuple(map(self.interval, self._intervals.intervals(pipeline, job, limit)))

    def intervals_in(self, pipeline: str, job: str, state: IntervalState, limit: int) -> tuple[IntervalView, ...]:
        """Return the earliest ones in a state."""
        return tuple(map(self.interval, self._intervals.intervals_in(pipeline, job, state, limit)))

    def interval(self, row: IntervalRow) -> IntervalView:
        return IntervalView(
            pipeline=row.pipeline,
            job=row.job,
            lower=shown_time(row.interval.lower),
            upper=shown_time(row.interval.upper),
            state=str(row.state),
            since=row.since,
            run=row.run,
        )

    def needed(self) -> list[Needed]:
        """Return what schedules need of topics now."""
        found: list[Needed] = []
        with self._store.write():
            for row in self._intervals.schedules():
                key = (row.pipeline, row.job)
                try:
                    since = self._scheduler.needed_from(row)
                    if since is None:
                        continue
                except ConfigError as error:  # the files of its time zone are gone
                    log.warning("schedule of job %s.%s: %s", *key, error)
                    since = None
                found += [Needed(key=key, topic=topic, name=name, since=since) for topic, name in row.reads]
        return found


def backfill_view(done: Backfill) -> BackfillView:
    """Return a backfill in numbers."""
    return BackfillView(
        added=len(done.accept),
        repeated=len(done.repeat),
        done=len(done.done),
        under_way=len(done.under_way),
        ahead=len(done.ahead),
    )


def rule_text(spec: ScheduleSpec) -> str:
    """Return when a schedule's intervals end, on one line.

    >>> rule_words(ScheduleSpec(every="15 minutes"))
    'every 15 minutes'
    """
    words = f"every {spec.every}" if spec.crontab is None else spec.crontab
    return words if spec.timezone == "UTC" else f"{words} {spec.timezone}"
