"""Ticks and texts of values."""

from __future__ import annotations

import math

import pytest

from jobpipe.control.page.plots.plot_scales import Unit, ago_text, tick_text, time_ticks, value_text, value_ticks


@pytest.mark.parametrize(
    ("most", "unit", "texts"),
    [
        (0.0, Unit.ROWS, "0, 1, 2"),
        (0.0, Unit.ROWS_PER_SECOND, "0, 1, 2"),
        (0.0, Unit.SECONDS, "0, 1 s, 2 s"),
        (1.0, Unit.ROWS, "0, 1, 2"),
        (1.0, Unit.ROWS_PER_SECOND, "0, 0.5, 1"),
        (0.3, Unit.ROWS_PER_SECOND, "0, 0.1, 0.2, 0.3"),
        (98_000.0, Unit.ROWS, "0, 50 k, 100 k"),
        (7e6, Unit.ROWS, "0, 2 M, 4 M, 6 M, 8 M"),
        (0.07, Unit.SECONDS, "0, 20 ms, 40 ms, 60 ms, 80 ms"),
        (55.0, Unit.SECONDS, "0, 15 s, 30 s, 45 s, 1 min"),
        (61.0, Unit.SECONDS, "0, 30 s, 1 min, 1.5 min"),
        (7000.0, Unit.SECONDS, "0, 30 min, 1 h, 1.5 h, 2 h"),
        (1e6, Unit.SECONDS, "0, 5 d, 10 d, 15 d"),
        (1e30, Unit.ROWS, "0, 5e+29, 1e+30"),
    ],
)
def test_ticks(most: float, unit: Unit, texts: str) -> None:
    assert ", ".join(tick_text(tick, unit) for tick in value_ticks(most, unit)) == texts


@pytest.mark.parametrize("unit", Unit)
def test_ticks_are_few_and_reach_the_highest_value(unit: Unit) -> None:
    for number in range(-60, 600):
        most = 1.17**number
        ticks = value_ticks(most, unit)
        assert 3 <= len(ticks) <= 5, most
        assert ticks[0] == 0.0
        assert ticks[-2] < max(most, ticks[1] * 1.0001)
        assert ticks[-1] >= most
        assert math.isfinite(ticks[-1])
        assert len({tick_text(tick, unit) for tick in ticks}) == len(ticks)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, Unit.ROWS, "0 rows"),
        (1.0, Unit.ROWS, "1 row"),
        (1.0, Unit.ROWS_PER_SECOND, "1 rows/s"),
        (12_345.0, Unit.ROWS_PER_SECOND, "12.3 k rows/s"),
        (999.9, Unit.ROWS, "1 k rows"),
        (999_950.0, Unit.ROWS, "1 M rows"),
        (2e15, Unit.ROWS, "2e+15 rows"),
        (0.0, Unit.SECONDS, "0"),
        (0.25, Unit.SECONDS, "250 ms"),
        (0.9999, Unit.SECONDS, "1 s"),
        (59.99, Unit.SECONDS, "1 min"),
        (90.0, Unit.SECONDS, "1.5 min"),
        (7200.0, Unit.SECONDS, "2 h"),
        (129_600.0, Unit.SECONDS, "1.5 d"),
    ],
)
def test_values(value: float, unit: Unit, text: str) -> None:
    assert value_text(value, unit) == text


def test_times() -> None:
    assert [text for _, text in time_ticks(3600.0)] == ["-60 min", "-45 min", "-30 min", "-15 min", "now"]
    assert time_ticks(86_400.0)[1] == (64_800.0, "-18 h")
    assert [ago_text(seconds) for seconds in (59.0, 60.0, 3600.0, 7200.0)] == [
        "now",
        "1 min ago",
        "60 min ago",
        "2 h ago",
    ]
