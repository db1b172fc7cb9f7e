"""A thread whose fsync calls fail in the kernel with EIO, while the rest of the process goes on as ever."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading
from collections.abc import Callable

import pytest

_CALLS = {"x86_64": (74, 75), "aarch64": (82, 83)}.get(platform.machine(), ())  # fsync, fdatasync
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: load a word, jump if equal, return
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000


class _Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Filter))]


def without_fsync(work: Callable[[], None]) -> None:
    """Run ``work`` in a thread of its own in which every fsync fails; raise what it raised.

    The kernel's filter is the thread's alone and ends with it: SQLite meets a true error, in the place where it would.
    """
    caught: list[BaseException] = []

    def run() -> None:
        try:
            _refuse_fsync()
            work()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run, name="without-fsync")
    thread.start()
    thread.join()
    if caught:
        raise caught[0]


def _refuse_fsync() -> None:
    if not _CALLS:
        pytest.skip(f"the numbers of system calls on {platform.machine()} are not known here")
    refuse = _ERRNO | errno.EIO
    lines = [(_LOAD, 0, 0, 0), (_EQUAL, 1, 0, _CALLS[0]), (_EQUAL, 0, 1, _CALLS[1])]
    lines += [(_RETURN, 0, 0, refuse), (_RETURN, 0, 0, _ALLOW)]
    filters = (_Filter * len(lines))(*(_Filter(*line) for line in lines))
    program = _Program(len(lines), filters)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        pytest.skip(f"this system lets no thread filter its calls: {os.strerror(ctypes.get_errno())}")
