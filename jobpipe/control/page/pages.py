"""The pages, by address: from what the server's core says to what a browser shows. They block; threads call them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from jobpipe.control.control_service import Control, JobStatus, RunView
from jobpipe.control.page.graph_drawing import application_href, graph_picture, job_href, topic_href
from jobpipe.control.page.marks import Mark, job_mark, ledger_mark, link_mark, run_mark, topic_mark
from jobpipe.control.page.page_snapshot import PageSnapshot, PageSnapshots
from jobpipe.control.page.plots.plotted_history import PlotRange, job_plots, topic_plots
from jobpipe.control.page.rendering import RenderedPage, render_page
from jobpipe.control.page.rows.rows_page import rows_page
from jobpipe.control.page.troubles import troubles
from jobpipe.control.page.views.dead_letters_page import DeadLettersPages
from jobpipe.control.page.views.job_actions import job_actions, pipeline_actions
from jobpipe.control.page.views.ledger_page import LedgerPages, ledger_href, news_since
from jobpipe.control.page.views.move_page import MovePage, move_href
from jobpipe.control.page.views.schedules_page import schedules_page
from jobpipe.control.permissions import Caller, Right
from jobpipe.errors import JobpipeError, PipelineNotFound, short_repr
from jobpipe.graph.namespace_graph import ApplicationNode, Edge, EdgeKind, TopicNode
from jobpipe.jobs.log_file_tail import FAILED_BECAUSE
from jobpipe.ledger.hop_states import hop_state
from jobpipe.operations.status_operations import SubscriptionStatus, TopicStatus
from jobpipe.pipelines.model.job_states import JobState

log = logging.getLogger(__name__)

LOG_LINES = 300
RUNS = 20
EVENTS = 200
MAX_ADDRESS = 4000
MOST_RENDERED = 64  # pages that are kept for a moment


@dataclass(frozen=True)
class Address:
    """What a browser asks for: a path, split at its slashes and decoded, and its query."""

    path: tuple[str, ...]
    query: Mapping[str, str]

    @classmethod
    def of(cls, text: str) -> Address:
        """Return that of a path with its query.

        Raises:
            PipelineNotFound: it is none.
        """
        if len(text) > MAX_ADDRESS:
            raise PipelineNotFound("the address is too long", job="")
        try:
            parts = urlsplit(text)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=10))
        except ValueError as error:
            raise PipelineNotFound(f"the address cannot be read: {error}", job="") from error
        return cls(tuple(unquote(part) for part in parts.path.strip("/").split("/") if part), query)


@dataclass(frozen=True)
class JobLine:
    """A job in a list: its mark, and what it reads and publishes."""

    job: JobStatus
    mark: Mark
    href: str
    reads: tuple[Edge, ...]
    publishes: tuple[Edge, ...]

    @property
    def lag_rows(self) -> int | None:
        """Rows that it has not acknowledged, of all its subscriptions."""
        known = [edge.lag_rows for edge in self.reads if edge.lag_rows is not None]
        return sum(known) if known else None

    @property
    def lag_seconds(self) -> float | None:
        """The greatest lag of its subscriptions."""
        return max((edge.lag_seconds for edge in self.reads if edge.lag_seconds is not None), default=None)

    @property
    def rows_per_second(self) -> float | None:
        """Rows that it acknowledges, or, if it reads no topic, publishes."""
        edges = self.reads or self.publishes
        known = [edge.rows_per_second for edge in edges if edge.rows_per_second is not None]
        return sum(known) if known else None


@dataclass(frozen=True)
class Reader:
    """A subscription, lease or hold of a topic, with the application it is of; a subscription with its ledger."""

    edge: Edge
    mark: Mark
    application: str
    href: str
    subscription: SubscriptionStatus | None
    ledger: Mark | None
    ledger_href: str


@dataclass(frozen=True)
class TopicLine:
    """A topic in a list."""

    topic: TopicNode
    mark: Mark
    href: str
    publisher: str
    readers: int
    lag_seconds: float | None
    lag_rows: int | None


def is_rows(text: str) -> bool:
    """Tell whether an address is that of rows: its page is not live."""
    return _below_topic(text) == "rows"


def asks_coordinators(text: str) -> bool:
    """Tell whether an address is that of a page which asks for what is not known yet, and so takes its time."""
    return _below_topic(text) in ("rows", "move") or text.startswith("/ui/ledger/")


def _below_topic(text: str) -> str:
    try:
        path = Address.of(text).path
    except PipelineNotFound:
        return ""
    return path[3] if len(path) == 4 and path[:2] == ("ui", "topics") else ""


Render = Callable[[Address, Caller], RenderedPage]


class Pages:
    """All pages over one core."""

    def __init__(self, control: Control, snapshots: PageSnapshots) -> None:
        self._control = control
        self._snapshots = snapshots
        self._lock = threading.Lock()
        self._failure = ""  # the last one that was logged
        self._rendered_of: PageSnapshot | None = None
        self._rendered: dict[tuple[str, Right], RenderedPage] = {}  # of that snapshot
        self._move_page = MovePage(control)
        self._dead_letters = DeadLettersPages(control)
        self._ledger_pages = LedgerPages(control)

    def look_again(self) -> None:
        """Show what holds now from the next page on: something has happened."""
        self._snapshots.forget()
        self._move_page.forget()

    def render(self, text: str, caller: Caller) -> RenderedPage:
        """Return the page of an address; one that says what is wrong if there is none.

        Those who look at the same page within a moment get the same.
        """
        try:
            snapshot = self._snapshots.newest()
            with self._lock:
                if self._rendered_of is not snapshot:
                    self._rendered_of, self._rendered = snapshot, {}
                known = self._rendered.get((text, caller.right))
            if known is not None:
                return known
            address = Address.of(text)
            made = self._find(address.path)(address, caller)
            with self._lock:
                if made.is_live and self._rendered_of is snapshot and len(self._rendered) < MOST_RENDERED:
                    self._rendered[text, caller.right] = made
            return made
        except PipelineNotFound as error:
            return render_page("not_found.html", "Not found", 404, error=error)
        except JobpipeError as error:
            return render_page("failed.html", "Not known now", 503, said=error.message)
        except Exception as error:
            with self._lock:
                is_known, self._failure = self._failure == repr(error), repr(error)
            if not is_known:  # an open page asks every other second
                log.exception("a page cannot be made: %s", short_repr(text))
            said = f"This page cannot be made ({type(error).__name__}); the server's log says more."
            return render_page("failed.html", "Not known now", 500, said=said)

    def _find(self, path: tuple[str, ...]) -> Render:
        match path:
            case () | ("ui",):
                return self._graph
            case ("ui", "jobs"):
                return self._jobs
            case ("ui", "jobs", pipeline, job):
                return lambda address, caller: self._job(pipeline, job, address, caller)
            case ("ui", "topics"):
                return self._topics
            case ("ui", "topics", topic):
                return lambda address, caller: self._topic(topic, address, caller)
            case ("ui", "topics", topic, "move"):
                return lambda address, caller: self._move_page.render(
                    topic, address.query, self._snapshots.newest(), caller
                )
            case ("ui", "topics", topic, "rows"):
                return lambda address, caller: rows_page(self._control, topic, address.query)
            case ("ui", "application"):
                return self._application
            case ("ui", "schedules"):
                return self._schedules
            case ("ui", "dead-letters"):
                return lambda address, caller: self._dead_letters.all(self._snapshots.newest())
            case ("ui", "dead-letters", topic):
                return lambda address, caller: self._dead_letters.one(topic, self._snapshots.newest(), caller)
            case ("ui", "ledger"):
                return lambda address, caller: self._ledger_pages.all(self._snapshots.newest())
            case ("ui", "ledger", topic):
                return lambda address, caller: self._ledger_pages.one(topic, address.query, self._snapshots.newest())
            case ("ui", "events"):
                return self._events
        raise PipelineNotFound("there is no such page", job="")

    def _graph(self, address: Address, caller: Caller) -> RenderedPage:
        snapshot = self._snapshots.newest()
        return render_page(
            "graph.html",
            "Graph",
            snapshot=snapshot,
            picture=graph_picture(snapshot),
            troubles=troubles(snapshot),
            jobs=[_job_line(snapshot, job) for job in snapshot.jobs.values()],
        )

    def _jobs(self, address: Address, caller: Caller) -> RenderedPage:
        snapshot = self._snapshots.newest()
        pipelines = [(each, [_job_line(snapshot, job) for job in each.jobs]) for each in snapshot.pipelines]
        others = [
            (node, link_mark(node.state), application_href(key))
            for key, node in snapshot.graph.applications.items()
            if snapshot.job_of(node) is None
        ]
        return render_page(
            "jobs.html",
            "Jobs",
            snapshot=snapshot,
            pipelines=pipelines,
            others=others,
            may_operate=caller.right.includes(Right.OPERATE),
            actions=pipeline_actions,
        )

    def _job(self, pipeline: str, name: str, address: Address, caller: Caller) -> RenderedPage:
        snapshot = self._snapshots.newest()
        job = snapshot.jobs.get((pipeline, name))
        if job is None:
            self._control.pipeline(pipeline)
            raise PipelineNotFound(f"pipeline {pipeline} has no job {short_repr(name)}", job=name[:100])
        runs = self._control.runs(pipeline, name, limit=RUNS)
        log = self._control.log(pipeline, name, lines=LOG_LINES)
        key = f"job {pipeline}/{name}"
        return render_page(
            "job.html",
            f"{pipeline}.{name}",
            snapshot=snapshot,
            line=_job_line(snapshot, job),
            job=job,
            runs=[(run, run_mark(run.state), _attempts(run)) for run in runs],
            error=_error_of(job, runs, log),
            blocked_by=[each for each in snapshot.graph.blocks if each.blocked == key],
            blocks=[each for each in snapshot.graph.blocks if each.by == key],
            hrefs={each: _application_href(snapshot, each) for each in _named(snapshot, key)},
            labels=snapshot.graph.labels,
            topic_href=topic_href,
            plots=job_plots(self._control.history, PlotRange.of(address.query, snapshot.at), pipeline, name),
            log=log,
            actions=job_actions(job) if caller.right.includes(Right.OPERATE) else (),
            may_operate=caller.right.includes(Right.OPERATE),
        )

    def _topics(self, address: Address, caller: Caller) -> RenderedPage:
        snapshot = self._snapshots.newest()
        lines = [_topic_line(snapshot, topic) for topic in snapshot.graph.topics.values()]
        return render_page("topics.html", "Topics", snapshot=snapshot, topics=lines)

    def _topic(self, name: str, address: Address, caller: Caller) -> RenderedPage:
        snapshot = self._snapshots.newest()
        topic = snapshot.graph.topics.get(name)
        if topic is None:
            raise PipelineNotFound(f"no topic {short_repr(name)} is known now", job=name[:100])
        answer = snapshot.topics.get(name)
        status = answer if isinstance(answer, TopicStatus) else None
        lines = {} if status is None else {line.name: line for line in status.subscriptions}
        plots = PlotRange.of(address.query, snapshot.at)
        edges = snapshot.edges_of_topic.get(name, ())
        return render_page(
            "topic.html",
            name,
            snapshot=snapshot,
            topic=topic,
            status=status,
            mark=topic_mark(topic.state),
            may_operate=caller.right.includes(Right.OPERATE),
            move_href=move_href,
            plots=topic_plots(self._control.history, plots, name, lines),
            publishers=[
                (snapshot.graph.labels[each.application], _application_href(snapshot, each.application), each)
                for each in edges
                if each.kind is EdgeKind.PUBLISHES
            ],
            readers=[
                _reader(snapshot, each, lines.get(each.name) if each.kind is EdgeKind.READS else None)
                for each in edges
                if each.kind is not EdgeKind.PUBLISHES
            ],
        )

    def _application(self, address: Address, caller: Caller) -> RenderedPage:
        snapshot = self._snapshots.newest()
        key = address.query.get("key", "")
        node = snapshot.graph.applications.get(key)
        if node is None:
            raise PipelineNotFound("no such application publishes or reads a topic now", job="")
        return render_page(
            "application.html",
            node.name,
            snapshot=snapshot,
            node=node,
            label=snapshot.graph.labels[key],
            mark=link_mark(node.state),
            edges=[(each, link_mark(each.state)) for each in snapshot.edges_of_application.get(key, ())],
            topic_href=topic_href,
        )

    def _schedules(self, address: Address, caller: Caller) -> RenderedPage:
        return schedules_page(self._control, self._snapshots.newest(), caller)

    def _events(self, address: Address, caller: Caller) -> RenderedPage:
        snapshot = self._snapshots.newest()
        found = self._control.latest_events(EVENTS)
        return render_page(
            "events.html",
            "Events",
            snapshot=snapshot,
            troubles=troubles(snapshot),
            events=[(event, None if event.state is None else run_mark(event.state)) for event in found],
            job_href=job_href,
        )


def _job_line(snapshot: PageSnapshot, job: JobStatus) -> JobLine:
    edges = snapshot.edges_of_application.get(f"job {job.pipeline}/{job.name}", ())
    reads = tuple(edge for edge in edges if edge.kind is not EdgeKind.PUBLISHES)
    publishes = tuple(edge for edge in edges if edge.kind is EdgeKind.PUBLISHES)
    return JobLine(job, job_mark(job), job_href(job.pipeline, job.name), reads, publishes)


def _reader(snapshot: PageSnapshot, edge: Edge, line: SubscriptionStatus | None) -> Reader:
    state = None if line is None else hop_state(line.counts, line.lag.rows, news_since(snapshot))
    return Reader(
        edge,
        link_mark(edge.state),
        snapshot.graph.labels[edge.application],
        _application_href(snapshot, edge.application),
        line,
        None if state is None else ledger_mark(state),
        ledger_href(edge.topic, edge.name),
    )


def _topic_line(snapshot: PageSnapshot, topic: TopicNode) -> TopicLine:
    edges = snapshot.edges_of_topic.get(topic.name, ())
    publishers = [snapshot.graph.labels[each.application] for each in edges if each.kind is EdgeKind.PUBLISHES]
    readers = [each for each in edges if each.kind is not EdgeKind.PUBLISHES]
    return TopicLine(
        topic,
        topic_mark(topic.state),
        topic_href(topic.name),
        ", ".join(publishers),
        len(readers),
        max((each.lag_seconds for each in readers if each.lag_seconds is not None), default=None),
        max((each.lag_rows for each in readers if each.lag_rows is not None), default=None),
    )


def _application_href(snapshot: PageSnapshot, key: str) -> str:
    node: ApplicationNode | None = snapshot.graph.applications.get(key)
    job = None if node is None else snapshot.job_of(node)
    return application_href(key) if job is None else job_href(job.pipeline, job.name)


def _named(snapshot: PageSnapshot, key: str) -> set[str]:
    return {end for each in snapshot.graph.blocks if key in (each.blocked, each.by) for end in (each.blocked, each.by)}


def _attempts(run: RunView) -> list[tuple[object, Mark]]:
    return [(attempt, run_mark(attempt.state)) for attempt in reversed(run.attempts)]


def _error_of(job: JobStatus, runs: Sequence[RunView], log: Sequence[str]) -> str:
    """Return why a job does not run, in its own words; "" if it does, or a person stopped it.

    What the server stores has no values of rows. The last words of an attempt are in its log, which is shown anyway.
    """
    if job.state not in (JobState.FAILED, JobState.LOST, JobState.RESTARTING, JobState.BLOCKED):
        return ""
    attempts = runs[0].attempts if runs else ()
    last = next((each for each in reversed(attempts) if each.detail or each.error), None)
    cause = "" if last is None else last.detail or last.error
    said = [job.detail, "" if cause in job.detail else cause]
    if job.state in (JobState.FAILED, JobState.RESTARTING):
        said.append(
            next((line.removeprefix(FAILED_BECAUSE) for line in reversed(log) if line.startswith(FAILED_BECAUSE)), "")
        )
    return "\n".join(filter(None, said))
