"""Layers of a directed graph from left to right: its components, an order without cycles, a layer for each node. Pure.

Nodes are numbers from 0 on. Nothing here recurses, so a chain may be of any length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Links = Sequence[Sequence[int]]
"""By node: the nodes that it is linked to."""


def links_of(count: int, pairs: Iterable[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the successors and the predecessors of each node."""
    successors: list[list[int]] = [[] for _ in range(count)]
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for start, end in pairs:
        successors[start].append(end)
        predecessors[end].append(start)
    return successors, predecessors


def components(successors: Links, predecessors: Links) -> Iterator[list[int]]:
    """Yield the nodes of each connected component in order, the component of the smallest node first."""
    seen = [False] * len(successors)
    for first in range(len(successors)):
        if seen[first]:
            continue
        seen[first] = True
        found = [first]
        for node in found:  # it grows meanwhile
            for links in (successors, predecessors):
                for other in links[node]:
                    if not seen[other]:
                        seen[other] = True
                        found.append(other)
        yield sorted(found)


def flow_order(successors: Links, predecessors: Links) -> list[int]:
    """Return all nodes in an order that most edges follow: all of them, if there is no cycle.

    A search in depth starts at nodes without predecessors, then at those that give most and take least. The order in
    which it leaves nodes, reversed, has only those edges against it that close a cycle (Gansner et al., "A Technique
    for Drawing Directed Graphs", 1993, 2.1).
    """
    count = len(successors)
    seen = [False] * count
    left: list[int] = []
    surplus = [len(predecessors[node]) - len(successors[node]) for node in range(count)]
    for root in sorted(range(count), key=lambda node: (bool(predecessors[node]), surplus[node], node)):
        if seen[root]:
            continue
        seen[root] = True
        path = [(root, iter(successors[root]))]
        while path:
            node, rest = path[-1]
            following = next((other for other in rest if not seen[other]), None)
            if following is None:
                left.append(node)
                path.pop()
            else:
                seen[following] = True
                path.append((following, iter(successors[following])))
    return left[::-1]


def layers_of(order: Sequence[int], successors: Links, predecessors: Links) -> list[int]:
    """Return the layer of each node: after all its predecessors, and no layer without a node.

    A node stands as far left as it can, but next to its first successor if it has as many successors as predecessors
    or more: that makes no edge longer than what it saves.

    Args:
        order: all nodes; every edge follows it.
        successors, predecessors: without edges from a node to itself.
    """
    layers = [0] * len(order)
    for node in order:
        layers[node] = max((layers[other] + 1 for other in predecessors[node]), default=0)
    for node in reversed(order):
        if successors[node] and len(successors[node]) >= len(predecessors[node]):
            layers[node] = min(layers[other] for other in successors[node]) - 1
    return layers
