"""Files that one process at a time keeps locked; they say which one it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from jobpipe.errors import ConfigError
from jobpipe_registry.host.local_files import is_locked, locked_file

_LOOK_SECONDS = 0.2  # :func:`holder` has the lock for a moment


def holder(path: Path) -> str | None:
    """Return which process holds the lock of a file, None: none does."""
    return _owner(path) if is_locked(path) else None


@contextmanager
def locked(path: Path, what: str, remedy: str, key: str) -> Iterator[None]:
    """Hold the lock of a file inside the block; it ends with the process in any case.

    Args:
        what: runs then, as ``pipeline flights``: for the message.
        remedy: what to do about another one.
        key: of the error.

    Raises:
        ConfigError: another process holds it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(locked_file(path, _LOOK_SECONDS))
        except TimeoutError:
            raise ConfigError(f"{what} is already running, by process {_owner(path)}; {remedy}", key=key) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield


def _owner(path: Path) -> str:
    with path.open() as file:
        return file.read(20).strip() or "another process"
