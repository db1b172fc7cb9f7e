"""The graph of a namespace as text for a terminal, as a diagram, and as plain values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from jobpipe.graph.diagram import Diagram, DiagramEdge, DiagramNode, Shape
from jobpipe.graph.namespace_graph import (
    ApplicationNode,
    Edge,
    EdgeKind,
    LinkState,
    NamespaceGraph,
    TopicNode,
    TopicState,
    shortened,
)
from jobpipe.plural import counted

MOST_SAID = 160  # characters of an error, or of why a publisher waits

_TOPIC_WORDS = {
    TopicState.SERVED: "no publisher now",
    TopicState.ENDED: "ended",
    TopicState.AWAY: "not served now",
    TopicState.UNKNOWN: "not known",
}


def as_dict(graph: NamespaceGraph) -> dict[str, Any]:
    """Return the graph as plain values: namespace, applications, topics, edges, blocks; lists, in their order."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(graph)))
    return {**found, "applications": list(found["applications"].values()), "topics": list(found["topics"].values())}


# -- diagrams ----------------------------------------------------------------------------------------------------------


def as_diagram(graph: NamespaceGraph) -> Diagram:
    """Return the graph as a diagram: applications are boxes, topics ellipses; an edge that blocks warns."""
    nodes = [
        DiagramNode(key, "\n".join([graph.labels[key], *_application_words(node)]), Shape.BOX)
        for key, node in graph.applications.items()
    ]
    nodes += [
        DiagramNode(f"topic {topic.name}", "\n".join([topic.name, *topic_words(topic)]), Shape.ELLIPSE)
        for topic in graph.topics.values()
    ]
    edges = []
    for edge in graph.edges:
        start, end = edge.application, f"topic {edge.topic}"
        if edge.kind is not EdgeKind.PUBLISHES:
            start, end = end, start
        edges.append(DiagramEdge(start, end, "\n".join(edge_words(graph, edge)), edge.blocks))
    return Diagram(graph.namespace, tuple(nodes), tuple(edges))


def _application_words(node: ApplicationNode) -> list[str]:
    return [] if node.state is LinkState.CONNECTED else [node.state]


def topic_words(topic: TopicNode) -> list[str]:
    """Return what is said of a topic, the most important first."""
    said = [_TOPIC_WORDS[topic.state]] if topic.state in _TOPIC_WORDS else []
    said += [f"{said.pop()}: {shortened(topic.error, MOST_SAID)}"] if topic.error is not None else []
    said += [rate_text(topic.rows_per_second)] if topic.rows_per_second is not None else []
    said += [] if topic.rows is None or topic.rows_per_second is not None else [counted(topic.rows, "row")]
    said += [counted(topic.partitions, "partition")] if topic.partitions is not None else []
    said += [f"publisher waits: {shortened(topic.waiting, MOST_SAID)}"] if topic.waiting is not None else []
    return said


def edge_words(graph: NamespaceGraph, edge: Edge) -> list[str]:
    """Return what is said of an application at a topic, the most important first."""
    said: list[str] = []
    if edge.blocks:
        blocked = graph.blocked_by.get((edge.application, edge.topic), ())
        said.append(f"BLOCKS {', '.join(blocked) or 'the publisher'}")
    if edge.kind in (EdgeKind.LEASES, EdgeKind.HOLDS):
        said.append({EdgeKind.LEASES: "bounded read", EdgeKind.HOLDS: "on a schedule"}[edge.kind])
    elif edge.state is not LinkState.CONNECTED:
        said.append(edge.state)
    is_reading = edge.kind is EdgeKind.READS and edge.state is LinkState.CONNECTED
    if edge.rows_per_second is not None and is_reading:
        said.append(rate_text(edge.rows_per_second))
    if edge.lag_rows is not None and edge.lag_seconds is not None:
        late = f"lag {span(edge.lag_seconds)} ({counted(edge.lag_rows, 'row')})"
        said.append(late if edge.lag_rows else "up to date")
    if edge.lost_batches:
        said.append(f"{counted(edge.lost_batches, 'batch')} lost")
    return said


def rate_text(rows: float) -> str:
    """Return rows a second, such as ``1,200 rows/s`` or ``0.5 rows/s``."""
    return f"{rows:,.0f} rows/s" if rows >= 10 or rows == 0 else f"{rows:.1f} rows/s"


def span(seconds: float) -> str:
    """Return a time in the unit that fits, such as ``0.3 s`` or ``2 h``."""
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    for limit, divisor, unit in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


