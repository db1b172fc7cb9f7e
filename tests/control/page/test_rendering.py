"""How numbers, times and parts of a page are written."""

from __future__ import annotations

import pytest

from jobpipe.control.page.graph_drawing import fitting
from jobpipe.control.page.rendering import moment, number, part_id, rate, seconds, short_number, size


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (999, "999"),
        (999.7, "1.0 k"),
        (12_345, "12.3 k"),
        (950_000, "950 k"),
        (1_234_567, "1.2 M"),
        (4e15, "4000 T"),
    ],
)
def test_short_numbers(value: float, said: str) -> None:
    assert short_number(value) == said


def test_what_is_not_known_is_a_dash() -> None:
    """And is not taken for zero."""
    assert {number(None), rate(None), seconds(None), size(None), str(moment(None))} == {"–"}
    assert (number(0), rate(0.0), seconds(0.0), size(0)) == ("0", "0 rows/s", "0.0 s", "0 B")


def test_numbers_with_units() -> None:
    assert (number(1_234_567), rate(1234.6), rate(0.25)) == ("1,234,567", "1,235 rows/s", "0.2 rows/s")
    assert [size(value) for value in (1023, 1024, 20 << 20, 3 << 50)] == ["1,023 B", "1.0 KiB", "20 MiB", "3,072 TiB"]
    assert (seconds(-1.0), seconds(7200.0)) == ("0.0 s", "2 h")


def test_moments_are_in_utc() -> None:
    """Of seconds, and of ISO 8601 with any zone; what is no time is a dash."""
    assert str(moment(0.0)) == '<time datetime="1970-01-01T00:00:00+00:00">1970-01-01 00:00:00 UTC</time>'
    assert moment("2026-11-21T02:00:00+02:00") == moment("2026-11-21T00:00:00Z")
    assert {str(moment(wrong)) for wrong in (1e300, float("nan"), "yesterday", "<b>")} == {"–"}


def test_ids_tell_names_apart() -> None:
    """Also names whose characters run together, and any characters make an id."""
    assert part_id("a", "bc") != part_id("ab", "c")
    assert part_id('"><script>').replace("-", "").isalnum()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("short", "short"),
        ("a" * 21, "a" * 21),
        ("flights.delays.dead-letters", "flights.de…ad-letters"),
        ("名" * 20, "名" * 5 + "…" + "名" * 5),
        ("", ""),
    ],
)
def test_a_long_name_keeps_both_its_ends(name: str, shown: str) -> None:
    assert fitting(name) == shown
