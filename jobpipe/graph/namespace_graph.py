"""The graph of all applications and topics of a namespace, from what their coordinators say. Pure.

Publishers and readers say of which application they are. Those of one job of a pipeline are one node, also across
restarts; else those of one application are. A reader that says nothing is a node by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from jobpipe.errors import JobpipeError, TopicAway
from jobpipe.graph.blockers import HOLD, LEASE, SUBSCRIPTION, blockers
from jobpipe.operations.messages.application import Application
from jobpipe.operations.status_operations import SubscriptionStatus, TopicStatus

Answers = Mapping[str, TopicStatus | JobpipeError]
"""By topic: how it stands, or why that is not known."""


class TopicState(StrEnum):
    """Whether a topic has a publisher."""

    PUBLISHED = "published"
    BLOCKED = "blocked"  # its publisher waits for room, or for acknowledgements
    SERVED = "served"  # it has no publisher now
    ENDED = "ended"
    AWAY = "away"  # no coordinator serves it
    UNKNOWN = "unknown"  # its coordinator does not answer, or refuses us


class LinkState(StrEnum):
    """How an application is connected to a topic."""

    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    ABSENT = "absent"


class EdgeKind(StrEnum):
    """What an application does with a topic."""

    PUBLISHES = "publishes"
    READS = "reads"
    LEASES = "leases"  # a bounded read keeps what it has still to read
    HOLDS = "holds"  # a schedule keeps what its next run is to read


@dataclass(frozen=True)
class ApplicationNode:
    """An application, or a job of a pipeline.

    Attributes:
        key: tells it apart from the other nodes of the graph.
        name: for people; several may have the same.
        id: of its newest process, "" if that is not known.
        pipeline, job, run: "" for one that no pipeline started.
        state: the best of its links.
    """

    key: str
    name: str
    id: str = ""
    pipeline: str = ""
    job: str = ""
    run: str = ""
    state: LinkState = LinkState.ABSENT


@dataclass(frozen=True)
class TopicNode:
    """A topic.

    Attributes:
        partitions, rows: None where that is not known; rows are all that were ever published.
        rows_per_second: that are published; None if it was not measured.
        waiting: why its publisher waits.
        error: why it is not known how it stands.
    """

    name: str
    state: TopicState
    partitions: int | None = None
    rows: int | None = None
    rows_per_second: float | None = None
    waiting: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Edge:
    """What an application does with a topic.

    Attributes:
        application: its key.
        name: of publisher, subscription, lease or hold.
        rows_per_second: that are published, or acknowledged; None if it was not measured.
        lag_rows, lag_seconds: of a subscription, what it has not acknowledged, and for how long that has been there.
        blocks: the topic's publisher waits for it.
    """

    application: str
    topic: str
    kind: EdgeKind
    name: str
    state: LinkState
    rows_per_second: float | None = None
    lag_rows: int | None = None
    lag_seconds: float | None = None
    blocks: bool = False


@dataclass(frozen=True)
class Block:
    """An application that waits for another one, by a topic between them."""

    blocked: str
    topic: str
    by: str


@dataclass(frozen=True)
class NamespaceGraph:
    """Applications by key, topics by name, and what is between them; ``blocks`` by key."""

    namespace: str
    applications: Mapping[str, ApplicationNode]
    topics: Mapping[str, TopicNode]
    edges: tuple[Edge, ...]
    blocks: tuple[Block, ...]

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The name of each application, by key, with its id where another one has the same name."""
        twins = Counter(node.name for node in self.applications.values())
        return {
            key: f"{node.name} ({node.id or key})" if twins[node.name] > 1 else node.name
            for key, node in self.applications.items()
        }

    @cached_property
    def blocked_by(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """The labels of those that wait for an application, by its key and the topic."""
        found: dict[tuple[str, str], tuple[str, ...]] = {}
        for each in self.blocks:
            found[each.by, each.topic] = (*found.get((each.by, each.topic), ()), self.labels[each.blocked])
        return found


def namespace_graph(
    namespace: str, now: Answers, before: Answers | None = None, seconds: float = 0.0
) -> NamespaceGraph:
    """Return the graph.

    Args:
        namespace: its name.
        now: how topics stand.
        before: how they stood a while ago, for rates; None: nothing is known of them.
        seconds: since then.
    """
    topics: dict[str, TopicNode] = {}
    ends: list[_End] = []
    for topic, answer in sorted(now.items()):
        if isinstance(answer, TopicStatus):
            rates = _Rates(answer, (before or {}).get(topic), seconds)
            state, rate = _state_of(answer), rates.published()
            topics[topic] = TopicNode(topic, state, answer.parallelism, answer.rows, rate, answer.waiting)
            ends += _ends(answer, rates)
        elif isinstance(answer, TopicAway):
            topics[topic] = TopicNode(topic, TopicState.AWAY)
        else:
            topics[topic] = TopicNode(topic, TopicState.UNKNOWN, error=str(answer))
    applications, edges = _joined(ends)
    return NamespaceGraph(namespace, applications, topics, edges, _blocks(edges))


@dataclass(frozen=True)
class _End:
    """One end of an edge, before it is known which node it is; ``application`` as it said itself, None if it did not.

    ``edge.application`` is the key of a node of its own, and ``name`` its name, if there is no other node for it.
    """

    application: Application | None
    name: str
    edge: Edge


class _Rates:
    """Rows a second at a topic, between two looks at it; None for what was not there before."""

    def __init__(self, now: TopicStatus, before: TopicStatus | JobpipeError | None, seconds: float) -> None:
        self._now = now
        self._seconds = seconds
        # Of another log the numbers have nothing to do with these.
        known = isinstance(before, TopicStatus) and before.log == now.log and seconds > 0
        self._before = before if known and isinstance(before, TopicStatus) else None
        lines = () if self._before is None else self._before.subscriptions
        self._lags = {line.name: line.lag.rows for line in lines}

    def published(self) -> float | None:
        """Return how many rows were published."""
        return None if self._before is None else self._rate(self._now.rows - self._before.rows)

    def acknowledged(self, line: SubscriptionStatus) -> float | None:
        """Return how many rows a subscription acknowledged."""
        if self._before is None or line.name not in self._lags:
            return None
        return self._rate(self._now.rows - line.lag.rows - (self._before.rows - self._lags[line.name]))

    def _rate(self, rows: int) -> float:
        return max(0, rows) / self._seconds  # below zero where a batch was taken back, which is published again


def _ends(status: TopicStatus, rates: _Rates) -> Iterator[_End]:
    """Yield who is at a topic."""
    topic, blocking = status.topic, set(blockers(status))
    if status.publishing and not status.ended:
        name, rate = status.publisher, rates.published()
        edge = Edge(f"publisher {name}", topic, EdgeKind.PUBLISHES, name, LinkState.CONNECTED, rate)
        yield _End(status.application, name, edge)
    for line in status.subscriptions:
        edge = Edge(
            f"subscription {line.name}",
            topic,
            EdgeKind.READS,
            line.name,
            LinkState(line.state) if line.state in set(LinkState) else LinkState.ABSENT,
            rates.acknowledged(line),
            max(0, line.lag.rows),  # below zero where the newest batch was taken back
            line.lag.seconds,
            (SUBSCRIPTION, line.name) in blocking,
        )
        yield _End(line.application, line.name, edge)
    for lease in status.leases:
        name, state = f"lease {lease.id}", LinkState.CONNECTED if lease.connected else LinkState.ABSENT
        blocks = (LEASE, lease.id) in blocking
        yield _End(None, name, Edge(name, topic, EdgeKind.LEASES, lease.id, state, blocks=blocks))
    for hold in status.holds:
        if hold.gap is None:
            blocks = (HOLD, hold.name) in blocking
            edge = Edge(f"subscription {hold.name}", topic, EdgeKind.HOLDS, hold.name, LinkState.ABSENT, blocks=blocks)
            yield _End(None, hold.name, edge)


def _joined(ends: Iterable[_End]) -> tuple[Mapping[str, ApplicationNode], tuple[Edge, ...]]:
    """Return nodes and edges. A name without an application is of the job that is called so, if one is known.

    A pipeline's job reads under its own name. A publisher that requires it has made the subscription before it reads.
    """
    nodes: dict[str, ApplicationNode] = {}
    edges: list[Edge] = []
    jobs: dict[str, str] = {}
    for end in sorted(ends, key=lambda end: end.application is None):  # those that say who they are first
        node = _node_of(end)
        if end.application is None and end.edge.kind in (EdgeKind.READS, EdgeKind.HOLDS):
            key = jobs.get(end.name) or jobs.get(end.name.rpartition(".")[0]) or node.key  # of a job, or its view
            node = replace(node, key=key)
        known = nodes.get(node.key)
        if known is None or (end.application is not None and _ORDER[node.state] < _ORDER[known.state]):
            nodes[node.key] = node
        if node.job:
            jobs[f"{node.pipeline}.{node.job}"] = node.key
        edges.append(replace(end.edge, application=node.key))
    edges.sort(key=lambda edge: (edge.topic, edge.kind, edge.name))
    return dict(sorted(nodes.items(), key=lambda item: (item[1].name, item[0]))), tuple(edges)


def _node_of(end: _End) -> ApplicationNode:
    """Return the node that an end says it is."""
    told, edge = end.application, end.edge
    if told is None:
        return ApplicationNode(edge.application, end.name, state=edge.state)
    of_job = bool(told.pipeline and told.job)
    return ApplicationNode(
        f"job {told.pipeline}/{told.job}" if of_job else f"application {told.id}",
        f"{told.pipeline}.{told.job}" if of_job else told.name or end.name,
        *(told.id, told.pipeline, told.job, told.run),
        state=edge.state,
    )


def _blocks(edges: Iterable[Edge]) -> tuple[Block, ...]:
    """Return who waits for whom."""
    blocking: dict[str, dict[str, None]] = {}
    for edge in edges:
        if edge.blocks:
            blocking.setdefault(edge.topic, {})[edge.application] = None
    return tuple(
        Block(edge.application, edge.topic, by)
        for edge in edges
        if edge.kind is EdgeKind.PUBLISHES
        for by in blocking.get(edge.topic, ())
    )


_ORDER = {state: number for number, state in enumerate(LinkState)}


def _state_of(status: TopicStatus) -> TopicState:
    if status.ended:
        return TopicState.ENDED
    if not status.publishing:
        return TopicState.SERVED
    return TopicState.PUBLISHED if status.waiting is None else TopicState.BLOCKED
