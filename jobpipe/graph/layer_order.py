"""The order of places within layers, with few crossings of the links between them. Pure.

This is the second step of Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System
Structures", 1981. Places are numbers from 0 on; each link is between neighbouring layers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from jobpipe.graph.layer_assignment import Links

MOST_ROUNDS, PATIENCE = 12, 3  # of sweeps; how many without success are enough
MOST_STEPS = 100_000  # places that all rounds but the first move together


def ordered(layer_of: Sequence[int], left: Links, right: Links) -> list[list[int]]:
    """Return the places of each layer from top to bottom.

    Sweeps from left to right and back start with the better of two orders, and the best that they came by is kept.

    Args:
        layer_of: the layer of each place.
        left, right: the places that each one is linked to in the layer before and after its own.
    """
    roots = sorted(range(len(layer_of)), key=lambda place: layer_of[place])
    far = _in_breadth(roots, left, right)[::-1]
    searches = (_in_depth(roots, left, right), _in_breadth(far, left, right))
    firsts = [_in_layers(found, layer_of) for found in searches]
    counts = [crossings(first, right) for first in firsts]
    fewest, failures = min(counts), 0
    layers = best = firsts[counts.index(fewest)]
    for _ in range(max(1, min(MOST_ROUNDS, MOST_STEPS // len(layer_of)))):
        if not fewest or failures == PATIENCE:
            break
        layers = _swept(_swept(layers, left)[::-1], right)[::-1]
        count = crossings(layers, right)
        failures = 0 if count < fewest else failures + 1
        if count < fewest:
            best, fewest = layers, count
    return best


def _in_layers(places: Iterable[int], layer_of: Sequence[int]) -> list[list[int]]:
    layers: list[list[int]] = [[] for _ in range(max(layer_of) + 1)]
    for place in places:
        layers[layer_of[place]].append(place)
    return layers


def _in_depth(roots: Iterable[int], left: Links, right: Links) -> list[int]:
    """Return all places in the order of a search in depth: those of a tree stay in it when it gets a leaf."""
    found: dict[int, None] = {}
    for root in roots:
        waiting = [root]
        while waiting:
            place = waiting.pop()
            if place not in found:
                found[place] = None
                waiting += reversed(left[place])
                waiting += reversed(right[place])
    return list(found)


def _in_breadth(roots: Iterable[int], left: Links, right: Links) -> list[int]:
    """Return all places in the order of a search in breadth: few links cross if it starts at an end of a long graph."""
    found: list[int] = []
    seen = [False] * len(left)
    for root in roots:
        at = len(found)
        found += [] if seen[root] else [root]
        seen[root] = True
        while at < len(found):
            for other in (*left[found[at]], *right[found[at]]):
                if not seen[other]:
                    seen[other] = True
                    found.append(other)
            at += 1
    return found


def _swept(layers: Sequence[Sequence[int]], before: Links) -> list[list[int]]:
    """Return each layer ordered by the mean position of what its places are linked to in the layer before it."""
    swept = [list(layers[0])]
    position = [0.0] * len(before)
    for layer in layers[1:]:
        for number, place in enumerate(swept[-1]):
            position[place] = number
        share = len(swept[-1]) / len(layer)
        for number, place in enumerate(layer):
            links = before[place]
            if len(links) == 1:
                position[place] = position[links[0]]
            elif links:
                position[place] = sum([position[link] for link in links]) / len(links)
            else:
                position[place] = number * share  # stays about where it is
        swept.append(sorted(layer, key=position.__getitem__))
    return swept


def crossings(layers: Sequence[Sequence[int]], right: Links) -> int:
    """Return how many pairs of links cross.

    These are the inversions of their ends (Barth, Jünger and Mutzel, "Simple and Efficient Bilayer Cross Counting",
    2002).
    """
    count = 0
    position = [0] * len(right)
    for layer, following in pairwise(layers):
        for number, place in enumerate(following):
            position[place] = number
        ends: list[int] = []
        for place in layer:
            links = right[place]
            ends += [position[links[0]]] if len(links) == 1 else sorted([position[link] for link in links])
        passed: list[int] = []
        for number, end in enumerate(ends):
            at = bisect_right(passed, end)
            count += number - at
            passed.insert(at, end)
    return count
