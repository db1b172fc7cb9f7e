"""Shows a pipeline while it runs: live tables on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jobpipe.jobs.foreground.foreground_jobs import JobView
from jobpipe.jobs.monitor.topic_poller import SubscriptionView, TopicView
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.plural import counted

LINE_SECONDS = 10.0  # between two lines of why a job waits
SUMMARY_SECONDS = 60.0
WIDE = 120  # columns of a terminal that shows all there is
_STYLES = {
    JobState.FINISHED: "green",
    JobState.FAILED: "red",
    JobState.CANCELED: "red",
    JobState.LOST: "red",
    JobState.BLOCKED: "yellow",
    JobState.RESTARTING: "yellow",
}


class ProgressDisplay(Protocol):
    """What a pipeline shows its state on; a context manager."""

    def __enter__(self) -> ProgressDisplay: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, topics: Sequence[TopicView], jobs: Sequence[JobView]) -> None:
        """Show this state; called about once a second, and once at the end."""


class DisplayConsole(Console):
    """A console that says no more when its reader is gone, as ``head``, or ``tee`` at Ctrl-C. Rich's own would exit.

    With NO_COLOR in the environment it has no styles at all; Rich's own would keep bold.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{"color_system": None if os.environ.get("NO_COLOR") else "auto", **arguments})

    def on_broken_pipe(self) -> None:
        """Go on without it; what is left in the file's buffer goes nowhere when the program ends."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, self.file.fileno(), inheritable=False)
        os.close(nowhere)


def open_display(console: Console, title: str, *, plain: bool) -> ProgressDisplay:
    """Return the display that fits the console."""
    lines = plain or not console.is_terminal or console.is_dumb_terminal
    return LineDisplay(console) if lines else LiveDisplay(console, title)


class LiveDisplay:
    """Two tables that are redrawn in place."""

    def __init__(self, console: Console, title: str) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._title = title
        self._started = time.monotonic()

    def __enter__(self) -> ProgressDisplay:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._live.stop()

    def show(self, topics: Sequence[TopicView], jobs: Sequence[JobView]) -> None:
        title = f"{self._title}, {time.monotonic() - self._started:.0f} s"
        tables = [_job_table(title, jobs)]
        if topics:
            tables.append(_topic_table(topics, self._live.console.width))  # a low terminal cuts the last
        self._live.update(Group(*tables), refresh=True)


@dataclass(frozen=True)
class _Shown:
    """What a line has said of a job."""

    at: float
    state: str
    attempts: int
    detail: str

    def is_due_after(self, known: _Shown) -> bool:
        """Whether it is to be said, after that: why a job waits now and then, all else at once."""
        if (self.state, self.attempts) != (known.state, known.attempts):
            return True
        return bool(self.detail) and self.detail != known.detail and self.at - known.at >= LINE_SECONDS


class LineDisplay:
    """A line for each change of a topic or a job, of why a job waits every few seconds, and a summary each minute."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = self._summed = time.monotonic()
        self._topics: dict[str, tuple[str, bool]] = {}  # state, and whether it waits, as last printed
        self._jobs: dict[str, _Shown] = {}

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, topics: Sequence[TopicView], jobs: Sequence[JobView]) -> None:
        now = time.monotonic()
        for view in topics:
            state = (view.state, view.waiting is not None)
            if self._topics.get(view.topic) != state:
                self._topics[view.topic] = state
                self._print(_topic_line(view))
        for job in jobs:
            shown, known = _Shown(now, _word(job), max(job.attempts, 1), job.detail), self._jobs.get(job.name)
            if known is None or shown.is_due_after(known):
                self._jobs[job.name] = shown
                self._print(f"job {job.name}: {_state(job, _rows(job))}")
        if now - self._summed >= SUMMARY_SECONDS:
            self._summed = now
            self._print(_summary(topics, jobs))

    def _print(self, text: str) -> None:
        line = f"{time.monotonic() - self._started:4.0f} s  {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _topic_table(topics: Sequence[TopicView], width: int) -> Table:
    """Return the topics with their subscriptions; on a narrow terminal without columns that matter less."""
    wide = width >= WIDE
    names = [view.topic for view in topics]
    prefix = "" if wide else common_prefix(names)
    readers = "" if wide else common_prefix([line.name for view in topics for line in view.subscriptions])
    table = Table()
    table.add_column(f"topic {prefix}…" if prefix else "topic", overflow="fold")
    table.add_column("state", overflow="fold")
    for heading in ("rows", "rows/s", *(("MB/s",) if wide else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(f"subscription {readers}…" if readers else "subscription", overflow="fold")
    for heading in ("lag batches", "lag rows", "reconnects") if wide else ("lag rows",):
        table.add_column(heading, justify="right", no_wrap=True)
    for view in topics:
        numbers = [f"{view.rows:,}", f"{view.rows_per_second:,.0f}"]
        numbers += [f"{view.bytes_per_second / 1e6:.2f}"] if wide else []
        first = (view.topic.removeprefix(prefix), view.waiting or view.state, *numbers)
        lines = [_subscription_cells(line, readers, wide=wide) for line in view.subscriptions]
        for index, cells in enumerate(lines or [()]):
            row = (*(first if index == 0 else ("",) * len(first)), *cells)
            table.add_row(*map(Text, row), end_section=index == max(0, len(lines) - 1))  # Text: no markup is meant
    return table


def common_prefix(names: Sequence[str]) -> str:
    """Return what all names begin with, up to a dot; "" of one name alone.

    >>> common_prefix(["dev.shop.orders", "dev.shop.bad-orders"])
    'dev.shop.'
    """
    folders = [name.split(".")[:-1] for name in set(names)]
    shared: list[str] = []
    for parts in zip(*folders, strict=False) if len(folders) > 1 else ():
        if len(set(parts)) > 1:
            break
        shared.append(f"{parts[0]}.")
    return "".join(shared)


def _subscription_cells(line: SubscriptionView, prefix: str, *, wide: bool) -> tuple[str, ...]:
    name = line.name.removeprefix(prefix)
    if not wide:
        return name, f"{line.lag_rows:,}"
    return name, f"{line.lag_batches:,}", f"{line.lag_rows:,}", str(line.reconnects)


def _job_table(title: str, jobs: Sequence[JobView]) -> Table:
    table = Table(title=Text(title), title_justify="left")
    table.add_column("job", overflow="fold")
    for heading in ("rows read", "rows/s", "lag rows"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for job in jobs:
        rows = (f"{job.rows:,}", f"{job.rows_per_second:,.0f}") if job.rows else (_without_rows(job), "-")
        lag = "-" if job.lag_rows is None else f"{job.lag_rows:,}"
        state = Text(_state(job), style=_STYLES.get(job.state, ""))
        table.add_row(Text(job.name), *map(Text, (*rows, lag)), state)
    return table


def _without_rows(job: JobView) -> str:
    """Return what is known of a job whose rows are not counted, such as a flow."""
    return counted(job.batches, "batch") if job.batches else "-"


def _rows(job: JobView) -> str:
    if job.rows:
        return f", {counted(job.rows, 'row')} read, {_rate(job.rows_per_second)}"
    return f", {counted(job.batches, 'batch')}" if job.batches else ""


def _rate(rows_per_second: float) -> str:
    return f"{counted(round(rows_per_second), 'row')}/s"


def _word(job: JobView) -> str:
    """Return its state, and STARTING until its Spark is there."""
    return "STARTING" if job.starting else str(job.state)


def _state(job: JobView, more: str = "") -> str:
    text = f"{_word(job)}, {job.seconds:.0f} s{more}"
    if job.attempts > 1:
        text += f", attempt {job.attempts}"
    return f"{text}: {job.detail}" if job.detail else text


def _topic_line(view: TopicView) -> str:
    if view.state == "waiting":
        return f"topic {view.topic}: not there yet"
    if view.state == "away":
        return f"topic {view.topic}: does not answer"
    head = f"topic {view.topic}: {view.state}, {counted(view.rows, 'row')}, {_rate(view.rows_per_second)}"
    parts = [f"{head}, waits: {view.waiting}" if view.waiting else head]
    parts += [_lag_text(line) for line in view.subscriptions if line.lag_batches]
    return "; ".join(parts)


def _lag_text(line: SubscriptionView) -> str:
    return f"{line.name} is {counted(line.lag_batches, 'batch')} ({counted(line.lag_rows, 'row')}) behind"


def _summary(topics: Sequence[TopicView], jobs: Sequence[JobView]) -> str:
    """Return how all stands: what flows, and which subscriptions lag."""
    running = sum(job.state is JobState.RUNNING and not job.starting for job in jobs)
    parts = [f"{running} of {counted(len(jobs), 'job')} RUNNING"]
    flowing = (view for view in topics if view.rows)
    parts += [f"topic {view.topic} {counted(view.rows, 'row')}, {_rate(view.rows_per_second)}" for view in flowing]
    parts += [_lag_text(line) for view in topics for line in view.subscriptions if line.lag_batches]
    return "; ".join(parts)
