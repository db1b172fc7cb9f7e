"""Files that one process at a time keeps locked; they say which one it is."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobpipe.errors import ConfigError


def holder(path: Path) -> str | None:
    """Return which process holds the lock of a file, None: none does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with open(descriptor) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(20).strip() or "another process"
    return None


@contextmanager
def locked(path: Path, what: str, remedy: str, key: str) -> Iterator[None]:
    """Hold the lock of a file inside the block; it ends with the process in any case.

    Args:
        what: runs then, as ``pipeline flights``: for the message.
        remedy: what to do about another one.
        key: of the error.

    Raises:
        ConfigError: another process holds it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = file.read(20).strip() or "another process"
            raise ConfigError(f"{what} is already running, by process {who}; {remedy}", key=key) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
