"""Runs of schedules: what an engine, the end of a run or a person asks for is decided and stored as one change.

The change holds the intervals, what was left out, how far the schedule has come, and the runs that begin. So a server
that is killed has stored all of it or nothing: the next one finds the run and starts it, once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Protocol

from jobpipe.control.commands import PipelineCommands
from jobpipe.control.control_service import SkippedView
from jobpipe.control.revisions.planning import schedule_conflict
from jobpipe.control.scheduler.engine_pool import EnginePool
from jobpipe.errors import ConfigError, ControlConflict, JobpipeError, RunNotFound
from jobpipe.jobs.schedules.schedule_decisions import Backfill, IntervalState, backfill, decide, repeated, skipped
from jobpipe.jobs.schedules.schedule_rule import Interval, Rule
from jobpipe.jobs.storage.interval_store import MOST_INTERVALS, IntervalRow, IntervalStore, ScheduleRow, shown_time
from jobpipe.jobs.storage.job_rows import JobRow
from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.dispatcher import Key
from jobpipe.pipelines.file.spec import EngineSpec
from jobpipe.pipelines.model.job_states import DesiredState
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe.pipelines.plugins.plugin_discovery import Plugins
from jobpipe.pipelines.plugins.schedule_engine import Schedule

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
MOST_AHEAD = 10_000  # intervals that are counted
CLOSE_SECONDS = 15.0


class TopicEnds(Protocol):
    """What tells where a topic ends now."""

    def __call__(self, topic: str) -> int: ...


@dataclass(frozen=True, kw_only=True)
class SchedulerContext:
    """What schedules need of the server.

    Attributes:
        notify_jobs: lets jobs be looked at soon, since the store has changed.
        ends: asks the bus after which offset a topic goes on.
        clock: seconds since 1970.
        notify_holds: called when what a schedule still needs of its topics has changed.
    """

    store: Store
    commands: PipelineCommands
    notify_jobs: Callable[[Iterable[Key]], None]
    ends: TopicEnds
    clock: Callable[[], float]
    notify_holds: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class _Asks:
    """That the bus has to be asked where a topic ends, before what follows a moment is accepted."""

    accepted: datetime
    topic: str


@dataclass(frozen=True)
class _Ends:
    """After which offset a topic goes on, asked when the schedule had come to ``accepted``."""

    accepted: datetime
    topic: str
    ends: int


class Scheduler:
    """The schedules of one server.

    Args:
        plugins: where the engines that fire them are found.
    """

    def __init__(self, context: SchedulerContext, plugins: Plugins) -> None:
        self._context = context
        self._intervals = IntervalStore(context.store)
        self._engines = EnginePool(self._fire, plugins)
        self._registering = threading.Lock()
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}  # by the monotonic clock: when to look at a schedule
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="schedules", daemon=True)

    # -- the server's life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to fire, and see to all that was due while no server ran."""
        for row in self._intervals.schedules():
            self._register((row.pipeline, row.job))
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._engines.close()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def wake(self, key: Key) -> None:
        """Look at a schedule soon: a run of it has ended, or a person has changed something."""
        with self._changed:
            self._due[key] = 0.0
            self._changed.notify_all()

    # -- the file ------------------------------------------------------------------------------------------------------

    def store_schedules(self, pipeline: Pipeline, jobs: Iterable[JobRow]) -> None:
        """Store which jobs have a schedule now; inside the change that stores the jobs.

        Raises:
            ConfigError: a schedule has no moments here.
            ControlConflict: it went by times and is to go by offsets, or the other way.
        """
        now = datetime.fromtimestamp(self._context.clock(), UTC)
        for job in jobs:
            spec = pipeline.jobs[job.name].spec.schedule
            if spec is None:
                self._intervals.remove_schedule(job.pipeline, job.name)
                continue
            engine = pipeline.jobs[job.name].engine
            if engine is not None:
                named = EngineSpec.model_validate({"type": engine.type, **engine.given})
                spec = spec.model_copy(update={"engine": named})
            rule, known = Rule.of(spec), self._intervals.schedule(job.pipeline, job.name)
            if known is not None and (why := schedule_conflict(job.pipeline, job.name, known.spec, spec)) is not None:
                raise ControlConflict(why, pipeline=job.pipeline, job=job.name)
            if known is None:
                known = ScheduleRow(pipeline=job.pipeline, job=job.name, spec=spec, accepted=rule.first(now))
            reads = tuple(_reads(pipeline, job.name))
            self._intervals.put_schedule(replace(known, spec=spec, reads=reads, problem=""))

    def update_engines(self, jobs: Iterable[JobRow]) -> None:
        """Let engines fire for the jobs of a file that was stored, and no longer for those that are gone."""
        for job in jobs:
            self._register((job.pipeline, job.name))

    def _register(self, key: Key) -> None:
        """Let the engine know what the store has: of two changes at once the later one comes last."""
        store = self._context.store
        with self._registering:
            with store.write():  # all of one moment
                row, pipeline, job = self._intervals.schedule(*key), store.pipeline(key[0]), store.job(*key)
                file = None if pipeline is None else store.definition(pipeline.name, pipeline.version)
            if row is None or file is None or job is None or not job.in_definition:
                self._engines.drop(_id(key))
                return
            self._engines.put(Schedule(_id(key), row.spec), file.folder)
        self.wake(key)

    def engine_problem(self, row: ScheduleRow) -> str:
        """Return why the engine of a schedule does not fire for it; "" if nothing is wrong."""
        return self._engines.problem(_id((row.pipeline, row.job)))

    # -- firing --------------------------------------------------------------------------------------------------------

    def _fire(self, id_: str, at: datetime) -> None:
        pipeline, _, job = id_.partition(".")
        self._evaluate_or_retry((pipeline, job))

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._closing:
                    now = time.monotonic()
                    key = next((each for each, at in self._due.items() if at <= now), None)
                    if key is not None:
                        del self._due[key]
                        break
                    self._changed.wait(min(self._due.values()) - now if self._due else None)
                else:
                    return
            self._evaluate_or_retry(key)

    def _evaluate_or_retry(self, key: Key) -> None:
        try:
            self.evaluate(key)
            return
        except JobpipeError as error:
            log.warning("schedule of job %s.%s: %s", *key, error)
        except Exception:
            log.exception("schedule of job %s.%s", *key)
        with self._changed:
            self._due.setdefault(key, time.monotonic() + RETRY_SECONDS)
            self._changed.notify_all()

    def evaluate(self, key: Key) -> None:
        """Decide what a schedule does now, store it, and let its runs begin.

        Raises:
            JobpipeError: the bus does not answer; the store cannot be written.
        """
        asked: _Ends | None = None
        accepted: datetime | None = None
        try:
            while isinstance(done := self._decide(key, asked), _Asks):
                accepted = done.accepted
                asked = _Ends(accepted, done.topic, self._context.ends(done.topic))
        except JobpipeError as error:
            self._note_problem(key, error.message, accepted)
            raise
        if done:
            self._context.notify_jobs([key])
            self._context.notify_holds()

    def _decide(self, key: Key, asked: _Ends | None) -> bool | _Asks:
        """Store a decision; return whether there was one, or what the bus has to be asked before."""
        store, intervals = self._context.store, self._intervals
        with store.write():
            job, row = store.job(*key), intervals.schedule(*key)
            # A job has one lease, so its runs follow each other: while one is under way nothing is accepted or begun.
            if job is None or row is None or not self._is_active(job, row) or self._is_busy(job):
                return False
            rule, known, stamp = Rule.of(row.spec), intervals.schedule_state(row), self._context.clock()
            now = datetime.fromtimestamp(stamp, UTC)
            # What RUNNING stands for has ended, though nothing said so: it hinders only what depends on it.
            decision = decide(rule, known if rule.self_depend else replace(known, running=()), now)
            moves = decision.accepted != row.accepted
            first, last, after = None, None, row
            if moves and rule.offsets:
                topic = _only_topic(job)
                if asked is None or (asked.accepted, asked.topic) != (row.accepted, topic):
                    return _Asks(row.accepted, topic)
                first, last = _offsets(row, asked)
                after = replace(row, topic=topic, ends=last)
            if not moves and decision.begin is None and not row.problem:
                return False
            if decision.accept is not None:
                accepted = IntervalRow(
                    pipeline=key[0],
                    job=key[1],
                    interval=decision.accept,
                    state=IntervalState.WAITING,
                    since=stamp,
                    first=first,
                    last=last,
                )
                intervals.add([accepted])
            intervals.leave_out(*key, decision.left_out, stamp)
            intervals.put_schedule(intervals.prune(replace(after, accepted=decision.accepted, problem="")))
            for each in decision.left_out:
                store.add_event(*key, "left out", detail=f"no run reads {each}")
            if decision.begin is not None:
                self._begin_run(job, rule, decision.begin, stamp)
        return True

    def _begin_run(self, job: JobRow, rule: Rule, interval: Interval, now: float) -> None:
        """Let the run of an interval begin; inside a change."""
        row = self._intervals.interval(job.pipeline, job.name, interval.lower)
        if row is None:
            raise RuntimeError(f"interval {interval} of job {job.pipeline}.{job.name} is not in the books")
        lower, upper = row.bounds if rule.bounded else (None, None)
        run = self._context.commands.begin_run(job, now, lower, upper, row.run)
        self._intervals.change(row, IntervalState.RUNNING, now, run)

    def _is_active(self, job: JobRow, row: ScheduleRow) -> bool:
        return job.in_definition and job.want is DesiredState.RUN and not row.paused

    def _is_busy(self, job: JobRow) -> bool:
        run = self._context.store.run(job.run)
        return job.next_run is not None or (run is not None and not run.is_over)

    # -- a person's hands ----------------------------------------------------------------------------------------------

    def pause(self, pipeline: str, job: str, *, paused: bool) -> None:
        """Make no more runs, or go on.

        Raises:
            PipelineNotFound, ConfigError: there is no such job, or it has no schedule.
        """
        with self._context.store.write():
            row = self.require(pipeline, job)
            if row.paused is not paused:
                self._intervals.put_schedule(replace(row, paused=paused))
                self._context.store.add_event(pipeline, job, "paused" if paused else "unpaused")
        self.wake((pipeline, job))

    def skip(self, run: str) -> IntervalRow:
        """Abandon the interval of a run.

        Raises:
            RunNotFound: there is no such run, or it is of no interval.
            ControlConflict: the run is under way, or has succeeded.
        """
        return self._change_interval(run, lambda row: skipped(row.interval, row.state), "skip")

    def retry(self, run: str, *, force: bool) -> IntervalRow:
        """Let the interval of a run be run again; raises as :meth:`skip`."""
        return self._change_interval(run, lambda row: repeated(row.interval, row.state, force=force), "retry")

    def _change_interval(self, run: str, to: Callable[[IntervalRow], IntervalState], what: str) -> IntervalRow:
        with self._context.store.write():
            row = self._intervals.of_run(run)  # which outlives the run's own row
            if row is None:
                found = self._context.commands.run(run)
                raise RunNotFound(
                    f"run {run} is not the newest one of an interval of job {found.pipeline}.{found.job}; `jobpipe "
                    f"schedule intervals {found.pipeline}/{found.job}` lists these with their runs",
                    run=run,
                )
            state, key = to(row), (row.pipeline, row.job)
            again = None if row.state is IntervalState.SUCCEEDED else run  # else its sinks would take it for the same
            self._intervals.change(row, state, self._context.clock(), again)
            self._context.store.add_event(*key, what, detail=str(row.interval), fields={"run": run})
        self.wake(key)
        self._context.notify_holds()
        return replace(row, state=state)

    def backfill(self, pipeline: str, job: str, asked: Interval, *, force: bool) -> Backfill:
        """Let all intervals in a range be run that have not succeeded.

        Raises:
            PipelineNotFound: there is no such job.
            ControlConflict, ConfigError: see :func:`jobpipe.jobs.schedules.schedule_decisions.backfill`.
        """
        key = (pipeline, job)
        with self._context.store.write():
            row = self.require(pipeline, job)
            rule = Rule.of(row.spec)
            if asked.lower < row.known_from and not force:
                known = shown_time(row.known_from)
                raise ControlConflict(
                    f"what ran before {known} is not known any more: give a later --from, or --force",
                    pipeline=pipeline,
                    job=job,
                )
            overlapping = self._intervals.overlapping(pipeline, job, asked, MOST_INTERVALS)
            by_interval = {each.interval: each for each in overlapping}
            booked = {each.interval: each.state for each in overlapping if each.state is not IntervalState.LEFT_OUT}
            done = backfill(rule, row.accepted, booked, asked, force=force)
            now = self._context.clock()
            for each in overlapping:
                if each.state is IntervalState.LEFT_OUT:
                    self._intervals.take_back(each, _within(done.accept, each.interval))
            self._intervals.add(
                [
                    IntervalRow(pipeline=pipeline, job=job, interval=each, state=IntervalState.WAITING, since=now)
                    for each in done.accept
                ]
            )
            for interval in done.repeat:
                was = by_interval[interval]
                run = None if was.state is IntervalState.SUCCEEDED else was.run
                self._intervals.change(was, IntervalState.WAITING, now, run)
            if done.accept or done.repeat:
                self._context.store.add_event(pipeline, job, "backfill", detail=str(asked))
        self.wake(key)
        self._context.notify_holds()
        return done

    def skip_range(self, pipeline: str, job: str, asked: Interval) -> SkippedView:
        """Abandon all intervals within a range that wait, or whose runs have failed.

        Raises:
            PipelineNotFound: there is no such job.
            ConfigError: it has no schedule.
        """
        with self._context.store.write():
            known = self.require(pipeline, job)
            found = self._intervals.overlapping(pipeline, job, asked, MOST_INTERVALS)
            within = [row for row in found if asked.lower <= row.interval.lower and row.interval.upper <= asked.upper]
            skipped_ = [row for row in within if row.state in (IntervalState.WAITING, IntervalState.FAILED)]
            now = self._context.clock()
            for row in skipped_:
                self._intervals.change(row, skipped(row.interval, row.state), now, row.run)
            if skipped_:
                self._context.store.add_event(pipeline, job, "skip", detail=str(asked))
        self.wake((pipeline, job))
        self._context.notify_holds()
        states = Counter(row.state for row in within)
        lower = max(known.accepted, asked.lower)
        ahead = sum(1 for _ in islice(Rule.of(known.spec).intervals(lower, max(lower, asked.upper)), MOST_AHEAD))
        return SkippedView(
            skipped=len(skipped_),
            done=states[IntervalState.SUCCEEDED],
            under_way=states[IntervalState.RUNNING],
            ahead=ahead,
        )

    # -- what is known -------------------------------------------------------------------------------------------------

    def require(self, pipeline: str, job: str) -> ScheduleRow:
        """Return the schedule of a job.

        Raises:
            PipelineNotFound: there is no such job.
            ConfigError: it has no schedule.
        """
        self._context.commands.jobs(pipeline, job)
        row = self._intervals.schedule(pipeline, job)
        if row is None:
            raise _no_schedule(pipeline, job)
        return row

    def needed_from(self, row: ScheduleRow) -> datetime | None:
        """Return the publish time from which a schedule still needs rows; None: it needs none that are there."""
        rule, state = Rule.of(row.spec), self._intervals.schedule_state(row)
        lower = row.accepted if rule.start is None else max(row.accepted, rule.start)
        failed = [] if not rule.bounded else state.failed  # a later run of a stream has read what is there
        opened = [each.lower for each in (*state.waiting, *state.running, *failed)]
        if rule.following(lower) is not None and lower.timestamp() <= self._context.clock():
            opened.append(lower)
        return min(opened, default=None)

    def next_due(self, row: ScheduleRow) -> datetime | None:
        """Return when the next interval is due; None: never."""
        rule = Rule.of(row.spec)
        lower = row.accepted if rule.start is None else max(row.accepted, rule.start)
        following = rule.following(lower)
        return None if following is None else following.upper + rule.delay

    def _note_problem(self, key: Key, problem: str, accepted: datetime | None) -> None:
        """Note why nothing can be decided, unless something was, meanwhile, after the schedule had come to a moment."""
        try:
            with self._context.store.write():
                row = self._intervals.schedule(*key)
                if row is None or accepted not in (None, row.accepted):
                    return
                if row.problem != problem[:1000]:
                    self._intervals.put_schedule(replace(row, problem=problem))
                    self._context.store.add_event(*key, "schedule", detail=problem)
        except JobpipeError as error:
            log.warning("schedule of job %s.%s: %s", *key, error)


