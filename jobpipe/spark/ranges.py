"""What one read covers of a topic, and the batches in it that nobody can read any more."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobpipe.errors import DataLoss
from jobpipe.store import Position

__all__ = ["ReadRange", "pass_over"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReadRange:
    """What one micro-batch reads of a topic.

    Attributes:
        start, end: The range as the log counts it; ``start`` lies behind what is lost.
        partitions: The publisher's.
        lost: Some of the range in Spark's log is lost.
        holes: Batches inside that lost host servers kept a part of, each with start, end, rows and hosts.
        rows: Of all partitions, those in holes too.
    """

    start: Position
    end: Position
    partitions: int
    lost: bool
    holes: tuple[dict[str, Any], ...] = ()
    rows: int = 0

    def readable(self) -> list[tuple[Position, Position]]:
        """Return what lies between the holes."""
        found, here = [], self.start
        for hole in self.holes:
            before, behind = Position.from_json(hole["start"]), Position.from_json(hole["end"])
            if before.place > here.place:
                found.append((here, before))
            here = behind
        return [*found, (here, self.end)] if self.end.place > here.place else found


def pass_over(topic: str, holes: Sequence[dict[str, Any]], *, fail: bool) -> int:
    """Return how many rows are lost with batches that lost host servers kept; a batch is skipped as a whole.

    Args:
        topic: whose batches.
        holes: as in :class:`ReadRange`.
        fail: unless ``failOnDataLoss=false``.

    Raises:
        DataLoss: there are such, and ``fail``; names topic, offsets and hosts.
    """
    if not holes:
        return 0
    offsets = [int(hole["start"]["n"]) for hole in holes]
    rows = sum(int(hole["rows"]) for hole in holes)
    hosts = sorted({host for hole in holes for host in hole["hosts"]})
    message = (
        f"topic {topic!r}: host server {', '.join(hosts)} is lost, and with it some of the batches at offsets "
        f"{_spans(offsets)} ({rows} rows)"
    )
    if fail:
        raise DataLoss(
            f"{message}. Bring the host server back with its folder, or go on without these batches by "
            "failOnDataLoss=false",
            topic=topic,
            reason="host lost",
            offsets=offsets,
            rows=rows,
            hosts=hosts,
        )
    log.warning("%s; failOnDataLoss=false: they are skipped", message)
    return rows


def _spans(offsets: Sequence[int]) -> str:
    """Return sorted offsets as text: 3-5, 8."""
    found: list[tuple[int, int]] = []
    for n in offsets:
        if found and n == found[-1][1] + 1:
            found[-1] = (found[-1][0], n)
        else:
            found.append((n, n))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
