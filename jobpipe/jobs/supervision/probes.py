"""Probes of one job: what its launcher and the registry say of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from jobpipe.jobs.storage.job_rows import AttemptRow
from jobpipe.jobs.supervision.launch import make_launcher
from jobpipe.jobs.supervision.observations import process_status
from jobpipe.jobs.supervision.supervision_context import SupervisionContext
from jobpipe.jobs.workloads.progress_reports import Report, read_report
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.pipelines.plugins.api import Launcher, LaunchState, LaunchStatus
from jobpipe_registry.node_watch import Watch
from jobpipe_registry.registry_jobs import JobRecords

log = logging.getLogger(__name__)

SOON_SECONDS = 1.0  # between two questions to a launcher of an attempt that has left its end record
MIN_UNKNOWN_ANSWERS = 3  # a launcher that cannot say how an attempt stands, before it counts as lost


class Probes:
    """What launcher and registry say of one job.

    Args:
        wake: called, from a thread of the registry, when the registry has changed.
        confirmed: called when the launcher or the registry has answered.
    """

    def __init__(
        self,
        context: SupervisionContext,
        key: tuple[str, str],
        wake: Callable[[], None],
        confirmed: Callable[[], None],
    ) -> None:
        self.launcher_type = ""
        self._context = context
        self._key = key
        self._wake = wake
        self._confirmed = confirmed
        self._seen: JobRecords | None = None
        self._watch: Watch | None = None
        self._launcher: tuple[str, int, Launcher] | None = None
        self._answered: LaunchStatus | None = None  # the launcher, other than UNKNOWN
        self._asked: tuple[float, LaunchStatus] | None = None  # it, when, and what was made of its answer
        self._unknown: tuple[float, int] | None = None  # since when it cannot say, and how often it was asked
        self._was_asked_to_stop = self._canceled = False
        self._silence = ""

    # -- the launcher --------------------------------------------------------------------------------------------------

    def use_launcher(self, launcher: Launcher, attempt: AttemptRow) -> None:
        """Ask this launcher of an attempt from now on: it has started it, and may know more than another one."""
        self.forget()
        self._launcher, self._answered = (attempt.run, attempt.number, launcher), LaunchStatus(LaunchState.RUNNING)
        self.launcher_type = launcher.type

    def forget(self) -> None:
        """Let go of the launcher: nothing of its attempt is left."""
        self._launcher = self._answered = self._asked = self._unknown = None
        self._silence = ""
        self._was_asked_to_stop = self._canceled = False

    @property
    def silence(self) -> str:
        """Why the launcher could not say how the attempt stands when it was asked last; "" if it could."""
        return self._silence

    @property
    def saw_running(self) -> bool:
        """Whether the launcher has said that the attempt runs when it was asked last."""
        return not self._silence and self._answered is not None and self._answered.state is LaunchState.RUNNING

    @property
    def was_canceled(self) -> bool:
        """Whether its launcher was told to end the attempt; False after another server has begun."""
        return self._canceled

    def status(self, attempt: AttemptRow) -> LaunchStatus | None:
        """Return what the launcher says, or said within its ``poll_seconds``; None if nothing says that it was started.

        That a launcher cannot say is believed when it has lasted for a while.
        """
        if attempt.launched is None:
            holder = attempt.holder
            if holder is None or not holder.pid:
                return None
            status = process_status(holder)
            if status.state is not LaunchState.UNKNOWN:
                self._confirmed()
            return status
        began, poll = self._context.clock(), 0.0
        try:
            launcher = self._launcher_of(attempt)
            poll = launcher.poll_seconds if attempt.ended is None else min(launcher.poll_seconds, SOON_SECONDS)
            if self._asked is not None and 0 <= began - self._asked[0] < poll:
                return self._asked[1]
            status = launcher.status(attempt.launched)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's plug-in
            log.info("job %s.%s: launcher: %s: %s", *self._key, type(error).__name__, error)
            status = LaunchStatus(LaunchState.UNKNOWN)
        now = self._context.clock()
        unknown = status.state is LaunchState.UNKNOWN
        self._silence = (status.detail or "the launcher does not answer for it") if unknown else ""
        if not unknown:
            self._answered, self._unknown = status, None
            self._confirmed()
        elif self._answered is not None and not self._has_lasted(now, poll + now - began):
            status = self._answered
        self._asked = (now, status)
        return status

    def _has_lasted(self, now: float, round_seconds: float) -> bool:
        """Note that the launcher cannot say; return whether that has lasted, from the first such answer on."""
        since, asked = self._unknown or (now, 0)
        since = min(since, now)  # the clock was set back
        self._unknown = (since, asked + 1)
        return asked + 1 >= MIN_UNKNOWN_ANSWERS and now - since >= max(self._context.lost_seconds, round_seconds)

    def exit_code_of(self, attempt: AttemptRow) -> int | None:
        """Return the exit code of an attempt that has ended: as the launcher said, else as the attempt has reported."""
        if self._answered is not None and self._answered.exit_code is not None:
            return self._answered.exit_code
        return self.report(attempt).exit_code

    def report(self, attempt: AttemptRow) -> Report:
        """Return the last report of an attempt on this host, an empty one if there is none."""
        places = PipelinePaths.of(self._context.home, attempt.pipeline)
        return read_report(places.report(attempt.job, attempt.number)) or Report()

    def ask_to_stop(self, attempt: AttemptRow) -> None:
        """Ask an attempt to stop without the registry, once, if its launcher can."""
        if attempt.launched is None or self._was_asked_to_stop:
            return
        try:
            self._launcher_of(attempt).ask_to_stop(attempt.launched)
            self._was_asked_to_stop = True
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's plug-in
            log.warning("job %s.%s: it cannot be asked to stop: %s: %s", *self._key, type(error).__name__, error)

    def cancel(self, attempt: AttemptRow) -> None:
        """End an attempt at once; nothing happens to one whose launcher's id is not known."""
        if attempt.launched is None:
            return
        self._asked, self._canceled = None, True
        try:
            self._launcher_of(attempt).cancel(attempt.launched)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's plug-in
            log.warning("job %s.%s: it cannot be ended: %s: %s", *self._key, type(error).__name__, error)

    def _launcher_of(self, attempt: AttemptRow) -> Launcher:
        known = self._launcher
        if known is None or known[:2] != (attempt.run, attempt.number):
            pipeline = self._context.definitions.get(attempt.pipeline, attempt.version)
            launcher = make_launcher(pipeline, attempt.run)
            known = self._launcher = (attempt.run, attempt.number, launcher)
            self.launcher_type = launcher.type
        return known[2]

    # -- the registry --------------------------------------------------------------------------------------------------

    def watch_registry(self) -> None:
        """Hear what changes in the registry."""
        if self._watch is None:
            self._watch = self._context.jobs.watch(*self._key, self._on_change)

    def close(self) -> None:
        watch, self._watch, self._seen = self._watch, None, None
        if watch is not None:
            watch.close()

    def invalidate(self) -> None:
        """What was heard last is not so any more."""
        self._seen = None

    def registry_state(self, *, fresh: bool) -> JobRecords:
        """Return what the registry has, as it was heard, or asked for now.

        Raises:
            Unavailable: it does not answer.
        """
        seen = self._seen
        if not fresh and seen is not None:
            return seen
        found = self._context.jobs.state(*self._key)
        self._confirmed()
        return found

    def _on_change(self, state: JobRecords) -> None:
        self._seen = state
        self._confirmed()
        self._wake()
