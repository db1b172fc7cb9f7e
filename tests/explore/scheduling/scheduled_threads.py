"""What stands for the modules ``threading`` and ``time`` in a seeded run: locks, events and sleep between jobs."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

from tests.explore.interleaving import interleave_steps
from tests.explore.scheduling.scheduled_time import Job, VirtualLoop


def pause(seconds: float) -> None:
    """Let others go on, in a thread that may; elsewhere nothing happens."""
    job = getattr(interleave_steps._here, "actor", None)
    if isinstance(job, Job):
        job.sleep(seconds)


def rest(seconds: float) -> None:
    """As :func:`pause`, where this thread is in the middle of nothing that others could meet."""
    job = getattr(interleave_steps._here, "actor", None)
    if isinstance(job, Job):
        job.rest(seconds)


class Lock:
    """A re-entrant lock between jobs."""

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = getattr(interleave_steps._here, "actor", None) or "the loop"
        waited = 0.0
        while self._owner is not None and self._owner is not me:
            if isinstance(self._owner, Job) and self._owner.ended:
                break  # killed
            waits = isinstance(me, Job) and me.may_wait
            if not waits or not blocking or 0 <= timeout <= waited:
                return False
            step = min(0.01 + waited / 2, 0.2)
            rest(step)
            waited += step
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None

    __enter__ = acquire

    def __exit__(self, *exc: object) -> None:
        self.release()


class Event:
    """An event that jobs wait for."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Job] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            job.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        job = getattr(interleave_steps._here, "actor", None)
        if not self._set and isinstance(job, Job):
            self._waiting.append(job)
            job.rest(timeout)
            if job in self._waiting:
                self._waiting.remove(job)
        return self._set


def virtual_threading(loop: VirtualLoop) -> Any:
    """Return what stands for the module ``threading`` where a package starts a thread and locks."""

    class Thread:
        def __init__(self, target: Callable[..., None], args: tuple[Any, ...] = (), **other: Any) -> None:
            self._target = functools.partial(target, *args)

        def start(self) -> None:
            loop.start_thread(self._target)

        def join(self, timeout: float | None = None) -> None:
            pass

    return types.SimpleNamespace(
        RLock=Lock, Event=Event, Thread=Thread, Lock=Lock, current_thread=threading.current_thread
    )


def virtual_time(loop: VirtualLoop) -> Any:
    """Return what stands for the module ``time``."""
    return types.SimpleNamespace(monotonic=loop.time, time=lambda: 1e9 + loop.time(), sleep=rest)
