"""Holds the lease of a job for this process, and hears what its order says."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable

import psutil

from jobpipe.errors import RegistryUnavailable
from jobpipe_registry.job_records import EndRecord, Lease
from jobpipe_registry.process_identity import PidScope, lives, start_ticks
from jobpipe_registry.registry_errors import LeaseHeld, NotOrdered, Unavailable
from jobpipe_registry.registry_jobs import JobRecords, Jobs

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class LeaseLost(Exception):
    """Another attempt was ordered: this one must end, and touch nothing any more."""


class JobLease:
    """The lease of one attempt.

    Args:
        jobs: of the registry.
        on_replaced: called once, from a thread of the registry, when the lease is lost after it was taken.
        on_stop: called, perhaps several times, when the order says that the attempt is to stop.
    """

    def __init__(
        self,
        jobs: Jobs,
        pipeline: str,
        job: str,
        run: str,
        attempt: int,
        *,
        on_replaced: Callable[[str], None],
        on_stop: Callable[[], None],
    ) -> None:
        self._jobs = jobs
        self._key = (pipeline, job)
        place, pid = PidScope.here(), os.getpid()
        self.lease = Lease(
            run=run,
            attempt=attempt,
            host=place.host,
            pid=pid,
            started=psutil.Process(pid).create_time(),
            instance=uuid.uuid4().hex,
            boot=place.boot,
            pid_namespace=place.pid_namespace,
            ticks=start_ticks(pid),
        )
        self._on_replaced = on_replaced
        self._on_stop = on_stop
        self._held = False
        self._telling = threading.Lock()  # taken for good by the first who tells
        self._news = threading.Event()

    def take(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """Take the lease. One that an earlier attempt holds is waited for, or evicted when its process has died.

        Returns:
            False if ``stopped()`` became true before it was had.

        Raises:
            Replaced: the order names another attempt.
            RegistryUnavailable: the registry did not answer for ``seconds``.
        """
        watch = self._jobs.watch(*self._key, self._changed)
        try:
            return self._until_taken(seconds, stopped)
        finally:
            if not self._held:
                watch.close()

    def confirm(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """See that the lease is still ours, by an answer of the registry that is waited for.

        Returns:
            False if ``stopped()`` became true before it answered.

        Raises:
            Replaced: it is not.
            RegistryUnavailable: the registry did not answer for ``seconds``.
        """
        return self._until_taken(seconds, stopped)

    def confirmed(self, seconds: float) -> bool:
        """Do the same while the lease is held; return False if the registry did not answer, or it was let go.

        Raises:
            Replaced: the lease is not ours.
        """
        try:
            return self._held and self.confirm(seconds, lambda: not self._held)
        except RegistryUnavailable as error:
            log.warning("%s", error)
            return False

    def _until_taken(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        reached = time.monotonic()
        while not stopped():
            self._news.clear()
            try:
                if self._taken():
                    return True
                reached = time.monotonic()
            except Unavailable as error:
                if time.monotonic() - reached > seconds:
                    raise RegistryUnavailable(str(error)) from error
                log.warning("%s; trying again", error)
            self._news.wait(RETRY_SECONDS)  # the order or the lease changed
        return False

    def _taken(self) -> bool:
        try:
            self._jobs.take_lease(*self._key, self.lease, self._lost)
        except NotOrdered as error:
            raise LeaseLost(str(error)) from error
        except LeaseHeld as error:
            if self._held:
                raise LeaseLost(str(error)) from error
            if self._evicted(error):
                return self._taken()
            log.info("waiting: %s", error)
            return False
        self._held = True
        return True

    def _evicted(self, error: LeaseHeld) -> bool:
        other = error.lease
        if not isinstance(other, Lease) or lives(other.pid, other.started, other.ticks, other.place) is not False:
            return False
        log.info("process %d, which had the lease of attempt %d, has died", other.pid, other.attempt)
        self._jobs.evict_lease(*self._key, other.instance)
        return True

    def _changed(self, state: JobRecords) -> None:
        self._news.set()
        order = state.order
        if order is None:
            return
        ours = (order.run, order.attempt) == (self.lease.run, self.lease.attempt)
        if ours and order.want == "stop":
            self._on_stop()
        elif not ours and self._held:
            self._lost(f"attempt {order.attempt} of run {order.run} was ordered")

    def _lost(self, why: str) -> None:
        if self._telling.acquire(blocking=False):
            self._on_replaced(why)

    def release(self, end: EndRecord, seconds: float) -> None:
        """Let the lease go, and leave the end record; tried again for so many seconds.

        Raises:
            Replaced: it was not ours any more.
            RegistryUnavailable: the registry did not answer; the lease goes with the session.
        """
        self._held = False
        until = time.monotonic() + seconds
        while True:
            self._news.clear()
            try:
                self._jobs.release_lease(*self._key, end)
                return
            except NotOrdered as error:
                raise LeaseLost(str(error)) from error
            except Unavailable as error:
                if time.monotonic() > until:
                    raise RegistryUnavailable(str(error)) from error
                self._news.wait(RETRY_SECONDS)
