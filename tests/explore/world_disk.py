"""Every call of the disk and of SQLite as a place where an explorer may act: pause there, or let the call fail.

SQLite's files are reached through its own interface to the operating system (https://sqlite.org/vfs.html): a layer
over the default one. So a failed sync is what SQLite makes of it, with locks, journals and half-written logs.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import errno
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

__all__ = ["Call", "Fault", "GuardedConnection", "Sites", "patched_os", "sqlite_layer"]

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

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_BUSY, _IOERR, _FULL = 5, 10, 13
_CODES = {"read": 266, "write": 778, "sync": 1034, "truncate": 1546, "delete": 2570, "lock": 3850, "shm-lock": 5130}

_F_CLOSE = ctypes.CFUNCTYPE(_I, _P)
_F_READ = ctypes.CFUNCTYPE(_I, _P, _P, _I, _L)
_F_TRUNCATE = ctypes.CFUNCTYPE(_I, _P, _L)
_F_INT = ctypes.CFUNCTYPE(_I, _P, _I)
_F_SHM_LOCK = ctypes.CFUNCTYPE(_I, _P, _I, _I, _I)
_F_OPEN = ctypes.CFUNCTYPE(_I, _P, _P, _P, _I, _P)  # the name is kept as a pointer
_F_DELETE = ctypes.CFUNCTYPE(_I, _P, ctypes.c_char_p, _I)
_F_SLEEP = ctypes.CFUNCTYPE(_I, _P, _I)


class _Methods(ctypes.Structure):
    _fields_ = (
        ("iVersion", _I),
        ("xClose", _P),
        ("xRead", _P),
        ("xWrite", _P),
        ("xTruncate", _P),
        ("xSync", _P),
        ("xFileSize", _P),
        ("xLock", _P),
        ("xUnlock", _P),
        ("xCheckReservedLock", _P),
        ("xFileControl", _P),
        ("xSectorSize", _P),
        ("xDeviceCharacteristics", _P),
        ("xShmMap", _P),
        ("xShmLock", _P),
        ("xShmBarrier", _P),
        ("xShmUnmap", _P),
        ("xFetch", _P),
        ("xUnfetch", _P),
    )


class _File(ctypes.Structure):
    _fields_ = (("pMethods", ctypes.POINTER(_Methods)),)


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("iVersion", _I),
        ("szOsFile", _I),
        ("mxPathname", _I),
        ("pNext", _P),
        ("zName", ctypes.c_char_p),
        ("pAppData", _P),
        ("xOpen", _P),
        ("xDelete", _P),
        ("xAccess", _P),
        ("xFullPathname", _P),
        ("xDlOpen", _P),
        ("xDlError", _P),
        ("xDlSym", _P),
        ("xDlClose", _P),
        ("xRandomness", _P),
        ("xSleep", _P),
        ("xCurrentTime", _P),
        ("xGetLastError", _P),
        ("xCurrentTimeInt64", _P),
        ("xSetSystemCall", _P),
        ("xGetSystemCall", _P),
        ("xNextSystemCall", _P),
    )


class _Layer:
    """The one layer of this process; its C functions must live as long as any connection."""

    def __init__(self) -> None:
        import _sqlite3

        with open("/proc/self/maps") as maps:  # the very library that Python's module uses
            found = {line.split()[-1] for line in maps if "libsqlite3" in line}
        self._library = ctypes.CDLL(sorted(found)[0] if found else _sqlite3.__file__)
        self._library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        self._original = self._library.sqlite3_vfs_find(None)
        self._vfs = _Vfs.from_buffer_copy(self._original.contents)
        self._vfs.zName = b"explored"
        self._names: dict[int, str] = {}
        self._tables: dict[int, _Methods] = {}
        self._kept: list[Any] = []
        self.sites: Sites | None = None
        self.on_sleep: Callable[[float], None] = lambda seconds: None
        self._real_open = _F_OPEN(self._vfs.xOpen)
        self._real_delete = _F_DELETE(self._vfs.xDelete)
        self._vfs.xOpen = self._keep(_F_OPEN(self._open))
        self._vfs.xDelete = self._keep(_F_DELETE(self._delete))
        self._vfs.xSleep = self._keep(_F_SLEEP(self._sleep))

    @contextlib.contextmanager
    def active(self, sites: Sites, on_sleep: Callable[[float], None]) -> Iterator[None]:
        self.sites, self.on_sleep = sites, on_sleep
        self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1)
        try:
            yield
        finally:
            self._library.sqlite3_vfs_register(self._original, 1)
            self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))
            self.sites = None

    def _keep(self, function: Any) -> Any:
        self._kept.append(function)
        return ctypes.cast(function, _P).value

    def _meet(self, name: str, what: str, *, after: bool) -> int:
        """Return SQLite's code of how the call fails; 0 if it does not."""
        sites = self.sites
        fault = None if sites is None else sites.meet("sqlite", name, what, after=after)
        if fault is None:
            return 0
        return {"busy": _BUSY, "full": _FULL}.get(fault.kind, _CODES[name])

    def _guarded(self, name: str, what: str, call: Callable[[], int]) -> int:
        code = self._meet(name, what, after=False)
        if code:
            return code
        code = call()
        return code or self._meet(name, what, after=True)

    def _sleep(self, vfs: int, microseconds: int) -> int:
        self.on_sleep(microseconds / 1e6)
        return microseconds

    def _delete(self, vfs: int, name: bytes, sync: int) -> int:
        what = None if self.sites is None else self.sites.label(name)
        if what is None:
            return self._real_delete(vfs, name, sync)
        return self._guarded("delete", what, lambda: self._real_delete(vfs, name, sync))

    def _open(self, vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        code = self._real_open(vfs, name, file, flags, out)
        what = None if not name or self.sites is None else self.sites.label(ctypes.string_at(name))
        if code == 0 and what is not None:
            self._names[file] = what
            self._wrap(_File.from_address(file))
        return int(code)

    def _wrap(self, file: _File) -> None:
        address = ctypes.addressof(file.pMethods.contents)
        if address not in self._tables:
            self._tables[address] = self._table(file.pMethods.contents)
        file.pMethods = ctypes.pointer(self._tables[address])

    def _table(self, real: _Methods) -> _Methods:
        made = _Methods.from_buffer_copy(real)
        close = _F_CLOSE(real.xClose)
        read, write = _F_READ(real.xRead), _F_READ(real.xWrite)
        truncate, sync, lock = _F_TRUNCATE(real.xTruncate), _F_INT(real.xSync), _F_INT(real.xLock)
        shm_lock = _F_SHM_LOCK(real.xShmLock)
        names = self._names

        def x_close(file: int) -> int:
            names.pop(file, None)
            return int(close(file))

        def x_read(file: int, into: int, length: int, offset: int) -> int:
            return self._guarded("read", names.get(file, "?"), lambda: read(file, into, length, offset))

        def x_write(file: int, data: int, length: int, offset: int) -> int:
            return self._guarded("write", names.get(file, "?"), lambda: write(file, data, length, offset))

        def x_truncate(file: int, length: int) -> int:
            return self._guarded("truncate", names.get(file, "?"), lambda: truncate(file, length))

        def x_sync(file: int, flags: int) -> int:
            return self._guarded("sync", names.get(file, "?"), lambda: sync(file, flags))

        def x_lock(file: int, level: int) -> int:
            return self._guarded("lock", names.get(file, "?"), lambda: lock(file, level))

        def x_shm_lock(file: int, offset: int, count: int, flags: int) -> int:
            if flags != 2 | 8 or offset != 0:  # the lock of who writes, being taken
                return int(shm_lock(file, offset, count, flags))
            return self._guarded("lock", names.get(file, "?"), lambda: shm_lock(file, offset, count, flags))

        made.xClose = self._keep(_F_CLOSE(x_close))
        made.xRead = self._keep(_F_READ(x_read))
        made.xWrite = self._keep(_F_READ(x_write))
        made.xTruncate = self._keep(_F_TRUNCATE(x_truncate))
        made.xSync = self._keep(_F_INT(x_sync))
        made.xLock = self._keep(_F_INT(x_lock))
        if real.xShmLock:
            made.xShmLock = self._keep(_F_SHM_LOCK(x_shm_lock))
        return made


_layer: list[_Layer] = []


def sqlite_layer() -> _Layer:
    """Return this process's layer, made on first use."""
    if not _layer:
        _layer.append(_Layer())
    return _layer[0]
