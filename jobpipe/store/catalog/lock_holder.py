"""Why a catalog cannot be used: who keeps it locked, by ``/proc/locks``, and what the file system says.

Not by ``F_GETLK``: that needs a descriptor of the file, and to close one drops all locks that this process has on it
(https://sqlite.org/howtocorrupt.html, "POSIX advisory locks").
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

LOCKS = Path("/proc/locks")
_STANDS_STILL = {"T": "stopped", "t": "stopped by a debugger", "D": "waiting for a disk"}


def explain(error: sqlite3.Error, catalog: Path) -> str:
    """Return SQLite's message, with the reason where it only says that the file is locked, or cannot be opened."""
    said, code = str(error), getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_BUSY and (other := holder(catalog)):
        said += f" by {other}, which is in the middle of a change: let it continue or end it, then try again"
    if code == sqlite3.SQLITE_CANTOPEN:
        with contextlib.suppress(OSError):  # the file is not opened for this, see above
            if os.statvfs(catalog).f_flag & os.ST_RDONLY:
                said += " (read-only file system)"
            elif not os.access(catalog, os.R_OK | os.W_OK):
                said += " (no permission to read and write it)"
    return said


def holder(catalog: Path) -> str:
    """Return which other process of this host keeps a catalog, or its write-ahead log, locked; empty if none is found.

    The process has an id here only if it runs in our PID namespace.
    """
    for kind, pid in _locks(catalog):
        if kind == "WRITE":
            return f"process {pid}{_state(str(pid))}"
    return ""


def users(catalog: Path) -> list[int]:
    """Return the other processes of this host, in our PID namespace, that have a catalog with a write-ahead log open.

    Each keeps a lock on the log's index for as long as its connection lives.
    """
    return sorted({pid for _, pid in _locks(catalog)})


def _locks(catalog: Path) -> Iterator[tuple[str, int]]:
    """Yield kind (READ or WRITE) and process of each lock on a catalog or its write-ahead log."""
    inodes = set()
    for path in (catalog, catalog.with_name(f"{catalog.name}-shm")):
        try:
            inodes.add(os.stat(path).st_ino)
        except OSError:
            continue
    try:
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return
    for line in lines:  # 1: POSIX  ADVISORY  WRITE 4711 fe:00:5400039 120 120; after "->" those that wait
        words = line.split()
        if len(words) < 8 or words[1] != "POSIX":
            continue
        pid, inode = words[4], words[5].rpartition(":")[2]
        if pid.isdigit() and inode.isdigit() and int(inode) in inodes and int(pid) not in (0, os.getpid()):
            yield words[3], int(pid)


def _state(pid: str) -> str:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return f" ({_STANDS_STILL[state]})" if state in _STANDS_STILL else ""
