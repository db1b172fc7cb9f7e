"""What the page shows, of one moment: pipelines and their jobs, topics, and the graph of both."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from jobpipe.control.control_service import Control, JobStatus, PipelineStatus
from jobpipe.errors import JobpipeError
from jobpipe.graph.namespace_graph import (
    Answers,
    ApplicationNode,
    Edge,
    EdgeKind,
    LinkState,
    NamespaceGraph,
    TopicNode,
    TopicState,
    namespace_graph,
)
from jobpipe.metrics.metric_samples import TopicsSnapshot
from jobpipe.operations.status_operations import TopicStatus

MAX_AGE_SECONDS = 1.0  # of a snapshot that others get too
RATE_SECONDS = 8.0  # rates are of the time since a snapshot that is at least so old, if there is one
OLDEST_SECONDS = 30.0  # of such a snapshot: what was long ago says nothing of now
_KEPT = 8


@dataclass(frozen=True)
class PageSnapshot:
    """All of one moment.

    Attributes:
        at: seconds since 1970.
        graph: of topics and applications, jobs included that do not run now.
        problem: why topics, or jobs, are not known; "" if they are.
    """

    at: float
    pipelines: tuple[PipelineStatus, ...]
    topics: Mapping[str, TopicStatus | JobpipeError]
    graph: NamespaceGraph
    problem: str = ""

    @cached_property
    def jobs(self) -> Mapping[tuple[str, str], JobStatus]:
        """All jobs, by pipeline and name."""
        return {(job.pipeline, job.name): job for pipeline in self.pipelines for job in pipeline.jobs}

    @cached_property
    def edges_of_topic(self) -> Mapping[str, tuple[Edge, ...]]:
        """Edges by topic."""
        found: dict[str, list[Edge]] = {}
        for edge in self.graph.edges:
            found.setdefault(edge.topic, []).append(edge)
        return {topic: tuple(edges) for topic, edges in found.items()}

    @cached_property
    def edges_of_application(self) -> Mapping[str, tuple[Edge, ...]]:
        """Edges by the key of the application."""
        found: dict[str, list[Edge]] = {}
        for edge in self.graph.edges:
            found.setdefault(edge.application, []).append(edge)
        return {key: tuple(edges) for key, edges in found.items()}

    def job_of(self, node: ApplicationNode) -> JobStatus | None:
        """Return the job of this server that a node is; None if it is none."""
        return self.jobs.get((node.pipeline, node.job)) if node.job else None


@dataclass
class _Looked:
    at: float
    topics: TopicsSnapshot


@dataclass
class PageSnapshots:
    """Makes snapshots, at most one a second, however many ask. Thread safe.

    Attributes:
        control: what is asked.
        namespace: its name.
        clock: seconds since 1970.
        ticks: monotonic seconds.
    """

    control: Control
    namespace: str
    clock: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _forgotten: int = 0  # how often something has happened
    _made_after: int = 0  # of that, before the newest was made
    _newest: PageSnapshot | None = None
    _made_at: float = float("-inf")
    _looked: deque[_Looked] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def newest(self, max_age: float = MAX_AGE_SECONDS) -> PageSnapshot:
        """Return a snapshot that is at most so old.

        Raises:
            StoreError: what is kept of jobs cannot be read.
        """
        with self._lock:  # those who come meanwhile get the same
            forgotten = self._forgotten
            fresh = self._made_after == forgotten and self.ticks() - self._made_at <= max_age
            if self._newest is None or not fresh:
                self._newest = self._make()
                self._made_at, self._made_after = self.ticks(), forgotten
            return self._newest

    def forget(self) -> None:
        """Let the next one be a new one: something has happened. For one thread; never waits for one that is made."""
        self._forgotten += 1

    def _make(self) -> PageSnapshot:
        topics = self.control.topics_snapshot()
        now = self.ticks()
        before = self._before(now)
        if not self._looked or self._looked[-1].topics is not topics:
            self._looked.append(_Looked(now, topics))
        pipelines = self.control.pipelines()
        graph = namespace_graph(self.namespace, topics.topics, before)
        problem = "" if topics.error is None else f"topics are not known now: {topics.error}"
        return PageSnapshot(self.clock(), pipelines, topics.topics, with_jobs(graph, pipelines), problem)

    def _before(self, now: float) -> Answers:
        """Return how each topic stood when rates are measured from: some seconds ago, or when it was first seen."""
        recent = [each for each in self._looked if now - each.at <= OLDEST_SECONDS]
        old = [each for each in recent if now - each.at >= RATE_SECONDS]
        found: dict[str, TopicStatus | JobpipeError] = {}
        for each in (*reversed(old), *recent):
            for topic, answer in each.topics.topics.items():
                if isinstance(answer, TopicStatus):
                    found.setdefault(topic, answer)
        return found


def with_jobs(graph: NamespaceGraph, pipelines: tuple[PipelineStatus, ...]) -> NamespaceGraph:
    """Return the graph with all jobs of the pipelines and their topics, also those that no process is connected to."""
    graph = _without_twins(graph, pipelines)
    applications, topics, edges = dict(graph.applications), dict(graph.topics), list(graph.edges)
    there = {(edge.application, edge.topic, edge.kind is EdgeKind.PUBLISHES) for edge in graph.edges}
    for pipeline in pipelines:
        for job in pipeline.jobs:
            key, name = f"job {job.pipeline}/{job.name}", f"{job.pipeline}.{job.name}"
            if key not in applications:
                applications[key] = ApplicationNode(key, name, pipeline=job.pipeline, job=job.name, run=job.run or "")
            ends = [(topic, EdgeKind.PUBLISHES) for topic in job.publishes]
            ends += [(topic, EdgeKind.READS) for topic in job.reads]
            for topic, kind in ends:
                topics.setdefault(topic, TopicNode(topic, TopicState.AWAY))
                if (key, topic, kind is EdgeKind.PUBLISHES) not in there:
                    edges.append(Edge(key, topic, kind, name, LinkState.ABSENT))
    return replace(
        graph,
        applications=dict(sorted(applications.items(), key=lambda item: (item[1].name, item[0]))),
        topics=dict(sorted(topics.items())),
        edges=tuple(sorted(edges, key=lambda edge: (edge.topic, edge.kind, edge.name))),
    )


def _without_twins(graph: NamespaceGraph, pipelines: tuple[PipelineStatus, ...]) -> NamespaceGraph:
    """Return the graph with holds and subscriptions that only the name of a job tells whose they are as the job's."""
    jobs = {f"{job.pipeline}.{job.name}": f"job {job.pipeline}/{job.name}" for each in pipelines for job in each.jobs}
    keys = {
        key: job
        for key, node in graph.applications.items()
        if not node.id and (job := jobs.get(node.name) or jobs.get(node.name.rpartition(".")[0])) not in (None, key)
    }
    if not keys:
        return graph
    return replace(
        graph,
        applications={key: node for key, node in graph.applications.items() if key not in keys},
        edges=tuple(replace(edge, application=keys.get(edge.application, edge.application)) for edge in graph.edges),
        blocks=tuple(
            replace(each, blocked=keys.get(each.blocked, each.blocked), by=keys.get(each.by, each.by))
            for each in graph.blocks
        ),
    )
