"""A core in memory, with a real REST server over loopback."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from jobpipe.control.control_service import (
    Action,
    AttemptView,
    BackfillView,
    Control,
    IntervalView,
    JobPlan,
    JobStatus,
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
from jobpipe.control.letters.dead_letters import DeadLetters
from jobpipe.control.monitoring.job_samples import job_samples
from jobpipe.control.positions.subscription_moves import SubscriptionMoves
from jobpipe.control.rest.rest_client import ControlClient, ServerAddress
from jobpipe.control.rows.rows_query import RowsFound, RowsQuery
from jobpipe.errors import ConfigError, ControlConflict, JobpipeError, PipelineNotFound, RunNotFound, TopicAway
from jobpipe.jobs.schedules.schedule_decisions import IntervalState
from jobpipe.jobs.storage.job_rows import Event
from jobpipe.jobs.storage.job_store import Store
from jobpipe.metrics.metric_samples import MetricSamples, TopicsSnapshot
from jobpipe.operations.status_operations import LedgerReply
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.loading.loader import load_tree
from jobpipe.pipelines.model.job_states import ENDED, DesiredState, JobState
from jobpipe.pipelines.model.pipeline import Pipeline
from tests.control.letters.letters_kit import Letters
from tests.control.positions.positions_kit import OneTopic, at

DEADLINE = 20.0


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, at most so long."""
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.01)


def tree(name: str = "flights", **jobs: Any) -> dict[str, Any]:
    """Return a small pipeline's tree: one job publishes, one reads."""
    made = {
        "publish": {"source": {"type": "rate"}, "sink": {"type": "jobpipe", "topic": f"{name}-rows"}},
        "report": {"source": {"type": "jobpipe", "subscribe": f"{name}-rows"}, "sink": {"type": "console"}},
    }
    return {"pipeline": {"name": name}, "jobs": {**made, **jobs}}


SCHEDULE = ScheduleView(
    pipeline="flights",
    job="report",
    rule="every day",
    paused=False,
    active=True,
    accepted="2026-11-22T00:00:00Z",
    next_due=1.8e9,
    waiting=0,
    running=0,
    failed=1,
    last=IntervalView(
        pipeline="flights",
        job="report",
        lower="2026-11-21T00:00:00Z",
        upper="2026-11-22T00:00:00Z",
        state="FAILED",
        since=1000.0,
        run="run-1",
    ),
)


