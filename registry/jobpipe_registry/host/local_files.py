"""Files of this host that are written whole or not at all, and files that one process at a time keeps locked."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOK_SECONDS = 0.02  # between two tries to take a lock
_LEFT_SECONDS = 60.0  # no write takes so long: a part that is older was left by a writer that was killed
_PART = re.compile(r"[0-9a-f]{16}")


def write_whole(path: Path, content: bytes, mode: int = 0o600, *, durable: bool = True) -> None:
    """Write a file under another name, and rename it: a reader sees all of it, or the one before.

    Args:
        durable: it is there after a power cut, too; else it may then be empty, or the one before.

    Raises:
        OSError: it cannot be written; the one before is still there, unless only its name cannot be forced to the disk.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(part, flags, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)
        _remove_left(path)


def _remove_left(path: Path) -> None:
    before = time.time() - _LEFT_SECONDS
    for each in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with contextlib.suppress(FileNotFoundError):
            if _PART.fullmatch(each.suffix[1:]) and each.stat().st_mtime < before:
                each.unlink()


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, where its file system can do that: not all shares can.

    Raises:
        OSError: the disk fails.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def locked_file(path: Path, timeout: float = 0.0) -> Iterator[int]:
    """Hold the lock of a file inside the block, and yield its descriptor; the lock of a process that dies is free.

    A fork of this process does not free it, however it ends.

    Args:
        timeout: seconds to wait for another holder.

    Raises:
        TimeoutError: another one has it for longer than that.
        OSError: the file cannot be opened.
    """
    deadline, owner = time.monotonic() + timeout, os.getpid()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while not _taken(descriptor, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{path} is held by another process")
            time.sleep(_LOOK_SECONDS)
        try:
            yield descriptor
        finally:
            if os.getpid() == owner:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a fork has the descriptor
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether some process holds the lock of a file; False if there is no file.

    Raises:
        OSError: the file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        free = _taken(descriptor, fcntl.LOCK_SH)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return not free
    finally:
        os.close(descriptor)


def _taken(descriptor: int, kind: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False
