"""Layouts in layers: what holds for each, what is known of small graphs, and that large ones end."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobpipe.graph import component_drawing, layer_order
from jobpipe.graph.component_drawing import BOX_GAP, LABEL_HEIGHT, LANE, LAYER_GAP
from jobpipe.graph.layer_heights import spread
from jobpipe.graph.layered_layout import COMPONENT_GAP, Box, Layout, Route, Size, curve, layered_layout

SIZE = Size(100, 30)
NEAR = 1e-6
Edges = Sequence[tuple[str, str]]
Graph = tuple[dict[str, Size], list[tuple[str, str]]]

IDS = st.sampled_from([f"n{number:02}" for number in range(14)])
SIDES = st.integers(0, 200).map(float)
NODES = st.dictionaries(IDS, st.builds(Size, SIDES, SIDES), min_size=1)
GRAPHS = NODES.flatmap(
    lambda nodes: st.tuples(
        st.just(nodes),
        st.lists(st.tuples(*[st.sampled_from(sorted(nodes))] * 2), max_size=25),  # type: ignore[arg-type]
    )
)
LABELS = st.sampled_from([0.0, 80.0])


def laid(edges: Edges, *, label_width: float = 0.0, others: Sequence[str] = ()) -> Layout:
    """Return the layout of nodes of one size."""
    ids = {node for edge in edges for node in edge} | set(others)
    return layered_layout(dict.fromkeys(ids, SIZE), edges, label_width=label_width)


def overlapping(boxes: Sequence[Box]) -> list[tuple[Box, Box]]:
    """Return the pairs of boxes that have a point in common, apart from rounding."""
    rows = sorted(boxes, key=lambda box: box.x)
    found = []
    for number, box in enumerate(rows):
        for other in rows[number + 1 :]:
            if other.x >= box.x + box.width - NEAR:
                break
            if other.y < box.y + box.height - NEAR and box.y < other.y + other.height - NEAR:
                found.append((box, other))
    return found


def along(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return points of the curve that is drawn through points."""
    numbers = [float(word) for word in re.findall(r"-?[\d.]+", curve(points))]
    x, y, *rest = numbers
    found = [(x, y)]
    for part in (rest[at : at + 6] for at in range(0, len(rest), 6)):
        corners = [found[-1], *zip(part[::2], part[1::2], strict=True)]
        for step in range(1, 9):
            t = step / 8
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            found.append(tuple(sum(w * c[axis] for w, c in zip(weights, corners, strict=True)) for axis in (0, 1)))  # type: ignore[arg-type]
    return found


def label_box(route: Route, width: float) -> Box:
    x, y = route.label
    return Box(x - width / 2, y - LABEL_HEIGHT / 2, width, LABEL_HEIGHT)


def column(layout: Layout, node: str) -> float:
    return layout.boxes[node].x + layout.boxes[node].width / 2


def crossings(layout: Layout, edges: Edges) -> int:
    """Return how many edges between the same two layers cross."""
    count = 0
    for (start, end), (other_start, other_end) in combinations(sorted(set(edges)), 2):
        boxes = layout.boxes
        if (column(layout, start), column(layout, end)) == (column(layout, other_start), column(layout, other_end)):
            count += (boxes[start].y - boxes[other_start].y) * (boxes[end].y - boxes[other_end].y) < 0
    return count


def check(layout: Layout, nodes: Mapping[str, Size], edges: Edges, label_width: float) -> None:
    """Assert what each layout promises."""
    assert {node: Size(box.width, box.height) for node, box in layout.boxes.items()} == nodes
    assert overlapping(list(layout.boxes.values())) == []
    points = [point for route in layout.routes for point in (*route.points, route.label)]
    points += [(box.x, box.y) for box in layout.boxes.values()]
    points += [(box.x + box.width, box.y + box.height) for box in layout.boxes.values()]
    assert all(isfinite(x) and isfinite(y) for x, y in points)
    assert all(0 <= x <= layout.width + NEAR and 0 <= y <= layout.height + NEAR for x, y in points)
    assert len(layout.routes) == len(edges)
    for (start, end), route in zip(edges, layout.routes, strict=True):
        leaving, arriving = layout.boxes[start], layout.boxes[end]
        assert route.points[0][0] == pytest.approx(leaving.x + leaving.width)
        assert leaving.y - NEAR <= route.points[0][1] <= leaving.y + leaving.height + NEAR
        assert route.points[-1][0] == pytest.approx(arriving.x)
        assert arriving.y - NEAR <= route.points[-1][1] <= arriving.y + arriving.height + NEAR
    if label_width:
        assert overlapping([label_box(route, label_width) for route in layout.routes]) == []
    assert all(one != other for route in layout.routes for one, other in pairwise(route.points))
    labels = [label_box(route, label_width) for route in layout.routes]
    assert all(-NEAR <= label.x <= layout.width - label_width + NEAR for label in labels)
    assert all(-NEAR <= label.y <= layout.height - LABEL_HEIGHT + NEAR for label in labels)
    for box in layout.boxes.values():
        assert [label for label in labels if overlapping([label, box])] == []