class MemoryControl(Control):
    """Jobs are RUNNING as soon as they are wanted, unless the test says otherwise by ``state_of``."""

    store = property(lambda self: self._store)
    history = property(lambda self: self.past)
    moves = property(lambda self: self._moves)
    dead_letters = property(lambda self: self._dead_letters)

    def __init__(self) -> None:
        self._store = Store(None, time.time, lambda: self.tell("stored") and None)
        self.topic = OneTopic(places={"flights.report": at(7)})
        self._moves = SubscriptionMoves(self._store, self.topic, time.time)
        self.past = History(time.time)
        self.letters = Letters(jobs=[])
        self._dead_letters = DeadLetters(
            self.letters,
            self._store,
            jobs=lambda: self.letters.jobs,
            allowed=self.letters.allowed,
            snapshot=self.letters.snapshot,
        )
        self.submissions: dict[str, Submission] = {}
        self.statuses: dict[str, PipelineStatus] = {}
        self.run_views: dict[str, RunView] = {}
        self.schedule_views: dict[tuple[str, str], ScheduleView] = {}
        self.plan_of: Callable[[Plan], Plan] = lambda plan: plan
        self.kept: dict[tuple[str, int], tuple[RevisionView, Submission]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.raises: BaseException | None = None
        self.blocks: threading.Event | None = None
        self.ending = 0  # how often a deletion finds processes that have not ended
        self.state_of: dict[str, JobState] = {}
        self.lines: tuple[str, ...] = ()
        self.topics = TopicsSnapshot({}, 0.0)
        self.rows_of: Callable[[RowsQuery], RowsFound] = lambda query: RowsFound()
        self.warnings: tuple[Problem, ...] = ()
        self.ledgers: dict[str, LedgerReply | JobpipeError] = {}
        self._events: list[Event] = []
        self._bell = threading.Condition()

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.blocks is not None:
            assert self.blocks.wait(DEADLINE)
        if self.raises is not None:
            raise self.raises

    def tell(self, what: str, *, pipeline: str = "flights", job: str | None = "report", **more: Any) -> Event:
        """Let something happen."""
        with self._bell:
            made = Event(id=len(self._events) + 1, at=time.time(), pipeline=pipeline, job=job, what=what, **more)
            self._events.append(made)
            self._bell.notify_all()
        return made

    def _start(self, pipeline: str, job: str) -> JobStatus:
        number = len(self.run_views) + 1
        state = self.state_of.get(job, JobState.RUNNING)
        attempt = AttemptView(number=1, state=state, began=1000.0 + number, launched="local 1")
        run = RunView(
            id=f"run-{number}", pipeline=pipeline, job=job, state=state, began=1000.0 + number, attempts=(attempt,)
        )
        self.run_views[run.id] = run
        return JobStatus(
            pipeline=pipeline,
            name=job,
            kind="query",
            state=state,
            want=DesiredState.RUN,
            known_at=1000.5,
            since=1000.0,
            run=run.id,
            attempt=1,
        )

    def load(self, submission: Submission) -> Pipeline:
        return load_tree(submission.tree, file=submission.file, folder=submission.folder)

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
        self._called("submit", submission, tuple(new_checkpoint), base, by, born)
        name = submission.tree["pipeline"]["name"]
        created = name not in self.statuses
        jobs = tuple(self._start(name, job) for job in submission.tree["jobs"])
        version = 1 if created else self.statuses[name].version + 1
        kept = RevisionView(pipeline=name, version=version, submitted=1000.0, by=by, file=submission.file)
        self.kept[(name, version)] = (kept, submission)
        self.submissions[name] = submission
        self.statuses[name] = PipelineStatus(
            name=name, file=submission.file, version=version, want=DesiredState.RUN, submitted=time.time(), jobs=jobs
        )
        runs = {job.name: str(job.run) for job in jobs}
        return Submitted(pipeline=name, created=created, version=version, runs=runs, warnings=self.warnings)

    def plan(
        self, submission: Submission, *, new_checkpoint: Sequence[str] = (), pipeline: Pipeline | None = None
    ) -> Plan:
        """Jobs that run are unchanged, unless the test says otherwise by ``plan_of``."""
        self._called("plan", submission, tuple(new_checkpoint))
        name = submission.tree["pipeline"]["name"]
        version = self.statuses[name].version if name in self.statuses else 0
        action = Action.UNCHANGED if version else Action.STARTED
        jobs = tuple(JobPlan(job=job, action=action) for job in submission.tree["jobs"])
        return self.plan_of(Plan(pipeline=name, version=version, born=1000.0 * bool(version), changed=True, jobs=jobs))

    def revisions(self, pipeline: str) -> tuple[RevisionView, ...]:
        self._called("revisions", pipeline)
        self.pipeline(pipeline)
        return tuple(view for (name, _), (view, _) in reversed(self.kept.items()) if name == pipeline)

    def revision(self, pipeline: str, version: int) -> Submission:
        self._called("revision", pipeline, version)
        self.pipeline(pipeline)
        if (pipeline, version) not in self.kept:
            raise ConfigError(f"version {version} of pipeline {pipeline} is not kept", key=pipeline)
        return self.kept[(pipeline, version)][1]

    def metric_samples(self) -> MetricSamples:
        self._called("metric_samples")
        jobs = job_samples(self.statuses.values(), *3 * [lambda *_: None])
        return MetricSamples(TopicsSnapshot({}, 0.0), jobs, jobs_known=True)

    def topics_snapshot(self) -> TopicsSnapshot:
        self._called("topics_snapshot")
        return self.topics

    def topic_rows(self, query: RowsQuery) -> RowsFound:
        """No rows, unless the test says otherwise by ``rows_of``."""
        self._called("topic_rows", query)
        return self.rows_of(query)

    def ledger(self, topic: str, *, minutes: int, name: str | None = None) -> LedgerReply:
        self._called("ledger", topic, minutes, name)
        found = self.ledgers.get(topic, TopicAway(f"topic {topic!r} is not served now"))
        if isinstance(found, JobpipeError):
            raise found
        return replace(found, hops=tuple(hop for hop in found.hops if name in (None, hop.name)))

    def pipelines(self) -> tuple[PipelineStatus, ...]:
        self._called("pipelines")
        return tuple(self.statuses[name] for name in sorted(self.statuses))

    def pipeline(self, name: str) -> PipelineStatus:
        self._called("pipeline", name)
        if name not in self.statuses:
            raise PipelineNotFound(f"there is no pipeline {name!r}", pipeline=name)
        return self.statuses[name]

    def submission(self, name: str) -> Submission:
        self._called("submission", name)
        if name not in self.submissions:
            raise PipelineNotFound(f"there is no pipeline {name!r}", pipeline=name)
        return self.submissions[name]

    def _change(self, pipeline: str, job: str | None, change: Any) -> PipelineStatus:
        found = self.pipeline(pipeline)
        if job is not None and job not in {each.name for each in found.jobs}:
            raise PipelineNotFound(f"pipeline {pipeline} has no job {job!r}", pipeline=pipeline, job=job)
        jobs = tuple(change(each) if job in (None, each.name) else each for each in found.jobs)
        self.statuses[pipeline] = replace(found, jobs=jobs)
        return self.statuses[pipeline]

    def set_state(self, pipeline: str, job: str, state: JobState, detail: str = "") -> None:
        """Let a job be in a state."""
        self._change(pipeline, job, lambda each: replace(each, state=state, detail=detail))

    def stop(self, pipeline: str, job: str | None = None) -> PipelineStatus:
        self._called("stop", pipeline, job)
        return self._change(pipeline, job, lambda each: replace(each, want=DesiredState.STOP, state=JobState.STOPPED))

    def resume(self, pipeline: str, job: str | None = None) -> PipelineStatus:
        self._called("resume", pipeline, job)
        return self._change(
            pipeline, job, lambda each: self._start(pipeline, each.name) if each.state in ENDED else each
        )

    def restart(self, pipeline: str, job: str | None = None, *, force: bool = False) -> PipelineStatus:
        self._called("restart", pipeline, job, force)
        return self._change(pipeline, job, lambda each: self._start(pipeline, each.name))

    def delete(self, pipeline: str, *, keep_subscriptions: bool = False) -> None:
        self._called("delete", pipeline, keep_subscriptions)
        if any(job.state not in ENDED for job in self.pipeline(pipeline).jobs):
            raise ControlConflict(f"pipeline {pipeline} runs; stop it first", pipeline=pipeline)
        if self.ending:
            self.ending -= 1
            raise ControlConflict(f"processes of {pipeline} are seen to end", pipeline=pipeline, ending=True)
        del self.statuses[pipeline], self.submissions[pipeline]

    def runs(self, pipeline: str | None = None, job: str | None = None, *, limit: int = 100) -> tuple[RunView, ...]:
        self._called("runs", pipeline, job, limit)
        if pipeline is not None:
            self.pipeline(pipeline)
        views = self.run_views.values()
        found = [run for run in views if pipeline in (None, run.pipeline) and job in (None, run.job)]
        return tuple(reversed(found))[:limit]

    def run(self, run: str) -> RunView:
        self._called("run", run)
        if run not in self.run_views:
            raise RunNotFound(f"there is no run {run!r}", run=run)
        return self.run_views[run]

    def start_run(self, pipeline: str, job: str, lower: str, upper: str) -> RunView:
        self._called("start_run", pipeline, job, lower, upper)
        self.pipeline(pipeline)
        made = self.run_views[str(self._start(pipeline, job).run)]
        self.run_views[made.id] = replace(made, lower=lower, upper=upper)
        return self.run_views[made.id]

    def run_over(self, pipeline: str, job: str, lower: str, upper: str) -> RunView:
        self._called("run_over", pipeline, job, lower, upper)
        bounds = (pipeline, job, lower, upper)
        for each in reversed(self.run_views.values()):
            if (each.pipeline, each.job, each.lower, each.upper) == bounds:
                return each
        raise RunNotFound(f"there is no run of job {pipeline}.{job} from {lower} to {upper}")

    def cancel(self, run: str) -> RunView:
        self._called("cancel", run)
        self.run_views[run] = replace(self.run(run), state=JobState.CANCELED, ended=2000.0)
        return self.run_views[run]

    def schedules(self, pipeline: str | None = None) -> tuple[ScheduleView, ...]:
        self._called("schedules", pipeline)
        if pipeline is not None:
            self.pipeline(pipeline)
        return tuple(each for each in self.schedule_views.values() if pipeline in (None, each.pipeline))

    def schedule(self, pipeline: str, job: str) -> ScheduleView:
        self._called("schedule", pipeline, job)
        self.pipeline(pipeline)
        if (pipeline, job) not in self.schedule_views:
            raise ConfigError(f"job {pipeline}.{job} has no schedule", key=job)
        return self.schedule_views[(pipeline, job)]

    def pause(self, pipeline: str, job: str, *, paused: bool = True) -> ScheduleView:
        self._called("pause", pipeline, job, paused)
        found = replace(self.schedule(pipeline, job), paused=paused, active=not paused)
        self.schedule_views[(pipeline, job)] = found
        return found

    def intervals(self, pipeline: str, job: str, *, limit: int = 100) -> tuple[IntervalView, ...]:
        self._called("intervals", pipeline, job, limit)
        last = self.schedule(pipeline, job).last
        return () if last is None else (last,)

    def intervals_in(
        self, pipeline: str, job: str, state: IntervalState, *, limit: int = 100
    ) -> tuple[IntervalView, ...]:
        self._called("intervals_in", pipeline, job, state, limit)
        return tuple(each for each in self.intervals(pipeline, job) if each.state == state)[:limit]

    def backfill(
        self, pipeline: str, job: str, lower: datetime, upper: datetime, *, force: bool = False
    ) -> BackfillView:
        self._called("backfill", pipeline, job, lower, upper, force)
        self.schedule(pipeline, job)
        return BackfillView(added=2, repeated=1, done=4, under_way=1, ahead=3)

    def trigger(self, pipeline: str, job: str) -> ScheduleView:
        self._called("trigger", pipeline, job)
        return self.schedule(pipeline, job)

    def skip_range(self, pipeline: str, job: str, lower: datetime, upper: datetime) -> SkippedView:
        self._called("skip_range", pipeline, job, lower, upper)
        self.schedule(pipeline, job)
        return SkippedView(skipped=2, done=1, under_way=1, ahead=3)

    def skip(self, run: str) -> IntervalView:
        self._called("skip", run)
        return self._of_run(run, "SKIPPED")

    def retry(self, run: str, *, force: bool = False) -> IntervalView:
        self._called("retry", run, force)
        return self._of_run(run, "WAITING")

    def _of_run(self, run: str, state: str) -> IntervalView:
        view = self.run(run)
        lower, upper = "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"
        return IntervalView(
            pipeline=view.pipeline, job=view.job, lower=lower, upper=upper, state=state, since=1000.0, run=run
        )

    def log(self, pipeline: str, job: str, *, lines: int = 100) -> tuple[str, ...]:
        self._called("log", pipeline, job, lines)
        self.pipeline(pipeline)
        return self.lines[-lines:]

    def events(self, after: int = 0, *, wait: float = 0.0, limit: int = 1000) -> tuple[Event, ...]:
        with self._bell:
            self._bell.wait_for(lambda: len(self._events) > after, wait)
            return tuple(self._events[after : after + limit])

    def latest_events(self, limit: int = 100) -> tuple[Event, ...]:
        with self._bell:
            return tuple(reversed(self._events[-limit:]))


@dataclass
class Reply:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A server that runs, and how to ask it."""

    control: MemoryControl
    address: ServerAddress
    view: str
    home: Path
    folder: Path
    host: str = field(init=False)

    def __post_init__(self) -> None:
        self.host = self.address.url.removeprefix("http://")

    @property
    def client(self) -> ControlClient:
        return ControlClient(self.address, timeout=DEADLINE)

    @property
    def viewer(self) -> ControlClient:
        return ControlClient(replace(self.address, token=self.view), timeout=DEADLINE)

    def submission(self, name: str = "flights", **jobs: Any) -> Submission:
        return Submission(file=self.folder / "p.yaml", folder=self.folder, tree=tree(name, **jobs))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = "",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request; with ``token`` None without one."""
        sent = {"Authorization": f"Bearer {token or self.address.token}"} if token is not None else {}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if content is not None:
            sent["Content-Type"] = "application/json"
        sent |= dict(headers or {})
        connection = http.client.HTTPConnection(self.host, timeout=DEADLINE)
        try:
            connection.request(method, path, body=content, headers=sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()
