"""A drawing of one connected component of a directed graph: boxes in layers, and routes that no box hides. Pure."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import inf

from jobpipe.graph.layer_assignment import flow_order, layers_of, links_of
from jobpipe.graph.layer_heights import Extent, heights, spread
from jobpipe.graph.layer_order import ordered

LAYER_GAP = 48.0  # pixels between two layers, without labels
LINK_GAP, MOST_LINK_GAPS = 0.5, 100.0  # more for each line there; and the most for all of them
BOX_GAP, LINE_GAP = 16.0, 10.0  # between boxes of a layer, and next to a line
TURN = 14.0  # how far a line that turns back leaves its layer
LANE = 9.0  # how far below a box a line goes back
PORTS = 0.4  # the part of a side where lines begin and end
LABEL_HEIGHT = 28.0
MOST_BENDS = 20  # for each box; the longest lines of a graph that needs more go below all boxes

Point = tuple[float, float]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Size:
    """Of a box, in pixels."""

    width: float
    height: float


@dataclass(frozen=True)
class Box:
    """Where a node stands, in pixels: x and y are its top left corner."""

    x: float
    y: float
    width: float
    height: float

    def moved(self, x: float, y: float) -> Box:
        """Return it at another place."""
        return Box(self.x + x, self.y + y, self.width, self.height)


@dataclass(frozen=True)
class Route:
    """The way of a line.

    Attributes:
        points: from the right side of the box where it starts to the left side of the one where it ends.
        label: the middle of a place for a label; it lies on no box.
    """

    points: tuple[Point, ...]
    label: Point

    def moved(self, x: float, y: float) -> Route:
        """Return it at another place."""
        return Route(tuple([(left + x, top + y) for left, top in self.points]), (self.label[0] + x, self.label[1] + y))


@dataclass(frozen=True)
class Drawing:
    """Boxes and routes in the order of the sizes and pairs that were given; all are within width and height."""

    width: float
    height: float
    boxes: Sequence[Box]
    routes: Sequence[Route]


def drawn(sizes: Sequence[Size], pairs: Sequence[Pair], label_width: float) -> Drawing:
    """Return the drawing of a connected graph.

    Args:
        sizes: of its nodes, which are numbers from 0 on.
        pairs: start and end of each edge.
        label_width: of each edge's label; 0 if they have none.
    """
    picture = _Picture(_Places(sizes, pairs), sizes, pairs, label_width)
    return _framed([picture.box(node) for node in range(len(sizes))], picture.routes(), label_width)


class _Places:
    """Nodes, and the bends of lines that pass layers, which are numbered after them.

    Attributes:
        layer: of each place.
        height: of each place; that of a node is the middle of its box.
        back: edges that lead to the same layer or to one before it.
        bends: of each edge, from left to right; None for one that goes below all boxes.
        order: the places of each layer, from top to bottom.
        links: how many lines are between each layer and the next one.
        bottom: a height below all boxes.
    """

    def __init__(self, sizes: Sequence[Size], pairs: Sequence[Pair]) -> None:
        count = len(sizes)
        order = flow_order(*links_of(count, [pair for pair in pairs if pair[0] != pair[1]]))
        rank = {node: number for number, node in enumerate(order)}
        self.back = [rank[start] >= rank[end] for start, end in pairs]
        forward = [pair[::-1] if back else pair for pair, back in zip(pairs, self.back, strict=True)]
        self.layer = layers_of(order, *links_of(count, [pair for pair in forward if pair[0] != pair[1]]))
        self.bends = self._bent(forward, MOST_BENDS * count)
        chains = [
            (start, *bends, end)
            for (start, end), bends in zip(forward, self.bends, strict=True)
            if bends is not None and start != end
        ]
        links = [link for chain in chains for link in pairwise(chain)]
        right, left = links_of(len(self.layer), links)
        self.links = Counter(self.layer[place] for place, _ in links)
        self.order = ordered(self.layer, left, right)
        turning = {node for pair, back in zip(pairs, self.back, strict=True) if back for node in pair}
        extents = [
            Extent(size.height / 2, size.height / 2 + LANE * (node in turning), BOX_GAP)
            for node, size in enumerate(sizes)
        ] + [Extent(0, 0, LINE_GAP)] * (len(self.layer) - count)
        self.height = heights(self.order, left, right, extents)
        self.bottom = LINE_GAP + max(height + extent.below for height, extent in zip(self.height, extents, strict=True))

    def _bent(self, forward: Sequence[Pair], most: int) -> list[Sequence[int] | None]:
        """Return the bends of each edge, and note their layers."""
        bends: list[Sequence[int] | None] = [None] * len(forward)
        spans = [self.layer[end] - self.layer[start] - 1 for start, end in forward]
        for edge in sorted(range(len(forward)), key=lambda edge: (spans[edge], edge)):
            start, end = forward[edge]
            most -= max(0, spans[edge])
            if most < 0:
                break
            first = len(self.layer)
            self.layer += range(self.layer[start] + 1, self.layer[end])
            bends[edge] = range(first, len(self.layer))
        return bends


class _Picture:
    """Boxes and lines at their places; some coordinates are negative."""

    def __init__(self, places: _Places, sizes: Sequence[Size], pairs: Sequence[Pair], label_width: float) -> None:
        self._places, self._sizes, self._pairs, self._label_width = places, sizes, pairs, label_width
        self._left: list[float] = []
        self._right: list[float] = []
        self._gap_middle: list[float] = []  # after each layer
        at = 0.0
        for number, layer in enumerate(places.order):
            gap = LAYER_GAP + label_width + min(LINK_GAP * places.links[number], MOST_LINK_GAPS)
            self._left.append(at)
            self._right.append(at + max(sizes[place].width for place in layer if place < len(sizes)))
            self._gap_middle.append(self._right[-1] + gap / 2)
            at = self._right[-1] + gap
        self._starts, self._ends = self._ports()

    def box(self, node: int) -> Box:
        """Return a node's box, in the middle of its layer."""
        size, layer = self._sizes[node], self._places.layer[node]
        middle = (self._left[layer] + self._right[layer]) / 2
        return Box(middle - size.width / 2, self._places.height[node] - size.height / 2, size.width, size.height)

    def _ports(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """Return the height at which each edge starts, and the one at which it ends, in the order of where they go."""
        starts: dict[int, list[tuple[float, int]]] = defaultdict(list)
        ends: dict[int, list[tuple[float, int]]] = defaultdict(list)
        height = self._places.height
        for edge, (start, end) in enumerate(self._pairs):
            chain = self._places.bends[edge]
            away = inf if self._places.back[edge] else self._places.bottom if chain is None else None
            starts[start].append((height[chain[0] if chain else end] if away is None else away, edge))
            ends[end].append((height[chain[-1] if chain else start] if away is None else away, edge))
        return self._on_sides(starts), self._on_sides(ends)

    def _on_sides(self, lines: Mapping[int, list[tuple[float, int]]]) -> Mapping[int, float]:
        return {
            edge: self._places.height[node] + self._sizes[node].height * PORTS * ((number + 0.5) / len(far) - 0.5)
            for node, far in lines.items()
            for number, (_, edge) in enumerate(sorted(far))
        }

    def _way(self, edge: int) -> tuple[list[Point], list[Point], list[Point]]:
        """Return the points of a line: at the layer where it starts, on its way, and at the layer where it ends."""
        start, end = self._pairs[edge]
        leaving, arriving = self.box(start), self.box(end)
        first, last = self._places.layer[start], self._places.layer[end]
        y, to_y = self._starts[edge], self._ends[edge]
        head = [(leaving.x + leaving.width, y), (self._right[first], y)]
        tail = [(self._left[last], to_y), (arriving.x, to_y)]
        bends = self._places.bends[edge]
        if bends is not None:
            passed = [(self._places.layer[bend], self._places.height[bend]) for bend in bends]
        else:
            between = (first - 1, last + 1) if self._places.back[edge] else (first + 1, last - 1)
            passed = [(layer, self._places.bottom) for layer in sorted(set(between))]
        middle = [(x, at) for layer, at in passed for x in (self._left[layer], self._right[layer])]
        if self._places.back[edge]:
            lane = leaving.y + leaving.height + LANE
            to_lane = arriving.y + arriving.height + LANE
            head += [(self._right[first] + TURN, (y + lane) / 2), (self._right[first], lane)]
            tail = [(self._left[last], to_lane), (self._left[last] - TURN, (to_y + to_lane) / 2), *tail]
            if start != end:
                head.append((self._left[first], lane))
                tail.insert(0, (self._right[last], to_lane))
            middle.reverse()
        return head, middle, tail

    def routes(self) -> list[Route]:
        """Return the way of each line, through the middle of its label if labels have a width.

        A label stands in the gap at the end that has fewer lines, and about as high as that end, so those of a hub are
        far from each other. The label of an edge from a node to itself stands next to its line.
        """
        parts: list[tuple[list[Point], list[Point]]] = []
        gaps: dict[int, list[tuple[float, int]]] = defaultdict(list)
        starting, ending = Counter(start for start, _ in self._pairs), Counter(end for _, end in self._pairs)
        for edge, (start, end) in enumerate(self._pairs):
            head, middle, tail = self._way(edge)
            here, there = starting[start], ending[end]
            at_start = start == end or here <= there
            before, after = (head, middle + tail) if at_start else (head + middle, tail)
            parts.append((before, after))
            (x, y), (to_x, to_y) = before[-1], after[0]
            gap = self._places.layer[start] if start == end else bisect(self._left, (x + to_x) / 2) - 1
            gaps[gap].append(((y * there + to_y * here) / (here + there), edge))
        labels = {edge: label for gap, wishes in gaps.items() for edge, label in self._labels(gap, wishes)}
        return [
            _route(before, labels[edge], after, is_through=start != end and self._label_width > 0)
            for edge, ((before, after), (start, end)) in enumerate(zip(parts, self._pairs, strict=True))
        ]

    def _labels(self, gap: int, wishes: list[tuple[float, int]]) -> Iterator[tuple[int, Point]]:
        """Yield the middle of each label in a gap, next to the height that its edge wishes; none lies on another."""
        wishes = sorted(wishes)
        heights = [height for height, _ in wishes]
        if self._label_width:
            offsets = [LABEL_HEIGHT * number for number in range(len(heights))]
            heights = spread(heights, [1.0] * len(heights), offsets)
        for (_, edge), height in zip(wishes, heights, strict=True):
            yield edge, (self._gap_middle[gap], height)


def _route(before: list[Point], label: Point, after: list[Point], *, is_through: bool) -> Route:
    points = before + [label] * is_through + after
    return Route(tuple(point for point, _ in groupby(points)), label)


def _framed(boxes: Sequence[Box], routes: Sequence[Route], label_width: float) -> Drawing:
    """Return all moved to where no coordinate is negative."""
    corners = [(box.x, box.y) for box in boxes] + [(box.x + box.width, box.y + box.height) for box in boxes]
    for route in routes:
        x, y = route.label
        corners += [(x - label_width / 2, y - LABEL_HEIGHT / 2), (x + label_width / 2, y + LABEL_HEIGHT / 2)]
        corners += route.points
    left, right = min(x for x, _ in corners), max(x for x, _ in corners)
    top, bottom = min(y for _, y in corners), max(y for _, y in corners)
    return Drawing(
        right - left,
        bottom - top,
        [box.moved(-left, -top) for box in boxes],
        [route.moved(-left, -top) for route in routes],
    )
