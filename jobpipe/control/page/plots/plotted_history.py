"""The plots of a page: how a job, or a topic and its subscriptions, stood over the last hour or day."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from jobpipe.control.history.history import History
from jobpipe.control.history.series import Line, SeriesKey
from jobpipe.control.page.plots.line_plot import line_plot
from jobpipe.control.page.plots.plot_scales import Unit

LEAST = 60  # slots of a plot: ten minutes, or two hours of a day
MOST = 12  # subscriptions of a topic that are plotted
STEP_SECONDS = 10.0  # a plot changes no more often


@dataclass(frozen=True)
class PlotRange:
    """The time that plots are of: so many hours until ``now``, in seconds since 1970."""

    hours: Literal[1, 24]
    now: float

    @classmethod
    def of(cls, query: Mapping[str, str], now: float) -> PlotRange:
        """Return the range that the query of a page's address asks for; by default the last hour."""
        return cls(24 if query.get("hours") == "24" else 1, math.ceil(now / STEP_SECONDS) * STEP_SECONDS)


@dataclass(frozen=True)
class Plot:
    """A plot with its caption."""

    caption: str
    svg: Markup


@dataclass(frozen=True)
class Plots:
    """The plots of a page, and the range they are of."""

    hours: int
    plots: tuple[Plot, ...]
    left_out: int = 0


def job_plots(history: History, of: PlotRange, pipeline: str, job: str) -> Plots:
    """Return how fast a job read, and how long its micro-batches took."""
    wanted = (
        ("rows a second", SeriesKey.read(pipeline, job), Unit.ROWS_PER_SECOND),
        ("time of a micro-batch", SeriesKey.batch_seconds(pipeline, job), Unit.SECONDS),
    )
    return Plots(of.hours, tuple(_plot(history, of, *each) for each in wanted))


def topic_plots(history: History, of: PlotRange, topic: str, subscriptions: Iterable[str]) -> Plots:
    """Return how fast a topic was published, and the lags of its subscriptions, in time and in rows."""
    names = sorted(subscriptions)
    wanted = [("published, rows a second", SeriesKey.published(topic), Unit.ROWS_PER_SECOND)]
    for name in names[:MOST]:
        wanted.append((f"{name}: lag", SeriesKey.lag_seconds(topic, name), Unit.SECONDS))
        wanted.append((f"{name}: lag in rows", SeriesKey.lag_rows(topic, name), Unit.ROWS))
    plots = tuple(_plot(history, of, *each) for each in wanted)
    return Plots(of.hours, plots, max(0, len(names) - MOST))


def _plot(history: History, of: PlotRange, caption: str, key: SeriesKey, unit: Unit) -> Plot:
    line = cut(history.line(key, of.hours))
    return Plot(caption, Markup(line_plot(line, unit=unit, title=caption, now=of.now)))  # noqa: S704 - it escapes


def cut(line: Line) -> Line:
    """Return a line without the time before anything was known, of which it keeps what makes :data:`LEAST` slots."""
    known = [place for place, value in enumerate(line.values) if value is not None]
    first = min(known[0] if known else len(line.values), max(0, len(line.values) - LEAST))
    return Line(line.start + first * line.step, line.step, line.values[first:])
