"""An event loop for explorers: virtual time, and thread work that runs when, and as far as, the explorer says.

``run_in_executor`` makes a :class:`Job`. One job, or the loop, has the turn at any moment, so a run is the same each
time. A job may stop in the middle of its work (:meth:`WorldLoop.pause`): then the loop goes on, as it would while a
thread waits for its disk.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

from tests.explore.virtual_time import Stuck, VirtualTimeLoop, closed_lock

JOB_SECONDS = 60.0  # real ones, after which a job that has the turn counts as hanging


class Job:
    """Work of a thread.

    Attributes:
        executor: whose thread; None is asyncio's own executor, which has as many threads as it takes.
        future: what the caller awaits.
        started, ended: how far it is.
    """

    def __init__(self, executor: Any, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.executor = executor
        self.future = future
        self.started = self.ended = False
        self.paused_at: float | None = None
        self._work = work
        self._go = closed_lock()
        self._back = closed_lock()
        self._result: tuple[bool, Any] = (True, None)
        self.thread: threading.Thread | None = None

    def run_here(self) -> None:
        """Do all of the work in the caller's thread."""
        self.started = True
        self._do()

    def advance(self) -> None:
        """Let the job have the turn until it pauses or ends, in a thread of its own."""
        self.paused_at = None
        if self.thread is None:
            self.started = True
            self.thread = threading.Thread(target=self._do_and_tell, name="explored-job", daemon=True)
            self.thread.start()
        else:
            self._go.release()
        if not self._back.acquire(timeout=JOB_SECONDS):
            raise Stuck(f"thread work did not end within {JOB_SECONDS:g} s")
        if self.ended:
            self.thread.join(JOB_SECONDS)

    def give_way(self) -> None:
        """Called in the job's thread: wait for the next turn."""
        self._back.release()
        self._go.acquire()

    def deliver(self) -> None:
        """Give the caller the outcome, unless it was cancelled."""
        if self.future.done():
            return
        good, result = self._result
        if good:
            self.future.set_result(result)
        else:
            self.future.set_exception(result)

    def _do(self) -> None:
        try:
            self._result = True, self._work()
        except BaseException as error:
            self._result = False, error
        self.ended = True

    def _do_and_tell(self) -> None:
        self._do()
        self._back.release()


class WorldLoop(VirtualTimeLoop):
    """The loop.

    Attributes:
        threaded: the numbers of the jobs that may pause, so that each has a thread of its own; all others run within
            the loop's thread, which is much quicker.
        number: of the job that was started last.
        hold: virtual seconds for which a paused job stays so, while there is anything else to do.
        soon: a paused job goes on before any other work.
        on_pause: called in the loop's thread when a job has paused.
        on_done: called in the loop's thread when a job has ended and its outcome is not delivered yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threaded: set[int] = set()
        self.number = 0
        self.hold = 0.0
        self.soon = False
        self.on_pause: Callable[[], None] = lambda: None
        self.on_done: Callable[[], None] = lambda: None
        self.queue: list[Job] = []
        self.paused: list[Job] = []
        self.current: Job | None = None

    def gather(self) -> None:
        while True:
            while (at := self.next_at()) is not None and at <= self.now:
                self.ready.append(self.take_next())
            if self.ready:
                return
            if not self.work_or_wait(None if at is None else at - self.now):
                raise Stuck("the loop waits for what never comes")

    def sleep(self, seconds: float) -> None:
        """What ``time.sleep`` is within the world."""
        self.now += max(seconds, 0.0)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        if executor is not None and executor._shutdown:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: asyncio.Future[Any] = self.create_future()
        self.queue.append(Job(executor, lambda: func(*args), future))
        return future

    # -- whose turn it is ----------------------------------------------------------------------------------------------

    def work_or_wait(self, timeout: float | None) -> bool:
        """Let one job have the turn, or the clock move on; False when neither can be."""
        self.queue = [job for job in self.queue if not job.future.cancelled()]  # a thread pool drops them, too
        if self.paused and self.soon:
            self._advance(self.paused[0])
            return True
        ready = self.choose([job for job in self.queue if not self._occupied(job.executor)])
        if ready is not None:
            self.queue.remove(ready)
            self._advance(ready)
            return True
        if self.paused:
            first = self.paused[0]
            assert first.paused_at is not None
            rest = first.paused_at + self.hold - self.now
            if timeout is None or self.queue or rest <= 0:
                self._advance(first)
            else:
                self.now += min(timeout, rest)
            return True
        if timeout is None:
            return False
        self.now += timeout
        return True

    def choose(self, ready: list[Job]) -> Job | None:
        """Return the job that has the turn next: the oldest; a seeded scheduler draws one."""
        return ready[0] if ready else None

    def finish(self, job: Job) -> None:
        """Let a paused job end: what has the turn waits for it."""
        while not job.ended:
            self._advance(job, pausing=False)

    def finish_paused(self) -> bool:
        """Let all paused jobs end; tell whether there was one."""
        found = [job for job in self.paused if job is not self.current]
        for job in found:
            self.finish(job)
        return bool(found)

    def pause(self) -> None:
        """Called in a job: let the loop go on, as while a thread waits for its disk."""
        job = self.current
        if job is None or job.thread is None or job.thread is not threading.current_thread():
            return
        job.paused_at = self.now
        self.paused.append(job)
        job.give_way()

    def _advance(self, job: Job, *, pausing: bool = True) -> None:
        before, self.current = self.current, job
        if job in self.paused:
            self.paused.remove(job)
        try:
            if not job.started:
                self.number += 1
            if job.thread is not None or (not job.started and self.number in self.threaded):
                job.advance()
            else:
                job.run_here()
        finally:
            self.current = before
        if job.ended:
            if before is not None:  # within another job's turn: the loop's own state is not for this thread
                self.call_soon_threadsafe(job.deliver)
            else:
                self.on_done()
                self.call_soon(job.deliver)
        elif pausing:
            self.on_pause()

    def _occupied(self, executor: Any) -> bool:
        if not isinstance(executor, concurrent.futures.ThreadPoolExecutor):
            return False
        return sum(1 for job in self.paused if job.executor is executor) >= executor._max_workers


class YieldingRLock:
    """A reentrant lock for jobs: who waits for it lets its holder go on."""

    def __init__(self, loop: WorldLoop) -> None:
        self._loop = loop
        self._holder: Job | None = None
        self._thread: threading.Thread | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = threading.current_thread()
        if self._depth and self._thread is not me:
            if self._holder is not None and self._holder in self._loop.paused:
                self._loop.finish(self._holder)
            if self._depth:
                raise Stuck("a lock is held by what does not go on")
        self._holder, self._thread = self._loop.current, me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = self._thread = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()
