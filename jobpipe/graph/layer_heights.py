"""How high places stand within ordered layers, so that links are short and lines straight. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from jobpipe.graph.layer_assignment import Links

ROUNDS = 2  # of sweeps; more change little
LOOSE = 0.1  # the weight of a place that nothing draws anywhere


@dataclass(frozen=True)
class Extent:
    """How much room a place needs above and below its height, and between it and the next one of its kind."""

    above: float
    below: float
    gap: float


def heights(layers: Sequence[Sequence[int]], left: Links, right: Links, extents: Sequence[Extent]) -> list[float]:
    """Return the height of each place; some are negative.

    Sweeps from left to right and back draw each place to the mean of what it is linked to. The last one ends at the
    left, so a box is level with the middle of its successors if there is room.
    """
    height = [0.0] * len(extents)
    offsets = [_offsets([extents[place] for place in layer]) for layer in layers]
    for layer, offset in zip(layers, offsets, strict=True):
        for place, each in zip(layer, offset, strict=True):
            height[place] = each - offset[-1] / 2
    both = list(zip(layers, offsets, strict=True))
    for number in range(2 * ROUNDS):
        links = right if number % 2 else left
        for layer, offset in reversed(both) if number % 2 else both:
            _draw(layer, offset, links, height)
    return height


def _offsets(extents: Sequence[Extent]) -> list[float]:
    """Return how far below the first one each place is at least."""
    offsets = [0.0]
    for upper, lower in pairwise(extents):
        offsets.append(offsets[-1] + upper.below + min(upper.gap, lower.gap) + lower.above)
    return offsets


def _draw(layer: Sequence[int], offsets: Sequence[float], links: Links, height: list[float]) -> None:
    wished: list[float] = []
    weights: list[float] = []
    for place in layer:
        near = links[place]
        wished.append(sum([height[other] for other in near]) / len(near) if near else height[place])
        weights.append(1.0 if near else LOOSE)
    for place, each in zip(layer, spread(wished, weights, offsets), strict=True):
        height[place] = each


def spread(wished: Sequence[float], weights: Sequence[float], offsets: Sequence[float]) -> list[float]:
    """Return numbers close to the wished ones, whose distances are at least those of the offsets.

    The weighted sum of squares is the least one. This is isotonic regression, by pooling adjacent violators (Barlow et
    al., "Statistical Inference under Order Restrictions", 1972).
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight and count of what stands as close as it may
    for wish, weight, offset in zip(wished, weights, offsets, strict=True):
        mean, count = wish - offset, 1
        while pools and pools[-1][0] >= mean:
            other, other_weight, other_count = pools.pop()
            mean = (mean * weight + other * other_weight) / (weight + other_weight)
            weight, count = weight + other_weight, count + other_count
        pools.append((mean, weight, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
