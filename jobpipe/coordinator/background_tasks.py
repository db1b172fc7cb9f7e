"""Work that goes on to its end when the request that asked for it is cancelled, as by its link's end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from jobpipe.errors import JobpipeError

R = TypeVar("R")
log = logging.getLogger(__name__)

END_SECONDS = 2.0  # for what has to be taken back in the registry; its session ends soon, and takes the rest with it


class BackgroundTasks:
    """Owns tasks. Each ends by itself, and :meth:`end` ends those that are left."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run ``work`` in a task; an error that no caller waits for is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run ``work`` and return its result. If the caller is cancelled, ``work`` goes on."""
        return await asyncio.shield(self.start(work))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, JobpipeError):
            log.info("%s", error)  # the caller gets it, if it still waits
        else:
            log.error("a task of the coordinator failed", exc_info=error)

    async def end(self) -> None:
        """Cancel what is left, and wait a moment for it to clean up."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_SECONDS)
