"""Debounces what coordinators say of topics: a job is BLOCKED, or lags, only after that has lasted.

A publisher waits for a moment in each micro-batch of a topic with ``acks=all``, and at a full spool whenever one is
read more slowly than it is written. Only what lasts says something of the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from jobpipe.jobs.monitor.topic_poller import TopicView
from jobpipe.operations.status_operations import ACKS_WAIT
from jobpipe.pipelines.file.spec import AlertSpec

BLOCKED_SECONDS = 30.0  # that a publisher waits without a row more in its topic, before its job is BLOCKED
FREE_SECONDS = 10.0  # that it was not seen to wait, before its job is not BLOCKED any more
MOST_CAUGHT_UP_SECONDS = 60.0  # that a job is seen below its threshold at most, before it has caught up
Key = TypeVar("Key", bound=Hashable)


@dataclass
class _TopicState:
    """One topic.

    Attributes:
        seen: when its publisher was last seen to wait, at first when the topic was first looked at.
        since: it waits, and no row has come; None: it does not wait.
        decided: whether ``why`` is known; at first it is not.
    """

    seen: float
    since: float | None = None
    rows: int = -1
    decided: bool = False
    why: str | None = None

    def update(self, view: TopicView, now: float) -> None:
        if view.waiting is None:
            self.since = None
            if now - self.seen >= FREE_SECONDS:
                self.decided, self.why = True, None
        else:
            if self.since is None or view.rows != self.rows:
                self.since = now
            self.seen = now
            if self.why is not None or now - self.since >= BLOCKED_SECONDS:
                self.decided, self.why = True, _why(view.topic, view.waiting)
        self.rows = view.rows


def _why(topic: str, waiting: str) -> str:
    if waiting.startswith(ACKS_WAIT):
        return f"topic {topic} waits until {waiting.removeprefix(ACKS_WAIT)} has acknowledged a micro-batch"
    return f"topic {topic} has no room: {waiting}"


class BlockedDetector(Generic[Key]):
    """Why jobs are blocked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._topics: dict[str, _TopicState] = {}

    def update(self, views: Iterable[TopicView], publishing: Mapping[str, Key]) -> dict[Key, str | None]:
        """Return why each job is blocked, None: it is not. A job of which that is not known yet is not in it.

        Args:
            publishing: which job publishes which topic; others are forgotten.
        """
        now = self._clock()
        self._topics = {topic: state for topic, state in self._topics.items() if topic in publishing}
        found: dict[Key, list[_TopicState]] = {}
        for view in views:
            if view.topic in publishing:
                state = self._topics.setdefault(view.topic, _TopicState(now))
                state.update(view, now)
                found.setdefault(publishing[view.topic], []).append(state)
        reasons = {key: [state.why for state in states if state.why is not None] for key, states in found.items()}
        return {
            key: next(iter(reasons[key]), None)
            for key, states in found.items()
            if reasons[key] or all(state.decided for state in states)
        }


@dataclass(frozen=True)
class Threshold:
    """A lag to report: at least so many rows, for so many seconds without a break."""

    rows: int
    seconds: float

    @classmethod
    def of(cls, alerts: Iterable[AlertSpec]) -> frozenset[Threshold]:
        """Return those of the alerts that name LAGGING."""
        return frozenset(cls(alert.lag_rows, alert.lag_time) for alert in alerts if "LAGGING" in alert.on)


@dataclass(frozen=True)
class LagChange(Generic[Key]):
    """A job lags, or has caught up."""

    key: Key
    threshold: Threshold
    rows: int
    lags: bool

    @property
    def detail(self) -> str:
        """What has changed, for people."""
        if not self.lags:
            return f"it lags by {self.rows} rows, fewer than {self.threshold.rows}"
        return (
            f"it has lagged by {self.threshold.rows} rows or more for {self.threshold.seconds:.0f} s, now {self.rows}"
        )


class LagDetector(Generic[Key]):
    """Which jobs lag. Each threshold is reported once, and again only after the job has caught up.

    Args:
        lagging: what was told before.
    """

    def __init__(
        self, lagging: Iterable[tuple[Key, Threshold]] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._lagging = set(lagging)
        self._since: dict[tuple[Key, Threshold], float] = {}  # it is otherwise than was told last

    def update(self, lags: Mapping[Key, int], wanted: Mapping[Key, Collection[Threshold]]) -> list[LagChange[Key]]:
        """Return what has changed.

        Args:
            lags: the rows that jobs have not read, of those for which that is known.
            wanted: the thresholds of all jobs; others are forgotten.
        """
        now = self._clock()
        every = {(key, threshold) for key, thresholds in wanted.items() for threshold in thresholds}
        self._lagging &= every
        since, changes = {}, []
        for pair in sorted(every, key=repr):
            key, threshold = pair
            lagging = pair in self._lagging
            if key not in lags or (lags[key] >= threshold.rows) == lagging:
                continue
            since[pair] = self._since.get(pair, now)
            needed = min(threshold.seconds, MOST_CAUGHT_UP_SECONDS) if lagging else threshold.seconds
            if now - since[pair] >= needed:
                del since[pair]
                self._lagging ^= {pair}
                changes.append(LagChange(key, threshold, lags[key], not lagging))
        self._since = since
        return changes


def lags_of(views: Iterable[TopicView], readers: Mapping[tuple[str, str], Key]) -> dict[Key, int]:
    """Return how many rows of topics jobs have not read, as far as live topics say.

    Args:
        readers: which job reads by which topic and subscription.
    """
    lags: dict[Key, int] = {}
    for view in views:
        for line in view.subscriptions if view.state == "live" else ():
            key = readers.get((view.topic, line.name))
            if key is not None:
                lags[key] = lags.get(key, 0) + line.lag_rows
    return lags
