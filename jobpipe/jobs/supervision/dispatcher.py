"""Dispatches the reconcilers' steps to a bounded number of threads: when they are due, or something changed.

Jobs of one type of launcher share threads of their own, so that a cluster that does not answer delays no job of
another one.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue

from jobpipe.errors import JobpipeError
from jobpipe.jobs.supervision.reconciler import JobReconciler
from jobpipe.jobs.supervision.supervision_context import SupervisionContext

log = logging.getLogger(__name__)

Key = tuple[str, str]

THREADS = 8  # of each type of launcher
MOST_POOLS = 8  # types beyond that share the last one
FAILED_SECONDS = 2.0  # until a step that failed is tried again
CLOSE_SECONDS = 15.0


@dataclass
class _Slot:
    """A job, and when its next step is due."""

    reconciler: JobReconciler
    due: float | None = None  # by the monotonic clock; None: not before it is woken
    busy: bool = False
    again: bool = False  # it was woken while it was busy


class _Pool:
    """Threads that do what they are given."""

    def __init__(self, name: str, threads: int, run: Callable[[Key], None]) -> None:
        self._queue: SimpleQueue[Key | None] = SimpleQueue()
        self._run = run
        self._threads = [
            threading.Thread(target=self._work, name=f"jobs-{name}-{number}", daemon=True) for number in range(threads)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            for _ in self._threads:  # those that have begun end
                self._queue.put(None)
            raise

    def submit(self, key: Key) -> None:
        self._queue.put(key)

    def _work(self) -> None:
        while (key := self._queue.get()) is not None:
            self._run(key)

    def close(self, until: float) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


class Dispatcher:
    """All jobs; :meth:`start` begins, :meth:`close` ends. Attempts go on in any case.

    Args:
        threads: of each type of launcher.
    """

    def __init__(self, context: SupervisionContext, threads: int = THREADS) -> None:
        self._context = context
        self._pool_threads = threads
        self._changed = threading.Condition()  # and the lock of what follows
        self._slots: dict[Key, _Slot] = {}
        self._due: list[tuple[float, Key]] = []  # a heap; entries that are outdated are skipped
        self._pools: dict[str, _Pool] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._dispatch, name="jobs", daemon=True)

    def start(self) -> None:
        """Begin with all jobs of the store."""
        self.notify((job.pipeline, job.name) for job in self._context.store.jobs())
        self._thread.start()

    def notify(self, keys: Iterable[Key]) -> None:
        """Look at jobs soon, since the store has changed; new ones are taken in."""
        with self._changed:
            for key in keys:
                slot = self._slots.get(key)
                if slot is None:
                    reconciler = JobReconciler(self._context, *key, wake=lambda key=key: self._wake(key))  # type: ignore[misc]
                    slot = self._slots[key] = _Slot(reconciler)
                slot.reconciler.changed()
                self._wake(key)

    def known_at(self, key: Key) -> float | None:
        """Return when it was last confirmed how a job stands; None: not since this server began."""
        with self._changed:
            slot = self._slots.get(key)
        return None if slot is None else slot.reconciler.known_at

    def obstacle(self, key: Key) -> str:
        """Return what keeps the last step of a job from ending it, "" if nothing is known to."""
        with self._changed:
            slot = self._slots.get(key)
        return "" if slot is None else slot.reconciler.obstacle

    def is_launching(self, key: Key) -> bool:
        """Return whether a launcher is being asked to start an attempt of a job."""
        with self._changed:
            slot = self._slots.get(key)
        return slot is not None and slot.reconciler.is_launching

    def block(self, key: Key, why: str | None) -> None:
        """Note that a topic that a job publishes has no room, or has room again."""
        with self._changed:
            slot = self._slots.get(key)
            if slot is not None and slot.reconciler.block(why):
                self._wake(key)

    def close(self) -> None:
        """End the threads; steps that are being made are waited for, for a while."""
        until = time.monotonic() + CLOSE_SECONDS
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            pools, slots = list(self._pools.values()), list(self._slots.values())
        if self._thread.is_alive():
            self._thread.join(max(0.0, until - time.monotonic()))
        for pool in pools:
            pool.close(until)
        for slot in slots:
            slot.reconciler.close()

    def _wake(self, key: Key) -> None:
        with self._changed:
            slot = self._slots.get(key)
            if slot is None:
                return
            if slot.busy:
                slot.again = True
            else:
                self._set_due(key, slot, time.monotonic())

    def _set_due(self, key: Key, slot: _Slot, due: float) -> None:
        slot.due = due
        heapq.heappush(self._due, (due, key))
        if self._due[0][1] == key:
            self._changed.notify_all()

    def _dispatch(self) -> None:
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                while self._due and self._due[0][0] <= now:
                    due, key = heapq.heappop(self._due)
                    slot = self._slots.get(key)
                    if slot is None or slot.busy or slot.due != due:
                        continue
                    slot.busy, slot.due = True, None
                    try:
                        self._pool(slot.reconciler.launcher_type).submit(key)
                    except Exception:  # no thread can be started now
                        log.exception("job %s.%s is looked at later", *key)
                        slot.busy = False
                        self._set_due(key, slot, now + FAILED_SECONDS)
                self._changed.wait(self._due[0][0] - now if self._due else None)

    def _pool(self, launcher_type: str) -> _Pool:
        name = launcher_type if launcher_type in self._pools or len(self._pools) < MOST_POOLS - 1 else "others"
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool(name or "new", self._pool_threads, self._step)
        return pool

    def _step(self, key: Key) -> None:
        with self._changed:
            slot = self._slots.get(key)
            if slot is None or self._closing:
                return
        wait: float | None = FAILED_SECONDS
        gone = False
        try:
            wait = slot.reconciler.step()
            gone = wait is None and self._is_gone(key)
        except JobpipeError as error:
            log.warning("job %s.%s: %s", *key, error)
        except BaseException:  # a plug-in may raise anything, and this thread is needed
            log.exception("job %s.%s", *key)
        finally:  # also if a plug-in ends this thread
            with self._changed:
                slot.busy = False
                again, slot.again = slot.again, False
                if again:
                    self._set_due(key, slot, time.monotonic())
                elif gone:
                    self._slots.pop(key, None)
                elif wait is not None:
                    self._set_due(key, slot, time.monotonic() + wait)

    def _is_gone(self, key: Key) -> bool:
        try:
            return self._context.store.job(*key) is None
        except JobpipeError:
            return False
