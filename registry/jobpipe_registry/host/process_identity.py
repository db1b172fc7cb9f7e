"""The scope of a process id (host, boot, PID namespace), and whether a process is alive."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")
_START_SLACK_SECONDS = 1.0  # the granularity is 10 ms; a pid that is used again differs by far more


@dataclass(frozen=True)
class PidScope:
    """Where process ids can be compared. A host name alone does not say so: containers may share one.

    Attributes:
        host: The host name.
        boot: The kernel's random id of this boot; empty where there is none, as on macOS.
        pid_namespace: Inode of the PID namespace, unique within a boot; 0 where there is none.
    """

    host: str
    boot: str
    pid_namespace: int

    @classmethod
    def here(cls) -> PidScope:
        """Return the calling process's place."""
        try:
            boot, namespace = BOOT_ID.read_text().strip()[:64], os.stat(PID_NAMESPACE).st_ino
        except (OSError, UnicodeDecodeError):
            boot, namespace = "", 0
        return cls(socket.gethostname(), boot, namespace)

    @property
    def is_certain(self) -> bool:
        """True where an equal place is the same one for certain."""
        return bool(self.boot and self.pid_namespace)


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since the boot; 0 if that is not known.

    Unlike the time since 1970, which is computed from it, it stays the same when the clock is set.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def lives(pid: int, started: float, ticks: int, place: PidScope | None = None) -> bool | None:
    """Tell whether a process lives; None if that cannot be known here.

    Args:
        pid: Its id.
        started: When it started, in seconds since 1970, as psutil gives it.
        ticks: The same as :func:`start_ticks` gives it.
        place: Where it runs; None for a process that surely runs in our own place, such as our parent.
    """
    if place is not None and (not place.is_certain or place != PidScope.here()):
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        same_ticks = ticks != 0 and start_ticks(pid) == ticks
        return same_ticks or abs(process.create_time() - started) < _START_SLACK_SECONDS
    except psutil.NoSuchProcess:
        return None if _exists(pid) else False
    except psutil.Error:
        return None


def _exists(pid: int) -> bool:
    """Tell whether there is such a process after all: /proc may hide those of other users (hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
