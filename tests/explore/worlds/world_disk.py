"""Every call of the disk and of SQLite as a place where an explorer may act: pause there, or let the call fail.

SQLite's calls of its files come from :mod:`tests.explore.sqlite_files`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.explore import sqlite_files

_RANDOM = re.compile(r"[0-9a-f]{16}|(?<=explore-).*")  # write ids, and the root's own name

# -- calls and faults --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        layer: ``os``, ``sqlite`` or ``registry``.
        name: of the function.
        what: the file's name, or what is asked for.
        after: it is done, and its caller does not know yet.
    """

    layer: str
    name: str
    what: str
    after: bool

    def __str__(self) -> str:
        return f"{self.layer} {self.name}({self.what}) {'done' if self.after else 'about to begin'}"


@dataclass(frozen=True)
class Fault:
    """How a call fails: ``error`` (EIO, no answer), ``full`` or ``busy``."""

    kind: str = "error"


class Sites:
    """Tells the explorer of each call, in both phases; what it returns is how the call fails.

    Attributes:
        act: the explorer's; None while it does not look.
        seen: calls so far while it looks.
    """

    def __init__(self) -> None:
        self.act: Callable[[Call], Fault | None] | None = None
        self.root = ""

    def meet(self, layer: str, name: str, what: str, *, after: bool) -> Fault | None:
        act = self.act
        return None if act is None else act(Call(layer, name, what, after))

    def label(self, path: Any) -> str | None:
        """Return how a path below the root is named; None for any other."""
        try:
            text = os.fsdecode(path)
        except TypeError:
            return None
        if not self.root or not text.startswith(self.root):
            return None
        return _RANDOM.sub("*", os.path.basename(text))  # the same in each run


# -- os ----------------------------------------------------------------------------------------------------------------

_BY_PATH = ("open", "stat", "lstat", "unlink", "mkdir", "listdir", "scandir", "rename", "replace", "statvfs", "chmod")
_BY_FD = ("fsync", "write", "pwrite", "pread", "posix_fallocate", "close", "fdatasync", "ftruncate")
_ERRNO = {"error": errno.EIO, "full": errno.ENOSPC, "busy": errno.EAGAIN}


@contextlib.contextmanager
def patched_os(sites: Sites) -> Iterator[None]:
    """Let the functions of ``os`` tell ``sites`` of what they do below its root."""
    real = {name: getattr(os, name) for name in (*_BY_PATH, *_BY_FD)}
    names: dict[int, str] = {}

    def failing(name: str, what: str, *, after: bool) -> None:
        fault = sites.meet("os", name, what, after=after)
        if fault is not None:
            code = _ERRNO[fault.kind]
            raise OSError(code, os.strerror(code), what)

    def by_path(name: str) -> Callable[..., Any]:
        call = real[name]

        def work(path: Any = ".", *args: Any, **more: Any) -> Any:
            what = None if isinstance(path, int) else sites.label(path)
            if what is None:
                return call(path, *args, **more)
            failing(name, what, after=False)
            result = call(path, *args, **more)
            if name == "open":
                names[result] = what
            try:
                failing(name, what, after=True)
            except OSError:
                if name == "open":
                    real["close"](result)
                    names.pop(result, None)
                raise
            return result

        return work

    def by_fd(name: str) -> Callable[..., Any]:
        call = real[name]

        def work(fd: Any, *args: Any, **more: Any) -> Any:
            what = names.get(fd)
            if what is None:
                return call(fd, *args, **more)
            if name == "close":  # frees the number whatever it says
                names.pop(fd, None)
                result = call(fd)
                failing(name, what, after=True)
                return result
            failing(name, what, after=False)
            result = call(fd, *args, **more)
            failing(name, what, after=True)
            return result

        return work

    for name in _BY_PATH:
        setattr(os, name, by_path(name))
    for name in _BY_FD:
        setattr(os, name, by_fd(name))
    try:
        yield
    finally:
        for name, call in real.items():
            setattr(os, name, call)


# -- connections -------------------------------------------------------------------------------------------------------


class GuardedConnection(sqlite3.Connection):
    """A connection that knows which thread is inside of it: a second one must wait for it to come out.

    SQLite makes it wait, Python's module does not: it frees what the first thread still uses, and the process is gone.

    Attributes:
        on_clash: called by the second thread with what it wants to do; it returns when the first one is out.
        on_statement: called before each statement; tells how it fails.
    """

    on_clash: ClassVar[Callable[[str], None]] = staticmethod(lambda what: None)
    on_statement: ClassVar[Callable[[str], Fault | None]] = staticmethod(lambda query: None)
    _inside: threading.Thread | None = None

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        me = threading.current_thread()
        before = self._inside
        if before is not None and before is not me:
            type(self).on_clash(what)
        self._inside = me
        try:
            yield
        finally:
            self._inside = before if before is me else None

    def execute(self, query: str, *values: Any) -> sqlite3.Cursor:  # type: ignore[override]
        with self._alone(query):
            fault = type(self).on_statement(query)
            if fault is not None:
                error = sqlite3.OperationalError(f"made up: {fault.kind}")
                error.sqlite_errorcode = {"busy": _BUSY, "full": _FULL}.get(fault.kind, _IOERR)
                raise error
            return super().execute(query, *values)

    def executemany(self, query: str, *values: Any) -> sqlite3.Cursor:  # type: ignore[override]
        with self._alone(query):
            return super().executemany(query, *values)

    def close(self) -> None:
        with self._alone("close"):
            super().close()


# -- SQLite ------------------------------------------------------------------------------------------------------------

_BUSY, _IOERR, _FULL = sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL
_CODES = {
    "read": sqlite3.SQLITE_IOERR_READ,
    "write": sqlite3.SQLITE_IOERR_WRITE,
    "sync": sqlite3.SQLITE_IOERR_FSYNC,
    "truncate": sqlite3.SQLITE_IOERR_TRUNCATE,
    "delete": sqlite3.SQLITE_IOERR_DELETE,
    "lock": sqlite3.SQLITE_IOERR_LOCK,
    "shm-lock": sqlite3.SQLITE_IOERR_LOCK,
}


class SQLiteFiles:
    """Tells ``sites`` of SQLite's calls of files below its root.

    Attributes:
        on_sleep: called with seconds where SQLite waits for a lock.
    """

    functions = frozenset(sqlite_files.FUNCTIONS)

    def __init__(self, sites: Sites, on_sleep: Callable[[float], None]) -> None:
        self.on_sleep = on_sleep
        self._sites = sites

    def name(self, path: bytes) -> str | None:
        return self._sites.label(path)

    def call(self, function: str, file: str, real: Callable[..., int], *args: Any) -> int:
        return self._fault(function, file, after=False) or real(*args) or self._fault(function, file, after=True)

    def sleep(self, seconds: float) -> bool:
        self.on_sleep(seconds)
        return True

    def _fault(self, function: str, file: str, *, after: bool) -> int:
        """Return SQLite's code of how the call fails; 0 if it does not."""
        told = "lock" if function == "shm-lock" else function
        fault = self._sites.meet("sqlite", told, file, after=after)
        if fault is None:
            return 0
        return {"busy": _BUSY, "full": _FULL}.get(fault.kind, _CODES[function])
