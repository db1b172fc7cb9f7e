"""The jobs of a run in the foreground: supervised as those of the control server, over a store of the run's own.

The store is in memory: attempts end with this process, and what later runs go on from is in checkpoints and topics.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType

from jobpipe.jobs.monitor.throughput import Throughput
from jobpipe.jobs.storage.job_rows import AttemptRow, JobRow, PipelineRow, RunRow, new_run_id
from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.circuit_breaker import CircuitBreaker
from jobpipe.jobs.supervision.dispatcher import Dispatcher
from jobpipe.jobs.supervision.exit_status import MISCONFIGURED_TEXT
from jobpipe.jobs.supervision.restart_policy import restart_note
from jobpipe.jobs.supervision.supervision_context import LOST_SECONDS, Key, SupervisionContext
from jobpipe.jobs.workloads.progress_reports import Report, read_report
from jobpipe.pipelines.loading.snapshot import ParentProcess
from jobpipe.pipelines.model.job_states import DesiredState, JobState
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe.pipelines.model.run_bounds import NO_BOUNDS, RunBounds
from jobpipe_registry.registry_jobs import Jobs

GIVE_UP_SECONDS = 20.0  # after the time for a stop, for registry and launcher to answer how the job ended
LAUNCH_SECONDS = 330.0  # after it, for a launcher that is starting an attempt; spark-submit may take 300
MOST_THREADS = 64  # so many jobs are supervised at the same moment
JOIN_SECONDS = 0.05


@dataclass(frozen=True)
class JobView:
    """How a job stands.

    Attributes:
        attempt: the number of its newest attempt's lease, 0 before the first; people see ``attempts``.
        attempts: how many there were in this run.
        seconds: since it was started, or, once it has ended, how long it ran.
        detail: of a failure or a restart why; "" otherwise.
        batches, rows: what its attempts have done. For an attempt on a cluster, known only after it ends.
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
        names: of the jobs that run.
        bounds: those of the run.
        config: the file of jobpipe's configuration; None: found as always.
        stop_seconds: how long a stop may take.
        parent: the process with which attempts end; None: they live on.
        environment: what is added to theirs.
    """

    pipeline: Pipeline
    names: Sequence[str]
    home: Path
    jobs: Jobs
    config: Path | None
    bounds: RunBounds = NO_BOUNDS
    stop_seconds: float
    parent: ParentProcess | None
    environment: Mapping[str, str]


class _OnlyPipeline:
    """The pipeline of the run, as the definition of its jobs."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def get(self, name: str, version: int) -> Pipeline:
        return self._pipeline


