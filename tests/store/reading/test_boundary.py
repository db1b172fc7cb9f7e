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
    ("text", "boundary"),
    [
        ("17", Boundary("offset", 17)),
        ("1795255200000", Boundary("time", 1_795_255_200_000)),
        ("2026-11-21T10:00:00Z", Boundary("time", 1_795_255_200_000)),
        ("latest", Boundary("latest")),
    ],
)
@pytest.mark.parametrize("blanks", [("", ""), (" ", ""), ("", " "), ("\t", "\n")])
def test_blanks_around_a_text_mean_nothing(text: str, boundary: Boundary, blanks: tuple[str, str]) -> None:
    """An offset stays one, and is no time in 1970."""
    before, after = blanks
    assert Boundary.read(f"{before}{text}{after}", ("latest",)) == boundary


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
