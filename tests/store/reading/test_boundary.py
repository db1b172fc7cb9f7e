from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.errors import RemoteProtocolError
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary

LOG = "0123456789abcdef"
NUMBERS = st.integers(0, 2**63 - 1)
BOUNDARIES = st.one_of(
    st.builds(Boundary, st.sampled_from(["earliest", "latest", "committed"])),
    st.builds(Boundary, st.sampled_from(["offset", "time"]), NUMBERS, st.sampled_from(["error", "latest"])),
    st.builds(Boundary, st.just("position"), st.builds(Position, st.just(LOG), NUMBERS, NUMBERS, NUMBERS)),
)


@given(BOUNDARIES)
def test_json_is_inverse(boundary: Boundary) -> None:
    assert Boundary.from_json(json.loads(json.dumps(boundary.to_json()))) == boundary


@pytest.mark.parametrize(
    "value",
    [
        None,
        "earliest",
        {"kind": "earliest"},
        {"kind": "earliest", "value": 1, "otherwise": "error"},
        {"kind": "newest", "value": None, "otherwise": "error"},
        {"kind": "offset", "value": None, "otherwise": "error"},
        {"kind": "offset", "value": -1, "otherwise": "error"},
        {"kind": "offset", "value": True, "otherwise": "error"},
        {"kind": "time", "value": 2**63, "otherwise": "error"},
        {"kind": "time", "value": 1.5, "otherwise": "error"},
        {"kind": "time", "value": 1, "otherwise": "earliest"},
        {"kind": "position", "value": 1, "otherwise": "error"},
        {"kind": [], "value": None, "otherwise": "error"},
        {"kind": "latest", "value": None, "otherwise": "error", "more": 1},
    ],
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        Boundary.from_json(value)
