"""The handlers of REST: a method for each route, from a checked request to a view. They block; threads call them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

import jobpipe
from jobpipe.config.definitions.key_names import by_loose_name
from jobpipe.config.reading.located_values import FilePlace, node_of
from jobpipe.control.control_service import (
    BackfillView,
    Control,
    IntervalView,
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
from jobpipe.control.letters.letter_views import LetterRows, LetterTopic, RedriveView
from jobpipe.control.page.browser_sessions import CODE_SECONDS, BrowserSessions, sign_in_path
from jobpipe.control.permissions import Caller
from jobpipe.control.positions.move_plan import Move, MovePlan
from jobpipe.control.rest.rest_models import (
    BackfillBody,
    BrokenPipeline,
    Expanded,
    GraphJob,
    GraphTopic,
    GraphView,
    HealthView,
    IndexView,
    LogView,
    MoveBody,
    OptionView,
    PlanBody,
    RangeBody,
    RunBody,
    SignInCodeView,
    SubmissionBody,
    UndoBody,
    ValidateBody,
    ValidatedView,
)
from jobpipe.control.revisions.submission_checks import require_trusted
from jobpipe.errors import (
    ConfigError,
    ControlConflict,
    JobpipeError,
    NotAuthorized,
    PipelineError,
    PipelineNotFound,
    SubscriptionNotFound,
    TopicNotFound,
    WaitTimeout,
    short_repr,
)
from jobpipe.jobs.allowed_paths import AllowedPaths
from jobpipe.ledger.hop_lines import hop_lines
from jobpipe.ledger.ledger_views import HopView, hop_view
from jobpipe.metrics.metric_samples import LineageSample
from jobpipe.metrics.openmetrics_text import metrics_text
from jobpipe.pipelines.file.error_messages import problems_of
from jobpipe.pipelines.file.field_types import EXPECTED
from jobpipe.pipelines.file.problems import nearest
from jobpipe.pipelines.loading.loader import load_tree
from jobpipe.pipelines.model.graph import Graph, graph_of
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe.pipelines.plugins.json_schema import options_schema
from jobpipe.pipelines.plugins.option_models import CONFIGURATION
from jobpipe.pipelines.plugins.plugin_discovery import PlugInKind, Plugins
from jobpipe.pipelines.plugins.schedule_engine import fires_nothing

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
LETTER_SECONDS = 10.0  # for dead letters to be counted, or read
OPENAPI = "/openapi.json"


@dataclass(frozen=True)
class Call:
    """A request whose form is right.

    Attributes:
        path: what stands in the route's braces.
        query: values of the query, of the kinds that the route says; the default where none was given.
        body: of the route's model.
        caller: who asks.
    """

    path: Mapping[str, str]
    query: Mapping[str, str | int | bool | None]
    body: BaseModel | None
    caller: Caller

    def name(self, part: str) -> str:
        """Return a part of the path."""
        return self.path[part]

    def text(self, name: str) -> str | None:
        """Return a text of the query."""
        value = self.query[name]
        return None if value is None else str(value)

    def whole(self, name: str) -> int:
        """Return a number of the query."""
        return int(self.query[name] or 0)

    def flag(self, name: str) -> bool:
        """Return a switch of the query."""
        return bool(self.query[name])

    def of(self, model: type[M]) -> M:
        """Return the body."""
        if not isinstance(self.body, model):
            raise TypeError(f"the route has no body {model.__name__}")
        return self.body


class Handlers:
    """All of them, over one core.

    Attributes:
        sessions: of browsers; None where certificates say who asks.
        lineage: returns how lineage events stand; None where no lineage is reported.
    """

    sessions: BrowserSessions | None = None
    lineage: Callable[[], LineageSample] | None = None

    def __init__(self, control: Control, roots: AllowedPaths) -> None:
        self._control = control
        self._roots = roots
        # By pipeline: its version, when that was submitted, and what it gave. Versions begin again after a deletion.
        self._graphs: dict[str, tuple[tuple[int, float], Graph | str]] = {}
        self._lock = threading.Lock()

    def index(self, call: Call) -> IndexView:
        """Say which server this is, and what the caller may do."""
        return IndexView(version=jobpipe.__version__, right=call.caller.right, openapi=OPENAPI)

    def health(self, call: Call) -> HealthView:
        """Say that the server answers. Needs no right."""
        return HealthView(ok=True)

    def sign_in_code(self, call: Call) -> SignInCodeView:
        """Make a code that signs one browser in, with the right of the caller."""
        if self.sessions is None:
            raise ControlConflict("this server knows browsers by their certificates: import one, and open its address")
        if call.caller.until is not None:
            raise NotAuthorized("a browser cannot let others in; use a token", right=call.caller.right.value)
        code = self.sessions.make_code(call.caller.right)
        return SignInCodeView(path=sign_in_path(code), seconds=CODE_SECONDS)

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the text of metrics that a scraper accepts, and its media type."""
        samples = self._control.metric_samples()
        if self.lineage is not None:
            samples = replace(samples, lineage=self.lineage())
        return metrics_text(samples, accept)

    def pipelines(self, call: Call) -> list[str] | dict[str, Expanded]:
        """List pipelines: their names, or with expand=status how each stands."""
        found = self._control.pipelines()
        if call.text("expand") == "status":
            return {each.name: Expanded(status=each) for each in found}
        return [each.name for each in found]

    def submit(self, call: Call) -> Submitted:
        """Take a pipeline, or a changed one, and start its jobs that changed; returns once it is stored."""
        return self._submit(call, None)

    def plan(self, call: Call) -> Plan:
        """Say what POST /pipelines with this body would do with each job, and why; change nothing."""
        body = call.of(PlanBody)
        submission, pipeline = self._submission(body, None)
        return self._control.plan(submission, new_checkpoint=body.new_checkpoint, pipeline=pipeline)

    def config(self, call: Call) -> Submission:
        """Show what was last submitted of a pipeline."""
        return self._control.submission(call.name("pipeline"))

    def put_config(self, call: Call) -> Submitted:
        """As POST /pipelines, of a pipeline of that name."""
        return self._submit(call, call.name("pipeline"))

    def revisions(self, call: Call) -> tuple[RevisionView, ...]:
        """List the versions of a pipeline's file that are kept, the newest first, with what each changed."""
        return self._control.revisions(call.name("pipeline"))

    def revision(self, call: Call) -> Submission:
        """Show one version of a pipeline's file."""
        given = call.name("version")
        if not (given.isascii() and given.isdecimal() and len(given) < 10):
            raise ConfigError(f"{short_repr(given)} is not the number of a version", key="version")
        return self._control.revision(call.name("pipeline"), int(given))

    def _submit(self, call: Call, name: str | None) -> Submitted:
        body = call.of(SubmissionBody)
        submission, pipeline = self._submission(body, name)
        return self._control.submit(
            submission,
            new_checkpoint=body.new_checkpoint,
            base=body.base_version,
            born=body.base_born,
            by=call.caller.name,
            pipeline=pipeline,
        )

    def _submission(self, body: PlanBody, name: str | None) -> tuple[Submission, Pipeline]:
        """Return the file of a body, loaded, after a look at where it lies."""
        folder = self._roots.folder(body.folder)
        submission = Submission(file=body.file, folder=folder, tree=body.tree)
        pipeline = self._control.load(submission)
        if name is not None and pipeline.name != name:
            raise ConfigError(
                f"pipeline.name is {pipeline.name!r}, and the address names {name!r}; change one of them",
                key="pipeline.name",
            )
        require_trusted(pipeline, self._roots)
        return submission, pipeline

    def status(self, call: Call) -> PipelineStatus:
        """Say how a pipeline stands."""
        return self._control.pipeline(call.name("pipeline"))

    def job_status(self, call: Call) -> JobStatus:
        """Say how a job stands."""
        return _job(self._control.pipeline(call.name("pipeline")), call.name("job"))

    def stop(self, call: Call) -> PipelineStatus:
        """Let a job, or all of a pipeline, end at a micro-batch boundary; idempotent."""
        return self._control.stop(call.name("pipeline"), call.path.get("job"))

    def resume(self, call: Call) -> PipelineStatus:
        """Start what was stopped, or has ended; idempotent."""
        return self._control.resume(call.name("pipeline"), call.path.get("job"))

    def restart(self, call: Call) -> PipelineStatus:
        """Stop and start again, as new runs; with force also jobs that are LOST."""
        return self._control.restart(call.name("pipeline"), call.path.get("job"), force=call.flag("force"))

    def delete(self, call: Call) -> None:
        """Forget a pipeline whose jobs have ended, and drop its subscriptions unless they are to be kept."""
        self._control.delete(call.name("pipeline"), keep_subscriptions=call.flag("keep-subscriptions"))

    def log(self, call: Call) -> LogView:
        """Show the end of a job's log."""
        lines = self._control.log(call.name("pipeline"), call.name("job"), lines=call.whole("lines"))
        return LogView(lines=lines)

    def runs(self, call: Call) -> tuple[RunView, ...]:
        """List runs, the newest first; without a pipeline those of all."""
        pipeline, job = call.text("pipeline"), call.text("job")
        if job is not None and pipeline is None:
            raise ConfigError("job needs pipeline: names of jobs are unique only within a pipeline", key="job")
        return self._control.runs(pipeline, job, limit=call.whole("limit"))

    def run(self, call: Call) -> RunView:
        """Show a run with its attempts."""
        return self._control.run(call.name("run"))

    def start_run(self, call: Call) -> RunView:
        """Let a BATCH job run over a range; the same request again is that run, made again if it has failed."""
        body = call.of(RunBody)
        return self._control.start_run(call.name("pipeline"), call.name("job"), str(body.lower), str(body.upper))

    def run_over(self, call: Call) -> RunView:
        """Show the newest run of a job over a range: what `POST` began, for schedulers that keep no id of it."""
        lower, upper = call.text("lowerBoundary"), call.text("upperBoundary")
        if lower is None or upper is None:
            raise ConfigError("lowerBoundary and upperBoundary are needed; GET /runs lists all runs", key="query")
        return self._control.run_over(call.name("pipeline"), call.name("job"), lower, upper)

    def cancel(self, call: Call) -> RunView:
        """Stop a run; idempotent."""
        return self._control.cancel(call.name("run"))

    def schedules(self, call: Call) -> tuple[ScheduleView, ...]:
        """List schedules, of one pipeline or of all."""
        return self._control.schedules(call.text("pipeline"))

    def schedule(self, call: Call) -> ScheduleView:
        """Show the schedule of a job."""
        return self._control.schedule(call.name("pipeline"), call.name("job"))

    def intervals(self, call: Call) -> tuple[IntervalView, ...]:
        """List the intervals of a job's schedule, the newest first."""
        return self._control.intervals(call.name("pipeline"), call.name("job"), limit=call.whole("limit"))

    def pause(self, call: Call) -> ScheduleView:
        """Make no more runs of a schedule; idempotent."""
        return self._control.pause(call.name("pipeline"), call.name("job"))

    def unpause(self, call: Call) -> ScheduleView:
        """Make runs of a schedule again; what was missed follows its catchup. Idempotent."""
        return self._control.pause(call.name("pipeline"), call.name("job"), paused=False)

    def trigger(self, call: Call) -> ScheduleView:
        """Let the runs of all intervals begin that are due now; for schedulers of your own. Idempotent."""
        return self._control.trigger(call.name("pipeline"), call.name("job"))

    def backfill(self, call: Call) -> BackfillView:
        """Let all whole intervals of a range run that have not succeeded."""
        body = call.of(BackfillBody)
        return self._control.backfill(call.name("pipeline"), call.name("job"), body.lower, body.upper, force=body.force)

    def skip_range(self, call: Call) -> SkippedView:
        """Abandon all whole intervals of a range that wait, or whose runs have failed."""
        body = call.of(RangeBody)
        return self._control.skip_range(call.name("pipeline"), call.name("job"), body.lower, body.upper)

    def skip(self, call: Call) -> IntervalView:
        """Abandon the interval of a run that has failed."""
        return self._control.skip(call.name("run"))

    def retry(self, call: Call) -> IntervalView:
        """Let the interval of a run be run again; with force also one that has succeeded."""
        return self._control.retry(call.name("run"), force=call.flag("force"))

    def plan_move(self, call: Call) -> MovePlan:
        """Say what a move of a subscription would mean in rows, and what is in its way; change nothing."""
        to = call.text("to")
        if to is None:
            raise ConfigError("to is needed: earliest, latest, an offset, or a time", key="to")
        return self._control.moves.plan(call.name("topic"), call.name("subscription"), to)

    def move(self, call: Call) -> Move:
        """Move a subscription that no subscriber is connected to, if it still stands where the plan saw it."""
        topic, name, body = call.name("topic"), call.name("subscription"), call.of(MoveBody)
        return self._control.moves.move(topic, name, body.to, expected=body.expected, by=call.caller.name)

    def plan_undo(self, call: Call) -> MovePlan:
        """Say what it would mean to take the last move of a subscription back, and what is in the way."""
        return self._control.moves.plan_undo(call.name("topic"), call.name("subscription"))

    def undo(self, call: Call) -> Move:
        """Take the last move of a subscription back, if it still stands where that left it; can be undone too."""
        topic, name, body = call.name("topic"), call.name("subscription"), call.of(UndoBody)
        return self._control.moves.undo(topic, name, number=body.number, expected=body.expected, by=call.caller.name)

    def ledger(self, call: Call) -> tuple[HopView, ...]:
        """Compare for each subscription of a topic the rows that were published, read and committed, also by minute."""
        topic, name = call.name("topic"), call.text("subscription")
        status = self._control.topics_snapshot().topics.get(topic)
        if status is None:
            raise TopicNotFound(f"topic {short_repr(topic)} is not served now", topic=topic[:100])
        if isinstance(status, JobpipeError):
            raise status
        if name is not None and name not in {line.name for line in status.subscriptions}:
            what = f"topic {short_repr(topic)} has no subscription {short_repr(name)}"
            raise SubscriptionNotFound(what, topic=topic, name=name[:100])
        reply = self._control.ledger(topic, minutes=call.whole("minutes"), name=name)
        return tuple(map(hop_view, hop_lines(status, reply, name=name)))

    def dead_letters(self, call: Call) -> tuple[LetterTopic, ...]:
        """Count the dead letters of all jobs that may have some, by stage and error."""
        return self._control.dead_letters.topics(LETTER_SECONDS)

    def dead_letters_of(self, call: Call) -> LetterTopic:
        """Count the dead letters of a topic by stage and error, and say how its redrive stands."""
        return self._control.dead_letters.topic(call.name("topic"), LETTER_SECONDS)

    def dead_letter_rows(self, call: Call) -> LetterRows:
        """Show the newest dead letters of a topic: row, error, stage, and where the row came from."""
        found = self._control.dead_letters.rows(call.name("topic"), call.whole("limit"), wait=LETTER_SECONDS)
        return _ready(found)

    def plan_redrive(self, call: Call) -> RedriveView:
        """Say what a redrive would publish, and which letters it would leave; change nothing."""
        return _ready(self._control.dead_letters.plan_redrive(call.name("topic"), LETTER_SECONDS))

    def redrive(self, call: Call) -> RedriveView:
        """Begin to publish the rows of a topic's dead letters again, each once, to the topics that its job reads."""
        return self._control.dead_letters.redrive(call.name("topic"), by=call.caller.name)

    def graph(self, call: Call) -> GraphView:
        """Show which job of which pipeline publishes and reads which topic."""
        graphs = {each.name: self._graph(each) for each in self._control.pipelines()}
        with self._lock:
            self._graphs = {name: kept for name, kept in self._graphs.items() if name in graphs}
        publishers: dict[str, list[str]] = {}
        readers: dict[str, list[str]] = {}
        jobs: list[GraphJob] = []
        for name, graph in graphs.items():
            if isinstance(graph, str):
                continue
            jobs += [GraphJob(pipeline=name, **asdict(job)) for job in graph.jobs]
            for topic in graph.topics:
                publishers.setdefault(topic.name, []).extend(f"{name}/{job}" for job in topic.publishers)
                readers.setdefault(topic.name, []).extend(f"{name}/{job}" for job in topic.readers)
        topics = [
            GraphTopic(name=topic, publishers=tuple(publishers[topic]), readers=tuple(readers[topic]))
            for topic in sorted(publishers)
        ]
        broken = tuple(BrokenPipeline(name=n, error=graph) for n, graph in graphs.items() if isinstance(graph, str))
        return GraphView(pipelines=tuple(graphs), jobs=tuple(jobs), topics=tuple(topics), broken=broken)

    def _graph(self, status: PipelineStatus) -> Graph | str:
        """Return a pipeline's graph, or why there is none; made once for each version of its file."""
        with self._lock:
            known = self._graphs.get(status.name)
        version = (status.version, status.submitted)
        if known is not None and known[0] == version:
            return known[1]
        found: Graph | str
        try:
            submission = self._control.submission(status.name)
            found = graph_of(load_tree(submission.tree, file=submission.file, folder=submission.folder))
        except PipelineNotFound:
            return "it was deleted a moment ago"
        except JobpipeError as error:
            found = error.message
        with self._lock:
            self._graphs[status.name] = (version, found)
        return found

    def validate(self, call: Call) -> ValidatedView:
        """Check the options of a source, transform, sink or launcher: every error, and what each may be."""
        body, type_ = call.of(ValidateBody), call.name("type")
        plugins = Plugins()
        kind = body.kind or _only_kind(plugins, type_)
        plugin = plugins.find(kind, type_)
        tree = node_of(body.config, FilePlace(type_))
        by_option: dict[str, list[str]] = {}
        rest: list[str] = []
        warnings: list[str] = []
        schema = options_schema(plugin.Options)
        properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
        try:
            options = plugin.parse(dict(body.config), self._roots.folders[0])
            made = plugin(options, fires_nothing) if kind is PlugInKind.ENGINE else plugin(options)
            for complaint in made.check(body.mode):
                said = f"{complaint.what}; {complaint.remedy}"
                if complaint.severity == "warning":
                    warnings.append(f"{complaint.key}: {said}" if complaint.key else said)
                else:
                    (by_option.setdefault(complaint.key, []) if complaint.key in properties else rest).append(said)
        except ValidationError as error:
            for problem in problems_of(error, plugin.Options, tree):
                said = f"{problem.what}; {problem.remedy}" if problem.remedy else problem.what
                option = next((name for name in _starts(problem.key) if name in properties), None)
                if option is None:
                    rest.append(f"{problem.key}: {said}")
                else:
                    by_option.setdefault(option, []).append(said)
        required = schema.get("required", ())
        configs = tuple(_option(name, about, name in required, by_option) for name, about in properties.items())
        count = sum(map(len, by_option.values())) + len(rest)
        return ValidatedView(
            type=type_, kind=kind, error_count=count, configs=configs, errors=tuple(rest), warnings=tuple(warnings)
        )


