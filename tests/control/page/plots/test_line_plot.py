"""The markup of a plot: what is drawn, and what no value and no title can do."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

from jobpipe.control.history.series import Line
from jobpipe.control.page.plots import line_plot as module
from jobpipe.control.page.plots.line_plot import BOTTOM, LEFT, RIGHT, TOP, line_plot
from jobpipe.control.page.plots.plot_scales import Unit

NOW = 1.8e9


def plot(values: Sequence[float | None], unit: Unit = Unit.ROWS, title: str = "orders", *, late: float = 0.0) -> Any:
    """Return the tree of a plot of slots of 10 s, which end at ``late`` seconds before now."""
    line = Line(NOW - late - 10.0 * len(values), 10.0, tuple(values))
    return ElementTree.fromstring(line_plot(line, unit=unit, title=title, now=NOW))  # noqa: S314 - our own


def called(svg: Any, name: str) -> list[Any]:
    """Return the elements that have a class."""
    return [each for each in svg.iter() if name in each.get("class", "").split()]


def parts(svg: Any, name: str = "plot-line") -> list[list[tuple[float, float]]]:
    """Return the points of each part of a path."""
    found = [each.get("d") for each in called(svg, name)]
    pieces = [piece for path in found for piece in path.split("M") if piece]
    return [[(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", piece)] for piece in pieces]


def texts(svg: Any, name: str = "plot-text") -> list[str]:
    return [each.text for each in called(svg, name)]


def test_a_line_and_the_area_below_it() -> None:
    svg = plot([0.0, 100.0, 50.0, 0.0])
    middle = (TOP + BOTTOM) / 2
    width = (RIGHT - LEFT) / 8
    xs = [round(LEFT + width * number, 1) for number in (1, 3, 5, 7)]
    expected = list(zip(xs, [BOTTOM, TOP, middle, BOTTOM], strict=True))
    assert parts(svg) == [expected]
    assert parts(svg, "plot-area") == [[(xs[0], BOTTOM), *expected, (xs[-1], BOTTOM)]]
    assert texts(svg, "plot-tick") == ["0", "50", "100", "-0.7 min", "-0.5 min", "-0.3 min", "-0.2 min", "now"]
    assert svg.get("viewBox") == "0 0 460 150"
    assert svg.get("width") is None


def test_gaps_are_not_bridged_and_a_value_alone_is_a_dot() -> None:
    svg = plot([1.0, 2.0, None, None, 2.0, None, 2.0, 1.0, 1.0])
    assert [len(part) for part in parts(svg)] == [2, 3]
    assert [len(part) for part in parts(svg, "plot-area")] == [4, 5]
    (dot,) = called(svg, "plot-dot")
    assert (dot.get("cx"), dot.get("cy")) == (f"{(LEFT + RIGHT) / 2:g}", f"{TOP:g}")


def test_the_newest_and_the_highest_value() -> None:
    svg = plot([3.0, 98_000.0, 12_345.0], Unit.ROWS_PER_SECOND)
    assert texts(svg, "plot-newest") == ["newest 12.3 k rows/s"]
    assert texts(svg, "plot-peak-text") == ["highest 98 k rows/s"]
    (peak,) = called(svg, "plot-peak")
    assert (float(peak.get("cx")), float(peak.get("cy"))) == parts(svg)[0][1]
    assert svg.find("desc").text == "Newest: 12.3 k rows/s. Highest: 98 k rows/s, now."


def test_a_newest_value_that_is_old_says_so() -> None:
    assert texts(plot([1.0, None, None, None]), "plot-newest") == ["newest 1 row, now"]
    assert texts(plot([1.0, None, None]), "plot-newest") == ["newest 1 row"]
    assert texts(plot([1.0, *31 * [None]]), "plot-newest") == ["newest 1 row, 5 min ago"]


@pytest.mark.parametrize(("number", "anchor"), [(0, "start"), (180, "middle"), (359, "end")])
def test_the_text_of_the_highest_value_stays_inside(number: int, anchor: str) -> None:
    values = 360 * [1.0]
    values[number] = 2.0
    (text,) = called(plot(values), "plot-peak-text")
    assert text.get("text-anchor") == anchor
    assert LEFT <= float(text.get("x")) <= RIGHT


@pytest.mark.parametrize("values", [[], [None], 360 * [None], [math.nan, math.inf, -math.inf]])
def test_nothing_was_measured(values: list[float | None]) -> None:
    svg = plot(values)
    assert svg.get("class") == "plot plot-empty"
    assert texts(svg, "plot-nothing") == ["nothing measured yet"]
    assert svg.find("desc").text == "nothing measured yet"
    assert not called(svg, "plot-line")


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [1e30, 1.0], [1.7e308, 1.0], [5e-324, 0.0], [-5.0, 1.0], [math.nan, 1.0, 2.0]]
)
def test_any_value_is_drawn_inside(values: list[float], unit: Unit) -> None:
    svg = plot(values, unit)
    numbers = re.findall(r"[\d.e+-]+|nan|inf", " ".join(each.get("d", "") for each in svg.iter()))
    assert numbers
    assert all(re.fullmatch(r"\d{1,3}(\.\d)?", number) for number in numbers)
    for x, y in (point for part in parts(svg) for point in part):
        assert LEFT <= x <= RIGHT
        assert TOP <= y <= BOTTOM


def test_what_is_not_of_the_time_axis_is_left_out() -> None:
    """A clock that was set back leaves slots of the future; one that was set ahead, a line that has ended."""
    values = [1.0, 2.0, 3.0, 4.0]
    assert [len(part) for part in parts(plot(values, late=-25.0))] == [2]
    assert [len(part) for part in parts(plot(values, late=25.0))] == [2]
    assert called(plot(values, late=1e6), "plot-nothing")
    assert all(LEFT <= x <= RIGHT for x, _ in parts(plot(values, late=-10.0))[0])


def test_a_title_of_any_characters_is_a_text() -> None:
    title = '</title><script>alert("1")</script>&amp;\'\u00fc\U0001f600'
    svg = plot([1.0, 2.0], title=title + "\x00\ud800\n")
    shown = title + 3 * "\N{REPLACEMENT CHARACTER}"
    assert (svg.find("title").text, svg.get("aria-label"), svg.get("role")) == (shown, shown, "img")
    assert not list(svg.iter("script"))
    assert svg[0].tag == "title"


def test_the_policy_of_the_server_lets_it_be_drawn() -> None:
    """No style and no handler in attributes; every class is one that the module names."""
    for values in ([], [1.0, 2.0, None, 1.0]):
        svg = plot(values)
        for each in svg.iter():
            assert each.tag in {"svg", "title", "desc", "path", "line", "circle", "text"}
            assert not {name for name in each.attrib if name in {"style", "stroke", "href"} or name.startswith("on")}
            assert each.get("fill", "none") == "none"
            assert set(each.get("class", "").split()) <= set(re.findall(r"plot[a-z-]*", module.__doc__ or ""))
