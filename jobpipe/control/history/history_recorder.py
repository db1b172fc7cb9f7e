"""Feeds the history with looks at topics and jobs, and keeps it in its file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from jobpipe.control.history.history import History
from jobpipe.control.history.history_file import read_history, write_history
from jobpipe.control.history.look_samples import JobReports, Look, look_samples
from jobpipe.control.periodic_thread import PeriodicThread
from jobpipe.errors import JobpipeError
from jobpipe.metrics.metric_samples import TopicsSnapshot

LOOK_SECONDS = 10.0
DEAR_SECONDS = 0.5  # a snapshot that takes longer is taken less often
DEAR_SHARE = 0.03  # of the time, for such snapshots
LATE_SECONDS = 10.0  # a look that comes later than that after its time stands for its own slot alone
SAVE_SECONDS = 300.0

log = logging.getLogger(__name__)


class HistoryRecorder(PeriodicThread):
    """Looks every 10 s, and writes the file every 5 minutes and at the end.

    Args:
        file: of the history.
        snapshot: returns how topics stand.
        reports: returns what the present attempts of jobs have reported.
        monotonic: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        history: History,
        file: Path,
        snapshot: Callable[[], TopicsSnapshot],
        reports: Callable[[], JobReports],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("history", LOOK_SECONDS)
        self._history = history
        self._file = file
        self._snapshot = snapshot
        self._reports = reports
        self._monotonic = monotonic
        self._before: Look | None = None
        self._saved_at = monotonic()

    def start(self) -> None:
        """Go on with what the file has; the time since it was written is a gap."""
        stored = read_history(self._file)
        if stored is not None:
            self._history.restore(stored)
        super().start()

    def work(self) -> None:
        """Look once, and write the file if it is time."""
        self._look()
        if self._monotonic() - self._saved_at >= SAVE_SECONDS:
            self._save()

    def close(self) -> None:
        """End, and write the file."""
        super().close()
        self._save()

    def _look(self) -> None:
        before, self._before = self._before, None  # this look may fail
        planned, self._seconds = self._seconds, LOOK_SECONDS
        try:
            snapshot = self._snapshot()
            look = Look(self._monotonic(), snapshot.topics, self._job_reports())
        except JobpipeError as error:
            log.info("history: %s", error)
            return
        if snapshot.error is not None:
            log.info("history without topics: %s", snapshot.error)
        elif snapshot.seconds > DEAR_SECONDS:
            self._seconds = max(LOOK_SECONDS, snapshot.seconds / DEAR_SHARE)
        seconds = 0.0 if before is None else look.at - before.at
        self._history.feed(look_samples(look, before), seconds if seconds <= planned + LATE_SECONDS else 0.0)
        self._before = look

    def _job_reports(self) -> JobReports:
        try:
            return self._reports()
        except JobpipeError as error:  # the store cannot be read: topics are looked at all the same
            log.info("history without jobs: %s", error)
            return {}

    def _save(self) -> None:
        self._saved_at = self._monotonic()
        try:
            write_history(self._file, self._history.stored())
        except OSError as error:
            log.warning("the history is not written: %s", error)
