"""Writes standard input to a log file that stays small: ``python -m jobpipe.pipelines.runner.bounded_log FILE``.

A process of its own, since a JVM and Spark's workers write to the same place, and since it outlives all of them. It
keeps two files: FILE, and FILE.1 with what came before; both are readable by their owner alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

MOST_BYTES = 32 * 1024 * 1024  # of each of the two files
_READ_BYTES = 64 * 1024
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def main() -> None:
    """Copy until the last writer has closed its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with those who write
    path = Path(sys.argv[1])
    most = int(sys.argv[2]) if len(sys.argv) > 2 else MOST_BYTES
    try:
        file = os.open(path, _FLAGS, 0o600)
    except OSError as error:  # another user's, or a link: who writes must go on, and not wait for us
        sys.stderr.write(f"jobpipe: {path}: {error.strerror}; there is no log\n")
        file = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        most = sys.maxsize
    size = os.fstat(file).st_size
    while data := os.read(0, _READ_BYTES):
        try:
            if size + len(data) > most:
                with contextlib.suppress(FileNotFoundError):  # it was done before, and the new file could not be made
                    os.replace(path, path.with_name(path.name + ".1"))
                before, file, size = file, os.open(path, _FLAGS, 0o600), 0
                os.close(before)
            os.write(file, data)
            size += len(data)
        except OSError:
            continue  # the disk is full: who writes must go on, and not wait for us


if __name__ == "__main__":
    main()