# -- a terminal --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TreeLine:
    """A line of the tree.

    Attributes:
        last: for each step on the way to it, whether nothing follows there.
        application: it is an application's; else a topic's.
        name: for people.
        words: what is said of it.
        warns: it shows trouble.
        repeated: what follows it stands further above.
    """

    last: tuple[bool, ...]
    application: bool
    name: str
    words: tuple[str, ...] = ()
    warns: bool = False
    repeated: bool = False


@dataclass
class _Step:
    """A node that is to be printed, and how it was come to."""

    last: tuple[bool, ...]
    key: str | None  # of an application
    topic: str | None
    edge: Edge | None = None


@dataclass
class _Tree:
    """Which nodes follow which."""

    graph: NamespaceGraph
    published: dict[str, list[Edge]] = field(default_factory=dict)  # by application
    read: dict[str, list[Edge]] = field(default_factory=dict)  # by topic
    shown: set[tuple[str | None, str | None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for edge in self.graph.edges:
            if edge.kind is EdgeKind.PUBLISHES:
                self.published.setdefault(edge.application, []).append(edge)
            else:
                self.read.setdefault(edge.topic, []).append(edge)

    def roots(self) -> Iterator[_Step]:
        """Yield where lines begin: who publishes and reads nothing, topics without publisher, then what is left."""
        reads = {edge.application for edges in self.read.values() for edge in edges}
        published = {edge.topic for edges in self.published.values() for edge in edges}
        publishers = [key for key in self.graph.applications if key in self.published]
        yield from (_Step((), key, None) for key in publishers if key not in reads)
        yield from (_Step((), None, topic) for topic in self.graph.topics if topic not in published)
        yield from (_Step((), key, None) for key in publishers)  # of circles

    def after(self, step: _Step) -> list[_Step]:
        """Return what follows a node."""
        if step.key is not None:
            found = [_Step((), None, edge.topic) for edge in self.published.get(step.key, ())]
        else:
            found = [_Step((), edge.application, None, edge) for edge in self.read.get(step.topic or "", ())]
        for number, each in enumerate(found):
            each.last = (*step.last, number == len(found) - 1)
        return found


def tree_of(graph: NamespaceGraph) -> Iterator[TreeLine]:
    """Yield the lines of the graph as a tree, from publishers to readers; what follows a node is there once."""
    tree = _Tree(graph)
    for root in tree.roots():
        if (root.key, root.topic) in tree.shown:
            continue
        waiting = [root]
        while waiting:
            step = waiting.pop()
            node = (step.key, step.topic)
            following = tree.after(step)
            again = node in tree.shown and bool(following)
            tree.shown.add(node)
            yield _line(graph, step, repeated=again)
            if not again:
                waiting += reversed(following)


def _line(graph: NamespaceGraph, step: _Step, *, repeated: bool) -> TreeLine:
    if step.topic is not None:
        topic = graph.topics[step.topic]
        warns = topic.state in (TopicState.BLOCKED, TopicState.UNKNOWN)
        return TreeLine(step.last, False, topic.name, tuple(topic_words(topic)), warns, repeated)
    assert step.key is not None  # noqa: S101 - a step has one of them
    name, edge = graph.labels[step.key], step.edge
    words = tuple(_application_words(graph.applications[step.key]) if edge is None else edge_words(graph, edge))
    return TreeLine(step.last, True, name, words, edge is not None and edge.blocks, repeated)


def as_text(graph: NamespaceGraph, *, plain: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the lines for a terminal, and of each whether it shows trouble.

    Args:
        graph: what is shown.
        plain: with ASCII characters alone.
    """
    jobs, topics = len(graph.applications), len(graph.topics)
    yield f"{graph.namespace}: {counted(jobs, 'application')}, {counted(topics, 'topic')}", False
    bar, branch, end, dot = ("|  ", "|- ", "`- ", " - ") if plain else ("│  ", "├─ ", "└─ ", " · ")
    for line in tree_of(graph):
        if not line.last:
            yield "", False
        ahead = "".join("   " if over else bar for over in line.last[:-1])
        ahead += (end if line.last[-1] else branch) if line.last else ""
        words = [*line.words, *(["see above"] if line.repeated else [])]
        said = f"  {dot.join(words)}" if words else ""
        yield f"{ahead}{f'[{line.name}]' if line.application else line.name}{said}", line.warns