class ForegroundJobs:
    """The jobs of one run; a context manager: at its end none is supervised any more.

    Attributes:
        names: of the jobs.
        changed: set when a job has ended for good.
    """

    def __init__(self, context: RunContext) -> None:
        self.names = tuple(context.names)
        self.changed = threading.Event()
        self._context = context
        self._name = context.pipeline.name
        self._places = PipelinePaths.of(context.home, self._name)
        self._store = Store(None, time.time)
        self._dispatcher = Dispatcher(
            SupervisionContext(
                store=self._store,
                jobs=CircuitBreaker(context.jobs),
                definitions=_OnlyPipeline(context.pipeline),
                home=context.home,
                untrusted=lambda pipeline: (),
                config_file=context.config,
                parent=context.parent,
                environment=context.environment,
                takes_over=True,
                stop_seconds=context.stop_seconds,
                lost_seconds=LOST_SECONDS,
                clock=time.time,
                cleanup_added=lambda: None,
                attempt_ended=self._attempt_ended,
                run_ended=lambda key: self.changed.set(),
            ),
            threads=min(max(len(self.names), 1), MOST_THREADS),
        )
        self._lost: dict[str, str] = {}  # jobs that are not waited for any longer, and why
        self._end_by: float | None = None  # when the jobs are to have ended; None: they were not told to stop
        self._causes: dict[str, str] = {}
        self._throughput = {name: Throughput() for name in self.names}

    def __enter__(self) -> ForegroundJobs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dispatcher.close()
        self._store.close()

    def start(self) -> None:
        """Let a run of each job begin; those that were told to stop before have ended then."""
        now, bounds = time.time(), self._context.bounds
        with self._store.write():
            self._store.put_pipeline(
                PipelineRow(name=self._name, version=1, want=DesiredState.RUN, submitted=now, born=now)
            )
            for position, name in enumerate(self.names):
                run = new_run_id(now)
                self._store.put_job(_job_row(self._name, name, position, run))
                self._store.add_run(
                    RunRow(
                        id=run,
                        pipeline=self._name,
                        job=name,
                        state=JobState.SUBMITTED,
                        began=now,
                        since=now,
                        lower=_bound(bounds.lower),
                        upper=_bound(bounds.upper),
                    )
                )
        if self._end_by is not None:
            self._stop(None)
        self._dispatcher.start()

    # -- what a person wants -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let the jobs end after the micro-batch they are in; returns at once. Idempotent."""
        self._end_within(self._context.stop_seconds)
        self._stop(None)

    def kill(self) -> None:
        """End the jobs where they are; returns at once."""
        self._end_within(0.0)
        self._stop(time.time())

    def _end_within(self, seconds: float) -> None:
        by = time.monotonic() + seconds
        self._end_by = by if self._end_by is None else min(by, self._end_by)

    def _stop(self, until: float | None) -> None:
        with self._store.write():
            for name in self.names:
                job = self._store.job(self._name, name)
                if job is None:
                    continue
                job = replace(job, want=DesiredState.STOP)
                if job.next_run is not None:  # it has not begun, and never will
                    self._store.change_run(job.next_run, state=JobState.STOPPED, ended=time.time())
                    job = replace(job, run=job.next_run, next_run=None)
                self._store.put_job(job)
                attempt = self._store.open_attempt(self._name, name)
                if until is not None and attempt is not None:
                    by = until if attempt.stop_by is None else min(until, attempt.stop_by)
                    self._store.change_attempt(attempt.run, attempt.number, stop_by=by)
        self._dispatcher.notify((self._name, name) for name in self.names)

    def block(self, name: str, why: str | None) -> None:
        """Note that a topic that a job publishes has no room, or has room again."""
        self._dispatcher.block((self._name, name), why)

    # -- how they stand ------------------------------------------------------------------------------------------------

    def ended(self, name: str) -> bool:
        """Whether a job has ended, and nothing of it is left; or its time is over, and nothing says how it ended."""
        run, attempt = self._newest(name)
        if run is not None and run.is_over and (attempt is None or not attempt.open):
            return True
        return self._given_up(name) is not None

    def _given_up(self, name: str) -> str | None:
        """Return why a job is not waited for any longer, None if it is: its time is over, and it has not ended.

        What a launcher is starting is waited for, since it can be canceled only then.
        """
        key, by = (self._name, name), self._end_by
        if name not in self._lost and by is not None:
            seconds = LAUNCH_SECONDS if self._dispatcher.is_launching(key) else GIVE_UP_SECONDS
            if time.monotonic() >= by + seconds:
                self._lost[name] = self._dispatcher.obstacle(key) or "it does not end"
        return self._lost.get(name)

    def join(self, seconds: float) -> bool:
        """Wait until all have ended; return whether they have."""
        until = time.monotonic() + seconds
        while not (done := all(map(self.ended, self.names))) and time.monotonic() < until:
            time.sleep(JOIN_SECONDS)
        return done

    def view(self, name: str) -> JobView:
        run, attempt = self._newest(name)
        if run is None:
            return JobView(name, JobState.SUBMITTED, 0, 0, 0.0, "", 0, 0, self._places.log(name))
        report = Report()
        if attempt is not None and attempt.ended is None:
            report = read_report(self._places.report(name, attempt.number)) or report
        rows, now = run.rows + report.rows, time.time()
        throughput = self._throughput[name]
        lately = throughput.add(time.monotonic(), rows)[0] if not run.is_over else throughput.overall()[0]
        state, detail = run.state, self._detail(name, run, attempt, now)
        if not run.is_over and (why := self._given_up(name)) is not None:
            state, detail = JobState.LOST, f"unknown whether it has exited: {why}"
        cause = self._causes.get(name, "")
        cluster = self._context.pipeline.launcher.plugin.cluster
        return JobView(
            name,
            state,
            0 if attempt is None else attempt.number,
            run.attempts,
            max(0.0, (run.ended or now) - run.began),
            detail,
            run.batches + report.batches,
            rows,
            self._places.log(name),
            cause if cause in detail else "",
            lately,
            starting=run.state is JobState.RUNNING and not (cluster or report.started),
        )

    def _newest(self, name: str) -> tuple[RunRow | None, AttemptRow | None]:
        with self._store.write():  # all of one moment
            job = self._store.job(self._name, name)
            run = None if job is None else self._store.run(job.run or job.next_run)
            attempts = [] if run is None else self._store.attempts(run.id, 1)
        return run, attempts[0] if attempts else None

    def _detail(self, name: str, run: RunRow, attempt: AttemptRow | None, now: float) -> str:
        """Return what is said of a job, with all that the error says: it stays on this terminal."""
        if attempt is None:
            return run.detail
        if attempt.ended is not None and run.state in (JobState.FAILED, JobState.RESTARTING):
            return _with_cause(run.detail, attempt.error, self._causes.get(name, ""))
        if run.detail or run.state is not JobState.RUNNING or attempt.holder is None or not attempt.holder.since:
            return run.detail
        before = [each for each in self._store.attempts(run.id, 2) if each.number < attempt.number]
        why = _with_cause(before[0].detail, before[0].error, self._causes.get(name, "")) if before else ""
        return restart_note(why, now - attempt.holder.since)

    def _attempt_ended(self, key: Key, report: Report) -> None:
        self._causes[key[1]] = report.error


def _with_cause(detail: str, error: str, cause: str) -> str:
    """Return a detail that has all that the error said, not its class alone."""
    if not cause or cause in detail:
        return detail
    if MISCONFIGURED_TEXT in detail:
        return f"{detail}: {cause}"
    return detail.replace(error, cause, 1) if error and cause.startswith(error) else detail


def _job_row(pipeline: str, name: str, position: int, run: str) -> JobRow:
    return JobRow(
        pipeline=pipeline,
        name=name,
        position=position,
        kind="",
        scheduled=False,
        in_definition=True,
        want=DesiredState.RUN,
        reset_checkpoint=False,
        digest="",
        reads=(),
        publishes=(),
        subscriptions=(),
        next_run=run,
    )


def _bound(bound: datetime | int | None) -> str | None:
    """Return a bound as a row has it."""
    return bound.isoformat() if isinstance(bound, datetime) else None if bound is None else str(bound)
