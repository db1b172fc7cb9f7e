"""One event loop in a daemon thread, for code that is not asynchronous (Spark's callbacks and drivers).

Spark forks its workers: the thread belongs to the process that made it, and a child makes its own.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from jobpipe.errors import LinkClosed, LocalProtocolError, WaitTimeout
from jobpipe.net.links.fork_guard import ForkGuard

log = logging.getLogger(__name__)
T = TypeVar("T")

ACTIVE_SECONDS = 0.1
STOP_SECONDS = 1.0  # what is nearly done may be done: it knows better words for why it waited


def called_in(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> Callable[..., None]:
    """Return what any thread may call, with any arguments, to have ``work`` done in a loop; nothing once that ended."""

    def call(*_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(work)

    return call


class EventLoopThread:
    """Runs coroutines in its own thread. Any thread may call :meth:`run`, except this one.

    Use :meth:`get` for the one of this process; make one yourself only where you also close it.
    """

    _current: ClassVar[EventLoopThread | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _inherited: ClassVar[
        list[EventLoopThread]
    ] = []  # a forked loop must not be collected: the parent has its descriptors

    def __init__(self) -> None:
        self._owner = ForkGuard("this portal")
        self._loop = asyncio.new_event_loop()
        self._guard = threading.Lock()
        self._closed = False
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name="jobpipe-portal", daemon=True)
        self._thread.start()

    @classmethod
    def get(cls) -> EventLoopThread:
        """Return the event-loop thread of this process; the first call makes it."""
        with cls._lock:
            loop_thread = cls._current
            if loop_thread is None or not loop_thread._owner.is_here or not loop_thread.alive:
                loop_thread = cls._current = cls()
            return loop_thread

    @property
    def alive(self) -> bool:
        return not self._closed and self._thread.is_alive()

    def run(
        self,
        make: Callable[[], Coroutine[Any, Any, T]],
        timeout: float | None,
        active: Callable[[], bool] | None = None,
        *,
        doing: str,
    ) -> T:
        """Run a coroutine and return its result; its own errors are raised as they are.

        Args:
            make: Returns the coroutine. It is called in the loop's thread, where no signal comes: a Ctrl-C that came
                between the making of a coroutine and its start would leave it never awaited.
            timeout: Seconds, or None where the coroutine has deadlines of its own.
            active: Asked every 0.1 s, in the caller's thread; a second after it turned false all is cancelled.
            doing: What the caller waits for, as an error says it: "topic 'orders': close the link to 10.0.0.1:7400".

        Raises:
            WaitTimeout: it took longer, or was not to go on, and was cancelled.
            LinkClosed: the thread is closed, or was closed meanwhile.
            ForkedProcess: called in a fork of its process.
            LocalProtocolError: called from the thread itself: a bug.
        """
        self._owner.require()
        if threading.current_thread() is self._thread:
            raise LocalProtocolError("a portal serves other threads than its own")
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            with self._guard:
                if self._closed:
                    raise LinkClosed("the portal is closed")
                self._waiting.add(future)
                self._loop.call_soon_threadsafe(self._begin, make, future)
            if active is not None:
                _while_active(future, active, doing)
            return future.result(timeout)
        except concurrent.futures.CancelledError as error:
            raise LinkClosed("the portal was closed") from error
        except TimeoutError as error:
            if future.done():  # the coroutine's own
                raise
            raise WaitTimeout(f"{doing}: not done within {timeout:g} s", seconds=timeout) from error
        finally:
            future.cancel()
            self._waiting.discard(future)

    def _begin(self, make: Callable[[], Coroutine[Any, Any, T]], future: concurrent.futures.Future[T]) -> None:
        """Start what ``future`` waits for; what is cancelled on one side is on the other. In the loop's thread."""
        if future.cancelled():
            return
        try:
            task = self._loop.create_task(make())
        except BaseException as error:  # noqa: BLE001 - the caller's, whatever it is
            _resolve_future(future.set_exception, error)
            return

        def ended(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                future.cancel()
            elif (error := task.exception()) is not None:
                _resolve_future(future.set_exception, error)
            else:
                _resolve_future(future.set_result, task.result())

        def abandoned(future: concurrent.futures.Future[T]) -> None:
            if future.cancelled():
                with contextlib.suppress(RuntimeError):  # the loop is closed, and the task with it
                    self._loop.call_soon_threadsafe(task.cancel)

        task.add_done_callback(ended)
        future.add_done_callback(abandoned)

    def close(self, timeout: float = 5.0) -> None:
        """Cancel all tasks, end the thread, wait at most ``timeout`` seconds. Idempotent."""
        if not self._owner.is_here:
            return
        with self._guard:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("the portal's thread did not end within %g s", timeout)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=2.0))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()
            for future in list(self._waiting):
                future.cancel()  # a loop that is gone answers no waiter


def _resolve_future(resolve: Callable[[Any], None], outcome: Any) -> None:
    """Resolve a future, unless its waiter has gone."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        resolve(outcome)


def _while_active(future: concurrent.futures.Future[Any], active: Callable[[], bool], doing: str) -> None:
    while not concurrent.futures.wait([future], timeout=ACTIVE_SECONDS).done:
        if not active():
            if concurrent.futures.wait([future], timeout=STOP_SECONDS).done:
                return
            raise WaitTimeout(f"{doing}: no answer came before the caller had to stop")


def _in_child() -> None:
    EventLoopThread._lock = threading.Lock()  # another thread may have held it at the fork
    if EventLoopThread._current is not None:
        EventLoopThread._inherited.append(EventLoopThread._current)
        EventLoopThread._current = None


def _at_exit() -> None:
    loop_thread = EventLoopThread._current
    if loop_thread is not None:
        loop_thread.close(timeout=2.0)


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
