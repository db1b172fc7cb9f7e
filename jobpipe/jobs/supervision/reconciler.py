"""Reconciles one job with its desired state: a step observes it, acts, and says when the next one is due.

All that a step goes by is in the store, the registry and the launcher, so that it does not matter whether the step
before was of this server or of one that was killed. No two steps of a job overlap; a step may wait for the registry
or a launcher.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from jobpipe.errors import ConfigError
from jobpipe.jobs.storage.job_rows import AttemptRow, JobRow, LeaseHolder, RunRow
from jobpipe.jobs.supervision.assessment import Assessment, Step, judge
from jobpipe.jobs.supervision.exit_status import REPLACED_DETAIL
from jobpipe.jobs.supervision.launch import LaunchResult, make_launcher, start_attempt
from jobpipe.jobs.supervision.observations import end_of, facts_of, holder_of, lease_is_own
from jobpipe.jobs.supervision.probes import Probes
from jobpipe.jobs.supervision.supervision_context import SupervisionContext
from jobpipe.jobs.supervision.transitions import JobTransitions, should_stop
from jobpipe.jobs.workloads.progress_reports import Report
from jobpipe.pipelines.file.problems import pipeline_error
from jobpipe.pipelines.model.job_states import DesiredState, JobState
from jobpipe.pipelines.model.paths import PipelinePaths, clear_storage
from jobpipe.pipelines.plugins.api import LaunchState
from jobpipe_registry.host.process_identity import lives
from jobpipe_registry.job_records import Order
from jobpipe_registry.registry_errors import OrderChanged, RegistryError
from jobpipe_registry.registry_jobs import JobRecords

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # how often the launcher is asked
RETRY_SECONDS = 1.0
LEAVE_SECONDS = 30.0  # that processes may take to end after their end record
SHORT_LEAVE_SECONDS = 5.0  # the same, if the time to stop is over as well


@dataclass
class _Rows:
    """What the store has of the job, as of the last change."""

    job: JobRow
    run: RunRow | None
    attempt: AttemptRow | None

    @property
    def should_stop(self) -> bool:
        """Whether the present run should end."""
        return should_stop(self.job, self.run)


class JobReconciler:
    """One job.

    Args:
        wake: lets a step be made soon; called from threads of the registry.
    """

    def __init__(self, context: SupervisionContext, pipeline: str, job: str, wake: Callable[[], None]) -> None:
        self.key = (pipeline, job)
        self._context = context
        self._probes = Probes(context, self.key, wake, self._note_confirmed)
        self._transitions = JobTransitions(context, self.key, self.changed)
        self._lock = threading.Lock()  # of the next six
        self._stale = True
        self._known_at: float | None = None
        self._obstacle = ""
        self._is_launching = False
        self._blocked: str | None = None
        self._room_is_known = False  # False: it is BLOCKED if it was when the server before this one ended
        self._rows: _Rows | None = None

    # -- from other threads --------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Note that the store has changed."""
        with self._lock:
            self._stale = True

    @property
    def known_at(self) -> float | None:
        """When launcher or registry last confirmed how it stands; None: not since this server began."""
        with self._lock:
            return self._known_at

    @property
    def obstacle(self) -> str:
        """Why the last step did not learn how the attempt stands: registry or launcher did not answer; "" if it did."""
        with self._lock:
            return self._obstacle

    @property
    def is_launching(self) -> bool:
        """Whether a launcher is being asked to start an attempt: it may take its time, and cannot be interrupted."""
        with self._lock:
            return self._is_launching

    @contextlib.contextmanager
    def _launching(self) -> Iterator[None]:
        with self._lock:
            self._is_launching = True
        try:
            yield
        finally:
            with self._lock:
                self._is_launching = False

    def _set_obstacle(self, why: str) -> None:
        with self._lock:
            self._obstacle = why

    def block(self, why: str | None) -> bool:
        """Note that a topic that it publishes has no room, or has room again; return whether that is new."""
        with self._lock:
            changed = self._blocked != why or not self._room_is_known
            self._blocked, self._room_is_known = why, True
        return changed

    @property
    def launcher_type(self) -> str:
        """Of its newest attempt, "" before the first: jobs of one type wait for each other alone."""
        return self._probes.launcher_type

    def close(self) -> None:
        self._probes.close()

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(self) -> float | None:
        """Look, and do what is to be done; return in how many seconds to look again, None: when something changes.

        Raises:
            StoreError: the store cannot be read or written; the next step reads all again.
        """
        try:
            return self._step()
        except BaseException as error:
            self._set_obstacle(f"{type(error).__name__}: {error}")
            self.changed()  # re-read the store: it knows how far the step got
            raise

    def _step(self) -> float | None:
        rows = self._read()
        if rows is None:
            self.close()
            return None
        try:
            if rows.attempt is not None:
                return self._reconcile_attempt(rows, rows.attempt)
            if rows.run is not None and not rows.run.is_over:
                return self._between_attempts(rows, rows.run)
            if rows.job.next_run is not None and rows.job.want is DesiredState.RUN and rows.job.in_definition:
                return self._begin_run(rows.job, rows.job.next_run)
            self.close()
            if not rows.job.in_definition:
                self._remove_job(rows.job)
            return None
        except RegistryError as error:
            log.debug("job %s.%s: %s", *self.key, error)
            self._probes.invalidate()
            self.changed()
            now = self._read()
            if now is not None and now.attempt is not None:
                if not isinstance(error, OrderChanged):
                    self._registry_is_away(now, now.attempt, str(error))
            elif now is not None and now.run is not None and not now.run.is_over:
                self._transitions.set_state(now.run, now.run.state, str(error))
            return RETRY_SECONDS

    def _read(self) -> _Rows | None:
        with self._lock:
            stale, self._stale = self._stale, False
        if stale:
            store = self._context.store
            with store.write():  # all of one moment
                job = store.job(*self.key)
                attempt = store.open_attempt(*self.key)
                run = store.run(job.run) if job is not None else None
            self._rows = None if job is None else _Rows(job, run, attempt)
        return self._rows

    # -- between attempts ----------------------------------------------------------------------------------------------

    def _begin_run(self, job: JobRow, run: str) -> float:
        """Let the next run begin."""
        store = self._context.store
        moved = None
        if job.reset_checkpoint:
            try:
                pipeline = self._context.definitions.get(job.pipeline, self._version(job))
                moved = clear_storage(
                    PipelinePaths.of(self._context.home, job.pipeline).storage(pipeline, job.name), run
                )
            except ConfigError as error:
                with store.write():
                    now, following = store.job(*self.key), store.run(run)
                    if now is not None and now.next_run == run and following is not None:
                        store.put_job(replace(now, run=run, next_run=None))
                        self._transitions.end_run(following, JobState.FAILED, str(error))
                self.changed()
                return 0.0
        with store.write():
            now = store.job(*self.key)
            if now is not None and now.next_run == run:
                store.put_job(replace(now, run=run, next_run=None, reset_checkpoint=False))
                if moved is not None:
                    store.add_event(*self.key, "checkpoint", detail=f"the one before is in {moved}")
        self.changed()
        return 0.0

    def _between_attempts(self, rows: _Rows, run: RunRow) -> float | None:
        context = self._context
        if rows.should_stop:
            self._transitions.end_run(run, JobState.STOPPED, "")
            return 0.0
        wait = run.next_at - context.clock()
        if run.state is JobState.RESTARTING and wait > 0:
            if wait <= run.delay + 0.001:  # a time of day as a float is exact to a microsecond or so
                return wait
            context.store.change_run(run.id, next_at=context.clock() + run.delay)  # the clock was set back
            self.changed()
            return run.delay
        return self._start_attempt(rows, run)

    def _start_attempt(self, rows: _Rows, run: RunRow) -> float | None:
        version = self._version(rows.job)
        try:
            pipeline = self._context.definitions.get(self.key[0], version)
            try:
                untrusted = list(self._context.untrusted(pipeline))
            except OSError as error:  # of a file system that may answer again
                why = f"waiting until {error.filename} can be looked at ({error.strerror})"
                self._transitions.set_state(run, run.state, why)
                return RETRY_SECONDS
            if untrusted:
                raise pipeline_error(untrusted)
            launcher = make_launcher(pipeline, run.id)
        except ConfigError as error:
            self._transitions.end_run(run, JobState.FAILED, f"it cannot be started: {error}")
            return 0.0
        if self._probes.launcher_type != launcher.type:
            self._probes.launcher_type = launcher.type
            return 0.0  # and go on among the jobs of that type
        self._probes.watch_registry()
        with self._launching():
            found, why = start_attempt(self._context, rows.job, run, version, launcher, self._is_wanted)
        self.changed()
        if found is LaunchResult.WAIT:
            self._transitions.set_state(run, run.state, why)
            return RETRY_SECONDS
        if found is LaunchResult.REPLACED:
            self._transitions.end_run(run, JobState.CANCELED, REPLACED_DETAIL)
            return 0.0
        if found is LaunchResult.YES and (after := self._read()) is not None and after.attempt is not None:
            self._probes.use_launcher(launcher, after.attempt)
            self._transitions.event(run, JobState.SUBMITTED, f"attempt {run.attempts + 1}")
        return 0.0

    def _is_wanted(self) -> bool:
        """Whether the run may still go on; asked inside a change."""
        store = self._context.store
        job = store.job(*self.key)
        run = None if job is None else store.run(job.run)
        return job is not None and not should_stop(job, run) and run is not None and not run.is_over

    def _version(self, job: JobRow) -> int:
        pipeline = self._context.store.pipeline(job.pipeline)
        return 0 if pipeline is None else pipeline.version

    def _remove_job(self, job: JobRow) -> None:
        """Remove a job that is not in the file any more, and has ended."""
        store = self._context.store
        with store.write():
            now = store.job(*self.key)
            if now is not None and not now.in_definition:
                for subscription in (*job.subscriptions, None):
                    store.add_cleanup_task(*self.key, subscription)
                store.remove_job(*self.key)
                store.add_event(*self.key, "removed")
        self._context.cleanup_added()
        self.changed()

    # -- an attempt ----------------------------------------------------------------------------------------------------

    def _reconcile_attempt(self, rows: _Rows, attempt: AttemptRow) -> float:
        self._probes.watch_registry()
        run = rows.run
        if run is None or run.id != attempt.run:
            run = self._context.store.run(attempt.run)
        if run is None:
            raise RuntimeError(f"run {attempt.run} is gone, and its attempt is not")
        if attempt.ended is not None:
            return self._clean_up_attempt(attempt)
        if rows.should_stop and attempt.stop_by is None:
            self._note_stop_request(run, attempt)
            return 0.0
        status = self._probes.status(attempt)
        runs = status is not None and status.state is LaunchState.RUNNING
        if self._is_to_cancel(attempt) and status is not None and status.state is not LaunchState.ENDED:
            self._probes.cancel(attempt)  # before the registry is asked, which may be slow
        # After the launcher was asked: what an attempt left before it ended is there.
        records = self._probes.registry_state(fresh=not runs)
        if lease_is_own(attempt, records) and records.lease is not None:
            since = _held_since(attempt) or self._context.clock()
            self._note_holder(attempt, holder_of(records.lease, since), records.lease.application)
        code = None if runs else self._probes.exit_code_of(attempt)
        canceled = self._probes.was_canceled
        assessment = judge(facts_of(attempt, status, records, exit_code=code, canceled=canceled, forced=run.forced))
        self._set_obstacle(self._obstacle_of(assessment, attempt))
        return self._apply(assessment, run, attempt, records)

    def _obstacle_of(self, assessment: Assessment, attempt: AttemptRow) -> str:
        """Return why it is not known how an attempt stands, or why it cannot be canceled; "" if neither is so."""
        if assessment.state is JobState.LOST:
            return assessment.detail
        return self._probes.silence if self._is_to_cancel(attempt) else ""

    def _apply(self, assessment: Assessment, run: RunRow, attempt: AttemptRow, records: JobRecords) -> float:
        jobs = self._context.jobs
        match assessment.step:
            case Step.RECORD:
                code, report = self._probes.exit_code_of(attempt), Report()
                if assessment.started:
                    report = self._probes.report(attempt)
                    self._context.attempt_ended(self.key, report)
                self._transitions.record(assessment, run, attempt, end_of(attempt, records), report, code)
                self._note_confirmed()
                return 0.0
            case Step.FENCE:
                self._probes.invalidate()
                jobs.set_order(*self.key, Order(run.id, attempt.number + 1, "stop"), records.version)
                return 0.0
            case Step.ORDER:
                self._probes.invalidate()
                want = "run" if attempt.stop_by is None else "stop"
                jobs.set_order(*self.key, Order(run.id, attempt.number, want), records.version)
            case Step.EVICT:
                lease = records.lease
                if lease is not None and lives(lease.pid, lease.started, lease.ticks, lease.place) is False:
                    jobs.evict_lease(*self.key, lease.instance)
                    return 0.0
        if assessment.state is not None:
            self._publish_state(assessment.state, assessment.detail, run, attempt)
        if attempt.stop_by is not None:
            return self._stop_attempt(run, attempt, records)
        return POLL_SECONDS

    def _publish_state(self, state: JobState, detail: str, run: RunRow, attempt: AttemptRow) -> None:
        if state is JobState.SUBMITTED and _held_since(attempt):
            state = JobState.RUNNING  # it had its lease, and has lost its session
        with self._lock:
            blocked = self._blocked
            if not self._room_is_known and run.state is JobState.BLOCKED:
                blocked = run.detail
        if state is JobState.RUNNING and blocked is not None and run.state in (JobState.RUNNING, JobState.BLOCKED):
            state, detail = JobState.BLOCKED, blocked
        if state in (JobState.SUBMITTED, JobState.RUNNING) and attempt.stop_by is not None:
            state = JobState.STOPPING
        self._transitions.set_state(run, state, detail)

    def _note_stop_request(self, run: RunRow, attempt: AttemptRow) -> None:
        context = self._context
        with context.store.write():
            now = context.store.open_attempt(*self.key)
            if now is not None and now.number == attempt.number and now.stop_by is None:
                until = context.clock() + context.stop_seconds
                context.store.change_attempt(attempt.run, attempt.number, stop_by=until)
            if run.state is not JobState.LOST:
                self._transitions.set_state(run, JobState.STOPPING, "")
        self.changed()

    def _stop_attempt(self, run: RunRow, attempt: AttemptRow, records: JobRecords) -> float:
        """Tell an attempt to stop, by the order; end it where it is when its time is over."""
        context, order = self._context, records.order
        mine = order is not None and (order.run, order.attempt) == (run.id, attempt.number)
        left = self._seconds_until_cancel(attempt)
        if mine and order is not None and order.want == "run":
            self._probes.invalidate()
            context.jobs.set_order(*self.key, Order(run.id, attempt.number, "stop"), records.version)
        if left > 0:
            return min(left, POLL_SECONDS)
        if attempt.launched is None and mine:
            # No launcher can be told; the attempt ends itself when it hears that another number may run.
            self._probes.invalidate()
            fresh = context.jobs.state(*self.key)
            context.jobs.set_order(*self.key, Order(run.id, attempt.number + 1, "stop"), fresh.version)
        return POLL_SECONDS

    def _seconds_until_cancel(self, attempt: AttemptRow) -> float:
        """Return in how many seconds an attempt that is to stop is ended where it is."""
        context = self._context
        left = (attempt.stop_by or 0.0) - context.clock()
        if left > context.stop_seconds:  # the clock was set back
            with context.store.write():
                now = context.store.open_attempt(*self.key)
                if now is not None and (now.number, now.stop_by) == (attempt.number, attempt.stop_by):
                    until = context.clock() + context.stop_seconds
                    context.store.change_attempt(attempt.run, attempt.number, stop_by=until)
            self.changed()
        return left

    def _registry_is_away(self, rows: _Rows, attempt: AttemptRow, why: str) -> None:
        """Do without the registry what can be done, and say what is waited for unless the attempt is seen to run."""
        self._set_obstacle(why)
        self._stop_without_order(attempt)
        runs = self._probes.saw_running and attempt.ended is None and attempt.stop_by is None
        if rows.run is not None and not rows.run.is_over and not runs and rows.run.state is not JobState.BLOCKED:
            self._transitions.set_state(rows.run, rows.run.state, why)

    def _is_to_cancel(self, attempt: AttemptRow) -> bool:
        return attempt.stop_by is not None and self._seconds_until_cancel(attempt) <= 0

    def _stop_without_order(self, attempt: AttemptRow) -> None:
        """The order cannot be changed now: let the launcher tell an attempt to stop.

        How it ended is stored once the registry answers.
        """
        if attempt.stop_by is None or attempt.ended is not None:
            return
        if not self._is_to_cancel(attempt):
            self._probes.ask_to_stop(attempt)

    def _clean_up_attempt(self, attempt: AttemptRow) -> float:
        """See that nothing of an attempt that has ended is left: end record, processes, snapshot."""
        context = self._context
        status = self._probes.status(attempt)
        runs = status is not None and status.state is LaunchState.RUNNING
        since = context.clock() - (attempt.ended or 0.0)
        leaves = runs and since < (SHORT_LEAVE_SECONDS if self._is_to_cancel(attempt) else LEAVE_SECONDS)
        if runs and not leaves:
            self._probes.cancel(attempt)  # before the registry is asked, which may be away
        records = self._probes.registry_state(fresh=True)
        end = end_of(attempt, records)
        if end is not None:
            context.jobs.remove_end(*self.key, end)
        if leaves:
            return POLL_SECONDS / 4
        if status is not None and status.state is LaunchState.ENDED and status.exit_code is None:
            self._probes.cancel(attempt)  # of one that this process did not start its leader alone is seen to end
        code = self._probes.exit_code_of(attempt)
        places = PipelinePaths.of(context.home, self.key[0])
        for file in (places.snapshot(attempt.job, attempt.number), places.report(attempt.job, attempt.number)):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                log.warning("job %s.%s: %s cannot be removed: %s", *self.key, file, error)
        code = attempt.exit_code if code is None else code
        context.store.change_attempt(attempt.run, attempt.number, open=False, exit_code=code)
        self._probes.forget()
        self.changed()
        return 0.0

    def _note_holder(self, attempt: AttemptRow, holder: LeaseHolder, application: str) -> None:
        if (attempt.holder, attempt.application) != (holder, application):
            self._context.store.change_attempt(attempt.run, attempt.number, holder=holder, application=application)
            self.changed()

    def _note_confirmed(self) -> None:
        with self._lock:
            self._known_at = self._context.clock()


def _held_since(attempt: AttemptRow) -> float:
    return 0.0 if attempt.holder is None else attempt.holder.since
