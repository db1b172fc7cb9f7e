"""What one session's kazoo client may say: it warns at each attempt to connect, several a second."""

from __future__ import annotations

import logging
import time
from typing import Any

AGAIN_SECONDS = 60.0  # between two warnings of the same kind

_logger = logging.getLogger("jobpipe_registry.kazoo")


def hide_secrets(record: logging.LogRecord) -> bool:
    """Drop what is below INFO: kazoo's DEBUG lines hold session passwords."""
    return record.levelno >= logging.INFO


_logger.addFilter(hide_secrets)  # a filter, not a level: that would let INFO pass where the root does not


class KazooLog(logging.LoggerAdapter[logging.Logger]):
    """kazoo's logger for one session; ``jobpipe_registry.kazoo`` at DEBUG lets all of its warnings pass.

    Otherwise those before the first connection are left out, since the error of ``start()`` says why there was none,
    and later ones of one kind come once a minute.
    """

    def __init__(self) -> None:
        super().__init__(_logger, {})
        self._connected = False
        self._logged_at: dict[str, float] = {}  # by kazoo's own format strings, which are few

    def connected(self) -> None:
        self._connected = True

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log, or leave out, one line."""
        if level != logging.WARNING or _logger.isEnabledFor(logging.DEBUG) or self._is_due(str(msg)):
            super().log(level, msg, *args, **kwargs)

    def _is_due(self, kind: str) -> bool:
        now = time.monotonic()
        if not self._connected or now - self._logged_at.get(kind, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return False
        self._logged_at[kind] = now
        return True
