"""Supervises the jobs of a pipeline: orders and launches their attempts, watches how they end, restarts them.

Each job has a thread of its own, so that one whose registry or launcher is slow delays no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobpipe.errors import JobpipeError
from jobpipe.jobs.monitor.throughput import Throughput
from jobpipe.jobs.supervision.exit_status import (
    REPLACED_END,
    ExitStatus,
    end_by_code,
    end_by_record,
    end_without_record,
)
from jobpipe.jobs.supervision.restart_policy import RestartPolicy, restart_note
from jobpipe.jobs.supervision.submission_retry import Delay, SubmittedAttempt, submit
from jobpipe.jobs.workloads.progress_reports import Report, read_report
from jobpipe.pipelines.file.located_values import plain
from jobpipe.pipelines.loading.snapshot import ParentProcess, Snapshot
from jobpipe.pipelines.model.job_states import FOLLOWING, JobState
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.pipelines.model.pipeline import Job, Pipeline
from jobpipe.pipelines.model.run_bounds import NO_BOUNDS, RunBounds
from jobpipe.pipelines.plugins.api import Attempt, LaunchState, LaunchStatus
from jobpipe_registry.job_records import EndRecord, Order
from jobpipe_registry.registry_errors import OrderChanged, Unavailable
from jobpipe_registry.registry_jobs import JobRecords, Jobs

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
RETRY_SECONDS = 1.0
LOST_SECONDS = 30.0  # without lease and without a word of the launcher; longer than a session in the registry lasts
LEFT_SECONDS = 15.0  # for an attempt to end after its end record, and after it was canceled
REPORT_SECONDS = 1.0  # between two looks at what an attempt reports
END_RECORD_SECONDS = 150.0  # that the registry may be away when an attempt has ended


@dataclass(frozen=True)
class JobView:
    """How a job stands.

    Attributes:
        attempt: the number of its newest attempt's lease, 0 before the first; people see ``attempts``.
        attempts: how many there were in this run.
        seconds: since it was started, or, once it has ended, how long it ran.
        detail: of a failure or a restart why; "" otherwise.
        batches, rows: what its attempts have done. Of one on a cluster it is known when it has ended.
        log: the file where it says more.
        cause: the line of the exception that ended it, also part of ``detail``; "" if that is not known.
        rows_per_second: lately; of a job that has ended, on average.
        starting: it is RUNNING, and its Spark session is not there yet; never of one on a cluster.
        lag_rows: how many rows of its topics it has not read yet; None if it reads none, or that is not known.
    """

    name: str
    state: JobState
    attempt: int
    attempts: int
    seconds: float
    detail: str
    batches: int
    rows: int
    log: Path
    cause: str = ""
    rows_per_second: float = 0.0
    lag_rows: int | None = None
    starting: bool = False


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What the jobs of one run have in common.

    Attributes:
        run: its id.
        bounds: those of the run.
        config: the file of jobpipe's configuration; None: found as always.
        stop_seconds: how long a stop may take.
        parent: the process with which attempts end; None: they live on.
        environment: what is added to theirs.
    """

    pipeline: Pipeline
    places: PipelinePaths
    jobs: Jobs
    run: str
    config: Path | None
    bounds: RunBounds = NO_BOUNDS
    stop_seconds: float
    parent: ParentProcess | None
    environment: Mapping[str, str]


