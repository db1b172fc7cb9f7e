"""What the control server can do: the seam between its core and REST, and the views that both use.

Times are seconds since 1970. All views are values: what was true when they were made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from jobpipe.control.history.history import History
from jobpipe.control.letters.dead_letters import DeadLetters
from jobpipe.control.positions.subscription_moves import SubscriptionMoves
from jobpipe.control.rows.rows_query import RowsFound, RowsQuery
from jobpipe.jobs.schedules.schedule_decisions import IntervalState
from jobpipe.jobs.storage.job_rows import Event
from jobpipe.jobs.storage.job_store import Store
from jobpipe.metrics.metric_samples import MetricSamples, TopicsSnapshot
from jobpipe.operations.status_operations import LedgerReply
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.model.job_states import DesiredState, JobState
from jobpipe.pipelines.model.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A pipeline as its file was when it was submitted.

    Attributes:
        file: where it was, for messages.
        folder: where its relative paths start; a folder of the server's host.
        tree: the file as a plain value, overlays laid over it and parameters put in; no secrets, but references.
    """

    file: Path
    folder: Path
    tree: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """One attempt of a run.

    Attributes:
        number: from 1, over all runs of the job.
        launched: the launcher's id; None: it was not started.
        error: the class of its error; "" without one.
        detail: why it ended, for people.
        exit_code: as the launcher told, else the attempt itself; None if neither did.
    """

    number: int
    state: JobState
    began: float
    ended: float | None = None
    launched: str | None = None
    application: str = ""
    error: str = ""
    detail: str = ""
    exit_code: int | None = None
    batches: int | None = 0
    rows: int | None = 0


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One execution of a job, over all its attempts.

    Attributes:
        lower, upper: the bounds of a scheduled run, as the request gave them; None of a run without.
        attempts: the newest last, at most 100.
    """

    id: str
    pipeline: str
    job: str
    state: JobState
    began: float
    ended: float | None = None
    detail: str = ""
    lower: str | None = None
    upper: str | None = None
    attempts: tuple[AttemptView, ...] = ()


@dataclass(frozen=True, kw_only=True)
class IntervalView:
    """An interval of a schedule.

    Attributes:
        lower, upper: its bounds in ISO 8601, UTC; the upper one is not part of it.
        state: WAITING, RUNNING, FAILED, SUCCEEDED, SKIPPED or LEFT_OUT.
        run: the newest run of it, None before the first.
        since: it is in this state.
    """

    pipeline: str
    job: str
    lower: str
    upper: str
    state: str
    since: float
    run: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduleView:
    """How the schedule of a job stands.

    Attributes:
        rule: its crontab or period, with the time zone.
        engine: the type of what fires it.
        paused: a person wants no more runs for now.
        active: it makes runs: neither it is paused, nor its job stopped.
        accepted: up to this moment, in ISO 8601 and UTC, intervals have been made.
        next_due: when the next one is due; None: never, or not to be known now.
        waiting, running, failed: how many intervals are in these states.
        last: the latest interval whose run has ended.
        problem: why it cannot go on now; "" if nothing is wrong.
    """

    pipeline: str
    job: str
    rule: str
    paused: bool
    active: bool
    accepted: str
    next_due: float | None
    waiting: int
    running: int
    failed: int
    last: IntervalView | None = None
    problem: str = ""
    engine: str = "builtin"


@dataclass(frozen=True, kw_only=True)
class SkippedView:
    """What became of the intervals of a range, in their numbers.

    Attributes:
        skipped: that waited, or had failed.
        done: that have succeeded.
        under_way: whose runs are under way, and go on.
        ahead: that the schedule has not come to yet, and will run.
    """

    skipped: int
    done: int
    under_way: int
    ahead: int


@dataclass(frozen=True, kw_only=True)
class BackfillView:
    """What a backfill does, in numbers of intervals.

    Attributes:
        added: that had no run.
        repeated: that had failed, or been skipped; with force also those that had succeeded.
        done: that have succeeded, and are left alone.
        under_way: whose runs wait or run already.
        ahead: that the schedule has not come to yet, and will run itself.
    """

    added: int
    repeated: int
    done: int
    under_way: int
    ahead: int


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """How a job stands.

    Attributes:
        known_at: when that was last confirmed by the registry or the launcher; a state may have changed since.
        kind: query, flow or application.
        run: its newest one, None before the first.
        mode: how a query runs; None of a flow or an application.
        scheduled: whether its runs are made by a schedule.
        on_demand: it runs over ranges that others ask for, and has no schedule.
        new_checkpoint: its next run begins without its checkpoint.
        removed: the newest file does not have it any more; it ends, then it is forgotten.
        attempt: which one of its newest run, from 1; 0: there was none.
        attempts: how many there were, of all its runs.
        batches, rows: what the attempts of its newest run did, the present one too; None: not known.
    """

    pipeline: str
    name: str
    kind: str
    state: JobState
    want: DesiredState
    known_at: float
    since: float
    detail: str = ""
    run: str | None = None
    attempt: int = 0
    attempts: int = 0
    mode: Mode | None = None
    scheduled: bool = False
    on_demand: bool = False
    new_checkpoint: bool = False
    removed: bool = False
    batches: int | None = 0
    rows: int | None = 0
    reads: tuple[str, ...] = ()
    publishes: tuple[str, ...] = ()
    schedule: ScheduleView | None = None


@dataclass(frozen=True, kw_only=True)
class PipelineStatus:
    """How a pipeline stands.

    Attributes:
        version: raised by each change of its file.
    """

    name: str
    file: Path
    version: int
    want: DesiredState
    submitted: float
    jobs: tuple[JobStatus, ...]


class Action(StrEnum):
    """What a submission does with a job."""

    UNCHANGED = "unchanged"
    STORED = "stored"  # no run begins now: its next one follows the new file
    STARTED = "started"
    RESTARTED = "restarted"
    NEW_CHECKPOINT = "begins without its checkpoint"
    STOPPED = "stopped"  # the file does not have it any more
    NEEDS_NEW_CHECKPOINT = "needs a new checkpoint"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """What a submission would do with a job.

    Attributes:
        reasons: why: the keys that changed, as paths in the file, with their values unless those are secrets; or what
            is in the way.
        rows_again: which rows are read again, and which topics get rows once more, if it begins without its checkpoint.
        from_checkpoint: it goes on from its checkpoint.
        ends_run: a run that is under way ends.
        drops_subscriptions: subscriptions by which it reads are dropped, and publishers keep no rows for them any more.
    """

    job: str
    action: Action
    reasons: tuple[str, ...] = ()
    rows_again: tuple[str, ...] = ()
    from_checkpoint: bool = False
    ends_run: bool = False
    drops_subscriptions: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether the file is refused because of it."""
        return self.action in (Action.NEEDS_NEW_CHECKPOINT, Action.REFUSED)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a submission would do.

    Attributes:
        version: that the server has; 0: it does not know the pipeline.
        born: when the first file of that pipeline was submitted, by which it is told apart from one of the same name
            that was deleted; 0 if there is none, or that is not known.
        changed: whether the server has another file, so that there would be a new version.
        jobs: those of the file, in its order, then those that it does not have any more.
        settings: what changed of section ``pipeline`` that the server takes without a restart.
        refused: why the file is refused as a whole.
        warnings: as those of :class:`Submitted`.
    """

    pipeline: str
    version: int
    born: float = 0.0
    changed: bool
    jobs: tuple[JobPlan, ...]
    settings: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether a submission would be refused."""
        return bool(self.refused) or any(job.is_refused for job in self.jobs)

    @property
    def needs_consent(self) -> bool:
        """Whether a run that is under way would end, or a subscription be dropped."""
        return any(job.ends_run or job.drops_subscriptions for job in self.jobs)


