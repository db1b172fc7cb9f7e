"""What an attempt tells the program of this host that started it: how far it is, and why it failed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobpipe.pipelines.model.paths import write_private
from jobpipe.store.subscriptions.hop_times import TimeHistogram

MAX_COUNT = 2**53 - 1
MAX_ERROR = 500
_MOST_BYTES = 16 * 1024


class Report(BaseModel):
    """The newest state of an attempt.

    Attributes:
        batches, rows: what it has done.
        error: the line of the exception that ended it; "" before, and without one. It may hold values of rows, so it
            stays in a file that only its owner can read, and is not in the registry.
        durations: its micro-batches by how long each took, in the buckets of
            :mod:`jobpipe.store.subscriptions.hop_times`; () of a flow, which has none.
        duration_seconds: the sum of those times.
        started: its session is there, and its work has begun.
        exit_code: of its process, which ends now; None before. A program that did not start it learns it here alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    batches: int = Field(default=0, ge=0, le=MAX_COUNT)
    rows: int = Field(default=0, ge=0, le=MAX_COUNT)
    error: str = Field(default="", max_length=MAX_ERROR)
    durations: tuple[Annotated[int, Field(ge=0, le=MAX_COUNT)], ...] = Field(default=(), max_length=64)
    duration_seconds: float = Field(default=0.0, ge=0, le=1e12, allow_inf_nan=False)
    started: bool = False
    exit_code: int | None = Field(default=None, ge=0, le=255)


class Reporter:
    """Writes the reports of an attempt.

    Args:
        path: the file of the newest one; None: none is wanted, as by a program on another host.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._newest = Report()

    def report(self, batches: int, rows: int, error: str = "", durations: TimeHistogram | None = None) -> None:
        """Replace the report. Where that is not possible the old one stays: the work goes on."""
        line = next((line.strip() for line in error.splitlines() if line.strip()), "")[:MAX_ERROR]
        before = self._newest
        counts, seconds = before.durations, before.duration_seconds
        if durations is not None:
            counts, seconds = tuple(durations.counts), durations.seconds
        report = Report(
            batches=batches,
            rows=rows,
            error=line,
            durations=counts,
            duration_seconds=seconds,
            started=before.started,
        )
        self._write(report, durable=False)  # it is of the moment

    def start(self) -> None:
        """Tell that the session is there, and the work begins."""
        self._write(self._newest.model_copy(update={"started": True}), durable=False)

    def end(self, exit_code: int) -> None:
        """Add the exit code, as the last act of the attempt; not to a report that was removed: its reader is done."""
        if self._path is not None and self._path.exists():
            self._write(self._newest.model_copy(update={"exit_code": exit_code}), durable=True)

    def _write(self, report: Report, *, durable: bool) -> None:
        self._newest = report
        if self._path is not None:
            with contextlib.suppress(OSError):
                write_private(self._path, report.model_dump_json().encode(), durable=durable)


def read_report(path: Path) -> Report | None:
    """Return the newest report, None if there is none yet, or it cannot be read."""
    try:
        with path.open("rb") as file:
            return Report.model_validate_json(file.read(_MOST_BYTES))
    except (OSError, ValidationError):
        return None
