"""A capture as an attempt: no session, no checkpoint; where it is, its topics say."""

from __future__ import annotations

import contextlib
import threading
import traceback
from dataclasses import replace

from jobpipe.config import Config
from jobpipe.errors import JobpipeError
from jobpipe.jobs.captures.open_capture import collect_rarely, open_capture
from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.jobs.workloads.workload import WorkloadOutcome, failure
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.model.pipeline import Job, Pipeline
from jobpipe.pipelines.plugins.capture_source import Capture

POLL_SECONDS = 0.5


class CaptureWorkload:
    """Runs a capture in a thread; the main thread reports, and hears signals."""

    def __init__(self, pipeline: Pipeline, job: Job, run: RunValues, config: Config, reporter: Reporter) -> None:
        self._pipeline = pipeline
        self._job = job
        self._run_values = run
        self._config = config
        self._reporter = reporter
        self._rows = 0
        self._error: BaseException | None = None
        self._ended = threading.Event()

    def run(self, stop: StopRequest) -> WorkloadOutcome:
        """Run it until a stop is asked for. If it does not end in time, it is left: it may be killed anywhere."""
        collect_rarely()
        capture = open_capture(self._pipeline, self._job, self._run_values, self._config)
        with contextlib.closing(capture):
            stop.listen(capture.stop)
            threading.Thread(target=self._capture, args=(capture,), name="capture", daemon=True).start()
            while not self._ended.wait(POLL_SECONDS) and not stop.hurried:
                self._report(capture)
            self._report(capture)
        error = self._error
        if error is None:
            return WorkloadOutcome(stopped=True, rows=self._rows)
        if not isinstance(error, JobpipeError):
            traceback.print_exception(error)
        done = failure(error, rows=self._rows)
        return replace(done, message=_in_one_line(done.message))

    def _capture(self, capture: Capture) -> None:
        try:
            capture.run()
        except BaseException as error:  # noqa: BLE001 - the main thread returns it
            self._error = error
        finally:
            self._ended.set()

    def _report(self, capture: Capture) -> None:
        rows = capture.status().rows
        if rows > self._rows:
            self._rows = rows
            self._reporter.report(0, rows)


def _in_one_line(text: str) -> str:
    """Return a text in one line: of an attempt's error people see the first."""
    first, *more = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return f"{first}: {'; '.join(more)}" if more else first
