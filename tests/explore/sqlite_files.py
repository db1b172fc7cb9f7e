"""SQLite's own calls of its files, told to an explorer: https://sqlite.org/vfs.html.

SQLite reaches the operating system through an interface, its VFS. :func:`watched` puts a layer over the default one,
which asks a :class:`Watcher` at each call: it makes the call, or answers with an error code. So a failed sync is what
SQLite makes of it, with locks, journals and half-written logs.
"""

from __future__ import annotations

import _sqlite3
import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

_P, _I, _L, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_OPEN = ctypes.CFUNCTYPE(_I, _P, _P, _P, _I, _P)  # the name's address: SQLite keeps it
_DELETE = ctypes.CFUNCTYPE(_I, _P, _S, _I)
_SLEEP = ctypes.CFUNCTYPE(_I, _P, _I)
FUNCTIONS = {
    "read": ("xRead", ctypes.CFUNCTYPE(_I, _P, _P, _I, _L)),
    "write": ("xWrite", ctypes.CFUNCTYPE(_I, _P, _P, _I, _L)),
    "truncate": ("xTruncate", ctypes.CFUNCTYPE(_I, _P, _L)),
    "sync": ("xSync", ctypes.CFUNCTYPE(_I, _P, _I)),
    "lock": ("xLock", ctypes.CFUNCTYPE(_I, _P, _I)),
    "shm-lock": ("xShmLock", ctypes.CFUNCTYPE(_I, _P, _I, _I, _I)),  # only the lock of who writes, being taken
}
"""Of a file, by our names: SQLite's name and type. A watcher is also told of ``delete``."""


class Watcher(Protocol):
    """Who is asked.

    Attributes:
        functions: those of :data:`FUNCTIONS` that it is asked about; the others go as they would without it.
    """

    functions: frozenset[str]

    def name(self, path: bytes) -> str | None:
        """Return how it calls a file; it is not asked about one that is None."""

    def call(self, function: str, file: str, real: Callable[..., int], *args: Any) -> int:
        """Return ``real(*args)``, or another code of SQLite's."""

    def sleep(self, seconds: float) -> bool:
        """Wait before SQLite tries again; False if it shall wait by itself."""


class _Methods(ctypes.Structure):  # https://sqlite.org/c3ref/io_methods.html, version 3
    _fields_ = (("iVersion", _I), *((name, _P) for name in (
        "xClose", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize", "xLock", "xUnlock", "xCheckReservedLock",
        "xFileControl", "xSectorSize", "xDeviceCharacteristics", "xShmMap", "xShmLock", "xShmBarrier", "xShmUnmap",
        "xFetch", "xUnfetch",
    )))  # fmt: skip


class _File(ctypes.Structure):
    _fields_ = (("pMethods", ctypes.POINTER(_Methods)),)


class _Vfs(ctypes.Structure):  # https://sqlite.org/c3ref/vfs.html
    _fields_ = (
        ("iVersion", _I), ("szOsFile", _I), ("mxPathname", _I), ("pNext", _P), ("zName", _S), ("pAppData", _P),
        *((name, _P) for name in (
            "xOpen", "xDelete", "xAccess", "xFullPathname", "xDlOpen", "xDlError", "xDlSym", "xDlClose", "xRandomness",
            "xSleep", "xCurrentTime", "xGetLastError", "xCurrentTimeInt64", "xSetSystemCall", "xGetSystemCall",
            "xNextSystemCall",
        )),
    )  # fmt: skip


class _Layer:
    """The one of this process: its C functions must live as long as any connection."""

    def __init__(self) -> None:
        with open("/proc/self/maps") as maps:  # the very library that Python's module uses
            found = {line.split()[-1] for line in maps if "libsqlite3" in line}
        self._library = ctypes.CDLL(sorted(found)[0] if found else _sqlite3.__file__)
        self._library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        self._original = self._library.sqlite3_vfs_find(None)
        self._vfs = _Vfs.from_buffer_copy(self._original.contents)
        self._vfs.zName = b"explored"
        self._names: dict[int, str] = {}
        self._tables: dict[tuple[int, frozenset[str]], _Methods] = {}
        self._kept: list[Any] = []
        self._watcher: Watcher | None = None
        self._real_open = _OPEN(self._vfs.xOpen)
        self._real_delete = _DELETE(self._vfs.xDelete)
        self._real_sleep = _SLEEP(self._vfs.xSleep)
        self._vfs.xOpen = self._keep(_OPEN(self._open))
        self._vfs.xDelete = self._keep(_DELETE(self._delete))
        self._vfs.xSleep = self._keep(_SLEEP(self._sleep))

    @contextlib.contextmanager
    def asking(self, watcher: Watcher) -> Iterator[None]:
        self._watcher = watcher
        self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1)
        try:
            yield
        finally:
            self._library.sqlite3_vfs_register(self._original, 1)
            self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))
            self._watcher = None

    def _keep(self, function: Any) -> int | None:
        self._kept.append(function)
        return ctypes.cast(function, _P).value

    def _sleep(self, vfs: int, microseconds: int) -> int:
        if self._watcher is not None and self._watcher.sleep(microseconds / 1e6):
            return microseconds
        return int(self._real_sleep(vfs, microseconds))

    def _delete(self, vfs: int, path: bytes, sync: int) -> int:
        watcher = self._watcher
        name = None if watcher is None else watcher.name(path)
        if watcher is None or name is None:
            return int(self._real_delete(vfs, path, sync))
        return watcher.call("delete", name, self._real_delete, vfs, path, sync)

    def _open(self, vfs: int, path: int | None, address: int, flags: int, out: int) -> int:
        code = int(self._real_open(vfs, path, address, flags, out))
        watcher = self._watcher
        name = None if watcher is None or not path else watcher.name(ctypes.string_at(path))
        if code == 0 and watcher is not None and name is not None:
            self._names[address] = name
            file = _File.from_address(address)
            key = ctypes.addressof(file.pMethods.contents), watcher.functions
            if key not in self._tables:
                self._tables[key] = self._table(file.pMethods.contents, watcher.functions)
            file.pMethods = ctypes.pointer(self._tables[key])
        return code

    def _table(self, real: _Methods, functions: frozenset[str]) -> _Methods:
        made = _Methods.from_buffer_copy(real)
        for function in functions:
            field, kind = FUNCTIONS[function]
            if getattr(real, field):
                ask = functools.partial(self._ask, function, kind(getattr(real, field)))
                setattr(made, field, self._keep(kind(ask)))
        return made

    def _ask(self, function: str, real: Callable[..., int], address: int, *args: Any) -> int:
        watcher, name = self._watcher, self._names.get(address)
        beside = function == "shm-lock" and (args[0] != 0 or args[2] != 2 | 8)  # not SQLITE_SHM_LOCK | _EXCLUSIVE
        if watcher is None or name is None or beside:
            return int(real(address, *args))
        return watcher.call(function, name, real, address, *args)


_layer = functools.cache(_Layer)


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Ask ``watcher`` of the files that are opened inside the block; one at a time in a process."""
    with _layer().asking(watcher):
        yield
