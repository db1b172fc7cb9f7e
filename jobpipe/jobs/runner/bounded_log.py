"""Writes standard input to a log file that stays small: ``python -m jobpipe.jobs.runner.bounded_log FILE``.

A process of its own, since a JVM and Spark's workers write to the same place, and since it outlives all of them. It
keeps two files: FILE, and FILE.1 with what came before; both are readable by their owner alone. Others may move or
remove FILE, as logrotate does, or its folder: then it makes FILE again, as Python's ``WatchedFileHandler`` does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from pathlib import Path

MOST_BYTES = 32 * 1024 * 1024  # of each of the two files
_READ_BYTES = 64 * 1024
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO makes none wait


def main() -> None:
    """Copy until the last writer has closed its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with those who write
    path = Path(sys.argv[1])
    log = BoundedLog(path, int(sys.argv[2]) if len(sys.argv) > 2 else MOST_BYTES)
    warned, data = False, b""
    while True:
        try:
            log.write(data)
        except OSError as error:  # a full disk, another user's file, a link: the job must not wait for its log
            if not warned:
                sys.stderr.write(f"jobpipe: {path}: {error.strerror}; there is no log until it can be written\n")
            warned = True
        if not (data := os.read(0, _READ_BYTES)):
            return


class BoundedLog:
    """A log file of ``most`` bytes at most; when it is full it is renamed to FILE.1, and another one begins."""

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._file: int | None = None

    def write(self, data: bytes) -> None:
        """Append to the file that is at the path now.

        Raises:
            OSError: some of the data is lost; the next call tries to open the file again.
        """
        file = self._open()
        if os.fstat(file).st_size + len(data) > self._most:
            self._move(file)
            file = self._open()
        while data:
            data = data[os.write(file, data) :]

    def _move(self, full: int) -> None:
        """Rename the full file to FILE.1, unless another attempt's log process does, or has made another FILE."""
        with contextlib.suppress(OSError):  # some file systems have no locks, as NFS without lockd: it works without
            try:
                fcntl.flock(full, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # what is written before the other one is done goes to the end of the full file
        try:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(full), os.stat(self._path, follow_symlinks=False)):
                    os.replace(self._path, self._path.with_name(self._path.name + ".1"))
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(full, fcntl.LOCK_UN)

    def _open(self) -> int:
        """Return the file at the path: the one that is open, unless that was moved, removed or replaced."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._file), os.stat(self._path, follow_symlinks=False)):
                    return self._file
            os.close(self._file)
            self._file = None
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(self._path, _FLAGS, 0o600)
        return self._file


if __name__ == "__main__":
    main()
