"""``jobpipe cdc run``: captures of a pipeline in this process, each in a thread. Knows no Spark."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType

from jobpipe.config import Config
from jobpipe.discovery.registry_handler import map_registry_errors, open_handler
from jobpipe.errors import ConfigError
from jobpipe.jobs.captures.capture_progress import ProgressLines
from jobpipe.pipelines.file.problems import nearest
from jobpipe.pipelines.model.pipeline import Job, Pipeline
from jobpipe.pipelines.plugins.capture_source import Capture
from jobpipe.signal_handlers import handled

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_SECONDS = 0.5
SAME_SECONDS = 1.0  # a signal that comes so soon after another one is the same wish
STOP_SECONDS = 30.0  # that a stop may take; a capture may be killed anywhere


@dataclass(frozen=True)
class CaptureResult:
    """How the captures ended.

    Attributes:
        errors: by the job.
        stopped_by: the signal that ended them.
        late: jobs that had not ended in time, and were left.
    """

    errors: Mapping[str, BaseException] = field(default_factory=dict)
    stopped_by: signal.Signals | None = None
    late: tuple[str, ...] = ()


def choose_captures(pipeline: Pipeline, job: str | None) -> list[Job]:
    """Return the captures that are meant: the named one, or all.

    Raises:
        ConfigError: there is no such capture, or none.
    """
    captures = {each.name: each for each in pipeline.jobs.values() if each.spec.captures}
    if not captures:
        raise ConfigError(
            f"{pipeline.file} has no capture: a job with source: {{type: postgres-cdc, ...}}", file=str(pipeline.file)
        )
    if job is None:
        return list(captures.values())
    if job not in captures:
        what = f"job {job} is no capture" if job in pipeline.jobs else f"there is no job {job!r:.120}"
        raise ConfigError(f"{what}; {nearest(job, captures)}", key="job")
    return [captures[job]]


def require_not_running(config: Config, pipeline: Pipeline, jobs: list[Job]) -> None:
    """Check that no attempt runs these captures, on whatever host.

    Raises:
        ConfigError: one does.
        RegistryUnavailable: the registry does not answer.
    """
    handler = open_handler(config)
    try:
        for job in jobs:
            with map_registry_errors():
                lease = handler.jobs.state(pipeline.name, job.name).lease
            if lease is not None:
                where = f"process {lease.pid} of {lease.host}, attempt {lease.attempt} of run {lease.run}"
                raise ConfigError(
                    f"job {pipeline.name}.{job.name} is running: {where}; stop it first: "
                    f"jobpipe pipeline stop {pipeline.name}/{job.name}",
                    key="job",
                )
    finally:
        handler.shutdown()


class ForegroundCaptures:
    """Runs captures until a signal comes, or one of them fails: then the others are stopped.

    Args:
        captures: by the jobs' names.
        say: is given lines of progress.
    """

    def __init__(self, captures: Mapping[str, Capture], say: Callable[[str], None]) -> None:
        self._captures = captures
        self._say = say
        self._lines = {name: ProgressLines(name) for name in captures}
        self._begun: set[str] = set()
        self._errors: dict[str, BaseException] = {}
        # Its put() waits for no lock, so that a signal's handler may call it anywhere.
        self._signals: queue.SimpleQueue[tuple[signal.Signals, float]] = queue.SimpleQueue()

    def run(self) -> CaptureResult:
        """Run them to their end. In the main thread, which hears signals; they are closed then."""
        threads = {
            name: threading.Thread(target=self._run_one, args=(name,), name=f"capture {name}", daemon=True)
            for name in self._captures
        }
        with handled(SIGNALS, self._on_signal):
            for thread in threads.values():
                thread.start()
            stopped_by = self._wait(threads)
        late = tuple(name for name, thread in threads.items() if thread.is_alive())
        for name, capture in self._captures.items():
            if name not in late:
                capture.close()
        return CaptureResult(dict(self._errors), stopped_by, late)

    def _wait(self, threads: Mapping[str, threading.Thread]) -> signal.Signals | None:
        """Wait until all have ended, or their time is over; return the signal that ended them."""
        stopped_by: signal.Signals | None = None
        first_at, end_by = 0.0, float("inf")
        while any(thread.is_alive() for thread in threads.values()) and time.monotonic() < end_by:
            with contextlib.suppress(queue.Empty):
                number, at = self._signals.get(timeout=POLL_SECONDS)
                if stopped_by is None:
                    stopped_by, first_at = number, at
                elif at - first_at >= SAME_SECONDS:
                    break
            if stopped_by is not None or self._errors:
                end_by = min(end_by, time.monotonic() + STOP_SECONDS)
                for capture in self._captures.values():
                    capture.stop()
            self._show(threads)
        return stopped_by

    def _show(self, threads: Mapping[str, threading.Thread]) -> None:
        for name, capture in self._captures.items():
            if name not in self._begun or not threads[name].is_alive():
                continue
            if (line := self._lines[name].line(capture.status())) is not None:
                self._say(line)

    def _run_one(self, name: str) -> None:
        try:
            self._say(f"capture {name}: starting")
            self._captures[name].run(lambda: self._note_begun(name))
        except BaseException as error:  # noqa: BLE001 - the main thread returns it
            self._errors[name] = error

    def _note_begun(self, name: str) -> None:
        self._say(f"capture {name}: has begun")
        self._begun.add(name)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.put((signal.Signals(number), time.monotonic()))
