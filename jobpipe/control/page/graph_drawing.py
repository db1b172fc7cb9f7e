"""The graph as SVG: jobs are boxes, topics have round ends; rows flow from left to right."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from markupsafe import Markup, escape

from jobpipe.control.page.marks import Mark, job_mark, link_mark, topic_mark
from jobpipe.control.page.page_snapshot import PageSnapshot
from jobpipe.control.page.rendering import part_id, rate, seconds, short_number
from jobpipe.graph.layered_layout import Box, Layout, Size, curve, layered_layout
from jobpipe.graph.namespace_graph import Edge, EdgeKind, LinkState, TopicNode, TopicState

JOB = Size(200.0, 52.0)
TOPIC = Size(200.0, 44.0)
LABEL = 112.0  # width of what stands on an edge
LINES = 2  # of what stands on an edge
LINE, CHARACTER = 13.0, 6.7  # of that: the height of a line, the width of most characters
CELLS = 21  # of a name: a wide character takes two
_DANGER = {"alarm": 2, "warn": 1}


@dataclass(frozen=True)
class _Node:
    key: str
    kind: str
    name: str
    href: str
    mark: Mark
    words: str


@dataclass(frozen=True)
class _Line:
    """What is drawn between two nodes: all edges of one direction together."""

    start: str
    end: str
    words: tuple[str, ...]
    tone: str
    live: bool


@dataclass(frozen=True)
class GraphPicture:
    """The graph, drawn: its size, the paths of its edges, and the elements of edges and nodes, each with its id."""

    width: int
    height: int
    paths: Markup
    elements: tuple[tuple[str, Markup], ...]


def graph_picture(snapshot: PageSnapshot) -> GraphPicture:
    """Return the graph as it is drawn."""
    nodes, lines = _nodes(snapshot), _lines(snapshot)
    sizes = tuple(sorted((node.key, JOB if node.kind == "job" else TOPIC) for node in nodes.values()))
    layout, paths = _layout(sizes, tuple((line.start, line.end) for line in lines))
    drawn = [_edge(line, route.label) for line, route in zip(lines, layout.routes, strict=True)]
    drawn += [_box(node, layout.boxes[node.key]) for node in nodes.values()]
    return GraphPicture(round(layout.width), round(layout.height), paths, tuple(drawn))


@lru_cache(maxsize=8)  # it stays as it is while rates change
def _layout(sizes: tuple[tuple[str, Size], ...], edges: tuple[tuple[str, str], ...]) -> tuple[Layout, Markup]:
    """Return the layout, and the paths of all edges."""
    layout = layered_layout(dict(sizes), edges, label_width=LABEL)
    paths = "".join(
        f'<path id="{_edge_id(*ends)}-path" d="{curve(route.points)}" marker-end="url(#arrow)"/>'
        for ends, route in zip(edges, layout.routes, strict=True)
    )
    return layout, Markup(paths)  # noqa: S704 - ids are hashes


def job_href(pipeline: str, job: str) -> str:
    """Return the address of a job's page."""
    return f"/ui/jobs/{quote(pipeline, safe='')}/{quote(job, safe='')}"


def topic_href(topic: str) -> str:
    """Return the address of a topic's page."""
    return f"/ui/topics/{quote(topic, safe='')}"


def application_href(key: str) -> str:
    """Return the address of the page of an application that is no job of this server."""
    return f"/ui/application?key={quote(key, safe='')}"


def _nodes(snapshot: PageSnapshot) -> Mapping[str, _Node]:
    found: dict[str, _Node] = {}
    for key, node in snapshot.graph.applications.items():
        job = snapshot.job_of(node)
        if job is None:
            mark, words, href = link_mark(node.state), "", application_href(key)
        else:
            mark, href = job_mark(job), job_href(job.pipeline, job.name)
            words = "" if job.rows is None else f"{short_number(job.rows)} rows"
        name = f"bounded read {key[6:12]}" if key.startswith("lease ") else snapshot.graph.labels[key]
        found[key] = _Node(key, "job", name, href, mark, words)
    for topic in snapshot.graph.topics.values():
        key = f"topic {topic.name}"
        found[key] = _Node(key, "topic", topic.name, topic_href(topic.name), topic_mark(topic.state), _words(topic))
    return found


def _words(topic: TopicNode) -> str:
    if topic.rows is None:
        return ""
    return f"{short_number(topic.rows)} rows"