class SupervisedJob:
    """One job of a run; :meth:`start` begins, and it ends by itself or by :meth:`stop`."""

    def __init__(self, context: RunContext, job: Job) -> None:
        self._context = context
        self._launcher = context.pipeline.launcher.plugin
        self._job = job
        self._key = (context.pipeline.name, job.name)
        self._lock = threading.Lock()  # of what follows
        self._state = JobState.SUBMITTED
        self._detail = ""
        self._attempt = 0
        self._attempts = 0
        self._cause = ""
        self._last_failure = ""  # why the attempt before this one failed
        self._batches = self._rows = 0  # of attempts that have ended
        self._report = Report()  # of the one that runs
        self._throughput = Throughput()
        self._rows_per_second = 0.0
        self._leased_at: float | None = None  # when the attempt had the lease
        self._began = self._ended_at = 0.0
        self._records: JobRecords | None = None
        self._stopping = threading.Event()
        self._killing = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name=f"job-{job.name}", daemon=True)
        self._started = False
        self._canceled = False

    def start(self) -> None:
        """Begin."""
        self._began = time.monotonic()
        self._thread.start()
        self._started = True

    def stop(self) -> None:
        """Let it end after the micro-batch it is in; returns at once. Idempotent."""
        self._stopping.set()
        self._wake.set()

    def kill(self) -> None:
        """End it where it is; returns at once."""
        self._killing.set()
        self.stop()

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._started and not self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait for its end, if it was started."""
        if self._started:
            self._thread.join(seconds)

    def block(self, why: str | None) -> None:
        """Note that a topic that it publishes has no room, or has room again."""
        with self._lock:
            if why is not None and self._state is JobState.RUNNING:
                self._state, self._detail = JobState.BLOCKED, why
            elif why is None and self._state is JobState.BLOCKED:
                self._state, self._detail = JobState.RUNNING, ""

    @property
    def view(self) -> JobView:
        """How it stands."""
        with self._lock:
            until = self._ended_at or time.monotonic()
            detail = self._detail
            if not detail and self._state is JobState.RUNNING and self._leased_at is not None:
                detail = restart_note(self._last_failure, until - self._leased_at)
            return JobView(
                self._job.name,
                self._state,
                self._attempt,
                self._attempts,
                until - self._began if self._began else 0.0,
                detail,
                self._batches + self._report.batches,
                self._rows + self._report.rows,
                self._context.places.log(self._job.name),
                self._cause,
                self._rows_per_second,
                starting=self._state is JobState.RUNNING and not (self._launcher.cluster or self._report.started),
            )

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        try:
            watch = self._context.jobs.watch(*self._key, self._on_change)
            try:
                end = self._run_attempts()
            finally:
                watch.close()
        except Exception as error:
            log.exception("job %s", self._job.name)
            end = ExitStatus(JobState.FAILED, type(error).__name__, f"{type(error).__name__}: {error}")
        self._set_state(end.state, end.detail)
        with self._lock:
            self._ended_at = time.monotonic()
            self._rows_per_second = self._throughput.overall()[0]

    def _on_change(self, state: JobRecords) -> None:
        self._records = state
        self._wake.set()

    def _run_attempts(self) -> ExitStatus:
        """Make attempts until one ends for good."""
        restarts = RestartPolicy(self._context.pipeline.spec.restart)
        while not self._stopping.is_set():
            self._leased_at = None
            end = self._run_attempt()
            if end.state is not JobState.FAILED or self._stopping.is_set():
                return end
            ran = 0.0 if self._leased_at is None else time.monotonic() - self._leased_at
            delay = restarts.delay(end.error, ran)
            if delay is None:
                return end
            self._set_state(
                JobState.RESTARTING, f"attempt {self._attempts}: {end.detail}; the next attempt in {delay:.0f} s"
            )
            log.warning("job %s, attempt %d: %s", self._job.name, self._attempts, end.detail)
            self._last_failure = end.detail
            self._stopping.wait(delay)
        return ExitStatus(JobState.STOPPED)

    def _run_attempt(self) -> ExitStatus:
        """Make one attempt; where it is not known whether it was started, the next one in its place."""
        counted, delay = False, Delay()
        while True:
            number = self._order_attempt()
            if isinstance(number, ExitStatus):
                if counted and number is not REPLACED_END:
                    self._withdraw(self._attempt)
                return number
            with self._lock:
                self._attempt, self._attempts = number, self._attempts + (not counted)
            counted = True
            self._set_state(JobState.SUBMITTED)
            snapshot = self._context.places.snapshot(self._job.name, number)
            report = self._context.places.report(self._job.name, number)
            try:
                try:
                    self._snapshot(number).write(snapshot)
                    attempt = self._launch_request(number, snapshot)
                    launched = submit(self._launcher, attempt, delay, self._stopping, self._report_waiting)
                except (JobpipeError, OSError) as error:
                    return ExitStatus(JobState.FAILED, type(error).__name__, f"it cannot be started: {error}")
                if launched is not None:
                    try:
                        status = self._wait_until_ended(launched, number)
                    except BaseException:
                        launched.cancel()
                        raise
                    return self._exit_status(status, number)
            finally:
                snapshot.unlink(missing_ok=True)
                report.unlink(missing_ok=True)
            if self._stopping.is_set():
                self._withdraw(number)
                return ExitStatus(JobState.STOPPED)

    def _withdraw(self, number: int) -> None:
        """See that an attempt that was perhaps started does nothing."""
        until = time.monotonic() + self._context.stop_seconds
        while not self._order_stop(number) and time.monotonic() < until and not self._killing.is_set():
            self._killing.wait(RETRY_SECONDS)

    def _launch_request(self, number: int, snapshot: Path) -> Attempt:
        context = self._context
        return Attempt(
            pipeline=context.pipeline.name,
            job=self._job.name,
            run=context.run,
            number=number,
            snapshot=snapshot,
            log=context.places.log(self._job.name),
            folder=context.pipeline.folder,
            environment=context.environment,
            configuration=context.pipeline.configuration(self._job),
        )

    def _snapshot(self, number: int) -> Snapshot:
        context = self._context
        return Snapshot(
            file=context.pipeline.file,
            folder=context.pipeline.folder,
            tree=plain(context.pipeline.tree),
            job=self._job.name,
            run=context.run,
            lower=context.bounds.lower,
            upper=context.bounds.upper,
            attempt=number,
            storage=context.places.storage(context.pipeline, self._job.name),
            config=None if self._launcher.cluster else context.config,
            stop_seconds=context.stop_seconds,
            parent=None if self._launcher.cluster else context.parent,
            report=None if self._launcher.cluster else context.places.report(self._job.name, number),
        )

    def _wait_until_ended(self, launched: SubmittedAttempt, number: int) -> LaunchStatus:
        """Wait for the end of an attempt; see that it stops when it is to stop, within the time that it has.

        One that has left its end record has ended, whatever the launcher says. Without the record only the launcher can
        say so: a driver that lost its lease may have lost no more than that.
        """
        deadline = canceled = left = float("inf")
        held = time.monotonic()  # when it had the lease, or the launcher knew of it
        told = asked = False
        looked = 0.0
        while True:
            if self._stopping.is_set() and not self._killing.is_set():  # the launcher may be slow, or away
                told = told or self._order_stop(number)
                if not told and not asked:
                    launched.ask_to_stop()
                    asked = True
            if time.monotonic() - looked >= REPORT_SECONDS:
                looked = time.monotonic()
                self._poll_report(number)
            status = launched.status(soon=self._has_end_record(number))
            now, unknown = time.monotonic(), status.state is LaunchState.UNKNOWN
            if status.state is LaunchState.ENDED:
                return status
            if self._has_end_record(number):
                left = min(left, now)
                if unknown:
                    return status
                if now > left + LEFT_SECONDS:
                    launched.cancel()
                    return status
            if self._stopping.is_set():
                deadline = min(deadline, now + self._context.stop_seconds)
                self._set_state(JobState.STOPPING)
                if self._killing.is_set() or now > deadline:
                    canceled = min(canceled, now)
                    self._canceled = self._canceled or not self._has_end_record(number)
                    launched.cancel()
                    if unknown and now > canceled + LEFT_SECONDS:
                        return status
            elif self._has_lease(number):
                held = now
                self._leased_at = self._leased_at or now
                self._set_running()
            elif not unknown:
                held = now
                self._report_waiting(status.detail)
            elif now > held + LOST_SECONDS:
                self._set_state(JobState.LOST, status.detail)
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()

    def _has_end_record(self, number: int) -> bool:
        end = None if self._records is None else self._records.end
        return end is not None and (end.run, end.attempt) == (self._context.run, number)

    def _has_lease(self, number: int) -> bool:
        lease = None if self._records is None else self._records.lease
        return lease is not None and (lease.run, lease.attempt) == (self._context.run, number)

    def _exit_status(self, status: LaunchStatus, number: int) -> ExitStatus:
        self._poll_report(number)
        cause = self._report.error
        if (end := end_by_code(status.exit_code, cause)) is not None:
            self._count_done(self._report, cause)
            return end
        record, stopped = self._end_record(number)
        self._count_done(record or self._report, cause)
        if record is not None:
            return end_by_record(record, stopped=stopped, canceled=self._canceled, cause=cause)
        return end_without_record(status, stopped=stopped, stopping=self._stopping.is_set())

    def _count_done(self, done: EndRecord | Report, cause: str) -> None:
        """Count what an attempt has done that has ended."""
        with self._lock:
            self._batches += done.batches
            self._rows += done.rows
            self._report, self._cause = Report(), cause

    def _poll_report(self, number: int) -> None:
        report = read_report(self._context.places.report(self._job.name, number))
        if report is not None:
            with self._lock:
                self._report = report
                self._rows_per_second = self._throughput.add(time.monotonic(), self._rows + report.rows)[0]

    # -- the registry --------------------------------------------------------------------------------------------------

    def _order_attempt(self) -> int | ExitStatus:
        """Order the next attempt; return its number, or why there is none.

        A run that begins takes the job from the run before; one that goes on does not take it from a newer one.
        """
        while not self._stopping.is_set():
            try:
                found = self._context.jobs.state(*self._key)
                if self._attempts and found.order is not None and found.order.run != self._context.run:
                    return REPLACED_END
                number = 1 if found.order is None else found.order.attempt + 1
                order = Order(self._context.run, number, "run")
                self._context.jobs.set_order(*self._key, order, found.version)
                if found.end is not None:
                    self._context.jobs.remove_end(*self._key, found.end)
            except OrderChanged:
                continue
            except Unavailable as error:
                self._set_state(self._state, str(error))
                self._stopping.wait(RETRY_SECONDS)
                continue
            return number
        return ExitStatus(JobState.STOPPED)  # before the registry answered

    def _order_stop(self, number: int) -> bool:
        """Change the order to stop; False if that is to be tried again."""
        try:
            found = self._context.jobs.state(*self._key)
            if found.order is None or (found.order.run, found.order.attempt) != (self._context.run, number):
                return True  # another one was ordered, and it ends by that
            self._context.jobs.set_order(*self._key, Order(self._context.run, number, "stop"), found.version)
        except (OrderChanged, Unavailable) as error:
            log.debug("job %s: %s", self._job.name, error)
            return False
        return True

    def _end_record(self, number: int) -> tuple[EndRecord | None, bool]:
        """Return what an attempt left, and whether it was told to stop."""
        until = time.monotonic() + END_RECORD_SECONDS
        while True:
            try:
                found = self._context.jobs.state(*self._key)
            except Unavailable as error:
                if time.monotonic() > until or self._killing.is_set():
                    log.warning("job %s: %s", self._job.name, error)
                    return None, self._stopping.is_set()
                self._killing.wait(RETRY_SECONDS)
                continue
            mine, end, order = (self._context.run, number), found.end, found.order
            ordered = order is not None and (order.run, order.attempt, order.want) == (*mine, "stop")
            return (
                end if end is not None and (end.run, end.attempt) == mine else None,
                ordered or self._stopping.is_set(),
            )

    # -- states --------------------------------------------------------------------------------------------------------

    def _set_running(self) -> None:
        if self._state in (JobState.SUBMITTED, JobState.LOST):
            self._set_state(JobState.RUNNING)

    def _report_waiting(self, detail: str) -> None:
        """Say what is awaited, before it runs."""
        if self._state in (JobState.SUBMITTED, JobState.LOST):
            self._set_state(JobState.SUBMITTED, detail)

    def _set_state(self, state: JobState, detail: str = "") -> None:
        with self._lock:
            if state is not self._state and state not in FOLLOWING[self._state]:
                log.error("job %s: %s does not follow %s", self._job.name, state, self._state)
            self._state, self._detail = state, detail
