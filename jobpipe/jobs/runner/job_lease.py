"""Holds the lease of a job for this process, and watches its order."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable

import psutil

from jobpipe.errors import RegistryUnavailable
from jobpipe_registry.host.process_identity import PidScope, lives, start_ticks
from jobpipe_registry.job_records import EndRecord, Lease
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
        self._reporting = threading.Lock()  # taken for good by the first who tells
        self._wake = threading.Event()

    def acquire(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """Take the lease. One that an earlier attempt holds is waited for, or evicted when its process has died.

        Returns:
            False if ``stopped()`` became true before it was had.

        Raises:
            LeaseLost: the order names another attempt.
            RegistryUnavailable: the registry did not answer for ``seconds``.
        """
        watch = self._jobs.watch(*self._key, self._on_change)
        try:
            return self._acquire_until(seconds, stopped)
        finally:
            if not self._held:
                watch.close()

    def confirm(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """See that the lease is still ours, by an answer of the registry that is waited for.

        Returns:
            False if ``stopped()`` became true before it answered.

        Raises:
            LeaseLost: it is not.
            RegistryUnavailable: the registry did not answer for ``seconds``.
        """
        return self._acquire_until(seconds, stopped)

    def is_confirmed(self, seconds: float) -> bool:
        """Do the same while the lease is held; return False if the registry did not answer, or it was let go.

        Raises:
            LeaseLost: the lease is not ours.
        """
        try:
            return self._held and self.confirm(seconds, lambda: not self._held)
        except RegistryUnavailable as error:
            log.warning("%s", error)
            return False

    def _acquire_until(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        reached = time.monotonic()
        while not stopped():
            self._wake.clear()
            try:
                if self._try_acquire():
                    return True
                reached = time.monotonic()
            except Unavailable as error:
                if time.monotonic() - reached > seconds:
                    raise RegistryUnavailable(str(error)) from error
                log.warning("%s; trying again", error)
            self._wake.wait(RETRY_SECONDS)  # the order or the lease changed
        return False

    def _try_acquire(self) -> bool:
        try:
            self._jobs.take_lease(*self._key, self.lease, self._report_loss)
        except NotOrdered as error:
            raise LeaseLost(str(error)) from error
        except LeaseHeld as error:
            if self._held:
                raise LeaseLost(str(error)) from error
            if self._evict_dead_holder(error):
                return self._try_acquire()
            log.info("waiting: %s", error)
            return False
        self._held = True
        return True

    def _evict_dead_holder(self, error: LeaseHeld) -> bool:
        other = error.lease
        if not isinstance(other, Lease) or lives(other.pid, other.started, other.ticks, other.place) is not False:
            return False
        log.info("process %d, which had the lease of attempt %d, has died", other.pid, other.attempt)
        self._jobs.evict_lease(*self._key, other.instance)
        return True

    def _on_change(self, state: JobRecords) -> None:
        self._wake.set()
        order = state.order
        if order is None:
            return
        ours = (order.run, order.attempt) == (self.lease.run, self.lease.attempt)
        if ours and order.want == "stop":
            self._on_stop()
        elif not ours and self._held:
            self._report_loss(f"attempt {order.attempt} of run {order.run} was ordered")

    def _report_loss(self, why: str) -> None:
        if self._reporting.acquire(blocking=False):
            self._on_replaced(why)

    def release(self, end: EndRecord, seconds: float) -> None:
        """Let the lease go, and leave the end record; tried again for so many seconds.

        Raises:
            LeaseLost: it was not ours any more.
            RegistryUnavailable: the registry did not answer; the lease goes with the session.
        """
        self._held = False
        until = time.monotonic() + seconds
        while True:
            self._wake.clear()
            try:
                self._jobs.release_lease(*self._key, end)
                return
            except NotOrdered as error:
                raise LeaseLost(str(error)) from error
            except Unavailable as error:
                if time.monotonic() > until:
                    raise RegistryUnavailable(str(error)) from error
                self._wake.wait(RETRY_SECONDS)
