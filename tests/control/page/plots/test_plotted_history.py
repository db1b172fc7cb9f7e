"""Which plots a page has, and the time they are of."""

from __future__ import annotations

import pytest

from jobpipe.control.history.history import History
from jobpipe.control.history.series import Line, SeriesKey
from jobpipe.control.page.plots.plotted_history import LEAST, MOST, PlotRange, cut, job_plots, topic_plots

NOW = 1_000_000.0


@pytest.mark.parametrize(("query", "hours"), [({}, 1), ({"hours": "24"}, 24), ({"hours": "7"}, 1), ({"hours": "x"}, 1)])
def test_the_range_is_one_of_two(query: dict[str, str], hours: int) -> None:
    assert PlotRange.of(query, NOW).hours == hours


def test_a_plot_stays_the_same_between_two_slots() -> None:
    """So that it is not sent with each look."""
    assert {PlotRange.of({}, NOW + seconds).now for seconds in (0.1, 5.0, 10.0)} == {NOW + 10.0}


def test_a_job_has_its_rate_and_its_batches() -> None:
    history = History(lambda: NOW)
    history.feed({SeriesKey.read("flights", "report"): 120.0, SeriesKey.read("flights", "other"): 990.0})
    plots = job_plots(history, PlotRange.of({}, NOW), "flights", "report").plots
    assert [plot.caption for plot in plots] == ["rows a second", "time of a micro-batch"]
    assert "120" in plots[0].svg
    assert "990" not in plots[0].svg
    assert "nothing measured yet" in plots[1].svg


def test_subscriptions_are_plotted_by_name_up_to_a_bound() -> None:
    """And how many are not is said."""
    history = History(lambda: NOW)
    names = [f"s{number:02}" for number in reversed(range(MOST + 3))]
    found = topic_plots(history, PlotRange.of({}, NOW), "flights", names)
    assert len(found.plots) == 1 + 2 * MOST
    assert found.plots[1].caption == "s00: lag"
    assert found.left_out == 3


@pytest.mark.parametrize(("known", "slots"), [(0, 360), (100, 260), (359, LEAST), (None, LEAST)])
def test_time_before_anything_was_known_is_left_out(known: int | None, slots: int) -> None:
    """But some is kept, so that a minute does not look like an hour."""
    values = tuple(1.0 if place == known else None for place in range(360))
    line = cut(Line(NOW - 3600, 10.0, values))
    assert len(line.values) == slots
    assert line.start + line.step * len(line.values) == NOW
    assert [value for value in line.values if value is not None] == ([] if known is None else [1.0])


def test_a_short_line_stays() -> None:
    assert cut(Line(NOW, 10.0, ())) == Line(NOW, 10.0, ())
    assert cut(Line(NOW, 10.0, (None, 1.0))) == Line(NOW, 10.0, (None, 1.0))
