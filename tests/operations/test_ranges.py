"""Which lost batches a planned range has a part of."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe.operations.range_messages import LostBatch, PlannedRange
from jobpipe.store.catalog.position import Position

LOG = "0" * 16


def at(n: int, r: int = 0) -> Position:
    return Position(LOG, 1, n, r)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(at(2), at(4), [2, 3], id="whole batches"),
        pytest.param(at(2), at(4, 1), [2, 3, 4], id="it ends inside a batch"),
        pytest.param(at(2, 1), at(4), [2, 3], id="it begins inside one"),
        pytest.param(at(4), at(4, 1), [4], id="a part of one"),
    ],
)
def test_holes(start: Position, end: Position, expected: list[int]) -> None:
    """A batch is lost as a whole, also where only a part of it is read."""
    more: dict[str, Any] = {"rows": 1, "bytes": 1, "partitions": 1, "ends": False}
    plan = PlannedRange(start=start, end=end, **more)
    lost = [LostBatch(at(n), at(n + 1), 1, ("host",)) for n in range(8)]
    assert [batch.start.n for batch in plan.holes(lost)] == expected