def _id(key: Key) -> str:
    return ".".join(key)


def _within(parts: Iterable[Interval], whole: Interval) -> list[Interval]:
    """Return what of intervals lies in another one."""
    cut = ((max(each.lower, whole.lower), min(each.upper, whole.upper)) for each in parts)
    return [Interval(lower, upper) for lower, upper in cut if lower < upper]


def _offsets(row: ScheduleRow, asked: _Ends) -> tuple[int, int]:
    """Return the bounds in the topic of what is accepted now: from where the interval before ended.

    Of the first interval it is not known where it began: it is empty. A topic that ends before that was made again.
    """
    if row.topic != asked.topic or row.ends is None:
        return asked.ends, asked.ends
    return (row.ends if row.ends <= asked.ends else 0), asked.ends


def _only_topic(job: JobRow) -> str:
    if len(job.reads) != 1:
        what = f"job {job.pipeline}.{job.name}: boundaryType OFFSET needs one topic; give boundaryType: TIME"
        raise ConfigError(what, key="boundaryType")
    return job.reads[0]


def _reads(pipeline: Pipeline, job: str) -> Iterator[tuple[str, str]]:
    """Yield (topic, hold) of each topic that a run of a job reads, as far as the file tells.

    Also of streams that take what is available: a run begins after the end of its interval, and reads all before that.
    """
    for view, stage in pipeline.jobs[job].sources.items():
        if stage.type == "jobpipe":
            suffix = "" if view is None else f".{view}"
            for name in stage.plugin.topics().names:
                yield f"{pipeline.spec.topic_prefix}{name}", f"{pipeline.name}.{job}{suffix}"


def _no_schedule(pipeline: str, job: str) -> ConfigError:
    return ConfigError(f"job {pipeline}.{job} has no schedule; give it one in the file, and submit it", key=job)