@dataclass(frozen=True, kw_only=True)
class RevisionView:
    """One version of a pipeline's file.

    Attributes:
        by: who submitted it: a certificate's name, or ``token``; "" if that is not known.
        added, removed, changed: jobs.
        settings: keys of section ``pipeline`` that changed.
    """

    pipeline: str
    version: int
    submitted: float
    by: str
    file: Path
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """What a submission did.

    Attributes:
        created: False: it changed a pipeline that was there.
        runs: the runs that it started, by job.
        unchanged: jobs that run on as they are.
        removed: jobs that the file no longer has; they are stopped.
        warnings: of the checks, and for each other pipeline with the same storage.
        changed: whether the server had another file, or none; only then is there a new version.
    """

    pipeline: str
    created: bool
    version: int
    runs: Mapping[str, str]
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()
    changed: bool = True


class Control(ABC):
    """The server's core. Methods may be called from any thread, and none waits for an attempt to start or end.

    All raise ``PipelineNotFound`` or ``RunNotFound`` for what is not there, and ``ControlConflict`` for what does not
    fit the state (the text says which state, and what to do).
    """

    @property
    @abstractmethod
    def store(self) -> Store:
        """What the server remembers."""

    @abstractmethod
    def metric_samples(self) -> MetricSamples:
        """Return what is known of topics, jobs and certificates, at most some seconds old; never fails."""

    @property
    @abstractmethod
    def history(self) -> History:
        """How topics, subscriptions and jobs stood over the last day."""

    @property
    @abstractmethod
    def moves(self) -> SubscriptionMoves:
        """Moves positions of subscriptions; unlike other methods, these wait for coordinators."""

    @property
    @abstractmethod
    def dead_letters(self) -> DeadLetters:
        """Rows that jobs could not take, and redrives of them."""

    @abstractmethod
    def topics_snapshot(self) -> TopicsSnapshot:
        """Return how all topics that are served stand, at most some seconds old; never fails."""

    @abstractmethod
    def ledger(self, topic: str, *, minutes: int, name: str | None = None) -> LedgerReply:
        """Return the ledger of a topic, of its newest minutes with rows; waits for its coordinator.

        Args:
            minutes: from 1 to 1,440.
            name: of the one subscription to ask for; None: all.

        Raises:
            TopicAway: no coordinator serves it now.
            JobpipeError: its coordinator does not answer, refuses us, or is of a version that keeps no ledger.
        """

    @abstractmethod
    def topic_rows(self, query: RowsQuery) -> RowsFound:
        """Return rows of a topic, up to its present end; takes up to some seconds, and leaves no trace in the topic.

        Raises:
            TopicNotFound: no publisher serves it; TopicAway if one did.
            ConfigError: the condition is wrong; nothing was published since the time to begin at.
            WaitTimeout: others read rows now; or the condition takes too long.
        """

    @abstractmethod
    def load(self, submission: Submission) -> Pipeline:
        """Return the pipeline of a file, by the plug-ins that the server has.

        Raises:
            PipelineError: the file is wrong here: every problem.
        """

    @abstractmethod
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
        """Take a pipeline, or a changed file of one, and start its jobs that changed; the others run on.

        Returns once it is stored: it survives the server from then on.

        Args:
            new_checkpoint: jobs that begin again without their checkpoint, as their sources or state have changed.
            base: the version that this one was planned for, 0 for a new pipeline; None: any.
            born: of the pipeline that it was planned for, as the plan says; None: any.
            by: who submits it, for the history.
            pipeline: what :meth:`load` has made of it; None: it is loaded.

        Raises:
            PipelineError: the file is wrong here: every problem; or a job would share a checkpoint with another
                pipeline's.
            ControlConflict: the server has another version than ``base``, or another pipeline of that name.
        """

    @abstractmethod
    def plan(
        self, submission: Submission, *, new_checkpoint: Sequence[str] = (), pipeline: Pipeline | None = None
    ) -> Plan:
        """Return what :meth:`submit` would do now with the same arguments; change nothing.

        Raises:
            PipelineError: the file is wrong here.
        """

    @abstractmethod
    def revisions(self, pipeline: str) -> tuple[RevisionView, ...]:
        """Return the versions of a pipeline's file that are kept, the newest first."""

    @abstractmethod
    def revision(self, pipeline: str, version: int) -> Submission:
        """Return one version of a pipeline's file.

        Raises:
            ConfigError: it is not kept.
        """

    @abstractmethod
    def pipelines(self) -> tuple[PipelineStatus, ...]:
        """Return all pipelines, by name."""

    @abstractmethod
    def pipeline(self, name: str) -> PipelineStatus:
        """Return one."""

    @abstractmethod
    def submission(self, name: str) -> Submission:
        """Return what was last submitted of a pipeline."""

    @abstractmethod
    def stop(self, pipeline: str, job: str | None = None) -> PipelineStatus:
        """Let a job, or all of a pipeline, end at a micro-batch boundary; they stay stopped. Idempotent."""

    @abstractmethod
    def resume(self, pipeline: str, job: str | None = None) -> PipelineStatus:
        """Start what was stopped, or has ended, from its checkpoint. Idempotent: what runs runs on."""

    @abstractmethod
    def restart(self, pipeline: str, job: str | None = None, *, force: bool = False) -> PipelineStatus:
        """Stop and start again, as a new run.

        Args:
            force: also a job that is LOST: the caller knows that its attempt has ended.
        """

    @abstractmethod
    def delete(self, pipeline: str, *, keep_subscriptions: bool = False) -> None:
        """Forget a pipeline whose jobs have all ended; drops their subscriptions unless those are to be kept."""

    @abstractmethod
    def runs(self, pipeline: str | None = None, job: str | None = None, *, limit: int = 100) -> tuple[RunView, ...]:
        """Return runs, the newest first, without a pipeline those of all; ``limit`` from 1 to 1,000."""

    @abstractmethod
    def run(self, run: str) -> RunView:
        """Return one run, by its id."""

    @abstractmethod
    def start_run(self, pipeline: str, job: str, lower: str, upper: str) -> RunView:
        """Let a BATCH job without a schedule run over a range: what another scheduler asks for, as often as it likes.

        A run over the same range is that run: it is returned while it is under way, or if it has succeeded, and made
        again under its id if it has not.

        Args:
            lower, upper: ISO 8601 times, in UTC unless they name another zone, or offsets; the upper one is not part.

        Raises:
            ConfigError: the bounds are wrong, or the job takes none.
            ControlConflict: another run of the job has not ended, or its schedule makes its runs.
        """

    @abstractmethod
    def run_over(self, pipeline: str, job: str, lower: str, upper: str) -> RunView:
        """Return the newest run of a job over a range, of a schedule or not; bounds as of :meth:`start_run`.

        Raises:
            RunNotFound: there is none, or it is not kept any more.
            ConfigError: the job is STREAMING; a bound is wrong.
        """

    @abstractmethod
    def cancel(self, run: str) -> RunView:
        """Stop one run; at a micro-batch boundary if one comes in half the time limit. Idempotent."""

    @abstractmethod
    def schedules(self, pipeline: str | None = None) -> tuple[ScheduleView, ...]:
        """Return the schedules of a pipeline, or all, by name."""

    @abstractmethod
    def schedule(self, pipeline: str, job: str) -> ScheduleView:
        """Return the schedule of a job.

        Raises:
            ConfigError: it has none; so do all that follow.
        """

    @abstractmethod
    def pause(self, pipeline: str, job: str, *, paused: bool = True) -> ScheduleView:
        """Make no more runs of a schedule, or go on; a run that is under way goes on. Idempotent."""

    @abstractmethod
    def trigger(self, pipeline: str, job: str) -> ScheduleView:
        """Look now which intervals of a schedule are due, and let their runs begin: what an engine's call does.

        Raises:
            JobpipeError: where its topic ends cannot be asked now.
        """

    @abstractmethod
    def intervals(self, pipeline: str, job: str, *, limit: int = 100) -> tuple[IntervalView, ...]:
        """Return intervals of a schedule, the newest first; ``limit`` from 1 to 1,000."""

    @abstractmethod
    def intervals_in(
        self, pipeline: str, job: str, state: IntervalState, *, limit: int = 100
    ) -> tuple[IntervalView, ...]:
        """Return intervals in a state, whatever their age, the earliest first; ``limit`` from 1 to 1,000."""

    @abstractmethod
    def skip_range(self, pipeline: str, job: str, lower: datetime, upper: datetime) -> SkippedView:
        """Abandon all whole intervals of a range that wait, or whose runs have failed.

        Raises:
            ConfigError: the range ends before it begins.
        """

    @abstractmethod
    def backfill(
        self, pipeline: str, job: str, lower: datetime, upper: datetime, *, force: bool = False
    ) -> BackfillView:
        """Let all whole intervals of a range be run that have not succeeded.

        Args:
            force: also those that have succeeded, or of which it is not known any more.
        """

    @abstractmethod
    def skip(self, run: str) -> IntervalView:
        """Abandon the interval of a run that has failed: what waits for it goes on."""

    @abstractmethod
    def retry(self, run: str, *, force: bool = False) -> IntervalView:
        """Let the interval of a run that has ended be run again, under the same id.

        Args:
            force: also one that has succeeded; under a new id, so that a topic gets its rows once more.
        """

    @abstractmethod
    def log(self, pipeline: str, job: str, *, lines: int = 100) -> tuple[str, ...]:
        """Return the end of a job's log, control characters escaped; ``lines`` from 1 to 10,000."""

    @abstractmethod
    def events(self, after: int = 0, *, wait: float = 0.0, limit: int = 1000) -> tuple[Event, ...]:
        """Return events with a larger id than ``after``; waits so many seconds (at most 60) if there is none yet."""

    @abstractmethod
    def latest_events(self, limit: int = 100) -> tuple[Event, ...]:
        """Return the newest events, the newest first; ``limit`` from 1 to 1,000."""
