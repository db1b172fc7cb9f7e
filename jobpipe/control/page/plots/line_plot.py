"""The plot of a line over time, as SVG. Pure.

Colours are for a style sheet, by these classes; the markup has no styles of its own, and no script:

plot                the svg itself; ``plot-empty`` besides, if nothing was measured
plot-grid           the lines of the value axis
plot-axis           the line of the time axis
plot-text           every text; ``plot-tick`` besides for those of axes, ``plot-newest``, ``plot-peak-text`` and
                    ``plot-nothing`` for the newest value, the highest one, and what an empty plot says
plot-area           below the line
plot-line           the line
plot-dot            a value that has gaps on both sides
plot-peak           the mark of the highest value
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from jobpipe.control.history.series import Line
from jobpipe.control.page.plots.plot_scales import Unit, ago_text, tick_text, time_ticks, value_text, value_ticks

WIDTH, HEIGHT = 460.0, 150.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 450.0, 34.0, 128.0  # of the area that has the line
TEXT_SIZE = 11
DOT = 1.5
PEAK = 3.0
FRESH_SLOTS = 3  # a newest value that is older says how old it is
MOST = 1e300  # ticks above it would not be finite
NOTHING = "nothing measured yet"


@dataclass(frozen=True)
class _Point:
    """A known value: how many seconds ago, and where it is drawn."""

    ago: float
    value: float
    x: float
    y: float


def line_plot(line: Line, *, unit: Unit, title: str, now: float) -> str:
    """Return the markup of a line with an area below it.

    Args:
        title: what is measured, for screen readers and as a tooltip; any characters.
        now: seconds since 1970, the right end of the time axis.
    """
    seconds = line.step * len(line.values)
    values = [_known(value) for value in line.values]
    top = max((value for value in values if value is not None), default=0.0)
    ticks = value_ticks(top, unit)
    parts = list(_pieces(line, values, now, ticks[-1]))
    points = [point for part in parts for point in part]
    if not points:
        return _svg(title, NOTHING, [*_time_axis(seconds), _nothing()], " plot-empty")
    peak = max(points, key=lambda point: point.value)
    newest = points[-1]
    newest_text = value_text(newest.value, unit)
    if newest.ago > FRESH_SLOTS * line.step:
        newest_text += f", {ago_text(newest.ago)}"
    peak_text = value_text(peak.value, unit)
    summary = f"Newest: {newest_text}. Highest: {peak_text}, {ago_text(peak.ago)}."
    drawn = [
        *_value_axis(ticks, unit),
        *_time_axis(seconds),
        *_curve(parts),
        f'<circle class="plot-peak" cx="{_number(peak.x)}" cy="{_number(peak.y)}" r="{PEAK:g}"/>',
        _peak_text(peak, f"highest {peak_text}"),
        _text(LEFT, TEXT_SIZE + 1, f"newest {newest_text}", "plot-newest"),
    ]
    return _svg(title, summary, drawn)


def _known(value: float | None) -> float | None:
    """Return a value that can be drawn; None for one that cannot."""
    return None if value is None or not math.isfinite(value) else min(max(value, 0.0), MOST)


def _pieces(line: Line, values: Sequence[float | None], now: float, top: float) -> Iterator[list[_Point]]:
    """Yield the parts of the line between gaps; what is not of the time axis is a gap."""
    seconds = line.step * len(values)
    part: list[_Point] = []
    for number, value in enumerate(values):
        ago = now - (line.start + (number + 0.5) * line.step)  # of the middle of the slot
        if value is not None and -line.step / 2 <= ago <= seconds + line.step / 2:
            shown = min(max(ago, 0.0), seconds)
            x = RIGHT - (RIGHT - LEFT) * shown / seconds
            part.append(_Point(shown, value, x, BOTTOM - (BOTTOM - TOP) * (value / top)))
        elif part:
            yield part
            part = []
    if part:
        yield part


def _curve(parts: Sequence[Sequence[_Point]]) -> Iterator[str]:
    drawn = [part for part in parts if len(part) > 1]
    if drawn:
        lines = [" L".join(f"{_number(point.x)} {_number(point.y)}" for point in part) for part in drawn]
        floor = _number(BOTTOM)
        areas = (
            f"M{_number(part[0].x)} {floor} L{line} L{_number(part[-1].x)} {floor} Z"
            for part, line in zip(drawn, lines, strict=True)
        )
        yield f'<path class="plot-area" d="{" ".join(areas)}"/>'
        yield f'<path class="plot-line" fill="none" d="{" ".join(f"M{line}" for line in lines)}"/>'
    for part in parts:
        if len(part) == 1:
            yield f'<circle class="plot-dot" cx="{_number(part[0].x)}" cy="{_number(part[0].y)}" r="{DOT:g}"/>'


def _value_axis(ticks: Sequence[float], unit: Unit) -> Iterator[str]:
    for tick in ticks:
        y = BOTTOM - (BOTTOM - TOP) * (tick / ticks[-1])
        if tick:
            yield _rule("plot-grid", y)
        yield _text(LEFT - 6, y + 4, tick_text(tick, unit), "plot-tick", "end")


def _time_axis(seconds: float) -> Iterator[str]:
    yield _rule("plot-axis", BOTTOM)
    for ago, text in time_ticks(seconds) if seconds > 0 else ():
        x = RIGHT - (RIGHT - LEFT) * ago / seconds
        yield _text(x, BOTTOM + TEXT_SIZE + 5, text, "plot-tick", "end" if not ago else "middle")


def _peak_text(peak: _Point, text: str) -> str:
    anchor = "start" if peak.x < LEFT + 70 else "end" if peak.x > RIGHT - 70 else "middle"
    return _text(peak.x, peak.y - PEAK - 4, text, "plot-peak-text", anchor)


def _nothing() -> str:
    return _text((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2, NOTHING, "plot-nothing", "middle")


def _rule(name: str, y: float) -> str:
    return f'<line class="{name}" x1="{LEFT:g}" y1="{_number(y)}" x2="{RIGHT:g}" y2="{_number(y)}"/>'


def _text(x: float, y: float, text: str, name: str, anchor: str = "start") -> str:
    place = f'x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"'
    return f'<text class="plot-text {name}" {place}>{escape(text)}</text>'


def _svg(title: str, summary: str, drawn: Sequence[str], more: str = "") -> str:
    shown = escape("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in title))
    head = f'<svg class="plot{more}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{shown}"'
    return f'{head} font-size="{TEXT_SIZE}"><title>{shown}</title><desc>{escape(summary)}</desc>{"".join(drawn)}</svg>'


def _number(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{round(value, 1):g}"
