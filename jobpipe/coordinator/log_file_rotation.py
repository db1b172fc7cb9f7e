"""Keeps the log of a program that may run for months small.

Logging and whatever an interpreter says when it crashes go to standard error, which is the log file, opened for
appending; several jobs of one home share it. So it is not renamed when it is full, which the others would notice only
with their next record: its last bytes are copied to ``<name>.1`` and it is cut to nothing, where all go on.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import sys
from pathlib import Path

LOG_BYTES = 4 * 1024 * 1024  # of the file; its copy has as many at most
_STEP = 256 * 1024
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO makes none wait


class BoundedHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error, which is the file at ``path``, and bounds that."""

    def __init__(self, path: Path, limit: int = LOG_BYTES) -> None:
        super().__init__(sys.stderr)
        self._path = path
        self._limit = limit

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        follow(self.stream.fileno(), self._path)
        super().emit(record)
        bound(self.stream.fileno(), self._path, self._limit)


def follow(descriptor: int, path: Path) -> None:
    """Make the descriptor lead to the file at the path again if that was moved, removed or replaced, as by logrotate.

    If that fails, it is tried again before the next record; until then the log goes on in the old file.
    """
    with contextlib.suppress(OSError):
        now = os.fstat(descriptor)
        if not stat.S_ISREG(now.st_mode):
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(now, os.stat(path, follow_symlinks=False)):
                return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _SAFE, 0o600)
        try:
            if stat.S_ISREG(os.fstat(opened).st_mode):
                os.dup2(opened, descriptor)
        finally:
            os.close(opened)


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
                _copy(descriptor, path, size - limit, limit)
            os.ftruncate(descriptor, 0)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _copy(descriptor: int, path: Path, start: int, length: int) -> None:
    """Copy so many bytes and not up to the end, which others push on meanwhile; nothing of another file at the path."""
    with open(os.open(path, os.O_RDONLY | _SAFE), "rb") as log:
        if not os.path.samestat(os.fstat(log.fileno()), os.fstat(descriptor)):
            return
        log.seek(start)
        with open(os.open(f"{path}.1", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _SAFE, 0o600), "wb") as copy:
            while block := log.read(min(_STEP, length)):
                copy.write(block)
                length -= len(block)
