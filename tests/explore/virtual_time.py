"""An event loop whose clock jumps: the base of the explorers' loops, which say what thread work does meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import threading
from collections import deque
from typing import Any


class Stuck(AssertionError):
    """Nothing will ever happen, or not in time."""


def closed_lock() -> Any:
    """A lock that one thread releases to let another go on; much quicker than a semaphore."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Handle:
    """A callback that will be called, at ``at`` if that is a time; much cheaper than asyncio's."""

    __slots__ = ("args", "at", "callback", "context")

    def __init__(self, callback: Any, args: tuple[Any, ...], context: contextvars.Context | None, at: float) -> None:
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.at = at

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.at


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """The base: all callbacks and timers, without a selector.

    Attributes:
        now: the virtual time, seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._numbers = itertools.count()  # of equal times the first comes first

    # -- what a loop says ----------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Make callbacks ready, at least one if none is.

        Raises:
            Stuck: nothing will ever happen.
        """
        raise NotImplementedError

    def may_run(self, handle: Handle) -> bool:
        """Tell whether a callback runs now; one that does not is forgotten here."""
        return True

    # -- for them ------------------------------------------------------------------------------------------------------

    def next_at(self) -> float | None:
        """Return when the next timer is due."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def take_next(self) -> Handle:
        """Return the timer that :meth:`next_at` has told of, which is one no longer."""
        return heapq.heappop(self._timers)[2]

    # -- what asyncio asks ---------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        self.gather()
        ready = self.ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            callback = handle.callback
            if callback is None or not self.may_run(handle):
                continue
            try:
                handle.context.run(callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"in {callback}", "exception": error})

    def _write_to_self(self) -> None:
        pass

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, context, self.now)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, context, when)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        return self.call_at(self.now + delay, callback, *args, context=context)
