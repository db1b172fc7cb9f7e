"""The processes of a session: of an attempt that leads one, all but its coordinator, which has a session of its own."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import psutil


def members(session: int) -> Iterator[psutil.Process]:
    """Yield the live processes of a session. Its number is not used again while one of them lives."""
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def kill_companions() -> None:
    """Kill all other processes of the session that this process leads; if it leads none, its descendants there."""
    session, own = os.getsid(0), os.getpid()
    if session == own:
        others = [process.pid for process in members(session) if process.pid != own]
    else:
        others = [child.pid for child in psutil.Process().children(recursive=True) if _session_of(child) == session]
    for pid in others:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _session_of(process: psutil.Process) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(process.pid)
    return -1
