"""Asks how all topics stand, at most once in some seconds, however many ask and however often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from typing import Protocol

from jobpipe.admin import TopicLine
from jobpipe.errors import JobpipeError, WaitTimeout
from jobpipe.metrics.metric_samples import TopicsSnapshot
from jobpipe.status_walk import Answer

ASK_SECONDS = 3.0  # for a coordinator to be reached, and then for each answer
MAX_AGE_SECONDS = 2.0  # of an answer that others get too
WAIT_SECONDS = 6.0  # for a snapshot; a scraper gives up after 10


class TopicQuestions(Protocol):
    """The questions of :class:`jobpipe.admin.Admin` that are asked here."""

    def topics(self) -> list[TopicLine]: ...

    def answers(self, topics: Sequence[str], timeout: float) -> dict[str, Answer]: ...


class TopicsSnapshots:
    """The newest snapshot of all topics that are served. Thread safe: those who come while one is made get the same.

    It is made in a thread of its own, which :meth:`close` ends: a registry that does not answer holds up none of those
    who ask for longer than :data:`WAIT_SECONDS`.
    """

    def __init__(self, admin: TopicQuestions, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="topics-snapshot")
        self._lock = threading.Lock()
        self._making: Future[TopicsSnapshot] | None = None
        self._newest: TopicsSnapshot | None = None
        self._made_at = float("-inf")
        self._listed: list[str] | None = None  # by what is being made, once the registry has answered

    def newest(self, max_age: float = MAX_AGE_SECONDS) -> TopicsSnapshot:
        """Return a snapshot that was made at most ``max_age`` seconds ago; never fails."""
        began = self._clock()
        with self._lock:
            if self._newest is not None and began - self._made_at <= max_age:
                return self._newest
            if self._making is None:
                self._listed = None
                self._making = self._thread.submit(self._make)
            making = self._making
        try:
            return making.result(WAIT_SECONDS)
        except NotDone:
            error = WaitTimeout(f"no answer within {WAIT_SECONDS:g} s")
            listed = self._listed
            seconds = self._clock() - began
            if listed is None:
                return TopicsSnapshot({}, seconds, error)
            return TopicsSnapshot(dict.fromkeys(listed, error), seconds)

    def close(self) -> None:
        """End the thread, once it has its answer; nothing is asked any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self) -> TopicsSnapshot:
        began = self._clock()
        try:
            served = self._listed = [line.name for line in self._admin.topics() if line.location is not None]
            found = TopicsSnapshot(self._admin.answers(served, ASK_SECONDS), self._clock() - began)
        except JobpipeError as error:
            found = TopicsSnapshot({}, self._clock() - began, error)
        except BaseException:
            with self._lock:
                self._making = None
            raise
        with self._lock:
            self._newest, self._made_at, self._making = found, self._clock(), None
        return found
