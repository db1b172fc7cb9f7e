"""What one read covers of a topic, how its ends stand in offsets, and the batches in it that can no longer be read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobpipe.errors import DataLoss
from jobpipe.operations.range_messages import LostBatch
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.slots import slot_id

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReadRange:
    """What one micro-batch reads of a topic.

    Attributes:
        start, end: The range as the log counts it; ``start`` lies after what is lost.
        partitions: The publisher's.
        lost: Some of the range in Spark's log is lost.
        holes: Batches inside that lost host servers kept a part of.
        rows: Of all partitions, those in holes too.
        data: Where it is served; "" where the coordinator did not say so.
    """

    start: Position
    end: Position
    partitions: int
    lost: bool
    holes: tuple[LostBatch, ...] = ()
    rows: int = 0
    data: str = ""

    def readable(self) -> list[tuple[Position, Position]]:
        """Return what lies between the holes."""
        found, here = [], self.start
        for hole in self.holes:
            if hole.start.place > here.place:
                found.append((here, hole.start))
            here = hole.end
        return [*found, (here, self.end)] if self.end.place > here.place else found


def pass_over(topic: str, holes: Sequence[LostBatch], *, fail: bool) -> int:
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
    offsets = [hole.start.n for hole in holes]
    rows = sum(hole.rows for hole in holes)
    hosts = sorted({host for hole in holes for host in hole.hosts})
    message = (
        f"topic {topic!r}: host server {', '.join(hosts)} is lost, and with it some of the batches at offsets "
        f"{_spans(offsets)} ({rows} rows)"
    )
    if fail:
        raise DataLoss(
            f"{message}. Bring the host server back with its folder, or skip these batches with failOnDataLoss=false",
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


def write_place(position: Position, slot: str | None) -> dict[str, Any]:
    """Return a topic's place in an offset: a position; with ``readAhead`` the one where a slot begins, and the slot.

    The keys of the JSON object are sorted.
    """
    return position.to_json() if slot is None else {**position.to_json(), "slot": slot}


def read_place(value: Any) -> tuple[Position, str | None]:
    """Return what :func:`write_place` wrote.

    Raises:
        RemoteProtocolError: it is anything else.
    """
    if not isinstance(value, dict) or "slot" not in value:
        return Position.from_json(value), None
    position = Position.from_json({key: inner for key, inner in value.items() if key != "slot"})
    return position, slot_id(value["slot"])
