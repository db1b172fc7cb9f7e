"""The graph of all applications and topics of a namespace, from what their coordinators say. Pure.

Publishers and readers say of which application they are. Those of one job of a pipeline are one node, also across
restarts; else those of one application are. A reader that says nothing is a node by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
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
    building = _Building(before or {}, seconds if before is not None else 0.0)
    for topic, answer in sorted(now.items()):
        if isinstance(answer, TopicStatus):
            building.add(answer)
        elif isinstance(answer, TopicAway):
            building.topics[topic] = TopicNode(topic, TopicState.AWAY)
        else:
            building.topics[topic] = TopicNode(topic, TopicState.UNKNOWN, error=str(answer))
    building.add_holds()
    return NamespaceGraph(
        namespace,
        dict(sorted(building.applications.items(), key=lambda item: (item[1].name, item[0]))),
        building.topics,
        tuple(sorted(building.edges, key=lambda edge: (edge.topic, edge.kind, edge.name))),
        tuple(building.blocks()),
    )


class _Building:
    """A graph as it grows."""

    def __init__(self, before: Answers, seconds: float) -> None:
        self._before = before
        self._seconds = seconds
        self.applications: dict[str, ApplicationNode] = {}
        self.topics: dict[str, TopicNode] = {}
        self.edges: list[Edge] = []
        self._holds: list[tuple[TopicStatus, str, bool]] = []

    def add(self, status: TopicStatus) -> None:
        """Add a topic, and all that is at it."""
        before = self._before.get(status.topic)
        if not isinstance(before, TopicStatus) or before.log != status.log:
            before = None  # another log: its numbers have nothing to do with these
        rate = None if before is None else self._rate(status.rows - before.rows)
        self.topics[status.topic] = TopicNode(
            status.topic, _state_of(status), status.parallelism, status.rows, rate, status.waiting
        )
        if status.publishing and not status.ended:
            key = self._node(status.application, f"publisher {status.publisher}", status.publisher, LinkState.CONNECTED)
            kind, state = EdgeKind.PUBLISHES, LinkState.CONNECTED
            self.edges.append(Edge(key, status.topic, kind, status.publisher, state, rate))
        blocking = set(blockers(status))
        earlier = {} if before is None else {each.name: before.rows - each.lag.rows for each in before.subscriptions}
        for line in status.subscriptions:
            read = None if line.name not in earlier else status.rows - line.lag.rows - earlier[line.name]
            self._add_subscription(status, line, read, blocks=(SUBSCRIPTION, line.name) in blocking)
        for lease in status.leases:
            state = LinkState.CONNECTED if lease.connected else LinkState.ABSENT
            key = self._node(None, f"lease {lease.id}", f"lease {lease.id}", state)
            blocks = (LEASE, lease.id) in blocking
            self.edges.append(Edge(key, status.topic, EdgeKind.LEASES, lease.id, state, blocks=blocks))
        self._holds += [(status, hold.name, (HOLD, hold.name) in blocking) for hold in status.holds if hold.gap is None]

    def add_holds(self) -> None:
        """Add the holds of all topics, once all jobs are known: a hold is of the job that its name says."""
        jobs = {f"{node.pipeline}.{node.job}": node.key for node in self.applications.values() if node.job}
        for status, name, blocks in self._holds:
            key = jobs.get(name) or self._node(None, f"hold {name}", name, LinkState.ABSENT)
            self.edges.append(
                Edge(key, status.topic, EdgeKind.HOLDS, name, self.applications[key].state, blocks=blocks)
            )

    def blocks(self) -> list[Block]:
        """Return who waits for whom."""
        blocking: dict[str, dict[str, None]] = {}
        for edge in self.edges:
            if edge.blocks:
                blocking.setdefault(edge.topic, {})[edge.application] = None
        return [
            Block(edge.application, edge.topic, by)
            for edge in self.edges
            if edge.kind is EdgeKind.PUBLISHES
            for by in blocking.get(edge.topic, ())
        ]

    def _add_subscription(
        self, status: TopicStatus, line: SubscriptionStatus, read: int | None, *, blocks: bool
    ) -> None:
        """Add a reader; ``read``: rows that it has acknowledged since, None if that is not known."""
        rate = None if read is None else self._rate(read)
        state = LinkState(line.state) if line.state in set(LinkState) else LinkState.ABSENT
        key = self._node(line.application, f"subscription {line.name}", line.name, state)
        self.edges.append(
            Edge(
                key,
                status.topic,
                EdgeKind.READS,
                line.name,
                state,
                rate,
                max(0, line.lag.rows),  # below zero where the newest batch was taken back
                line.lag.seconds,
                blocks,
            )
        )

    def _node(self, application: Application | None, key: str, name: str, state: LinkState) -> str:
        """Add an application, or what is new of it; return its key.

        Args:
            application: as it said itself; None: it said nothing.
            key, name: of the node then.
            state: of the link by which it was seen.
        """
        node = ApplicationNode(key, name, state=state)
        if application is not None:
            of_job = bool(application.pipeline and application.job)
            own = f"job {application.pipeline}/{application.job}" if of_job else f"application {application.id}"
            called = f"{application.pipeline}.{application.job}" if of_job else application.name or name
            ids = application.id, application.pipeline, application.job, application.run
            node = ApplicationNode(own, called, *ids, state=state)
        known = self.applications.get(node.key)
        if known is None or _ORDER[state] < _ORDER[known.state]:
            self.applications[node.key] = node
        return node.key

    def _rate(self, rows: int) -> float | None:
        """Return rows a second; None if that was not measured. None are taken back: what was, is published again."""
        return max(0, rows) / self._seconds if self._seconds > 0 else None


_ORDER = {state: number for number, state in enumerate(LinkState)}


def _state_of(status: TopicStatus) -> TopicState:
    if status.ended:
        return TopicState.ENDED
    if not status.publishing:
        return TopicState.SERVED
    return TopicState.PUBLISHED if status.waiting is None else TopicState.BLOCKED
