"""An event loop whose clock jumps, processes that can be killed and stopped, and thread work that takes virtual time.

Everything runs in one thread at a time. What a callback belongs to is a context variable, ``PROCESS``: the callbacks of
a process that was killed never run, those of one that stands still run when it goes on. Work for a thread (of
``asyncio.to_thread`` or an executor) is a :class:`Job`: begun after a delay drawn by the seed, its result told after
another one. A job runs in a thread of its own that may pause, while others go on, or, where nothing can come between,
at once in the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from tests.explore.interleaving import interleave_steps
from tests.explore.scheduling.scheduled_process import PROCESS, Killed
from tests.explore.virtual_time import Handle, Stuck, VirtualTimeLoop, closed_lock

BUSY_SECONDS = 10.0  # SQLite's busy time-out in the store
REAL_SECONDS = 60.0  # for one turn of a thread; more is a mistake of the explorer
STOPS = ("BEGIN", "COMMIT", "sync", "locked")  # steps of the store's work before which others may come


class _Task(asyncio.Task[Any]):
    """Hashed by its number: sets of tasks have the same order in each run."""

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(VirtualTimeLoop):
    """Jumps to the next timer when nothing is ready.

    Args:
        rng: Draws all delays.
        limit: Seconds after which a run is stuck.
    """

    def __init__(self, rng: random.Random, limit: float) -> None:
        super().__init__()
        self.rng = rng
        self.jobs = 0
        self.deep: dict[Job, None] = {}  # that have begun in threads of their own and have not ended
        self.midway = 0  # of them, those that are in the middle of something
        self.at_once = 0.0  # how likely work runs without a pause, where nothing is in the middle of something
        self._limit = self.now + limit
        self._queues: dict[int, tuple[Executor, deque[Job]]] = {}
        self._idle: list[_Worker] = []
        self._workers: list[_Worker] = []
        self.tasks: list[asyncio.Task[Any]] = []  # all, kept: what is left of a killed process must not clean up
        self.over = False
        self.slow = 0.0  # seconds more that thread work takes, at most

    # -- what the base asks --------------------------------------------------------------------------------------------

    def gather(self) -> None:
        if self.ready:
            return
        at = self.next_at()
        if at is None:
            raise Stuck("nothing will ever happen")
        self.now = max(self.now, at)
        if self.now > self._limit:
            raise Stuck(f"no end after {self.now - 1000.0:.0f} virtual seconds")
        self.ready.append(self.take_next())

    def may_run(self, handle: Handle) -> bool:
        process = handle.context.get(PROCESS)
        if process is None:
            return True
        if process.alive and process.paused:
            process.hold(handle)
        return process.alive and not process.paused

    def passed(self, seconds: float) -> bool:
        """Let time pass if nothing else would happen meanwhile: no other thread need have its turn."""
        at, until = self.next_at(), self.now + seconds
        if self.ready or until > self._limit or (at is not None and at <= until):
            return False
        self.now = until
        return True

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task = _Task(coro, loop=self, name=name, context=context, number=len(self.tasks))
        self.tasks.append(task)
        return task

    def take(self, handles: list[Any]) -> None:
        """Run handles that were held."""
        self.ready.extend(handles)

    # -- threads -------------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        if self.over:
            raise RuntimeError("the run is over")
        job = Job(self, lambda: func(*args))
        if isinstance(executor, ThreadPoolExecutor) and executor._max_workers == 1:
            _, queue = self._queues.setdefault(id(executor), (executor, deque()))
            job.queue = queue
            queue.append(job)
            if len(queue) == 1:
                job.schedule()
        else:
            job.schedule()
        return job.future

    def start_thread(self, work: Callable[[], None]) -> None:
        """Start a thread that lasts, of the process of the caller."""
        Job(self, work, deep=True).schedule()

    def worker(self) -> _Worker:
        if self._idle:
            return self._idle.pop()
        worker = _Worker(self._idle.append)
        self._workers.append(worker)
        return worker

    def end_workers(self) -> None:
        """End all threads; jobs that are under way are killed."""
        for job in list(self.deep):
            job.kill()
        for worker in self._workers:
            worker.end()


class _Worker:
    """A thread that runs one job after another, and only while it has the turn."""

    def __init__(self, idle: Callable[[_Worker], None]) -> None:
        self._idle = idle
        self._gate = closed_lock()
        self._back = closed_lock()
        self._job: Job | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def turn(self, job: Job | None) -> None:
        self._job = job
        self._gate.release()
        if not self._back.acquire(timeout=REAL_SECONDS):
            raise Stuck(f"{job} does not come back")

    def wait(self) -> None:
        """In the thread: give the turn back, and wait for the next."""
        self._back.release()
        self._gate.acquire()

    def end(self) -> None:
        self._job = None
        self._gate.release()
        self._thread.join(REAL_SECONDS)

    def _run(self) -> None:
        self._gate.acquire()
        while (job := self._job) is not None:
            interleave_steps._here.actor = job
            job.context.copy().run(job.work_through)
            interleave_steps._here.actor = None
            self._idle(self)
            self.wait()


class Job:
    """Work for a thread; looks like an :class:`interleave_steps.Actor` to the hooks of the store."""

    def __init__(self, loop: VirtualLoop, work: Callable[[], Any], *, deep: bool = False) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        self.queue: deque[Job] | None = None
        self.process = PROCESS.get()
        self.context = contextvars.copy_context()
        self.locked = False
        self.given_up = False
        self.syncs = 0
        self.ended = False
        self._deep = deep
        self._killed = False
        self._loop = loop
        self._work = work
        self._worker: _Worker | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._since: float | None = None  # locked
        self._waking: Handle | None = None
        loop.jobs += 1

    @property
    def fail_sync(self) -> int:
        """The hook asks whether the sync that it has just counted fails."""
        if self.process is not None and self.process.fail_sync:
            self.process.fail_sync = False
            return self.syncs
        return 0

    @property
    def lasts(self) -> bool:
        """It is a thread that goes on until its process ends."""
        return self._deep

    @property
    def may_wait(self) -> bool:
        """It has a thread of its own."""
        return self._worker is not None

    def schedule(self) -> None:
        """Begin after a while."""
        self._loop.call_later(self._delay(), self._begin, context=self.context)

    def _delay(self) -> float:
        rng = self._loop.rng
        return rng.uniform(0.0, 0.002) if rng.random() < 0.9 else rng.uniform(0.0, 0.1 + self._loop.slow)

    def _begin(self) -> None:
        if self.future.cancelled():  # as an executor does with what it has not begun
            self._next()
            return
        if self.process is not None:
            self.process.jobs[self] = None
        if not self._deep and not self._loop.midway and self._loop.rng.random() < self._loop.at_once:
            interleave_steps._here.actor = self
            self.work_through()
            interleave_steps._here.actor = None
            self._finish()
            return
        self._loop.deep[self] = None
        self._loop.midway += 1
        self._worker = self._loop.worker()
        self._turn()

    def work_through(self) -> None:
        """Do the work; in a worker's thread, or the loop's."""
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        self.ended = True

    def _turn(self) -> None:
        assert self._worker is not None
        self._worker.turn(self)
        if self.ended:
            self._finish()

    def _finish(self) -> None:
        self._left()
        if self.process is not None:
            self.process.jobs.pop(self, None)
        if self.process is None or self.process.alive:
            self._loop.call_later(self._delay(), self._tell, context=self.context)
            self._next()

    def _next(self) -> None:
        if self.queue is not None:
            self.queue.popleft()
            if self.queue:
                self.queue[0].schedule()

    def _tell(self) -> None:
        if self.future.cancelled():
            return
        if isinstance(self._error, Killed):
            self.future.cancel()
        elif self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)

    def kill(self) -> None:
        """Let the thread end wherever it is."""
        self._killed = True
        if self._waking is not None:
            self._waking.cancel()
        for _ in range(100):
            if self.ended or self._worker is None:
                break
            self._worker.turn(self)
        self._left()

    def _left(self) -> None:
        if self in self._loop.deep:
            del self._loop.deep[self]
            self._loop.midway -= 1

    def rest(self, seconds: float | None) -> None:
        """In its thread: sleep where it is in the middle of nothing that others could meet."""
        self._loop.midway -= 1
        try:
            self.sleep(seconds)
        finally:
            self._loop.midway += 1

    def sleep(self, seconds: float | None) -> None:
        """In its thread: let others go on for so long, or until :meth:`wake`."""
        self._require_alive()
        if self._worker is None:
            return
        if seconds is not None and self._loop.passed(seconds):
            return
        if seconds is not None:
            self._waking = self._loop.call_later(seconds, self._turn, context=self.context)
        self._worker.wait()
        self._waking = None
        self._require_alive()

    def wake(self) -> None:
        """Let it sleep no longer."""
        if self._waking is not None:
            self._waking.cancel()
        self._waking = self._loop.call_soon(self._turn, context=self.context)

    def _require_alive(self) -> None:
        if self._killed or (self.process is not None and not self.process.alive):
            raise Killed

    # -- as the store's hooks see it -----------------------------------------------------------------------------------

    def step(self, what: str) -> None:
        if what == "ROLLBACK" or what.startswith("close"):
            return
        self._require_alive()
        if self.process is not None and self.process.fail_read and what.startswith("SELECT"):
            self.process.fail_read = False
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
            raise error
        if not what.startswith(STOPS):
            return
        if not self.locked:
            self._since = None
            if self._worker is not None:
                self.sleep(self._delay())
            return
        now = self._loop.time()
        self._since = now if self._since is None else self._since
        self.given_up = now - self._since > BUSY_SECONDS or self._worker is None
        self.locked = False
        if not self.given_up:
            self.sleep(0.02)
