"""Deletes the subscriptions and orders of jobs that have changed or are gone, with retries."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from jobpipe.control.periodic_thread import PeriodicThread
from jobpipe.errors import JobpipeError, SubscriptionNotFound
from jobpipe.jobs.storage.job_rows import CleanupTask, JobRow, JobSubscription
from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.circuit_breaker import CircuitBreaker
from jobpipe_registry.registry_errors import RegistryError

log = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
AT_ONCE = 100  # read from the store


class SubscriptionAdmin(Protocol):
    """What is asked here of :class:`jobpipe.admin.Admin`."""

    def drop(self, topic: str, name: str) -> object: ...

    def require(self, topic: str, name: str, *, required: bool = True) -> object: ...


class CleanupQueue(PeriodicThread):
    """A thread that tries all of them now and then; :meth:`close` ends it. They are kept until they are done."""

    def __init__(self, store: Store, jobs: CircuitBreaker, admin: SubscriptionAdmin) -> None:
        super().__init__("chores", RETRY_SECONDS)
        self._store = store
        self._jobs = jobs
        self._admin = admin

    def work(self) -> None:
        self.do_all(lambda: self.closed)

    def do_all(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Try each once."""
        after = 0
        while cleanup_tasks := self._store.cleanup_tasks(after, AT_ONCE):
            for task in cleanup_tasks:
                if ended():
                    return
                try:
                    if self._store.has_cleanup_task(task):  # not of a job that is there again
                        self._clean_up(task)
                        self._store.remove_cleanup_tasks(task.id)
                except (JobpipeError, RegistryError) as error:
                    log.info("%s.%s: still to be done: %s", task.pipeline, task.job, error)
            after = cleanup_tasks[-1].id

    def _clean_up(self, task: CleanupTask) -> None:
        if task.subscription is not None:
            self._clean_up_subscription(task.subscription, self._store.job(task.pipeline, task.job))
            return
        found = self._jobs.state(task.pipeline, task.job)
        if found.order is not None:
            self._jobs.remove_order(task.pipeline, task.job, found.version)

    def _clean_up_subscription(self, subscription: JobSubscription, job: JobRow | None) -> None:
        """Let a subscription be as its job needs it now.

        A subscription is made optional before it is dropped: otherwise it is made again, and blocks its publisher.
        """
        topic, name = subscription.topic, subscription.name
        if job is not None and job.in_definition and subscription in job.subscriptions:
            self._admin.require(topic, name)
            return
        self._admin.require(topic, name, required=False)
        if job is not None and job.in_definition and job.scheduled and topic in job.reads:
            return  # its runs read by that name
        with contextlib.suppress(SubscriptionNotFound):
            self._admin.drop(topic, name)
            log.info("subscription %s of topic %s is dropped", name, topic)
