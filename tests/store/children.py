"""Processes that do a part of a store's test, forked from one that has imported everything already."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable
from typing import Any

PROCESSES = multiprocessing.get_context("forkserver")


class Child:
    """A process that runs ``work``, which gets the other end of :attr:`pipe` first."""

    def __init__(self, work: Callable[..., None], *args: object) -> None:
        self.pipe, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=work, args=(theirs, *args))
        self.process.start()
        theirs.close()

    def receive(self) -> Any:
        """Return the next message; EOFError after the last."""
        assert self.pipe.poll(60), "the process says nothing"
        return self.pipe.recv()

    def finish(self) -> list[Any]:
        """Return all messages that are left, after the end of the process."""
        said = []
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                said.append(self.receive())
        self.process.join(60)
        self.pipe.close()
        return said

    @property
    def code(self) -> int | None:
        return self.process.exitcode