def _lines(snapshot: PageSnapshot) -> Sequence[_Line]:
    joined: dict[tuple[str, str], list[Edge]] = {}
    for edge in snapshot.graph.edges:
        start, end = edge.application, f"topic {edge.topic}"
        if edge.kind is not EdgeKind.PUBLISHES:
            start, end = end, start
        joined.setdefault((start, end), []).append(edge)
    return [_line(snapshot, ends, edges) for ends, edges in sorted(joined.items())]


def _line(snapshot: PageSnapshot, ends: tuple[str, str], edges: Sequence[Edge]) -> _Line:
    live = any(edge.state is not LinkState.ABSENT for edge in edges)
    words: list[str] = []
    tone = ""
    rates = [edge.rows_per_second for edge in edges if edge.rows_per_second is not None]
    if rates and live:
        words.append(rate(sum(rates) if edges[0].kind is EdgeKind.PUBLISHES else max(rates)))
    lagging = [edge for edge in edges if edge.lag_rows]
    if lagging:
        worst = max(lagging, key=lambda edge: (edge.lag_seconds or 0.0, edge.lag_rows or 0))
        words.append(f"lag {seconds(worst.lag_seconds)}")
    if any(edge.blocks for edge in edges):
        words.insert(0, "blocks")
        tone = "warn"
    if any(edge.lost_batches for edge in edges):
        words.insert(0, "rows lost")
        tone = "alarm"
    topic = snapshot.graph.topics.get(edges[0].topic)
    waits = topic is not None and topic.state is TopicState.BLOCKED and edges[0].kind is EdgeKind.PUBLISHES
    return _Line(*ends, tuple(words[:LINES]), tone or ("warn" if waits else ""), live)


def _edge(line: _Line, label: tuple[float, float]) -> tuple[str, Markup]:
    """Return an edge; its path is drawn where the graph's paths are, so that it is not sent again with each number."""
    key = _edge_id(line.start, line.end)
    classes = " ".join(filter(None, ("edge", line.tone, "" if line.live else "idle")))
    x, y = label
    high, wide = LINE * len(line.words), CHARACTER * max(map(len, line.words), default=0) + 6.0
    top = y - high / 2
    said = f'<rect x="{x - wide / 2:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}"/>' if line.words else ""
    for place, words in enumerate(line.words):
        said += f'<text x="{x:.1f}" y="{top + LINE * (place + 0.78):.1f}">{escape(words)}</text>'
    return key, Markup(f'<g id="{key}" class="{classes}"><use href="#{key}-path"/>{said}</g>')  # noqa: S704 - escaped


def _box(node: _Node, box: Box) -> tuple[str, Markup]:
    key = part_id("node", node.key)
    round_ends = 8 if node.kind == "job" else round(box.height / 2)
    inset = 12 if node.kind == "job" else 18
    name, second = escape(node.name), escape(" · ".join(filter(None, (node.mark.word, node.words))))
    middle, tone = box.height / 2, node.mark.tone
    return key, Markup(  # noqa: S704 - escaped
        f'<a id="{key}" class="node {node.kind} {tone}" href="{escape(node.href)}" data-name="{name}" '
        f'transform="translate({box.x:.1f} {box.y:.1f})"><title>{name}: {second}</title>'
        f'<rect width="{box.width:.1f}" height="{box.height:.1f}" rx="{round_ends}"/>'
        f'<use href="#mark-{node.mark.shape}" class="mark {tone}" x="{inset}" y="{middle - 15.0:.1f}" width="12" '
        f'height="12"/><text class="node-name" x="{inset + 20}" y="{middle - 4.0:.1f}">{escape(fitting(node.name))}'
        f'</text><text x="{inset + 20}" y="{middle + 13.0:.1f}">{second}</text></a>'
    )


def _edge_id(start: str, end: str) -> str:
    return part_id("edge", start, end)


def fitting(text: str, cells: int = CELLS) -> str:
    """Return a name that fits: its end is what names of one pipeline differ in, so the middle is left out."""
    widths = [2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text]
    if sum(widths) <= cells:
        return text
    head = tail = ""
    left = cells - 1
    for number_ in range(len(text)):
        for at_end in (False, True):
            place = -1 - number_ if at_end else number_
            if widths[place] > left or len(head) + len(tail) >= len(text):
                return f"{head}…{tail}"
            left -= widths[place]
            head, tail = (head, text[place] + tail) if at_end else (head + text[place], tail)
    return f"{head}…{tail}"