@given(GRAPHS, LABELS)
@settings(max_examples=60, deadline=None)
def test_what_each_layout_promises(graph: Graph, label_width: float) -> None:
    nodes, edges = graph
    check(layered_layout(nodes, edges, label_width=label_width), nodes, edges, label_width)


@given(GRAPHS, LABELS, st.sampled_from([component_drawing.MOST_BENDS, 0]))
@settings(max_examples=80, deadline=None)
def test_no_line_passes_a_box(graph: Graph, label_width: float, most_bends: int) -> None:
    """Nor do those that turn back, or go below all boxes. Writing a curve loses a tenth of a pixel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(component_drawing, "MOST_BENDS", most_bends)
        layout = layered_layout(*graph, label_width=label_width)
    inner = [
        (box.x + 0.2, box.x + box.width - 0.2, box.y + 0.2, box.y + box.height - 0.2) for box in layout.boxes.values()
    ]
    for route in layout.routes:
        for x, y in along(route.points):
            assert not any(left < x < right and top < y < bottom for left, right, top, bottom in inner)


@given(GRAPHS, LABELS)
@settings(max_examples=40, deadline=None)
def test_edges_of_a_graph_without_cycles_lead_to_the_right(graph: Graph, label_width: float) -> None:
    nodes, edges = graph
    forward = [(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]]
    layout = layered_layout(nodes, forward, label_width=label_width)
    for (start, end), route in zip(forward, layout.routes, strict=True):
        before = layout.boxes[start]
        assert layout.boxes[end].x >= before.x + before.width + LAYER_GAP + label_width - NEAR
        assert all(x <= to_x + NEAR for (x, _), (to_x, _) in pairwise(route.points))


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("uvwxyz")), min_size=1, unique=True))
@settings(max_examples=40, deadline=None)
def test_lines_leave_and_reach_a_side_in_the_order_of_where_they_go(edges: Edges) -> None:
    layout = laid(edges)
    for (one, route), (other, other_route) in combinations(zip(edges, layout.routes, strict=True), 2):
        for near, far, point in ((0, 1, 0), (1, 0, -1)):
            if one[near] == other[near]:
                above = layout.boxes[one[far]].y < layout.boxes[other[far]].y
                assert (route.points[point][1] < other_route.points[point][1]) == above


@given(GRAPHS, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_nodes_and_edges_changes_nothing(graph: Graph, chance: random.Random) -> None:
    nodes, edges = graph
    ids, order = list(nodes), list(range(len(edges)))
    chance.shuffle(ids)
    chance.shuffle(order)
    one = layered_layout(nodes, edges, label_width=80)
    other = layered_layout({node: nodes[node] for node in ids}, [edges[edge] for edge in order], label_width=80)
    assert (other.width, other.height, other.boxes) == (one.width, one.height, one.boxes)
    routes: dict[tuple[str, str], list[Route]] = defaultdict(list)
    for edge, route in zip(edges, one.routes, strict=True):
        routes[edge].append(route)
    for place, route in zip(order, other.routes, strict=True):
        assert route in routes[edges[place]]


def test_no_node_and_one_node() -> None:
    assert layered_layout({}, []) == Layout(0, 0, {}, ())
    assert layered_layout({"a": SIZE}, []) == Layout(100, 30, {"a": Box(0, 0, 100, 30)}, ())


def test_an_edge_of_an_unknown_node() -> None:
    with pytest.raises(KeyError, match="b"):
        layered_layout({"a": SIZE}, [("a", "b")])


def test_a_chain_is_one_straight_line() -> None:
    edges = [("a", "b"), ("b", "c"), ("c", "d")]
    layout = laid(edges)
    assert [layout.boxes[node].y for node in "abcd"] == [0] * 4
    assert {y for route in layout.routes for _, y in route.points} == {15}
    assert crossings(layout, edges) == 0


def test_a_line_over_layers_is_straight() -> None:
    """It passes next to what is between its ends."""
    layout = laid([*pairwise("abcde"), ("a", "e")])
    assert len({round(y, 3) for _, y in layout.routes[-1].points[2:-2]}) == 1


def test_a_line_is_level_next_to_its_own_box() -> None:
    """Until it leaves the layer, in which another box is wider."""
    nodes = {**dict.fromkeys("sxy", SIZE), "narrow": Size(20, 30), "wide": Size(200, 30)}
    layout = layered_layout(nodes, [("s", "narrow"), ("s", "wide"), ("narrow", "x"), ("wide", "y")])
    wide, (narrow_to_x, level) = layout.boxes["wide"], layout.routes[2].points[:2]
    assert level == pytest.approx((wide.x + wide.width, narrow_to_x[1]))
    assert layout.routes[0].points[-2] == pytest.approx((wide.x, layout.routes[0].points[-1][1]))


def test_a_box_is_level_with_the_middle_of_its_successors() -> None:
    layout = laid([("a", "b"), ("a", "c"), ("b", "d"), ("c", "e"), ("c", "f"), ("c", "g")])
    near = sorted(layout.boxes[node].y for node in "efg")
    assert layout.boxes["c"].y == pytest.approx(near[1], abs=5)
    assert layout.boxes["b"].y == pytest.approx(layout.boxes["d"].y, abs=5)


@pytest.mark.parametrize("seed", range(5))
def test_a_tree_has_no_crossings(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even before the first sweep."""
    monkeypatch.setattr(layer_order, "_swept", lambda layers, before: layers)
    chance = random.Random(seed)
    ids = [f"n{number:02}" for number in range(80)]
    chance.shuffle(ids)
    edges = [(ids[chance.randrange(max(0, number - 20), number)], ids[number]) for number in range(1, 80)]
    assert crossings(laid(edges), edges) == 0


