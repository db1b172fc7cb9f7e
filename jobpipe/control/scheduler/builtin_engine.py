"""The built-in schedule engine: a thread of the control server that waits for the next moment."""

from __future__ import annotations

import heapq
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobpipe.jobs.schedules.schedule_rule import Rule
from jobpipe.pipelines.plugins.schedule_engine import Fire, Schedule, ScheduleEngine

LOG = logging.getLogger(__name__)
LONGEST_WAIT = 10.0  # seconds; within these a clock that was set is noticed
WORKERS = 4
STOP_SECONDS = 10.0
RETRY_SECONDS = 10.0


@dataclass
class _Entry:
    """A schedule that is registered.

    Attributes:
        fired: the last upper bound that was fired for, or up to which nothing is fired.
        next_check: when the watching thread looks at it next; None: never again.
        busy: whether it is in the queue, or a worker has it.
        again: the upper bound that is to be fired for when a worker is free for it.
        failed: the upper bound for which a call failed, and when it is tried again.
    """

    rule: Rule
    fired: datetime
    next_check: datetime | None = None
    busy: bool = False
    again: datetime | None = None
    failed: tuple[datetime, datetime] | None = None


class BuiltinEngine(ScheduleEngine):
    """Fires within the control server.

    One thread waits for the next moment of all schedules, and a few workers make the calls: of a schedule one at a
    time. What becomes due during a call is one more call after it, so that nothing piles up. A call that raises is
    made again after 10 s. Moments follow from the rule and the clock of the host, not from when the last one was fired.
    After a change of the clock, or when the host has slept, all that was missed is one call, within 10 s; after one
    backwards a moment may be fired for again, which changes nothing.
    """

    type = "builtin"

    def __init__(self, options: Any, fire: Fire, *, clock: Callable[[], float] = time.time) -> None:
        """Keep what to call.

        Args:
            clock: returns seconds since 1970.
        """
        super().__init__(options, fire)
        self._clock = clock
        self._changed = threading.Condition()
        self._entries: dict[str, _Entry] = {}
        self._heap: list[tuple[datetime, str]] = []  # one that does not say its entry's ``next_check`` is outdated
        self._last_now = datetime.min.replace(tzinfo=UTC)
        self._calls: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def register(self, schedule: Schedule) -> None:
        """Fire for a schedule from its next upper bound on; one that is known is replaced.

        Raises:
            ConfigError: its rule is wrong.
        """
        rule = Rule.of(schedule.spec)
        with self._changed:
            entry = self._entries.setdefault(schedule.id, _Entry(rule, self._now() - rule.delay))
            entry.rule = rule
            self._plan(schedule.id, entry)
            self._changed.notify_all()

    def update(self, schedule: Schedule) -> None:
        """Fire by the changed rule of a schedule; raises as :meth:`register`."""
        self.register(schedule)

    def unregister(self, id_: str) -> None:
        """Fire no longer for a schedule."""
        with self._changed:
            self._entries.pop(id_, None)

    def start(self) -> None:
        """Begin to fire; once."""
        with self._changed:
            if self._threads or self._stopped:
                raise RuntimeError("the engine was started already")
            self._threads = [threading.Thread(target=self._watch, name="jobpipe-schedules", daemon=True)]
            self._threads += [
                threading.Thread(target=self._work, name=f"jobpipe-schedules-{number}", daemon=True)
                for number in range(WORKERS)
            ]
            for thread in self._threads:
                thread.start()

    def stop(self) -> None:
        """End: nothing is fired any more. Waits up to 10 s for calls that have begun. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for _ in range(WORKERS):
            self._calls.put(None)
        deadline = time.monotonic() + STOP_SECONDS
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in others):
            LOG.warning("a call of a schedule has not ended within %d s; the server does not wait for it", STOP_SECONDS)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _plan(self, id_: str, entry: _Entry) -> None:
        """Note when to look at a schedule next; the caller holds the lock."""
        due = entry.rule.next_due(entry.fired, entry.fired)  # also one that has passed
        if entry.failed is not None:
            due = entry.failed[1] if due is None else min(due, entry.failed[1])
        entry.next_check = due
        if due is not None:
            heapq.heappush(self._heap, (due, id_))
        if len(self._heap) > 2 * len(self._entries) + 100:
            self._heap = [
                (each.next_check, name) for name, each in self._entries.items() if each.next_check is not None
            ]
            heapq.heapify(self._heap)

    def _watch(self) -> None:
        with self._changed:
            while not self._stopped:
                now = self._now()
                if now < self._last_now:  # what was planned by the former clock may be years ahead
                    for id_, entry in self._entries.items():
                        entry.fired, entry.failed = min(entry.fired, now - entry.rule.delay), None
                        self._plan(id_, entry)
                self._last_now = now
                self._changed.wait(self._dispatch_due(now))

    def _dispatch_due(self, now: datetime) -> float | None:
        """Hand all that is due to the workers; return for how many seconds there is nothing to do."""
        while self._heap:
            next_check, id_ = self._heap[0]
            if next_check > now:
                return min((next_check - now) / timedelta(seconds=1), LONGEST_WAIT)
            heapq.heappop(self._heap)
            entry = self._entries.get(id_)
            if entry is not None and entry.next_check == next_check:
                self._dispatch(id_, entry, now)
                self._plan(id_, entry)
        return None

    def _dispatch(self, id_: str, entry: _Entry, now: datetime) -> None:
        due = entry.rule.last_due(entry.fired, now)
        if due is not None:
            entry.fired = due
        elif entry.failed is not None and entry.failed[1] <= now:
            due = entry.failed[0]
        if due is None:
            return
        entry.again, entry.failed = due, None
        if not entry.busy:
            entry.busy = True
            self._calls.put(id_)

    def _work(self) -> None:
        while (id_ := self._calls.get()) is not None:
            with self._changed:
                entry = self._entries.get(id_)
                at = self._take_call(entry)
            if entry is None or at is None:
                continue  # unregistered meanwhile, or taken by another worker for an earlier registration
            failed = False
            try:
                self.fire(id_, at)
            except Exception:
                failed = True
                LOG.exception("schedule %s: the call for %s failed; trying again in %d s", id_, at, RETRY_SECONDS)
            with self._changed:
                self._call_ended(id_, entry, at if failed else None)

    def _take_call(self, entry: _Entry | None) -> datetime | None:
        if entry is None or self._stopped:
            return None
        at, entry.again = entry.again, None
        return at

    def _call_ended(self, id_: str, entry: _Entry, failed: datetime | None) -> None:
        if self._entries.get(id_) is not entry or self._stopped:
            return
        if entry.again is not None:
            self._calls.put(id_)
            return
        entry.busy = False
        if failed is not None:
            entry.failed = (failed, self._now() + timedelta(seconds=RETRY_SECONDS))
            self._plan(id_, entry)
            self._changed.notify_all()
