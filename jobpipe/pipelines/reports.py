"""What an attempt tells the program of this host that started it: how far it is, and why it failed."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobpipe.pipelines.places import write_private

MAX_COUNT = 2**53 - 1
MAX_ERROR = 500
_MOST_BYTES = 16 * 1024


class Report(BaseModel):
    """The newest state of an attempt.

    Attributes:
        batches, rows: what it has done.
        error: the line of the exception that ended it; "" before, and without one. It may hold values of rows, so it
            stays in a file that only its owner can read, and is not in the registry.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    batches: int = Field(default=0, ge=0, le=MAX_COUNT)
    rows: int = Field(default=0, ge=0, le=MAX_COUNT)
    error: str = Field(default="", max_length=MAX_ERROR)


class Reporter:
    """Writes the reports of an attempt.

    Args:
        path: the file of the newest one; None: none is wanted, as by a program on another host.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def tell(self, batches: int, rows: int, error: str = "") -> None:
        """Replace the report. Where that is not possible the old one stays: the work goes on."""
        if self._path is None:
            return
        line = next((line.strip() for line in error.splitlines() if line.strip()), "")[:MAX_ERROR]
        with contextlib.suppress(OSError):
            report = Report(batches=batches, rows=rows, error=line)
            write_private(self._path, report.model_dump_json().encode(), durable=False)  # news of the moment


def read_report(path: Path) -> Report | None:
    """Return the newest report, None if there is none yet, or it cannot be read."""
    try:
        with path.open("rb") as file:
            return Report.model_validate_json(file.read(_MOST_BYTES))
    except (OSError, ValidationError):
        return None
