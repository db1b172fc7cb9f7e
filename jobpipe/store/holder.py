"""Who keeps a catalog locked: read from ``/proc/locks``, so that an error can name the process that stands in the way.

Not by ``F_GETLK``: that needs a descriptor of the file, and to close one drops all locks that this process has on it
(https://sqlite.org/howtocorrupt.html, "POSIX advisory locks").
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["holder", "users"]

LOCKS = Path("/proc/locks")
_STANDS_STILL = {"T": "stopped", "t": "stopped by a debugger", "D": "waiting for a disk"}


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
