"""State transitions of one job and its runs, as they are stored; what follows when an attempt has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from jobpipe.errors import ConfigError, LauncherUnavailable
from jobpipe.jobs.storage.interval_store import IntervalStore
from jobpipe.jobs.storage.job_rows import AttemptRow, JobRow, RunRow
from jobpipe.jobs.supervision.assessment import Assessment
from jobpipe.jobs.supervision.restart_policy import RestartPolicy
from jobpipe.jobs.supervision.supervision_context import SupervisionContext
from jobpipe.jobs.workloads.progress_reports import Report
from jobpipe.pipelines.file.spec import RestartSpec
from jobpipe.pipelines.model.job_states import FOLLOWING, DesiredState, JobState
from jobpipe_registry.job_records import EndRecord

log = logging.getLogger(__name__)

UNAVAILABLE = LauncherUnavailable.__name__  # the error of an attempt whose launcher took none
RETRY_SECONDS = 1.0  # before another attempt after that; it doubles
RETRY_MOST_SECONDS = 60.0


def should_stop(job: JobRow, run: RunRow | None) -> bool:
    """Whether the present run of a job should end."""
    return (
        job.want is DesiredState.STOP
        or not job.in_definition
        or job.next_run is not None
        or (run is not None and run.stop)
    )


def _seconds_held(attempt: AttemptRow, ended: float) -> float:
    """Return how long an attempt had its lease: waiting for it, or for a host, is no work."""
    since = 0.0 if attempt.holder is None else attempt.holder.since
    return max(0.0, ended - since) if since else 0.0


class JobTransitions:
    """Writes of one job.

    Args:
        changed: called after each change.
    """

    def __init__(self, context: SupervisionContext, key: tuple[str, str], changed: Callable[[], None]) -> None:
        self._context = context
        self._key = key
        self._changed = changed

    def record(
        self,
        assessment: Assessment,
        run: RunRow,
        attempt: AttemptRow,
        end: EndRecord | None,
        report: Report,
        exit_code: int | None,
    ) -> None:
        """Store how an attempt ended, and what follows; then only is its end record removed.

        Args:
            end: the record that it left; without one ``report`` says what it has done, if it ran on this host.
        """
        context = self._context
        now, state = context.clock(), assessment.state or JobState.FAILED
        ended, done = now if end is None else min(now, end.at), report if end is None else end
        error, detail = assessment.error, assessment.detail
        if end is not None:
            error = end.error
            detail = detail or (f"{end.error} ({end.place})" if end.place else end.error)
        elif not assessment.started and attempt.error:  # the launcher said that it cannot be started
            error, detail = attempt.error, attempt.detail
            if error != UNAVAILABLE:
                state = JobState.FAILED
        with context.store.write():
            context.store.change_attempt(
                attempt.run,
                attempt.number,
                state=state,
                ended=now,
                error=error,
                detail=detail,
                exit_code=exit_code,
                batches=done.batches,
                rows=done.rows,
            )
            if done.batches or done.rows:
                run = replace(run, batches=run.batches + done.batches, rows=run.rows + done.rows)
                context.store.change_run(run.id, batches=run.batches, rows=run.rows)
            self._decide_next(state, error, detail, run, attempt, ended, started=assessment.started)
        self._changed()

    def _decide_next(
        self,
        state: JobState,
        error: str,
        detail: str,
        run: RunRow,
        attempt: AttemptRow,
        ended: float,
        *,
        started: bool,
    ) -> None:
        """Decide what becomes of the run whose attempt has ended; inside a change, by what is wanted now."""
        context = self._context
        job = context.store.job(*self._key)
        stopping = job is None or should_stop(job, context.store.run(run.id))
        if state is JobState.CANCELED and not started:
            if stopping:
                self.end_run(run, JobState.STOPPED, "")
            else:
                if error == UNAVAILABLE:
                    detail = f"{detail}; {self._wait_for_launcher(run, attempt)}"
                self.set_state(run, JobState.RESTARTING, detail)
            return
        if state is not JobState.FAILED or stopping:
            self.end_run(run, state, detail)
            return
        try:
            restarts = RestartPolicy(self._restart_policy(attempt), run.failures)
        except ConfigError as wrong:  # another attempt could not be started either
            self.end_run(run, JobState.FAILED, f"{detail}; and {wrong}")
            return
        delay = restarts.delay(error, _seconds_held(attempt, ended))
        if delay is None:
            self.end_run(run, JobState.FAILED, detail)
            return
        context.store.change_run(run.id, failures=restarts.attempts, next_at=context.clock() + delay, delay=delay)
        self.set_state(run, JobState.RESTARTING, f"attempt {run.attempts}: {detail}; the next attempt in {delay:.0f} s")

    def _restart_policy(self, attempt: AttemptRow) -> RestartSpec:
        """Return that of the newest file; where it cannot be loaded here, of the one that the attempt began with.

        Raises:
            ConfigError: neither can be loaded.
        """
        context, pipeline = self._context, self._key[0]
        row = context.store.pipeline(pipeline)
        if row is not None and row.version != attempt.version:
            try:
                return context.definitions.get(pipeline, row.version).spec.restart
            except ConfigError as error:
                log.warning("pipeline %s: its restart policy cannot be read: %s", pipeline, error)
        return context.definitions.get(pipeline, attempt.version).spec.restart

    def _wait_for_launcher(self, run: RunRow, attempt: AttemptRow) -> str:
        """Let the next attempt wait for the launcher, which counts as no failure; return for how long, for people."""
        store = self._context.store
        again = any(each.error == UNAVAILABLE for each in store.attempts(run.id, 2) if each.number < attempt.number)
        delay = min(2 * run.delay, RETRY_MOST_SECONDS) if again else RETRY_SECONDS
        store.change_run(run.id, next_at=self._context.clock() + delay, delay=delay)
        return f"trying again in {delay:.0f} s"

    def set_state(self, run: RunRow, state: JobState, detail: str) -> None:
        """Store a state, where it is another one than before."""
        if state is not run.state and state not in FOLLOWING[run.state]:
            log.error("job %s.%s: %s does not follow %s", *self._key, state, run.state)
        detail = detail[:1000]
        if (state, detail) == (run.state, run.detail):
            return
        store = self._context.store
        since = run.since if state is run.state else self._context.clock()
        with store.write():
            store.change_run(run.id, state=state, detail=detail, since=since)
            if state is not run.state:
                self.event(run, state, detail)
        self._changed()

    def end_run(self, run: RunRow, state: JobState, detail: str) -> None:
        """Store that a run has ended for good."""
        now = self._context.clock()
        with self._context.store.write():
            store = self._context.store
            store.change_run(run.id, state=state, detail=detail[:1000], since=now, ended=now)
            IntervalStore(store).run_ended(store.run(run.id) or run, state, now)
            self.event(run, state, detail)
        self._changed()
        self._context.run_ended(self._key)

    def event(self, run: RunRow, state: JobState, detail: str) -> None:
        self._context.store.add_event(*self._key, "state", state=state, detail=detail, fields={"run": run.id})
