"""Keeps the log of a program that may run for months small.

Logging and whatever an interpreter says when it crashes go to standard error, which is the log file, opened for
appending; several jobs of one home share it. So it is not renamed when it is full, which the others would not notice:
its last bytes are copied to ``<name>.1`` and it is cut to nothing, where all go on.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sys
from pathlib import Path

LOG_BYTES = 4 * 1024 * 1024  # of the file; its copy has as many at most
_STEP = 256 * 1024


class BoundedHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error, which is the file at ``path``, and bounds that."""

    def __init__(self, path: Path, limit: int = LOG_BYTES) -> None:
        super().__init__(sys.stderr)
        self._path = path
        self._limit = limit

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        super().emit(record)
        bound(self.stream.fileno(), self._path, self._limit)


def bound(descriptor: int, path: Path, limit: int = LOG_BYTES) -> None:
    """Copy and cut the file if it has more than ``limit`` bytes; a log that cannot be bounded stops nothing.

    What another process writes between copy and cut is lost.
    """
    with contextlib.suppress(OSError):
        if os.fstat(descriptor).st_size <= limit:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else another process is at it
        try:
            size = os.fstat(descriptor).st_size
            if size <= limit:
                return
            with contextlib.suppress(OSError):  # no room for a copy is one more reason to cut
                _copy(path, size - limit, limit)
            os.ftruncate(descriptor, 0)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _copy(path: Path, start: int, length: int) -> None:
    """Copy so many bytes and not up to the end, which others push on meanwhile."""
    copy = os.open(f"{path}.1", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with path.open("rb") as log:
            log.seek(start)
            while block := log.read(min(_STEP, length)):
                os.write(copy, block)
                length -= len(block)
    finally:
        os.close(copy)
