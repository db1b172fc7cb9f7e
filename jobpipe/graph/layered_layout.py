"""Places for the nodes of a directed graph: in layers from left to right, with the lines between them. Pure.

This is the method of Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures",
1981: break cycles, assign layers, order them, then find coordinates. Connected components are drawn each for itself
and packed in rows. The result depends on ids, sizes and edges alone, not on their order.

A line that goes back, as one of each cycle must, leaves the right side of its box, turns, passes below the box, and
comes to its end in the same way: from below, to the left side. So does the line from a node to itself. The longest
lines of a graph that needs too many bends pass below all boxes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from jobpipe.graph.component_drawing import Box, Drawing, Route, Size, drawn
from jobpipe.graph.layer_assignment import components, links_of

__all__ = ["Box", "Layout", "Route", "Size", "curve", "layered_layout"]

COMPONENT_GAP = 32.0  # pixels between two components
ASPECT = 1.8  # width to height of a page of many components


@dataclass(frozen=True)
class Layout:
    """Where all is, in pixels: boxes by the ids of nodes, routes in the order of the edges that were given."""

    width: float
    height: float
    boxes: Mapping[str, Box]
    routes: tuple[Route, ...]


def layered_layout(nodes: Mapping[str, Size], edges: Sequence[tuple[str, str]], *, label_width: float = 0.0) -> Layout:
    """Return places for nodes and edges.

    Args:
        nodes: the size of each node's box, by its id.
        edges: the ids of start and end; several may be the same, or have one node as both.
        label_width: of the edges' labels; 0 if they have none.
    """
    ids = sorted(nodes)
    number = {node: each for each, node in enumerate(ids)}
    links = sorted((number[start], number[end], edge) for edge, (start, end) in enumerate(edges))
    successors, predecessors = links_of(len(ids), [(start, end) for start, end, _ in links])
    groups = sorted(components(successors, predecessors), key=lambda group: (-len(group), group[0]))
    component = {node: each for each, group in enumerate(groups) for node in group}
    local = {node: each for group in groups for each, node in enumerate(group)}
    own: list[list[tuple[int, int, int]]] = [[] for _ in groups]
    for start, end, edge in links:
        own[component[start]].append((local[start], local[end], edge))
    drawings = [
        drawn([nodes[ids[node]] for node in group], [(start, end) for start, end, _ in inner], label_width)
        for group, inner in zip(groups, own, strict=True)
    ]
    boxes: dict[str, Box] = {}
    routes: dict[int, Route] = {}
    width = height = 0.0
    for group, inner, drawing, (x, y) in zip(groups, own, drawings, _corners(drawings), strict=True):
        boxes.update({ids[node]: box.moved(x, y) for node, box in zip(group, drawing.boxes, strict=True)})
        routes.update({edge: route.moved(x, y) for (_, _, edge), route in zip(inner, drawing.routes, strict=True)})
        width, height = max(width, x + drawing.width), max(height, y + drawing.height)
    return Layout(width, height, {node: boxes[node] for node in ids}, tuple(routes[edge] for edge in range(len(edges))))


def _corners(drawings: Sequence[Drawing]) -> Iterator[tuple[float, float]]:
    """Yield the top left corner of each component: in rows, of one width for all that have no edges."""
    single = max((drawing.width for drawing in drawings if not drawing.routes), default=0.0)
    widths = [drawing.width if drawing.routes else single for drawing in drawings]
    area = sum(
        (width + COMPONENT_GAP) * (drawing.height + COMPONENT_GAP)
        for width, drawing in zip(widths, drawings, strict=True)
    )
    most = max(sqrt(area * ASPECT), max(widths, default=0.0))
    x = y = row = 0.0
    for width, drawing in zip(widths, drawings, strict=True):
        if x and x + width > most:
            x, y, row = 0.0, y + row + COMPONENT_GAP, 0.0
        yield x, y
        x, row = x + width + COMPONENT_GAP, max(row, drawing.height)


def curve(points: Sequence[tuple[float, float]]) -> str:
    """Return the data of an SVG path through points, of which there is at least one: a cubic curve for each part.

    It is level at all points but those where the line turns from right to left or back: it is upright there. So no
    part leaves the rectangle of its two points.
    """
    x, y = points[0]
    steps = [to_x - x for (x, _), (to_x, _) in pairwise(points)]
    upright = [False, *(step * following < 0 for step, following in pairwise(steps)), False]
    path = [f"M{x:.1f},{y:.1f}"]
    for ((x, y), (to_x, to_y)), (leaves, comes) in zip(pairwise(points), pairwise(upright), strict=False):
        half_x, half_y = (to_x - x) / 2, (to_y - y) / 2
        first = (x, y + half_y) if leaves else (x + half_x, y)
        second = (to_x, to_y - half_y) if comes else (to_x - half_x, to_y)
        path.append("C" + " ".join(f"{left:.1f},{top:.1f}" for left, top in (first, second, (to_x, to_y))))
    return "".join(path)
