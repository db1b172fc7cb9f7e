from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.errors import RemoteProtocolError
from jobpipe.store.catalog.position import Position, prefix

LOG = "0123456789abcdef"


@given(epoch=st.integers(0, 2**63 - 1), n=st.integers(0, 2**63 - 1), r=st.integers(0, 2**63 - 1))
def test_json_is_canonical_and_inverse(epoch: int, n: int, r: int) -> None:
    position = Position(LOG, epoch, n, r)
    text = json.dumps(position.to_json())
    assert text == json.dumps(position.to_json(), sort_keys=True)
    assert Position.from_json(json.loads(text)) == position


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "x",
        {},
        {"log": LOG, "epoch": 1, "n": 1},
        {"log": LOG, "epoch": 1, "n": 1, "r": 0, "more": 1},
        {"log": LOG.upper(), "epoch": 1, "n": 1, "r": 0},
        {"log": LOG[:-1], "epoch": 1, "n": 1, "r": 0},
        {"log": 5, "epoch": 1, "n": 1, "r": 0},
        {"log": LOG, "epoch": True, "n": 1, "r": 0},
        {"log": LOG, "epoch": 1.0, "n": 1, "r": 0},
        {"log": LOG, "epoch": 1, "n": -1, "r": 0},
        {"log": LOG, "epoch": 1, "n": 1, "r": 2**63},
        {"log": LOG, "epoch": 1, "n": "1", "r": 0},
    ],
)
def test_other_json_is_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        Position.from_json(value)


@given(counts=st.lists(st.integers(0, 9), max_size=6), r=st.integers(0, 60))
def test_prefix_takes_by_index_then_partition(counts: list[int], r: int) -> None:
    order = sorted((index, partition) for partition, count in enumerate(counts) for index in range(count))[:r]
    expected = [sum(1 for _, p in order if p == partition) for partition in range(len(counts))]
    assert prefix(counts, r) == expected
