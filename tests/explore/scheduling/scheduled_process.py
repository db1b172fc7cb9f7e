"""Processes of a seeded run: what is killed or stands still as one."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.explore.scheduling.scheduled_time import Job, VirtualLoop
    from tests.explore.virtual_time import Handle


class Killed(BaseException):
    """The process of this thread was killed."""


class Process:
    """What is killed or stopped as one.

    Attributes:
        fail_sync: The next sync of SQLite in it fails.
        fail_read: The next statement that begins a reading transaction, or none, fails.
        registry_away: Its calls of the registry fail.
    """

    _pids = itertools.count(1000)

    @classmethod
    def reset(cls) -> None:
        """Count pids from the beginning again."""
        cls._pids = itertools.count(1000)

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.pid = next(self._pids)
        self.started = loop.time()
        self.alive = True
        self.paused = False
        self.fail_sync = False
        self.fail_read = False
        self.registry_away = False
        self.jobs: dict[Job, None] = {}  # a set has no order that a seed gives
        self.connections: list[sqlite3.Connection] = []
        self._held: list[Handle] = []
        self._loop = loop

    def __repr__(self) -> str:
        return self.name

    @property
    def busy(self) -> bool:
        """Work for a thread is under way, but for threads that last."""
        return any(not job.lasts for job in self.jobs)

    def hold(self, handle: Handle) -> None:
        self._held.append(handle)

    def stop(self) -> None:
        """Stand still, as by SIGSTOP."""
        self.paused = True

    def go_on(self) -> None:
        """Go on, as by SIGCONT."""
        self.paused = False
        held, self._held = self._held, []
        self._loop.take(held)

    def kill(self) -> None:
        """End at once, as by SIGKILL; its files stay, its transactions are rolled back."""
        self.alive = self.paused = False
        for job in list(self.jobs):
            job.kill()
        for connection in self.connections:
            connection.close()  # as the kernel takes its locks away
        self.connections.clear()

    def spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        """Run a coroutine as part of this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return self._loop.create_task(work, name=name, context=context)

    def start_thread(self, work: Callable[[], None]) -> None:
        """Run blocking code in a thread of this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        context.run(self._loop.start_thread, work)


def owned(connection: sqlite3.Connection) -> None:
    """Let a connection end with the process that has opened it."""
    if (process := PROCESS.get()) is not None:
        process.connections.append(connection)


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
