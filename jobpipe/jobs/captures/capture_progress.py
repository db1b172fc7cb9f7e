"""How a capture stands, as lines for people."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from jobpipe.jobs.monitor.throughput import Throughput
from jobpipe.pipelines.plugins.capture_source import CaptureProgress
from jobpipe.plural import counted

LINE_SECONDS = 5.0  # between two lines
QUIET_SECONDS = 60.0  # between two lines of a capture that stands as it stood


class ProgressLines:
    """Lines of one capture: how far its tables are read; then how many changes come, and how much is left.

    Args:
        name: of the capture.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._all = Throughput()
        self._of_tables: dict[str, Throughput] = {}
        self._said = ""
        self._said_at = clock() - LINE_SECONDS

    def line(self, status: CaptureProgress) -> str | None:
        """Return the line that is due, None if none is; to be called each second or so."""
        now = self._clock()
        rate, _ = self._all.add(now, status.rows)
        tables = self._tables(status, now)
        text = f"{tables or 'following changes'}; {counted(status.rows, 'row')} published, {max(0, round(rate)):,}/s"
        text += f", {megabytes(status.behind_bytes)} of the log to go" if status.behind_bytes else ""
        waited = now - self._said_at
        if waited < LINE_SECONDS or (text == self._said and waited < QUIET_SECONDS):
            return None
        self._said, self._said_at = text, now
        return f"capture {self._name}: {text}"

    def _tables(self, status: CaptureProgress, now: float) -> str:
        """Return how far the table is that is being read, and how many are left."""
        rates = {
            table: self._of_tables.setdefault(table, Throughput()).add(now, rows)[0]
            for table, (rows, _) in status.tables.items()
        }
        if not rates:
            return ""
        table = max(rates, key=lambda each: (rates[each], status.tables[each][0]))  # one at a time is read
        rows, estimate = status.tables[table]
        text = f"reading {table}: {counted(rows, 'row')}"
        if estimate > rows:
            text += f" of about {round(estimate):,}"
        if estimate > rows and rates[table] >= 1:
            text += f", {duration((estimate - rows) / rates[table])} left"
        more = len(rates) - 1
        return f"{text}, and {counted(more, 'more table')}" if more else text


def megabytes(size: int) -> str:
    """Return a number of bytes for people.

    >>> megabytes(2_560_000)
    '2.6 MB'
    """
    return f"{size:,} B" if size < 100_000 else f"{size / 1e6:,.1f} MB"


def duration(seconds: float) -> str:
    """Return a time for people.

    >>> duration(3725.0)
    '1 h 3 min'
    """
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
