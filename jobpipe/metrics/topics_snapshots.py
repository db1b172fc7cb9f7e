"""Asks how all topics stand, at most once in some seconds, however many ask and however often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from jobpipe.admin import TopicLine
from jobpipe.errors import JobpipeError
from jobpipe.metrics.metric_samples import TopicsSnapshot
from jobpipe.status_walk import Answer

ASK_SECONDS = 3.0  # for a coordinator to be reached, and then for each answer; a scraper gives up after 10
MAX_AGE_SECONDS = 2.0  # of an answer that others get too


class TopicQuestions(Protocol):
    """The questions of :class:`jobpipe.admin.Admin` that are asked here."""

    def topics(self) -> list[TopicLine]: ...

    def answers(self, topics: Sequence[str], timeout: float) -> dict[str, Answer]: ...


class TopicsSnapshots:
    """The newest snapshot of all topics that are served. Thread safe: who comes while one is made waits for it."""

    def __init__(self, admin: TopicQuestions, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: TopicsSnapshot | None = None
        self._made_at = float("-inf")

    def newest(self, max_age: float = MAX_AGE_SECONDS) -> TopicsSnapshot:
        """Return a snapshot that was made at most ``max_age`` seconds ago; never fails."""
        with self._lock:
            if self._newest is None or self._clock() - self._made_at > max_age:
                self._newest, self._made_at = self._make(), self._clock()
            return self._newest

    def _make(self) -> TopicsSnapshot:
        began = self._clock()
        try:
            served = [line.name for line in self._admin.topics() if line.location is not None]
            answers = self._admin.answers(served, ASK_SECONDS)
        except JobpipeError as error:
            return TopicsSnapshot({}, self._clock() - began, error)
        return TopicsSnapshot(answers, self._clock() - began)
