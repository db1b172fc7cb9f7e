"""The scales of plots: nice ticks, and values as people say them. Pure."""

from __future__ import annotations

import math
from enum import StrEnum

MOST_INTERVALS = 4  # between the ticks of an axis
LEAST_STEP = 0.001
MOST_NAMED = 1e15  # a larger number has an exponent
TIME_INTERVALS = 4
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_SIZES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_SPANS = (("d", DAY), ("h", HOUR), ("min", MINUTE), ("s", 1.0))


class Unit(StrEnum):
    """What the values of a plot are."""

    ROWS = "rows"
    ROWS_PER_SECOND = "rows/s"
    SECONDS = "s"


def value_ticks(most: float, unit: Unit) -> tuple[float, ...]:
    """Return three to five ticks from 0 to ``most`` or a little more."""
    least = 1.0 if unit is Unit.ROWS or not most else LEAST_STEP
    step = max(least, _step(most / MOST_INTERVALS, unit))
    return tuple(step * number for number in range(max(2, math.ceil(most / step)) + 1))


def _step(least: float, unit: Unit) -> float:
    """Return the smallest nice step that is not shorter; one is at most 2.5 times as long as the one before."""
    if unit is Unit.SECONDS and 1 < least <= DAY:
        return float(next(step for step in _TIME_STEPS if step >= least))
    scale = DAY if unit is Unit.SECONDS and least > DAY else 1.0
    if least / scale <= LEAST_STEP:
        return LEAST_STEP
    exponent = math.floor(math.log10(least / scale))
    nice = (float(f"{each}e{exponent}") * scale for each in (1, 2, 5, 10))
    return next(step for step in nice if step >= least)


def value_text(value: float, unit: Unit) -> str:
    """Return a value with its unit, as ``12.3 k rows/s`` or ``1.5 min``."""
    if unit is Unit.SECONDS:
        return tick_text(value, unit)
    number = tick_text(value, unit)
    return f"{number} row" if unit is Unit.ROWS and number == "1" else f"{number} {unit}"


def tick_text(value: float, unit: Unit) -> str:
    """Return a value without the unit of rows, as ``50 k`` or ``30 s``: three digits of it."""
    rounded = float(f"{value:.3g}")
    if not rounded:
        return "0"
    if unit is Unit.SECONDS:
        return _span_text(value)
    if rounded >= MOST_NAMED:
        return f"{rounded:g}"
    name, size = next(((name, size) for name, size in _SIZES if rounded >= size), ("", 1.0))
    return f"{rounded / size:.3g} {name}".rstrip()


def _span_text(seconds: float) -> str:
    """Return a span of time by the largest unit of which it has at least one."""
    if float(f"{seconds:.3g}") < 1:
        return f"{seconds * 1000:.3g} ms"
    # What rounds to 60 of a unit is one of the next: 59.99 s is 1 min.
    name, size = next((name, size) for name, size in _SPANS if float(f"{seconds:.3g}") >= size)
    return f"{seconds / size:.3g} {name}"


def time_ticks(seconds: float) -> tuple[tuple[float, str], ...]:
    """Return ticks as seconds before now, and what to write there: ``-60 min`` to ``now``."""
    ago = (seconds * number / TIME_INTERVALS for number in range(TIME_INTERVALS, 0, -1))
    name, size = ("min", MINUTE) if seconds <= 2 * HOUR else ("h", HOUR)
    return (*((each, f"-{round(each / size, 1):g} {name}") for each in ago), (0.0, "now"))


def ago_text(seconds: float) -> str:
    """Return how long ago something was."""
    if seconds < MINUTE:
        return "now"
    if seconds < 2 * HOUR:
        return f"{seconds / MINUTE:.0f} min ago"
    return f"{seconds / HOUR:.0f} h ago"