@pytest.mark.parametrize(
    ("edges", "count"),
    [
        ([("a", "z"), ("b", "y"), ("c", "x")], 0),
        ([(a, b) for a in "ab" for b in "xy"], 1),
        ([(a, b) for a in "abc" for b in "xyz"], 9),
        ([("r", "a"), ("r", "b"), ("r", "c"), ("c", "d"), ("a", "e"), ("b", "f"), ("d", "g"), ("f", "h")], 0),
        ([("a", "q"), ("b", "p"), ("c", "q"), ("c", "p"), ("d", "p"), ("d", "r"), ("q", "s"), ("p", "t")], 0),
    ],
    ids=["pairs", "K22", "K33", "tree", "planar"],
)
def test_crossings_of_known_graphs(edges: Edges, count: int) -> None:
    """No drawing in these layers has fewer."""
    assert crossings(laid(edges), edges) == count


def test_crossings_are_counted() -> None:
    """Of links of one place, none cross."""
    right = [[3, 4], [3], [4, 3], [], []]
    assert layer_order.crossings([[0, 1, 2], [3, 4]], right) == 2
    assert layer_order.crossings([[1, 0, 2], [3, 4]], right) == 1
    assert layer_order.crossings([[1, 0, 2], [4, 3]], right) == 3


def test_a_long_strip_has_no_crossings() -> None:
    """Whatever its nodes' names are: three layers of 60 nodes, each linked to the next two."""
    rungs = list(range(60))
    random.Random(7).shuffle(rungs)
    edges = [(f"a{rung:02}", f"b{at}") for at, rung in enumerate(rungs)]
    edges += [(f"a{rung:02}", f"b{at + 1}") for at, rung in enumerate(rungs[:-1])]
    edges += [(f"b{at}", f"c{rung:02}") for at, rung in enumerate(rungs)]
    edges += [(f"b{at}", f"c{rungs[at + 1]:02}") for at in range(59)]
    assert crossings(laid(edges), edges) == 0


