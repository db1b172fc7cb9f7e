"""When a job whose attempt failed is started again.

Who decides by it that an attempt is made again: ``JobTransitions`` (transitions.py); who makes it: ``JobReconciler``.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from jobpipe.pipelines.file.spec import RestartSpec

JITTER = 0.1
"""Part of a delay by which it is longer or shorter, so that jobs that failed of one cause do not start all at once."""

TOLD_SECONDS = 60.0  # that a job runs before it is not said any more why it was restarted

FINAL = frozenset(
    {
        "AddressError",
        "AnalysisException",
        "CheckpointMismatch",
        "CheckpointTooOld",
        "ConfigError",
        "DataLoss",
        "NewCheckpoint",
        "NotAuthorized",
        "ParseException",
        "PeerNotTrusted",
        "PipelineError",
        "PlugInError",
        "RowTooLarge",
        "SchemaMismatch",
        "TooManyDeadLetters",
        "UnsupportedSpark",
        "UnsupportedType",
    }
)
"""Errors that another attempt does not mend: of the file, of Spark's analysis, of what the topics hold."""


class RestartPolicy:
    """The attempts of one run, counted: each failure in a row doubles the delay.

    Args:
        attempts: how many have failed in a row before.
        spread: gives the factor of a delay.
    """

    def __init__(self, spec: RestartSpec, attempts: int = 0, spread: Callable[[], float] | None = None) -> None:
        self._spec = spec
        self._spread = spread or _spread
        self.attempts = attempts

    def delay(self, error: str, seconds: float) -> float | None:
        """Note that an attempt has failed; return how many seconds to wait for the next one, None if there is none.

        Args:
            error: the class of its error; "" if it was killed.
            seconds: how long it ran.
        """
        spec = self._spec
        if seconds >= spec.reset_after:
            self.attempts = 0
        self.attempts += 1
        if spec.policy == "never" or error in FINAL:
            return None
        if spec.max_attempts is not None and self.attempts >= spec.max_attempts:
            return None
        return float(min(spec.delay * 2 ** min(self.attempts - 1, 60), spec.max_delay)) * self._spread()


def restart_note(why: str, seconds: float) -> str:
    """Return what is said of a job that runs again; "" once it has run for a minute.

    Args:
        why: the attempt before failed; "": none did.
        seconds: how long it runs.
    """
    return f"restarted after: {why}" if why and seconds < TOLD_SECONDS else ""


def _spread() -> float:
    return random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
