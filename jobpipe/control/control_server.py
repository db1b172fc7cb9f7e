"""The control server without REST: it stores what people ask for, then lets the jobs be reconciled."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from jobpipe.admin import Admin
from jobpipe.config import Config
from jobpipe.control.commands import PipelineCommands
from jobpipe.control.control_service import (
    BackfillView,
    Control,
    IntervalView,
    PipelineStatus,
    Plan,
    RevisionView,
    RunView,
    ScheduleView,
    SkippedView,
    Submission,
    Submitted,
)
from jobpipe.control.history.history import History
from jobpipe.control.history.history_recorder import HistoryRecorder
from jobpipe.control.letters.dead_letters import DeadLetters
from jobpipe.control.letters.letter_questions import LetterQuestions
from jobpipe.control.letters.letter_views import LetterJob
from jobpipe.control.monitoring.dead_letter_topics import DeadLetterTopics
from jobpipe.control.monitoring.difference_monitor import DifferenceMonitor
from jobpipe.control.monitoring.job_samples import job_samples
from jobpipe.control.positions.subscription_moves import SubscriptionMoves
from jobpipe.control.revisions.planning import Asked
from jobpipe.control.revisions.shared_storage import shared_storage
from jobpipe.control.revisions.submission_checks import load_submission, refusals, require_no_foreground
from jobpipe.control.rows.masked_columns import MaskedColumns
from jobpipe.control.rows.rows_query import RowsFound, RowsQuery
from jobpipe.control.rows.topic_rows import TopicRows
from jobpipe.control.scheduler.hold_keeper import HoldKeeper
from jobpipe.control.scheduler.schedule_views import ScheduleViews, backfill_view
from jobpipe.control.scheduler.scheduler import Scheduler, SchedulerContext
from jobpipe.control.serializers import Serializers, revision_view
from jobpipe.control.subscription_cleanup import CleanupQueue
from jobpipe.control.topic_monitor import MonitoredJobs, TopicMonitor
from jobpipe.control.topics_to_serve import TopicsOfJobs
from jobpipe.discovery.registry_handler import map_registry_errors, open_handler
from jobpipe.errors import ConfigError, ControlConflict, JobpipeError, RunNotFound
from jobpipe.jobs.allowed_paths import AllowedPaths
from jobpipe.jobs.definition_cache import DefinitionCache
from jobpipe.jobs.log_file_tail import log_lines
from jobpipe.jobs.monitor.keep_serving import KeepServing
from jobpipe.jobs.schedules.schedule_decisions import IntervalState
from jobpipe.jobs.schedules.schedule_rule import YEARS, Interval
from jobpipe.jobs.storage.interval_store import shown_time
from jobpipe.jobs.storage.job_rows import Event, JobRow
from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.circuit_breaker import CircuitBreaker
from jobpipe.jobs.supervision.dispatcher import Dispatcher
from jobpipe.jobs.supervision.supervision_context import LOST_SECONDS, SupervisionContext
from jobpipe.metrics.certificate_expiry import certificate_samples
from jobpipe.metrics.metric_samples import MetricSamples, TopicsSnapshot
from jobpipe.metrics.topics_snapshots import TopicsSnapshots
from jobpipe.operations.messages.ledger_messages import MAX_MINUTES
from jobpipe.operations.status_operations import LedgerReply
from jobpipe.pipelines.file.problems import Problem, pipeline_error
from jobpipe.pipelines.loading.loader import load_tree
from jobpipe.pipelines.loading.spec_checks import without_bounds
from jobpipe.pipelines.model.graph import reads_topic
from jobpipe.pipelines.model.job_states import DesiredState
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe.pipelines.model.run_bounds import RunBounds, bounds_of
from jobpipe.pipelines.plugins.plugin_discovery import Plugins
from jobpipe_registry.handler import RegisterServerHandler

STOP_SECONDS = 60.0
MOST_WAIT_SECONDS = 60.0
LEDGER_SECONDS = 3.0  # for a coordinator to be reached, and then for its answer
CLOCKS_SECONDS = 60.0  # by which the clocks of two hosts may differ


log = logging.getLogger(__name__)


class ControlServer(Control):
    """Supervises the pipelines of one home; a context manager. Their jobs go on when it ends.

    Args:
        config: of this process.
        config_file: that it was read from, for the attempts; None: found as always.
        plugins: by default those that are installed.
        opened: returns the started handler of the registry, which is shut down at the end.
        admin: asks the coordinators of topics.
        stop_seconds: how long a stop may take; half of it for the end of a micro-batch.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        config: Config,
        *,
        config_file: Path | None = None,
        plugins: Plugins | None = None,
        opened: Callable[[Config], RegisterServerHandler] = open_handler,
        admin: Callable[[Config], Admin] = Admin,
        stop_seconds: float = STOP_SECONDS,
        lost_seconds: float = LOST_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._config_file = config_file
        self._plugins = plugins or Plugins()
        self._opened = opened
        self._make_admin = admin
        self._stop_seconds = stop_seconds
        self._lost_seconds = lost_seconds
        self._clock = clock
        self._history = History(clock)
        self._new_events = threading.Condition()
        self._closing = False
        self._stack = ExitStack()
        self._is_started = False

    def start(self) -> None:
        """Go on with all jobs where they are, once; the caller holds the lock of the home (:meth:`ServerFiles.locked`).

        Raises:
            RuntimeError: it was started before: a second set of its threads would act on the same jobs.
            ConfigError: the registry keeps no jobs.
            RegistryUnavailable: the registry does not answer.
            StoreError: the store cannot be read.
        """
        if self._is_started:
            raise RuntimeError("a server can be started only once")
        folder = self._config.home / "server"
        with ExitStack() as stack:
            self._store = Store(folder / "server.db", self._clock, self._wake_readers)
            stack.callback(self._store.close)
            handler = self._opened(self._config)
            stack.callback(handler.shutdown)
            with map_registry_errors():
                jobs = CircuitBreaker(handler.jobs)
            admin = self._admin = self._make_admin(self._config)
            stack.callback(admin.close)
            self._topics_snapshots = TopicsSnapshots(admin)
            stack.callback(self._topics_snapshots.close)
            self._topic_rows = TopicRows(self._config, lambda topic: admin.locate(topic))
            self._cleanup = CleanupQueue(self._store, jobs, admin)
            self._moves = SubscriptionMoves(self._store, admin, self._clock)
            self._definitions = DefinitionCache(self._store, self._plugins)
            self._dead_letter_topics = DeadLetterTopics(self._definitions)
            self._dead_letters = DeadLetters(
                LetterQuestions(self._config, admin, self._without_masked),
                self._store,
                jobs=self._letter_jobs,
                allowed=self._may_go_back,
                snapshot=self._topics_snapshots.newest,
                clock=self._clock,
            )
            stack.callback(self._dead_letters.close)
            context = SupervisionContext(
                store=self._store,
                jobs=jobs,
                definitions=self._definitions,
                home=self._config.home,
                untrusted=AllowedPaths.of(self._config, self._config_file).problems,
                config_file=self._config_file,
                stop_seconds=self._stop_seconds,
                lost_seconds=self._lost_seconds,
                clock=self._clock,
                cleanup_added=self._cleanup.wake,
                run_ended=lambda key: self._run_ended(key),
            )
            self._commands = PipelineCommands(self._store, self._definitions)
            self._dispatcher = Dispatcher(context)
            self._scheduler = self._make_scheduler(admin)
            schedules = self._schedule_views = ScheduleViews(self._store, self._scheduler)
            self._serializers = Serializers(
                self._store, self._dispatcher, self._config.home, self._clock, schedules.of_job
            )
            self._hold_keeper = HoldKeeper(self._store, admin, schedules.needed)
            stack.callback(self._dispatcher.close)
            stack.callback(self._cleanup.close)
            stack.callback(self._hold_keeper.close)
            stack.callback(self._scheduler.close)
            monitored_jobs = MonitoredJobs(self._store)
            topic_monitor = TopicMonitor(
                admin, monitored_jobs.watched, self._dispatcher.block, monitored_jobs.report, monitored_jobs.lagging()
            )
            stack.callback(topic_monitor.close)
            difference_monitor = DifferenceMonitor(self._store, self._topics_snapshots.newest, self._clock)
            stack.callback(difference_monitor.close)
            topics_to_serve = TopicsOfJobs(self._store)
            stack.enter_context(KeepServing(self._config, admin, topics_to_serve.topics, topics_to_serve.is_active))
            recorder = HistoryRecorder(
                self._history,
                folder / "history.arrow",
                self._topics_snapshots.newest,
                self._serializers.attempt_reports,
            )
            self._dispatcher.start()
            self._cleanup.start()
            self._hold_keeper.start()
            self._scheduler.start()
            topic_monitor.start()
            difference_monitor.start()
            recorder.start()
            stack.callback(recorder.close)  # not before: it would replace a file that it has not read
            self._stack = stack.pop_all()
            self._is_started = True

    def _make_scheduler(self, admin: Admin) -> Scheduler:
        made = SchedulerContext(
            store=self._store,
            commands=self._commands,
            notify_jobs=self._dispatcher.notify,
            ends=lambda topic: admin.status(topic).head,
            clock=self._clock,
            notify_holds=lambda: self._hold_keeper.wake(),
        )
        return Scheduler(made, self._plugins)

    def _run_ended(self, key: tuple[str, str]) -> None:
        self._scheduler.wake(key)
        self._hold_keeper.wake()

    def close(self) -> None:
        """End; jobs go on. Idempotent."""
        with self._new_events:
            self._closing = True
            self._new_events.notify_all()
        self._stack.close()

    def __enter__(self) -> ControlServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- pipelines -----------------------------------------------------------------------------------------------------

    def load(self, submission: Submission) -> Pipeline:
        return load_tree(submission.tree, file=submission.file, folder=submission.folder, plugins=self._plugins)

    def submit(
        self,
        submission: Submission,
        *,
        new_checkpoint: Sequence[str] = (),
        base: int | None = None,
        born: float | None = None,
        by: str = "",
        pipeline: Pipeline | None = None,
    ) -> Submitted:
        pipeline = load_submission(submission, new_checkpoint, self._plugins, pipeline)
        shared = shared_storage(self._store, self._config.home, pipeline)
        for error in self._refusals(pipeline, new_checkpoint, shared):
            raise error
        asked = self._asked(pipeline, new_checkpoint)
        with self._store.write():
            submitted = self._commands.submit(submission, asked, self._clock(), base=base, born=born, by=by)
            jobs = self._store.jobs(pipeline.name)
            self._scheduler.store_schedules(pipeline, [job for job in jobs if job.in_definition])
            PipelinePaths.of(self._config.home, pipeline.name).keep_prefix(pipeline)
        self._definitions.put(pipeline, submitted.version)
        self._notify(jobs)
        self._scheduler.update_engines(jobs)
        self._hold_keeper.wake()
        self._cleanup.wake()
        return replace(submitted, warnings=(*submitted.warnings, *shared))

    def plan(
        self, submission: Submission, *, new_checkpoint: Sequence[str] = (), pipeline: Pipeline | None = None
    ) -> Plan:
        pipeline = load_submission(submission, new_checkpoint, self._plugins, pipeline)
        shared = shared_storage(self._store, self._config.home, pipeline)
        refused = tuple(error.message for error in self._refusals(pipeline, new_checkpoint, shared))
        plan = self._commands.plan(submission, self._asked(pipeline, new_checkpoint))
        warnings = (*plan.warnings, *(each for each in shared if each.severity != "error"))
        return replace(plan, refused=(*refused, *plan.refused), warnings=warnings)

    def _refusals(
        self, pipeline: Pipeline, new_checkpoint: Sequence[str], shared: Sequence[Problem]
    ) -> Iterator[JobpipeError]:
        """Yield why a file is not taken now, although it is right."""
        yield from refusals(pipeline, self._config.home, new_checkpoint)
        if any(each.severity == "error" for each in shared):
            yield pipeline_error(shared)

    def _asked(self, pipeline: Pipeline, new_checkpoint: Sequence[str]) -> Asked:
        newest = self._commands.newest_definition(pipeline.name)
        return Asked.of(pipeline, self._config.home, new_checkpoint, newest)

    @property
    def history(self) -> History:
        return self._history

    @property
    def moves(self) -> SubscriptionMoves:
        return self._moves

    @property
    def dead_letters(self) -> DeadLetters:
        return self._dead_letters

    def _letter_jobs(self) -> Iterator[LetterJob]:
        for pipeline in self.pipelines():
            for job in pipeline.jobs:
                if (topic := self._dead_letter_topics.get(pipeline, job.name)) is not None:
                    yield LetterJob(pipeline.name, job.name, topic)

    def _without_masked(self, topic: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        return MaskedColumns(self._config.server_masked_columns or (), topic).apply(batch)

    def _may_go_back(self, job: LetterJob) -> Callable[[str], bool]:
        """Return what tells of a topic whether a job reads it."""
        loaded = self._definitions.get(job.pipeline, self._commands.pipeline(job.pipeline).version)
        return lambda topic: job.job in loaded.jobs and reads_topic(loaded, loaded.jobs[job.job], topic)

    def metric_samples(self) -> MetricSamples:
        topics = self._topics_snapshots.newest()
        certificates = certificate_samples(self._config)
        letters = self._dead_letter_topics
        try:
            pipelines = self.pipelines()
            letters.keep_only(frozenset(pipeline.name for pipeline in pipelines))
            jobs = job_samples(
                pipelines,
                self._serializers.present_report,
                letters.get,
                lambda topic: letters.rows(topic, topics.topics.get(topic)),
            )
        except JobpipeError as error:  # the store cannot be read: topics are shown all the same
            log.warning("metrics without jobs: %s", error)
            return MetricSamples(topics, certificates=certificates, jobs_known=False)
        return MetricSamples(topics, jobs, certificates, jobs_known=True)

    def topics_snapshot(self) -> TopicsSnapshot:
        return self._topics_snapshots.newest()

    def ledger(self, topic: str, *, minutes: int, name: str | None = None) -> LedgerReply:
        _require_between("minutes", minutes, 1, MAX_MINUTES)
        found = self._admin.ledgers([topic], LEDGER_SECONDS, minutes=minutes, name=name)[topic]
        if isinstance(found, JobpipeError):
            raise found
        return found

    def topic_rows(self, query: RowsQuery) -> RowsFound:
        return self._topic_rows.read(query)

    def pipelines(self) -> tuple[PipelineStatus, ...]:
        with self._store.write():  # all of one moment
            return tuple(self._serializers.pipeline(row) for row in self._store.pipelines())

    def pipeline(self, name: str) -> PipelineStatus:
        with self._store.write():
            return self._serializers.pipeline(self._commands.pipeline(name))

    def submission(self, name: str) -> Submission:
        return self.revision(name, self._commands.pipeline(name).version)

    def revisions(self, pipeline: str) -> tuple[RevisionView, ...]:
        with self._store.write():
            self._commands.pipeline(pipeline)
            return tuple(revision_view(row) for row in self._store.definitions(pipeline))

    def revision(self, pipeline: str, version: int) -> Submission:
        with self._store.write():
            self._commands.pipeline(pipeline)
            found = self._store.definition(pipeline, version)
        if found is None:
            how = f"`jobpipe pipeline history {pipeline}` lists those that are"
            raise ConfigError(f"version {version} of pipeline {pipeline} is not kept; {how}", key=pipeline)
        return Submission(file=found.file, folder=found.folder, tree=json.loads(found.tree))

    def stop(self, pipeline: str, job: str | None = None) -> PipelineStatus:
        self._notify(self._commands.stop(pipeline, job, self._clock()))
        return self.pipeline(pipeline)

    def resume(self, pipeline: str, job: str | None = None) -> PipelineStatus:
        self._require_no_foreground(pipeline)
        self._require_bounds(pipeline, job, resumed=True)
        changed = self._commands.resume(pipeline, job, self._clock())
        self._notify(changed)
        for each in changed:
            self._scheduler.wake((each.pipeline, each.name))
        return self.pipeline(pipeline)

    def restart(self, pipeline: str, job: str | None = None, *, force: bool = False) -> PipelineStatus:
        self._require_no_foreground(pipeline)
        if not force:
            self._require_bounds(pipeline, job)
        self._notify(self._commands.restart(pipeline, job, self._clock(), force=force))
        return self.pipeline(pipeline)

    def delete(self, pipeline: str, *, keep_subscriptions: bool = False) -> None:
        jobs = self._commands.delete(pipeline, keep_subscriptions=keep_subscriptions)
        self._definitions.forget(pipeline)
        self._scheduler.update_engines(jobs)
        self._hold_keeper.wake()
        self._notify(jobs)
        self._cleanup.wake()

    # -- runs ----------------------------------------------------------------------------------------------------------

    def runs(self, pipeline: str | None = None, job: str | None = None, *, limit: int = 100) -> tuple[RunView, ...]:
        _require_between("limit", limit, 1, 1000)
        if pipeline is not None:
            self._commands.jobs(pipeline, job)
        return tuple(self._serializers.run(run) for run in self._store.runs(pipeline, job, limit))

    def run(self, run: str) -> RunView:
        return self._serializers.run(self._commands.run(run))

    def start_run(self, pipeline: str, job: str, lower: str, upper: str) -> RunView:
        self._require_no_foreground(pipeline)
        bounds = self._bounds(pipeline, job, lower, upper)
        if isinstance(bounds.upper, datetime) and bounds.upper.timestamp() > self._clock() + CLOCKS_SECONDS:
            raise ConfigError(
                f"--upper {upper} has not come yet, and rows of the range may still come; give an earlier one",
                key="--upper",
            )
        found = self._commands.start_run(pipeline, job, self._clock(), *_texts(bounds))
        self._notify(self._commands.jobs(pipeline, job))
        return self._serializers.run(found)

    def run_over(self, pipeline: str, job: str, lower: str, upper: str) -> RunView:
        first, last = _texts(self._bounds(pipeline, job, lower, upper))
        found = self._store.run_over(pipeline, job, first, last)
        if found is None:
            raise RunNotFound(
                f"there is no run of job {pipeline}.{job} from {first} to {last}; runs are kept only for a while",
                pipeline=pipeline,
                job=job,
            )
        return self._serializers.run(found)

    def _bounds(self, pipeline: str, job: str, lower: str, upper: str) -> RunBounds:
        self._commands.jobs(pipeline, job)
        loaded = self._definitions.get(pipeline, self._commands.pipeline(pipeline).version)
        return bounds_of(loaded, (job,), lower, upper)

    def cancel(self, run: str) -> RunView:
        job = self._commands.cancel(run, self._clock())
        if job is not None:
            self._notify([job])
            self._run_ended((job.pipeline, job.name))  # of one that had not begun
        return self.run(run)

    # -- schedules -----------------------------------------------------------------------------------------------------

    def schedules(self, pipeline: str | None = None) -> tuple[ScheduleView, ...]:
        with self._store.write():
            if pipeline is not None:
                self._commands.pipeline(pipeline)
            return self._schedule_views.schedules(pipeline)

    def schedule(self, pipeline: str, job: str) -> ScheduleView:
        with self._store.write():
            return self._schedule_views.schedule(self._scheduler.require(pipeline, job))

    def pause(self, pipeline: str, job: str, *, paused: bool = True) -> ScheduleView:
        self._scheduler.pause(pipeline, job, paused=paused)
        return self.schedule(pipeline, job)

    def trigger(self, pipeline: str, job: str) -> ScheduleView:
        self._scheduler.require(pipeline, job)
        self._scheduler.evaluate((pipeline, job))
        return self.schedule(pipeline, job)

    def intervals(self, pipeline: str, job: str, *, limit: int = 100) -> tuple[IntervalView, ...]:
        _require_between("limit", limit, 1, 1000)
        with self._store.write():
            self._scheduler.require(pipeline, job)
            return self._schedule_views.intervals(pipeline, job, limit)

    def intervals_in(
        self, pipeline: str, job: str, state: IntervalState, *, limit: int = 100
    ) -> tuple[IntervalView, ...]:
        _require_between("limit", limit, 1, 1000)
        with self._store.write():
            self._scheduler.require(pipeline, job)
            return self._schedule_views.intervals_in(pipeline, job, state, limit)

    def backfill(
        self, pipeline: str, job: str, lower: datetime, upper: datetime, *, force: bool = False
    ) -> BackfillView:
        return backfill_view(self._scheduler.backfill(pipeline, job, _range(lower, upper), force=force))

    def skip_range(self, pipeline: str, job: str, lower: datetime, upper: datetime) -> SkippedView:
        return self._scheduler.skip_range(pipeline, job, _range(lower, upper))

    def skip(self, run: str) -> IntervalView:
        return self._schedule_views.interval(self._scheduler.skip(run))

    def retry(self, run: str, *, force: bool = False) -> IntervalView:
        return self._schedule_views.interval(self._scheduler.retry(run, force=force))

    def log(self, pipeline: str, job: str, *, lines: int = 100) -> tuple[str, ...]:
        _require_between("lines", lines, 1, 10_000)
        self._commands.jobs(pipeline, job)
        return log_lines(PipelinePaths.of(self._config.home, pipeline).log(job), lines)

    # -- events --------------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        return self._store

    def events(self, after: int = 0, *, wait: float = 0.0, limit: int = 1000) -> tuple[Event, ...]:
        _require_between("wait", wait, 0.0, MOST_WAIT_SECONDS)
        _require_between("limit", limit, 1, 1000)
        until = time.monotonic() + wait
        with self._new_events:
            while not (found := self._store.events(after, limit)) and not self._closing:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._new_events.wait(left)
        return tuple(found)

    def latest_events(self, limit: int = 100) -> tuple[Event, ...]:
        _require_between("limit", limit, 1, 1000)
        return tuple(self._store.latest_events(limit))

    def _wake_readers(self) -> None:
        with self._new_events:
            self._new_events.notify_all()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def _require_no_foreground(self, pipeline: str) -> None:
        require_no_foreground(self._config.home, pipeline)

    def _require_bounds(self, pipeline: str, job: str | None, *, resumed: bool = False) -> None:
        """Refuse to begin a run without bounds of a job that needs some, as ``jobpipe pipeline run`` does.

        Args:
            resumed: one that was stopped begins no run by that, but may be run over ranges again.
        """
        try:
            loaded = self._definitions.get(pipeline, self._commands.pipeline(pipeline).version)
        except ConfigError:  # it cannot be loaded here: its run will say so
            return
        for row in self._commands.jobs(pipeline, job) if job is not None else ():
            if row.scheduled or (resumed and row.on_demand and row.want is DesiredState.STOP):
                continue  # its runs have bounds
            if row.name in loaded.jobs and (why := without_bounds(loaded.jobs[row.name])) is not None:
                raise ControlConflict(why, pipeline=pipeline, job=row.name)

    def _notify(self, jobs: Iterable[JobRow]) -> None:
        self._dispatcher.notify((job.pipeline, job.name) for job in jobs)


def _texts(bounds: RunBounds) -> tuple[str, str]:
    """Return bounds as a run has them."""
    lower, upper = (
        shown_time(each) if isinstance(each, datetime) else str(each) for each in (bounds.lower, bounds.upper)
    )
    return lower, upper


def _range(lower: datetime, upper: datetime) -> Interval:
    if not lower < upper:
        raise ConfigError("a range ends after it begins; give a later --to", key="--to")
    if lower.year < YEARS[0] or upper.year > YEARS[1]:
        what = f"a range lies in the years {YEARS[0]} to {YEARS[1]}; give another --from or --to"
        raise ConfigError(what, key="--to")
    return Interval(lower.astimezone(UTC), upper.astimezone(UTC))


def _require_between(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # not a number is in no range
        raise ConfigError(f"{what} {value} is not from {least:g} to {most:g}", key=what)
