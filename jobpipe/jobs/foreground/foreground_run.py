"""``jobpipe pipeline run``: a pipeline in the foreground, without a server."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

import psutil
from rich.console import Console

from jobpipe.admin import Admin
from jobpipe.config import Config
from jobpipe.config.home_folder import make_home
from jobpipe.discovery.registry_handler import map_registry_errors, open_handler
from jobpipe.errors import ConfigError, RegistryUnavailable, SpoolError, TopicNotFound
from jobpipe.jobs.alerts.alert_queue import AlertQueue
from jobpipe.jobs.foreground.foreground_alerts import ForegroundAlerts
from jobpipe.jobs.foreground.foreground_jobs import ForegroundJobs, JobView, RunContext
from jobpipe.jobs.foreground.progress_display import ProgressDisplay, open_display
from jobpipe.jobs.monitor.hysteresis import BlockedDetector
from jobpipe.jobs.monitor.keep_serving import KeepServing
from jobpipe.jobs.monitor.topic_poller import TopicPoller, TopicView
from jobpipe.jobs.storage.file_lock import locked
from jobpipe.jobs.storage.job_rows import new_run_id
from jobpipe.pipelines.file.problems import nearest
from jobpipe.pipelines.loading.snapshot import ParentProcess
from jobpipe.pipelines.loading.spec_checks import without_bounds
from jobpipe.pipelines.model.graph import Graph, dead_letters_of, graph_of, published_again
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.model.paths import PipelinePaths, clear_storage
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe.pipelines.model.run_bounds import NO_BOUNDS, RunBounds
from jobpipe.plural import counted
from jobpipe.signal_handlers import handled
from jobpipe.store.log.catalog_status import CatalogStatus
from jobpipe.store.log.spool_folders import has_spool, read_status
from jobpipe_registry.host.process_identity import start_ticks

POLL_SECONDS = 0.5
SAME_SECONDS = 1.0  # a signal that comes so soon after another one is the same wish: of a process and of its group
STOP_SECONDS = 60.0  # that a stop may take; half of it is for the end of a micro-batch
KILL_SECONDS = 30.0  # for the threads of killed jobs to end
LOG_BYTES = 64 * 1024
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class DeadLetterCount:
    """How many dead letters a run has added to a topic; ``topic`` with the prefix."""

    topic: str
    rows: int

    def __str__(self) -> str:
        command = f"jobpipe topics tail {self.topic} --from earliest"
        return f"{counted(self.rows, 'row')} could not be processed and went to {self.topic}: {command}"


@dataclass(frozen=True)
class RunResult:
    """How a run in the foreground ended.

    Attributes:
        stopped_by: the signal that ended it.
        late: it took longer than it was to take.
        topics: the last view of each topic.
        dead_letters: those of this run, by topic; without topics that got none.
    """

    jobs: tuple[JobView, ...]
    stopped_by: signal.Signals | None
    late: bool
    topics: tuple[TopicView, ...]
    dead_letters: tuple[DeadLetterCount, ...] = ()

    @property
    def failed(self) -> tuple[JobView, ...]:
        """The jobs that failed, or that another run has replaced."""
        return tuple(job for job in self.jobs if job.state is JobState.FAILED or _is_replaced(job))

    @property
    def code(self) -> int:
        """The exit code: 0 if all jobs came to their end, 130 and so on after a signal, 1 if one failed or was late."""
        if self.failed or self.late:
            return 1
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return 0 if all(job.state is JobState.FINISHED for job in self.jobs) else 1


def _is_replaced(job: JobView) -> bool:
    return job.state is JobState.CANCELED and "another run" in job.detail


def run_pipeline(
    pipeline: Pipeline,
    *,
    config: Config,
    config_file: Path | None,
    console: Console,
    only: Sequence[str] = (),
    new_checkpoint: Sequence[str] = (),
    bounds: RunBounds = NO_BOUNDS,
    plain: bool = False,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> RunResult:
    """Run the jobs of a pipeline until all have ended; in the main thread.

    At the first signal (SIGINT, SIGTERM, SIGHUP) each job ends after the micro-batch it is in, at one that comes at
    least a second later where it is. When a job has failed for good, the others are stopped.

    Args:
        only: names of jobs; without them all that have no schedule.
        new_checkpoint: names of those that begin without their checkpoints, which are moved to where they are kept.
        bounds: of the run, if ``only`` names one BATCH job.
        plain: lines instead of live tables.
        timeout: seconds after which all is stopped.
        environment: what is added to that of the attempts.

    Raises:
        ConfigError: there is no such job, one cannot run here, or this pipeline runs already on this home, or its
            checkpoints are of another topic prefix.
        RegistryUnavailable: the registry does not answer.
    """
    names = _choose_jobs(pipeline, only, bounds)
    places = PipelinePaths.of(config.home, pipeline.name)
    with ExitStack() as stack:
        make_home(config.home)
        stack.enter_context(_pipeline_lock(places, pipeline.name))
        places.keep_prefix(pipeline)
        run = new_run_id(time.time())
        _reset_checkpoints(pipeline, places, names, new_checkpoint, run, console)
        handler = open_handler(config)
        stack.callback(handler.shutdown)
        with map_registry_errors():
            registered = handler.jobs
        context = RunContext(
            pipeline=pipeline,
            names=names,
            home=config.home,
            jobs=registered,
            config=config_file,
            bounds=bounds,
            stop_seconds=STOP_SECONDS,
            parent=_this_process(),
            environment=dict(environment or {}),
        )
        jobs = stack.enter_context(ForegroundJobs(context))
        graph = graph_of(pipeline)
        display = stack.enter_context(open_display(console, f"pipeline {pipeline.name}", plain=plain))
        admin = stack.enter_context(Admin(config))
        names_of_topics = [node.name for node in graph.topics]
        alert_queue = AlertQueue()
        alerts = stack.enter_context(ForegroundAlerts(pipeline, names_of_topics, alert_queue))

        def active(name: str) -> bool:
            return name in names and not jobs.ended(name)

        stack.enter_context(KeepServing(config, admin, lambda: graph.topics, active))
        dead = dict.fromkeys(filter(None, (dead_letters_of(pipeline, pipeline.jobs[name]) for name in names)))
        dead_topics = [pipeline.spec.topic_prefix + topic for topic in dead]
        return _Foreground(graph, jobs, admin, display, timeout, alerts, dead_topics).run()


def _choose_jobs(pipeline: Pipeline, only: Sequence[str], bounds: RunBounds) -> list[str]:
    for name in only:
        if name not in pipeline.jobs:
            raise ConfigError(f"there is no job {name!r}; {nearest(name, pipeline.jobs)}", key=name)
    names = list(dict.fromkeys(only)) or [name for name, job in pipeline.jobs.items() if job.spec.schedule is None]
    if not names:
        raise ConfigError("all jobs have a schedule; name one with --only to run it once now", key="jobs")
    for name in names:
        if not bounds.given and (why := without_bounds(pipeline.jobs[name])) is not None:
            raise ConfigError(why, key=name)
    return names


def _reset_checkpoints(
    pipeline: Pipeline, places: PipelinePaths, names: Sequence[str], reset: Sequence[str], run: str, console: Console
) -> None:
    """Move checkpoints out of the way."""
    for name in reset:
        if name not in names:
            raise ConfigError(f"new-checkpoint: this run has no job {name!r}; {nearest(name, names)}", key=name)
    for name in dict.fromkeys(reset):
        moved = clear_storage(places.storage(pipeline, name), run)
        said = "has no checkpoint" if moved is None else f"begins without its checkpoint, which is in {moved}"
        console.print(f"job {name} {said}", markup=False, highlight=False, soft_wrap=True)
        if moved is not None and (again := published_again(pipeline, name)):
            console.print(again, markup=False, highlight=False, soft_wrap=True)


def _pipeline_lock(places: PipelinePaths, name: str) -> AbstractContextManager[None]:
    """Keep other runs of this pipeline on this home away."""
    return locked(places.lock, f"pipeline {name}", "stop it first", name)


def _this_process() -> ParentProcess:
    pid = os.getpid()
    return ParentProcess(pid=pid, started=psutil.Process(pid).create_time(), ticks=start_ticks(pid))


class _Foreground:
    """The loop of one run."""

    def __init__(
        self,
        graph: Graph,
        jobs: ForegroundJobs,
        admin: Admin,
        display: ProgressDisplay,
        timeout: float | None,
        alerts: ForegroundAlerts,
        dead_letters: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipeline = graph.pipeline
        self._alerts = alerts
        self._blocked_detector: BlockedDetector[str] = BlockedDetector()
        self._names = jobs.names
        self._jobs = jobs
        self._display = display
        self._timeout = timeout
        self._clock = clock
        self._signals: SimpleQueue[tuple[signal.Signals, float] | None] = SimpleQueue()  # with when; None: the end
        self._first_at = 0.0  # when the first one came
        self._signal: signal.Signals | None = None
        self._wake = jobs.changed
        shown = [node.name for node in graph.topics if not {*node.publishers, *node.readers}.isdisjoint(jobs.names)]
        self._admin = admin
        self._poller = TopicPoller(admin, shown)
        self._dead_before = {topic: self._rows_in_spool(topic) for topic in dead_letters}
        self._publishers = {topic: job.name for job in graph.jobs for topic in job.publishes}

    def run(self) -> RunResult:
        began, late, ending = time.monotonic(), False, False
        with handled(SIGNALS, self._on_signal), self._handling_signals():
            try:
                self._jobs.start()
                while not all(ended := [self._jobs.ended(name) for name in self._names]):
                    late = late or (self._timeout is not None and time.monotonic() - began > self._timeout)
                    done = [name for name, has in zip(self._names, ended, strict=True) if has]
                    over = any(self._jobs.view(name).state is not JobState.FINISHED for name in done)
                    if not ending and (late or over):  # with a job that ended before its end others wait in vain
                        ending = True
                        self._jobs.stop()
                    self._poll()
                    self._wake.wait(POLL_SECONDS)
                    self._wake.clear()
            except BaseException:
                self._jobs.kill()
                self._jobs.join(KILL_SECONDS)
                raise
            self._poll(last=True)
        views = tuple(self._poller.views)
        dead = [
            DeadLetterCount(view.topic, view.rows - self._dead_before[view.topic])
            for view in views
            if view.rows > self._dead_before.get(view.topic, view.rows)
        ]
        return RunResult(tuple(map(self._jobs.view, self._names)), self._signal, late, views, tuple(dead))

    def _poll(self, *, last: bool = False) -> None:
        self._poller.poll()
        if last:
            self._poller.end(self._catalog)
        lags = self._lags()
        decided = self._blocked_detector.update(self._poller.views, self._publishers)
        for name, why in decided.items():
            self._jobs.block(name, why)
        views = [self._jobs.view(name) for name in self._names]
        self._alerts.update(views, self._poller.views)
        with contextlib.suppress(OSError):  # the terminal is gone: the jobs end as its signal says
            views = [replace(view, lag_rows=lags.get(view.name)) for view in views]
            self._display.show(self._poller.views, views)

    def _lags(self) -> dict[str, int]:
        """Return how many rows of topics each job has not read yet; its subscriptions are PIPELINE.JOB[.VIEW]."""
        lags: dict[str, int] = {}
        for view in self._poller.views:
            for line in view.subscriptions:
                pipeline, _, rest = line.name.partition(".")
                if pipeline == self._pipeline and rest:
                    job = rest.partition(".")[0]
                    lags[job] = lags.get(job, 0) + line.lag_rows
        return lags

    def _rows_in_spool(self, topic: str) -> int:
        """Return how many rows a topic has had so far, 0 if its spool is not here."""
        place = self._admin.config.spool_dir / topic
        with contextlib.suppress(SpoolError):
            return read_status(place, topic).total_rows if has_spool(place) else 0
        return 0

    def _catalog(self, topic: str) -> CatalogStatus | None:
        """Return how a topic stands that has no coordinator any more, if its spool is here."""
        place = self._admin.config.spool_dir / topic
        if not has_spool(place):
            return None
        try:
            self._admin.locate(topic)
        except TopicNotFound:
            with contextlib.suppress(SpoolError):
                return read_status(place, topic)
        except RegistryUnavailable:
            pass
        return None

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # It interrupts the main thread anywhere, perhaps with a lock that stopping a job needs; put() waits for none.
        self._signals.put((signal.Signals(number), self._clock()))

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """Do what signals say, in a thread; at the end of the block all were heard."""
        thread = threading.Thread(target=self._handle_signals, name="signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._signals.put(None)
            thread.join()

    def _handle_signals(self) -> None:
        while (heard := self._signals.get()) is not None:
            number, at = heard
            if self._signal is None:
                self._signal, self._first_at = number, at
            again = at - self._first_at >= SAME_SECONDS
            (self._jobs.kill if again else self._jobs.stop)()
            self._wake.set()


def last_lines(log: Path, count: int = 20) -> list[str]:
    """Return the last lines of a log, without the frames of Java's traces; nothing if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith(("\tat ", "\t... ")))
    return list(deque(lines, count))
