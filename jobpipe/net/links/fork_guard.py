"""The process that opened something: a fork inherits the object, but neither its threads nor its links."""

from __future__ import annotations

import os

from jobpipe.errors import ForkedProcess


class ForkGuard:
    """Remembers which process opened something, so that its forks neither use nor close it.

    Ask before any lock is taken: a thread that the fork does not have may hold it.

    Args:
        what: was opened, as ``topic 'orders': this publisher``.
    """

    __slots__ = ("_pid", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that opened it."""
        return self._pid == os.getpid()

    def require(self) -> None:
        """Go on in the process that opened it.

        Raises:
            ForkedProcess: this is a fork of that process.
        """
        if self._pid != os.getpid():
            raise ForkedProcess(
                f"{self._what} belongs to process {self._pid}, which opened it, and process {os.getpid()} is a fork of "
                "that process. Open it after the fork, in each process, or start processes by multiprocessing's spawn",
                owner=self._pid,
                pid=os.getpid(),
            )
