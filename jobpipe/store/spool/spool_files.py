"""Files of the spool: names, exclusive creation, complete writes, durability, and the mark of who serves a topic.

Knows no Arrow and no SQLite.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Protocol, TypeAlias

from jobpipe.config.reading.file_permissions import folder_problem
from jobpipe.errors import ConfigError, SegmentCorrupt, SpoolError, SpoolFull

Bytes: TypeAlias = bytes | bytearray | memoryview
CATALOG = "catalog.db"
SEGMENTS = "segments"
INSTANCE = "coordinator"  # the file that names the one that serves the topic
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FILE = re.compile(r"([0-9a-f]{16})-[A-Za-z0-9_.-]{1,100}\.seg")
_REWRITE = 1024 * 1024
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def spool_error(what: str, path: Path | str, error: OSError) -> SpoolError:
    """Return the error for a failed system call; a full disk is :class:`SpoolFull`."""
    kind = SpoolFull if error.errno in _FULL else SpoolError
    return kind(f"{what} {path}: {error.strerror or error}", file=str(path), errno=error.errno)


def new_write_id() -> str:
    """Return the random id of one call of the sink: 16 hex digits."""
    return secrets.token_hex(8)


def file_name(write_id: str, attempt: str | int) -> str:
    """Return the file name of one attempt to write.

    Raises:
        SpoolError: a part is not made of plain letters, digits, ``_``, ``.`` and ``-``.
    """
    name = f"{write_id}-{attempt}.seg"
    if write_id_of(name) != write_id:
        raise SpoolError("not a segment file name", file=name)
    return name


def write_id_of(name: str) -> str | None:
    """Return the write id inside a segment file's name, or None when it is no such name."""
    match = _FILE.fullmatch(name)
    return match[1] if match else None


def is_topic(name: str) -> bool:
    """Tell whether a topic may have that name."""
    return _TOPIC.fullmatch(name) is not None


def check_topic(topic: str) -> None:
    """Refuse a topic name that could leave the spool's directory."""
    if not is_topic(topic):
        raise ConfigError(f"not a topic name: {topic!r}", topic=topic)


def prepare_topic(directory: Path, topic: str) -> None:
    """Make the topic's directory and its ``segments/``, durable, 0700 and ours.

    Raises:
        SpoolError: they cannot be made, or belong to another user.
        ConfigError: the topic's name could leave the spool.
    """
    check_topic(topic)
    segments = directory / SEGMENTS
    try:
        check_folder(directory.parent)
        for path in (directory.parent, directory, segments):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(path.parent)  # each time: a crash may have come between the two
        for path in (directory, segments):
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise SpoolError(f"{path} is not a directory of this user", file=str(path), uid=found.st_uid)
            if stat.S_IMODE(found.st_mode) & 0o077:
                path.chmod(0o700)
    except OSError as error:
        raise spool_error("cannot prepare", directory, error) from error


def check_folder(path: Path) -> None:
    """Refuse a folder that others could exchange or fill, see :mod:`.file_permissions`; a missing one passes.

    Raises:
        SpoolError: says whose it is, and what to do.
        OSError: it cannot be looked at.
    """
    if (why := folder_problem(path)) is not None:
        raise SpoolError(why, file=str(path))


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable.

    Raises:
        SpoolError: the fsync failed; it must not be tried again.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise spool_error("fsync failed for", path, error) from error