def _ready(found: T | None) -> T:
    if found is None:
        raise WaitTimeout("there are too many dead letters to say that at once; ask again in a moment")
    return found


def _job(status: PipelineStatus, name: str) -> JobStatus:
    for job in status.jobs:
        if job.name == name:
            return job
    names = [job.name for job in status.jobs]
    raise PipelineNotFound(
        f"pipeline {status.name} has no job {short_repr(name)}; {nearest(name, names)}", job=name[:100]
    )


def _only_kind(plugins: Plugins, type_: str) -> PlugInKind:
    kinds = list(dict.fromkeys(each.kind for each in plugins.all() if each.type == type_))
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        listed = " and a ".join(kinds)
        raise PipelineError(f"{short_repr(type_)} is a {listed}; use kind to choose one", problems=[])
    names = sorted({each.type for each in plugins.all()})
    raise PipelineNotFound(
        f"there is no plug-in of type {short_repr(type_)}; {nearest(type_, names)}", type=type_[:100]
    )


def _starts(key: str) -> list[str]:
    """Return the key, and all that it may be inside: ``options.x[0]``, ``options.x``, ``options``."""
    return [key, *(key[:place] for place in range(len(key) - 1, 0, -1) if key[place] in ".[")]


def _recommended(name: str, about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is worth offering for a key of the configuration among the options."""
    key = by_loose_name(name) if about.get(CONFIGURATION) else None
    return () if key is None else key.recommended


def _option(name: str, about: Mapping[str, Any], required: bool, errors: Mapping[str, list[str]]) -> OptionView:
    parts = (about, *about.get("anyOf", ()))
    return OptionView(
        name=name,
        required=required,
        documentation=str(about.get("description", "")),
        expected=next((str(part[EXPECTED]) for part in parts if EXPECTED in part), ""),
        default=about.get("default"),
        recommended=_recommended(name, about) or tuple(str(value) for part in parts for value in part.get("enum", ())),
        errors=tuple(errors.get(name, ())),
    )
