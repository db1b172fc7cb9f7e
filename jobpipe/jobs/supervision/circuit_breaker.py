"""Fails fast while the registry is down: one request probes it now and then, the others do not wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from jobpipe_registry.job_records import EndRecord, Order
from jobpipe_registry.node_watch import Watch
from jobpipe_registry.registry_errors import Unavailable
from jobpipe_registry.registry_jobs import JobRecords, Jobs, StateCallback

AWAY_SECONDS = 2.0
T = TypeVar("T")


class CircuitBreaker:
    """What the server asks of :class:`jobpipe_registry.registry_jobs.Jobs`; raises the same.

    After a question that was not answered none is asked for ``AWAY_SECONDS``: each would wait for the time that a
    connection may take, and with all threads waiting nothing else would be looked after.
    """

    def __init__(self, jobs: Jobs, clock: Callable[[], float] = time.monotonic) -> None:
        self._jobs = jobs
        self._clock = clock
        self._lock = threading.Lock()
        self._away: tuple[float, Unavailable] | None = None  # until when

    def state(self, pipeline: str, job: str) -> JobRecords:
        """Return what there is of a job."""
        return self._asked(lambda: self._jobs.state(pipeline, job))

    def set_order(self, pipeline: str, job: str, order: Order, version: int) -> int:
        return self._asked(lambda: self._jobs.set_order(pipeline, job, order, version))

    def remove_order(self, pipeline: str, job: str, version: int) -> None:
        self._asked(lambda: self._jobs.remove_order(pipeline, job, version))

    def remove_end(self, pipeline: str, job: str, end: EndRecord) -> None:
        """Remove an end record that was stored."""
        self._asked(lambda: self._jobs.remove_end(pipeline, job, end))

    def evict_lease(self, pipeline: str, job: str, instance: str) -> None:
        """Remove the lease of an instance that is proved to be dead."""
        self._asked(lambda: self._jobs.evict_lease(pipeline, job, instance))

    def watch(self, pipeline: str, job: str, callback: StateCallback) -> Watch:
        """Call back after each change; it waits by itself while the registry is away."""
        return self._jobs.watch(pipeline, job, callback)

    def _asked(self, question: Callable[[], T]) -> T:
        with self._lock:
            if self._away is not None and self._clock() < self._away[0]:
                raise Unavailable(self._away[1].hosts, self._away[1].reason)
        try:
            answer = question()
        except Unavailable as error:
            with self._lock:
                self._away = (self._clock() + AWAY_SECONDS, error)
            raise
        if self._away is not None:
            with self._lock:
                self._away = None
        return answer