def rewrite_file(path: Path) -> None:
    """Write a file's bytes over themselves and make them durable; a missing file is none.

    After a failed fsync the kernel may hold pages as clean that never reached the disk: another fsync alone would
    succeed without writing them.

    Raises:
        SpoolError: the disk still fails.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise spool_error("cannot open", path, error) from error
    try:
        offset = 0
        while data := os.pread(fd, _REWRITE, offset):
            offset += os.pwrite(fd, data, offset)
        os.fsync(fd)
    except OSError as error:
        raise spool_error("cannot rewrite", path, error) from error
    finally:
        os.close(fd)


def create_private(path: Path) -> None:
    """Make an empty file that only its owner may read, unless there is a file.

    One that exists is not opened: of a SQLite file, to close any descriptor would drop all locks that this process
    holds on it (https://sqlite.org/howtocorrupt.html, "POSIX advisory locks").

    Raises:
        SpoolError: it cannot be made, or is a symbolic link.
    """
    try:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            if path.is_symlink():
                raise SpoolError(f"{path} is a symbolic link; remove it", file=str(path)) from None
    except OSError as error:
        raise spool_error("cannot open", path, error) from error


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 for one that is missing.

    Raises:
        SpoolError: the disk refuses.
    """
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise spool_error("cannot look at", path, error) from error


def check_length(path: Path, needed: int) -> None:
    """Check that a file is regular and has at least ``needed`` bytes.

    Raises:
        SegmentCorrupt: it is missing, shorter, or no regular file.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise SegmentCorrupt(f"segment file {path} is missing", file=str(path)) from None
    except OSError as error:
        raise spool_error("cannot look at", path, error) from error
    if not stat.S_ISREG(found.st_mode) or found.st_size < needed:
        raise SegmentCorrupt(
            f"segment file {path} has {found.st_size} bytes, {needed} were committed",
            file=str(path),
            size=found.st_size,
            needed=needed,
        )


def remove_files(directory: Path, names: list[str]) -> int:
    """Unlink the files that are still there; return how many were."""
    removed = 0
    for name in names:
        try:
            (directory / name).unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise spool_error("cannot remove", directory / name, error) from error
        removed += 1
    return removed


def free_bytes(directory: Path) -> int:
    """Return how many bytes the file system of ``directory`` has left for us.

    Raises:
        SpoolError: it is gone.
    """
    try:
        found = os.statvfs(directory)
    except OSError as error:
        raise spool_error("cannot look at", directory, error) from error
    return found.f_bavail * found.f_frsize


class Reserve:
    """Room kept on the topic's disk for a full one: even to acknowledge or to remove, the catalog must be able to grow.

    It is more than the write-ahead log holds between two checkpoints. A tiny disk goes without.
    """

    BYTES = 3 * 1024 * 1024
    _SPARE = 512 * 1024  # bytes; must be free in addition to it when it is taken

    def __init__(self, directory: Path) -> None:
        self._path = directory / "reserve"
        self._taken = False

    def take(self) -> bool:
        """Make the file, if it is not there; False when the disk has no room for it."""
        if self._taken:
            return True
        try:
            self._taken = self._path.exists() or self._make()
        except OSError:
            self.release()
        return self._taken

    def release(self) -> None:
        self._taken = False
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _make(self) -> bool:
        disk = os.statvfs(self._path.parent)
        if disk.f_blocks * disk.f_frsize < 2 * self.BYTES:
            return True
        if disk.f_bavail * disk.f_frsize < self.BYTES + self._SPARE:
            return False
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, self.BYTES)
        finally:
            os.close(fd)
        return True


class SegmentSink(Protocol):
    """Where a writer's bytes go: a file here, or a link to the coordinator."""

    def write(self, data: Bytes, /) -> None:
        """Take all of ``data`` before returning, or raise."""

    def finish(self, *, fsync: bool) -> None:
        """Make what was written durable and close."""

    def abort(self) -> None:
        """Throw away what was written; never raises; may follow anything."""


class FileSegmentSink:
    """One new file, written from front to back.

    Args:
        path: Must not exist; created 0600, never through a symbolic link.

    Raises:
        SpoolError: from every method; :class:`SpoolFull` when the disk is. After an error only :meth:`abort` is legal:
            a failed fsync may have thrown the pages away, so it is never retried.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._failed = False
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise spool_error("cannot create", path, error) from error

    def write(self, data: Bytes, /) -> None:
        """Write all of ``data``; a short write goes on where it stopped."""
        self._check()
        view = memoryview(data).cast("B")
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._failed = True
            raise spool_error("cannot write", self.path, error) from error

    def finish(self, *, fsync: bool) -> None:
        """Close the file, after an fsync if ``fsync`` is set. The seal syncs the folder (:meth:`BatchSealer.check`)."""
        self._check()
        try:
            if fsync:
                os.fsync(self._fd)
        except OSError as error:
            self._failed = True
            raise spool_error("fsync failed for", self.path, error) from error
        self._close()

    def abort(self) -> None:
        """Close and unlink the file."""
        self._failed = True
        self._close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _check(self) -> None:
        if self._failed or self._fd < 0:
            raise SpoolError(f"{self.path} failed or is closed", file=str(self.path))

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def mark_directory(directory: Path, instance: str) -> None:
    """Note in the topic's directory which coordinator serves it, for :func:`holds_instance`.

    Raises:
        SpoolError: the disk refuses.
    """
    fresh = directory / f"{INSTANCE}.new"
    try:
        fresh.write_text(instance)
        fresh.replace(directory / INSTANCE)
    except OSError as error:
        raise spool_error("cannot write", fresh, error) from error


def holds_instance(directory: Path, instance: str) -> bool:
    """Tell whether ``directory`` is the one that coordinator ``instance`` serves: on its host, or shared with it."""
    try:
        return (directory / INSTANCE).read_text() == instance
    except OSError:
        return False