def test_sweeps_take_crossings_away(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    edges = [(f"a{at}", f"b{min(39, max(0, at + chance.randint(-3, 3)))}") for at in range(40) for _ in range(3)]
    swept = crossings(laid(edges), edges)
    monkeypatch.setattr(layer_order, "_swept", lambda layers, before: layers)
    assert swept < 0.8 * crossings(laid(edges), edges)


def test_a_node_without_predecessors_stands_next_to_its_successor() -> None:
    layout = laid([*pairwise("abcdef"), ("x", "f")])
    assert column(layout, "x") == column(layout, "e")


def test_a_cycle_has_one_line_that_goes_back() -> None:
    """It turns at the right side of its start, passes below both boxes, and comes to the left side of its end."""
    layout = laid([("a", "b"), ("b", "c"), ("c", "a")])
    assert column(layout, "a") < column(layout, "b") < column(layout, "c")
    points = layout.routes[2].points
    assert max(x for x, _ in points) > layout.boxes["c"].x + SIZE.width
    assert min(x for x, _ in points) < layout.boxes["a"].x
    for node in "ac":
        box = layout.boxes[node]
        assert {(box.x, box.y + 30 + LANE), (box.x + 100, box.y + 30 + LANE)} <= {
            (round(x, 6), round(y, 6)) for x, y in points
        }


def test_a_node_with_predecessors_elsewhere_starts_no_cycle() -> None:
    """The cycle is cut where the flow comes in, whatever the names."""
    layout = laid([("z", "m"), ("m", "a"), ("a", "b"), ("b", "m")])
    assert sorted("zmab", key=lambda node: column(layout, node)) == ["z", "m", "a", "b"]


def test_a_line_to_its_own_node_goes_around_it() -> None:
    layout = laid([("a", "a")])
    box, points = layout.boxes["a"], layout.routes[0].points
    assert min(x for x, _ in points) < box.x < box.x + box.width < max(x for x, _ in points)
    assert max(y for _, y in points) == pytest.approx(box.y + box.height + LANE)


def test_a_line_that_goes_back_has_room_below_its_box() -> None:
    layout = laid([("s", "a"), ("s", "b"), ("a", "a"), ("b", "b")])
    assert abs(layout.boxes["a"].y - layout.boxes["b"].y) >= SIZE.height + LANE + BOX_GAP - NEAR
    layout = laid([("a", "b"), ("a", "a"), ("c", "b")])
    assert layout.routes[1].points[0][1] > layout.routes[0].points[0][1]  # it crosses no other line of its box


def test_parallel_edges_have_lines_of_their_own() -> None:
    edges = [("a", "b")] * 3
    lines = [route.points for route in laid(edges).routes]
    assert len({start for start, *_ in lines}) == len({line[-1] for line in lines}) == 3
    for one, other in combinations(lines, 2):
        assert (one[0][1] - other[0][1]) * (one[-1][1] - other[-1][1]) > 0
    heights = sorted(route.label[1] for route in laid(edges, label_width=80).routes)
    assert all(lower - upper >= LABEL_HEIGHT - NEAR for upper, lower in pairwise(heights))


def test_labels_of_a_hub_stand_at_its_leaves() -> None:
    edges = [("hub", f"t{number:03}") for number in range(200)]
    layout = laid(edges, label_width=80)
    check(layout, dict.fromkeys(layout.boxes, SIZE), edges, 80)
    for (_, leaf), route in zip(edges, layout.routes, strict=True):
        box = layout.boxes[leaf]
        assert abs(route.label[1] - box.y - box.height / 2) < 30
        assert route.label in route.points
    layout = laid([*pairwise("abcde"), ("a", "e"), ("a", "x"), ("a", "y")], label_width=80)
    assert layout.boxes["d"].x + SIZE.width < layout.routes[4].label[0] < layout.boxes["e"].x


def test_components_are_in_rows_the_largest_first() -> None:
    """The row of the largest is full; the next two fit in one."""
    layout = laid([*pairwise("abc"), *pairwise("klmnopqrs"), *pairwise("xyz")])
    corners = {node: (layout.boxes[node].x, layout.boxes[node].y) for node in "kax"}
    assert corners["k"] == (0, 0)
    assert corners["a"] == (0, SIZE.height + COMPONENT_GAP)
    assert corners["x"] == (layout.boxes["c"].x + SIZE.width + COMPONENT_GAP, corners["a"][1])


def test_many_single_nodes_are_a_grid() -> None:
    nodes = {f"t{number:03}": Size(60 + number % 7 * 10, 26) for number in range(200)}
    layout = layered_layout(nodes, [])
    check(layout, nodes, [], 0)
    assert 1 < layout.width / layout.height < 3
    assert len({box.x for box in layout.boxes.values()}) < 25
    assert list(layout.boxes) == sorted(nodes, key=lambda node: (layout.boxes[node].y, layout.boxes[node].x))


@pytest.mark.parametrize("is_cycle", [False, True], ids=["chain", "cycle"])
def test_a_chain_of_5000_nodes(is_cycle: bool) -> None:
    ids = [f"n{number:04}" for number in range(5000)]
    edges = [*pairwise(ids), *([(ids[-1], ids[0])] if is_cycle else [])]
    layout = laid(edges)
    assert sorted(ids, key=lambda node: layout.boxes[node].x) == ids
    assert overlapping(list(layout.boxes.values())) == []


def test_the_longest_lines_go_below_all_boxes() -> None:
    """If there were a place for them in each layer, there would be 100,000."""
    ids = [f"n{number:03}" for number in range(500)]
    edges = [*pairwise(ids), *[(ids[number], ids[-1 - number]) for number in range(200)], (ids[499], ids[100])]
    nodes = dict.fromkeys(ids, SIZE)
    layout = layered_layout(nodes, edges, label_width=80)
    check(layout, nodes, edges, 80)
    assert sum(len(route.points) for route in layout.routes) < 30_000
    bottom = max(box.y + box.height for box in layout.boxes.values())
    assert max(y for _, y in layout.routes[499].points) > bottom
    assert max(y for _, y in layout.routes[-1].points) > bottom


def test_sweeps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def count(*args: Sequence[Sequence[int]]) -> int:
        counted.append(args)
        return 10**9 - len(counted)  # each sweep seems to help

    monkeypatch.setattr(layer_order, "crossings", count)
    laid([("a", "b")])
    assert len(counted) == 2 + layer_order.MOST_ROUNDS
    monkeypatch.setattr(layer_order, "MOST_STEPS", 100)
    counted.clear()
    laid(list(pairwise(f"n{number}" for number in range(50))))
    assert len(counted) == 2 + 2


def test_a_new_leaf_leaves_the_rest_in_order() -> None:
    edges = [(f"n{number:02}", f"n{child:02}") for number in range(20) for child in (2 * number + 1, 2 * number + 2)]
    before, after = laid(edges), laid([*edges, ("n33", "new")])
    for one, other in combinations(before.boxes, 2):
        if column(before, one) == column(before, other):
            assert (before.boxes[one].y < before.boxes[other].y) == (after.boxes[one].y < after.boxes[other].y)


def test_600_nodes() -> None:
    """200 jobs in stages, 400 topics."""
    chance = random.Random(1)
    topics, jobs = [f"t{number:03}" for number in range(400)], [f"j{number:03}" for number in range(200)]
    edges = [(chance.choice(jobs[number // 40 * 20 : number // 40 * 20 + 20]), topics[number]) for number in range(400)]
    edges += [
        (topics[(job // 20 - 1) * 40 + chance.randrange(40)], jobs[job])
        for job in (chance.randrange(20, 200) for _ in range(700))
    ]
    nodes = {**dict.fromkeys(topics, Size(90, 26)), **dict.fromkeys(jobs, Size(120, 40))}
    layout = layered_layout(nodes, edges, label_width=90)
    check(layout, nodes, edges, 90)


def test_spread_keeps_distances_and_moves_little() -> None:
    assert spread([0, 20], [1, 1], [0, 10]) == [0, 20]
    assert spread([0, 0], [1, 1], [0, 10]) == [-5, 5]
    assert spread([0, 0], [3, 1], [0, 8]) == [-2, 6]
    assert spread([10, 0, 40], [1, 1, 1], [0, 0, 0]) == [5, 5, 40]


def test_curve() -> None:
    assert curve([(0, 0), (10, 20)]) == "M0.0,0.0C5.0,0.0 5.0,20.0 10.0,20.0"
    turning = "M0.0,0.0C5.0,0.0 10.0,5.0 10.0,10.0C10.0,15.0 5.0,20.0 0.0,20.0"
    assert curve([(0, 0), (10, 10), (0, 20)]) == turning
    assert curve([(1 / 3, 0.06)]) == "M0.3,0.1"
