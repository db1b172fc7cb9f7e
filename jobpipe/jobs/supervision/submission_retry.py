"""An attempt at its launcher: submitted until the launcher takes it, asked for, and canceled."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from jobpipe.errors import JobpipeError, LauncherUnavailable
from jobpipe.pipelines.plugins.api import Attempt, Launcher, LaunchState, LaunchStatus

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0  # before the second try of a submission; it doubles
RETRY_MOST_SECONDS = 60.0


class Delay:
    """How long is waited before the next try; it doubles."""

    def __init__(self) -> None:
        self._seconds = RETRY_SECONDS

    def wait(self, stopping: threading.Event) -> None:
        """Wait; ``stopping`` ends it."""
        stopping.wait(self._seconds)
        self._seconds = min(2 * self._seconds, RETRY_MOST_SECONDS)


def submit(
    launcher: Launcher, attempt: Attempt, delay: Delay, stopping: threading.Event, report: Callable[[str], None]
) -> SubmittedAttempt | None:
    """Submit an attempt, again and again while nothing can be started.

    Args:
        delay: between tries, also of attempts in the place of one another.
        stopping: ends it.
        tell: is given why it waits.

    Returns:
        None if it was stopped; or the attempt may have been started, and it is not known how to ask for it: another
        one is to be ordered, in whose place that one cannot work.

    Raises:
        JobpipeError, OSError: it cannot be started.
    """
    while not stopping.is_set():
        try:
            return SubmittedAttempt(launcher, launcher.submit(attempt))
        except LauncherUnavailable as error:
            report(f"{error}; trying again")
            log.warning("job %s, attempt %d: %s", attempt.job, attempt.number, error)
            delay.wait(stopping)
            if error.perhaps_started:
                return None
    return None


class SubmittedAttempt:
    """An attempt that was submitted."""

    def __init__(self, launcher: Launcher, launched: str) -> None:
        self._launcher = launcher
        self._launched = launched
        self._status = LaunchStatus(LaunchState.RUNNING)
        self._asked_at = float("-inf")

    def status(self, *, soon: bool = False) -> LaunchStatus:
        """Return how it stands, as it was said within the launcher's ``poll_seconds``.

        Args:
            soon: its end is awaited, so that it is asked for more often.
        """
        known = min(self._launcher.poll_seconds, RETRY_SECONDS) if soon else self._launcher.poll_seconds
        if self._status.state is LaunchState.ENDED or time.monotonic() - self._asked_at < known:
            return self._status
        self._status = self._launcher.status(self._launched)
        self._asked_at = time.monotonic()
        return self._status

    def ask_to_stop(self) -> None:
        """Ask it to stop without the registry, if its launcher can."""
        try:
            self._launcher.ask_to_stop(self._launched)
        except (JobpipeError, OSError) as error:
            log.warning("%s", error)

    def cancel(self) -> None:
        """End it at once; that this is not possible now is logged."""
        self._asked_at = float("-inf")
        try:
            self._launcher.cancel(self._launched)
        except (JobpipeError, OSError) as error:
            log.warning("%s", error)
