"""Shows a pipeline while it runs: live tables on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jobpipe.pipelines.states import JobState
from jobpipe.pipelines.supervisor import JobView
from jobpipe.pipelines.topic_watch import SubscriptionView, TopicView

LINE_SECONDS = 10.0  # between two lines of a topic
_STYLES = {
    JobState.FINISHED: "green",
    JobState.FAILED: "red",
    JobState.CANCELED: "red",
    JobState.LOST: "red",
    JobState.BLOCKED: "yellow",
    JobState.RESTARTING: "yellow",
}


class Board(Protocol):
    """What a pipeline shows its state on; a context manager."""

    def __enter__(self) -> Board: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, topics: Sequence[TopicView], jobs: Sequence[JobView]) -> None:
        """Show this state; called about once a second, and once at the end."""


class BoardConsole(Console):
    """A console that says no more when its reader is gone, as ``head``, or ``tee`` at Ctrl-C. Rich's own would exit."""

    def on_broken_pipe(self) -> None:
        """Go on without it; what is left in the file's buffer goes nowhere when the program ends."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, self.file.fileno(), inheritable=False)
        os.close(nowhere)


def open_board(console: Console, title: str, *, plain: bool) -> Board:
    """Return the board that fits the console."""
    lines = plain or not console.is_terminal or console.is_dumb_terminal
    return PlainBoard(console) if lines else LiveBoard(console, title)


class LiveBoard:
    """Two tables that are redrawn in place."""

    def __init__(self, console: Console, title: str) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._title = title
        self._started = time.monotonic()

    def __enter__(self) -> Board:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._live.stop()

    def show(self, topics: Sequence[TopicView], jobs: Sequence[JobView]) -> None:
        """Draw the tables."""
        title = f"{self._title}, {time.monotonic() - self._started:.0f} s"
        tables = [_job_table(title, jobs), *([_topic_table(topics)] if topics else [])]  # a low terminal cuts the last
        self._live.update(Group(*tables), refresh=True)


@dataclass(frozen=True)
class _Shown:
    """What a line has said of a job."""

    at: float
    state: JobState
    attempts: int
    detail: str

    def is_due_after(self, known: _Shown) -> bool:
        """Whether it is to be said, after that: why a job waits now and then, all else at once."""
        if (self.state, self.attempts) != (known.state, known.attempts):
            return True
        return self.detail != known.detail and self.at - known.at >= LINE_SECONDS


class PlainBoard:
    """A line per topic every few seconds, and one for each change of a job; of why it waits every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._shown: dict[str, tuple[float, str]] = {}
        self._jobs: dict[str, _Shown] = {}

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, topics: Sequence[TopicView], jobs: Sequence[JobView]) -> None:
        """Print what is due."""
        now = time.monotonic()
        for view in topics:
            last, state = self._shown.get(view.topic, (0.0, ""))
            if view.state != state or (view.state == "live" and now - last >= LINE_SECONDS):
                self._shown[view.topic] = (now, view.state)
                self._print(_topic_line(view))
        for job in jobs:
            shown, known = _Shown(now, job.state, max(job.attempts, 1), job.detail), self._jobs.get(job.name)
            if known is None or shown.is_due_after(known):
                self._jobs[job.name] = shown
                self._print(f"{job.name}: {_state(job, _rows(job))}")

    def _print(self, text: str) -> None:
        line = f"{time.monotonic() - self._started:4.0f} s  {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _topic_table(topics: Sequence[TopicView]) -> Table:
    table = Table()
    for heading in ("topic", "state"):
        table.add_column(heading)
    for heading in ("rows", "rows/s", "MB/s"):
        table.add_column(heading, justify="right")
    table.add_column("subscription")
    for heading in ("lag batches", "lag rows", "reconnects"):
        table.add_column(heading, justify="right")
    for view in topics:
        numbers = (f"{view.rows:,}", f"{view.rows_per_second:,.0f}", f"{view.bytes_per_second / 1e6:.2f}")
        first = (view.topic, view.waiting or view.state, *numbers)
        lines = [_subscription_cells(line) for line in view.subscriptions] or [("", "", "", "")]
        for index, cells in enumerate(lines):
            row = (*(first if index == 0 else ("",) * len(first)), *cells)
            table.add_row(*map(Text, row), end_section=index == len(lines) - 1)  # Text: no markup is meant
    return table


def _subscription_cells(line: SubscriptionView) -> tuple[str, str, str, str]:
    return line.name, f"{line.lag_batches:,}", f"{line.lag_rows:,}", str(line.reconnects)


def _job_table(title: str, jobs: Sequence[JobView]) -> Table:
    table = Table("job", title=Text(title), title_justify="left")
    for heading in ("rows", "rows/s", "lag rows"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    for job in jobs:
        rows = (f"{job.rows:,}", f"{job.rows_per_second:,.0f}") if job.rows else ("", "")
        lag = "" if job.lag_rows is None else f"{job.lag_rows:,}"
        state = Text(_state(job), style=_STYLES.get(job.state, ""))
        table.add_row(Text(job.name), *map(Text, (*rows, lag)), state)
    return table


def _rows(job: JobView) -> str:
    return f", {job.rows:,} rows, {job.rows_per_second:,.0f} rows/s" if job.rows else ""


def _state(job: JobView, more: str = "") -> str:
    text = f"{job.state}, {job.seconds:.0f} s{more}"
    if job.attempts > 1:
        text += f", attempt {job.attempts}"
    return f"{text}: {job.detail}" if job.detail else text


def _topic_line(view: TopicView) -> str:
    if view.state == "waiting":
        return f"{view.topic}: not there yet"
    if view.state == "away":
        return f"{view.topic}: does not answer"
    head = f"{view.topic}: {view.state}, {view.rows:,} rows, {view.rows_per_second:,.0f} rows/s"
    parts = [f"{head}, {view.bytes_per_second / 1e6:.2f} MB/s"]
    parts += [f"waits: {view.waiting}"] if view.waiting else []
    parts += [
        f"{line.name} {line.lag_batches} batches ({line.lag_rows:,} rows) behind, {line.reconnects} reconnects"
        for line in view.subscriptions
    ]
    return "; ".join(parts)
