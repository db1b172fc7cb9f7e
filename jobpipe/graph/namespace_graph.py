"""The graph of all applications and topics of a namespace, from what their coordinators say. Pure.

Publishers and readers say of which application they are. Those of one job of a pipeline are one node, also across
restarts; else those of one application are. Those that say nothing are one node for each name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from jobpipe.errors import JobpipeError, TopicAway, TopicNotFound
from jobpipe.graph.blockers import HOLD, LEASE, SUBSCRIPTION, blockers
from jobpipe.operations.messages.application import Application
from jobpipe.operations.status_operations import SubscriptionStatus, TopicStatus
from jobpipe.own_application import NAMELESS

MOST_CHARACTERS = 60  # of a name in a label
SHORTEST_SECONDS = 0.05  # between two looks, for a rate

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
        lag_rows, lag_seconds: of a subscription, what it has not acknowledged, and for how long that has been there;
            without what is lost.
        lost_batches: that retention removed before the subscription acknowledged them.
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
    lost_batches: int = 0
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
        """The name of each application, by key, with its id where another one has the same."""
        names = {key: shortened(node.name, MOST_CHARACTERS) for key, node in self.applications.items()}
        twins = Counter(names.values())
        return {
            key: f"{name} ({self.applications[key].id or key})" if twins[name] > 1 else name
            for key, name in names.items()
        }

    @cached_property
    def blocked_by(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """The labels of those that wait for an application, by its key and the topic."""
        found: dict[tuple[str, str], tuple[str, ...]] = {}
        for each in self.blocks:
            found[each.by, each.topic] = (*found.get((each.by, each.topic), ()), self.labels[each.blocked])
        return found


def shortened(text: str, most: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def namespace_graph(namespace: str, now: Answers, before: Answers | None = None) -> NamespaceGraph:
    """Return the graph.

    Args:
        namespace: its name.
        now: how topics stand.
        before: how they stood a while ago, for rates; None: nothing is known of them.
    """
    topics: dict[str, TopicNode] = {}
    ends: list[_End] = []
    for topic, answer in sorted(now.items()):
        if isinstance(answer, TopicStatus):
            rates = TopicRates(answer, (before or {}).get(topic))
            state, rate = _state_of(answer), rates.published()
            topics[topic] = TopicNode(topic, state, answer.parallelism, answer.rows, rate, answer.waiting)
            ends += _ends(answer, rates)
        elif isinstance(answer, TopicAway | TopicNotFound):
            topics[topic] = TopicNode(topic, TopicState.AWAY)
        else:
            topics[topic] = TopicNode(topic, TopicState.UNKNOWN, error=str(answer))
    applications, edges = _joined(ends)
    return NamespaceGraph(namespace, applications, topics, edges, _blocks(edges))


@dataclass(frozen=True)
class _End:
    """One end of an edge, before it is known which node it is.

    Attributes:
        application: as it said itself, None if it did not.
        name: of a node of its own, whose key is ``edge.application``, if there is no other node for it.
        edge: all else that is known of it.
        silent: seconds since it was heard of.
    """

    application: Application | None
    name: str
    edge: Edge
    silent: float = 0.0

    @property
    def order(self) -> tuple[object, ...]:
        """By which the first one of several is believed: what says most, is connected, and was heard of last."""
        told = self.application
        says = 2 if told is None else 1 if not told.job else 0
        return says, _ORDER[self.edge.state], self.silent, "" if told is None else told.id, self.edge.topic, self.name


class TopicRates:
    """Rows a second at a topic, between two looks at it; None for what was not there before."""

    def __init__(self, now: TopicStatus, before: TopicStatus | JobpipeError | None) -> None:
        self._now = now
        self._before: TopicStatus | None = None
        self._seconds = 0.0
        # Of another log, or another host's clock, the numbers have nothing to do with these.
        if isinstance(before, TopicStatus) and (before.log, before.endpoint) == (now.log, now.endpoint):
            self._seconds = now.at - before.at if before.at else 0.0
            self._before = before if self._seconds >= SHORTEST_SECONDS else None
        lines = () if self._before is None else self._before.subscriptions
        self._lines = {line.name: line for line in lines}

    def published(self) -> float | None:
        """Return how many rows were published."""
        return None if self._before is None else self._rate(self._now.rows - self._before.rows)

    def acknowledged(self, line: SubscriptionStatus) -> float | None:
        """Return how many rows a subscription acknowledged; None also if some were removed before it did."""
        earlier = self._lines.get(line.name)
        if self._before is None or earlier is None:
            return None
        if line.position == earlier.position:
            return 0.0
        if lost_batches(self._now, line) or lost_batches(self._before, earlier):
            return None
        return self._rate(self._now.rows - line.lag.rows - (self._before.rows - earlier.lag.rows))

    def _rate(self, rows: int) -> float:
        return max(0, rows) / self._seconds  # below zero where a batch was taken back, which is published again


def lost_batches(status: TopicStatus, line: SubscriptionStatus) -> int:
    """Return how many batches retention removed that a subscription has not acknowledged."""
    return 0 if line.position is None else max(0, status.tail - line.position)


def _ends(status: TopicStatus, rates: TopicRates) -> Iterator[_End]:
    """Yield who is at a topic."""
    topic, blocking = status.topic, set(blockers(status))
    if not status.ended and (status.publishing or status.application is not None):  # else it is served by another one
        name, rate = status.publisher, rates.published()
        state = LinkState.CONNECTED if status.publishing else LinkState.ABSENT
        edge = Edge(f"publisher {name}", topic, EdgeKind.PUBLISHES, name, state, rate)
        yield _End(status.application, name, edge, status.publisher_gone or 0.0)
    for line in status.subscriptions:
        edge = Edge(
            f"subscription {line.name}",
            topic,
            EdgeKind.READS,
            line.name,
            _LINK_STATES.get(line.state, LinkState.ABSENT),
            rates.acknowledged(line),
            max(0, line.lag.rows),  # below zero where the newest batch was taken back
            line.lag.seconds,
            lost_batches(status, line),
            (SUBSCRIPTION, line.name) in blocking,
        )
        yield _End(line.application, line.name, edge, line.last_seen or 0.0)
    for lease in status.leases:
        name, state = f"lease {lease.id}", LinkState.CONNECTED if lease.connected else LinkState.ABSENT
        blocks = (LEASE, lease.id) in blocking
        yield _End(None, name, Edge(name, topic, EdgeKind.LEASES, lease.id, state, blocks=blocks))
    for hold in status.holds:
        if hold.gap is None:
            yield _absent(topic, EdgeKind.HOLDS, hold.name, blocks=(HOLD, hold.name) in blocking)
    known = {line.name for line in status.subscriptions}
    for kind, name in blocking:
        if kind == SUBSCRIPTION and name not in known:  # it is required, and was dropped
            yield _absent(topic, EdgeKind.READS, name, blocks=True)


def _absent(topic: str, kind: EdgeKind, name: str, *, blocks: bool) -> _End:
    return _End(None, name, Edge(f"subscription {name}", topic, kind, name, LinkState.ABSENT, blocks=blocks))


def _joined(ends: Iterable[_End]) -> tuple[Mapping[str, ApplicationNode], tuple[Edge, ...]]:
    """Return nodes and edges. What does not say its job is of the job with the same id, or else by its names.

    A pipeline's job reads under its own name. A publisher that requires a subscription makes it before its reader
    comes; and of an attempt on a cluster, some processes may know no more than the application's name.
    """
    nodes: dict[str, ApplicationNode] = {}
    edges: list[Edge] = []
    jobs: dict[str, str] = {}  # keys by the names of jobs
    ids: dict[str, set[str]] = {}  # and by ids: one that two jobs say is of neither
    for end in sorted(ends, key=lambda end: end.order):
        node = _node_of(end)
        named = jobs.get(end.edge.name) or jobs.get(end.edge.name.rpartition(".")[0])  # a job, or its view
        if node.job:
            jobs[node.name] = node.key
            ids.setdefault(node.id, set()).add(node.key)
        elif end.application is not None:
            same = ids.get(node.id, set())
            key = next(iter(same)) if len(same) == 1 else named if named == jobs.get(node.name) else None
            node = replace(node, key=key or node.key)
        elif end.edge.kind in (EdgeKind.READS, EdgeKind.HOLDS):
            node = replace(node, key=named or node.key)
        nodes[node.key] = _joined_node(nodes.get(node.key), node)
        edges.append(replace(end.edge, application=node.key))
    edges.sort(key=lambda edge: (edge.topic, edge.kind, edge.name))
    return dict(sorted(nodes.items(), key=lambda item: (item[1].name, item[0]))), tuple(edges)


def _joined_node(known: ApplicationNode | None, node: ApplicationNode) -> ApplicationNode:
    """Return a node that is also what another end says; ``known`` was believed first."""
    if known is None:
        return node
    if not known.job and known.id == node.id:
        known = replace(known, name=min(known.name, node.name, key=lambda name: (_vagueness(name), name)))
    if _ORDER[node.state] < _ORDER[known.state]:  # another process than the one that said its run
        known = replace(known, state=node.state, id=node.id, run=node.run)
    return known


def _vagueness(name: str) -> int:
    """Return how little a name says: some processes of an application know its name, others the program's file."""
    return 2 if name in NAMELESS else 1 if name.endswith(".py") else 0


def _node_of(end: _End) -> ApplicationNode:
    """Return the node that an end says it is."""
    told, edge = end.application, end.edge
    if told is None:
        return ApplicationNode(edge.application, end.name, state=edge.state)
    if not (told.pipeline and told.job):
        return ApplicationNode(f"application {told.id}", told.name or end.name, told.id, state=edge.state)
    key, name = f"job {told.pipeline}/{told.job}", f"{told.pipeline}.{told.job}"
    return ApplicationNode(key, name, told.id, told.pipeline, told.job, told.run, edge.state)


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
_LINK_STATES = {str(state): state for state in LinkState}


def _state_of(status: TopicStatus) -> TopicState:
    if status.ended:
        return TopicState.ENDED
    if not status.publishing:
        return TopicState.SERVED
    return TopicState.PUBLISHED if status.waiting is None else TopicState.BLOCKED
