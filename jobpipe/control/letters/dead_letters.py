"""The dead letters of the server's jobs: what there is of them, and redrives, one at a time of each topic.

A redrive marks each row with what it publishes (:mod:`jobpipe.pipelines.dead_letters.redrive`). So one that failed, or
ended with the server, may be ordered again, and others may run at the same time: each row is published again once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, TypeVar

from jobpipe.control.letters.background_answers import LOG_TEXT, BackgroundAnswers
from jobpipe.control.letters.letter_questions import MOST_LETTERS
from jobpipe.control.letters.letter_views import (
    LeftView,
    LetterCounts,
    LetterJob,
    LetterRows,
    LetterTopic,
    RedriveState,
    RedriveView,
)
from jobpipe.errors import ConfigError, ControlConflict, JobpipeError, TopicNotFound, short_repr
from jobpipe.jobs.storage.job_store import Store
from jobpipe.metrics.metric_samples import TopicsSnapshot
from jobpipe.pipelines.dead_letters.redrive import Outcome, without_value
from jobpipe.plural import counted

log = logging.getLogger(__name__)

REDRIVEN = "redriven"  # the event
MOST_REDRIVES = 4  # at a time
MOST_ROWS = 1000  # that are shown
MOST_ROW_ANSWERS = 8  # each may have some megabytes
MOST_REASONS = 20
PLAN_SECONDS = 10.0  # for which a plan holds: a redrive of the command line changes nothing that is seen here
PLAN_EXPIRES_SECONDS = 30.0  # after which it is not shown any more
CLOSE_SECONDS = 15.0
UNKNOWN = "how many rows a redrive publishes again is not known beforehand"
T = TypeVar("T")
Allowed = Callable[[str], bool]
Stopped = Callable[[], bool]


class Questions(Protocol):
    """What is asked here of :class:`jobpipe.control.letters.letter_questions.LetterQuestions`."""

    def count(self, topic: str, stopped: Stopped) -> LetterCounts: ...

    def newest(self, topic: str, limit: int, stopped: Stopped) -> LetterRows: ...

    def redrive(self, topic: str, allowed: Allowed, stopped: Stopped, outcome: Outcome, *, dry_run: bool) -> None: ...


class DeadLetters:
    """Counts, rows and redrives; :meth:`close` ends its threads. Thread safe.

    Args:
        jobs: returns the jobs that have dead letters.
        allowed: returns what tells of a topic whether rows of a job's letters may go back there.
        snapshot: returns how all topics stand.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        questions: Questions,
        store: Store,
        *,
        jobs: Callable[[], Iterable[LetterJob]],
        allowed: Callable[[LetterJob], Allowed],
        snapshot: Callable[[], TopicsSnapshot],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._questions = questions
        self._store = store
        self._jobs = jobs
        self._allowed = allowed
        self._snapshot = snapshot
        self._clock = clock
        self._counts: BackgroundAnswers[LetterCounts] = BackgroundAnswers("letter-counts")
        self._rows: BackgroundAnswers[LetterRows] = BackgroundAnswers("letter-rows", most=MOST_ROW_ANSWERS)
        self._plans: BackgroundAnswers[RedriveView] = BackgroundAnswers(
            "redrive-plans", holds=PLAN_SECONDS, expires=PLAN_EXPIRES_SECONDS
        )
        self._lock = threading.Lock()
        self._redrives: dict[str, RedriveView] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._closed = False

    def close(self) -> None:
        """End; a redrive publishes what it has taken, and ends."""
        with self._lock:
            self._closed = True
            threads = list(self._threads.values())
        for answers in (self._counts, self._rows, self._plans):
            answers.close()
        until = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def topics(self, wait: float = 0.0) -> tuple[LetterTopic, ...]:
        """Return the dead letters of all jobs that may have some.

        Args:
            wait: seconds for the counts that are not known yet, all together.
        """
        snapshot, until = self._snapshot(), time.monotonic() + wait
        return tuple(self._topic(each, snapshot, until) for each in self._jobs())

    def topic(self, topic: str, wait: float = 0.0) -> LetterTopic:
        """Return the dead letters of one topic.

        Raises:
            TopicNotFound: it is of no job of this server.
        """
        return self._topic(self._job(topic), self._snapshot(), time.monotonic() + wait)

    def rows(self, topic: str, limit: int = 50, *, wait: float = 0.0) -> LetterRows | None:
        """Return the newest letters; None if they are not there within so many seconds.

        Raises:
            TopicNotFound: it is of no job of this server, or not served now.
            JobpipeError: they cannot be read.
        """
        if not 1 <= limit <= MOST_ROWS:
            raise ConfigError(f"limit {limit} is not from 1 to {MOST_ROWS}", key="limit")
        version = self._version(self._job(topic).topic, self._snapshot())
        found = self._rows.get(
            (topic, limit), version, lambda: self._questions.newest(topic, limit, self._stopped), wait=wait
        )
        return _raised(found)

    def plan_redrive(self, topic: str, wait: float = 0.0) -> RedriveView | None:
        """Return what a redrive would do; None if that is not known within so many seconds.

        Raises:
            TopicNotFound: it is of no job of this server, or not served now.
            JobpipeError: that cannot be said.
        """
        self._job(topic)
        version = self._version(topic, self._snapshot())
        return _raised(self._plans.get(topic, version, lambda: self._plan(topic), wait=wait))

    def redrive(self, topic: str, *, by: str) -> RedriveView:
        """Begin to publish the rows of a topic's letters again, to the topics that its job reads.

        Returns:
            It as it begins; :meth:`topic` tells how it goes on, and an event how it ended.

        Raises:
            TopicNotFound: it is of no job of this server.
            ControlConflict: one of that topic is under way, or too many are.
            PipelineError: the pipeline's file is not right here any more.
        """
        job = self._job(topic)
        allowed = self._may_go(topic)
        with self._lock:
            if self._closed:
                raise ControlConflict("the server ends", topic=topic)
            if topic in self._threads:
                raise ControlConflict(f"a redrive of {topic} is under way", topic=topic)
            if len(self._threads) >= MOST_REDRIVES:
                raise ControlConflict(f"{MOST_REDRIVES} redrives are under way; try again later", topic=topic)
            view = RedriveView(topic=topic, state=RedriveState.RUNNING, by=by[:100], began=self._clock(), published={})
            thread = threading.Thread(
                target=self._run, args=(job, view, allowed), name=f"redrive {topic}"[:60], daemon=True
            )
            thread.start()
            self._threads[topic], self._redrives[topic] = thread, view
        return view

    def _stopped(self) -> bool:
        return self._closed

    def _run(self, job: LetterJob, view: RedriveView, allowed: Allowed) -> None:
        outcome = Outcome()
        try:
            self._questions.redrive(job.topic, allowed, self._stopped, outcome, dry_run=False)
            view = replace(view, state=RedriveState.STOPPED if self._closed else RedriveState.DONE)
        except JobpipeError as error:
            log.warning("redrive of %s: %s", job.topic, type(error).__name__)
            view = replace(view, state=RedriveState.FAILED, error=error.message)
        except Exception:
            log.exception("redrive of %s", job.topic)
            view = replace(view, state=RedriveState.FAILED, error=LOG_TEXT)
        view = _with_outcome(replace(view, ended=self._clock()), outcome)
        for answers in (self._counts, self._plans):
            answers.forget(job.topic)
        with self._lock:
            self._redrives[job.topic] = view
            del self._threads[job.topic]
        self._tell(job, view)

    def _tell(self, job: LetterJob, view: RedriveView) -> None:
        """Store the event: numbers alone, since reasons and errors may quote rows."""
        left = sum(each.letters for each in view.left)
        said = f"{job.topic}: {counted(view.rows, 'row')} published again, {counted(left, 'letter')} left, by {view.by}"
        if view.state is RedriveState.FAILED:
            after = f" after at least {counted(view.rows, 'row')}" if view.rows else ""
            said = f"{job.topic}: the redrive failed{after}, by {view.by}; its page says why"
        try:
            self._store.add_event(
                job.pipeline,
                job.job,
                REDRIVEN,
                detail=said,
                fields={
                    "topic": job.topic,
                    "outcome": view.state,
                    "published": dict(view.published),
                    "already": view.already,
                    "left": left,
                    "by": view.by,
                },
            )
        except JobpipeError as error:
            log.warning("%s, which is not stored as an event: %s", said, error)

    def _plan(self, topic: str) -> RedriveView:
        counts = self._counts.known(topic) or self._questions.count(topic, self._stopped)
        plan = RedriveView(topic=topic, state=RedriveState.PLANNED, published={})
        if counts.letters > MOST_LETTERS:
            return replace(plan, error=f"There are {counts.letters:,} letters: {UNKNOWN}")
        outcome = Outcome()
        self._questions.redrive(topic, self._may_go(topic), self._stopped, outcome, dry_run=True)
        if not outcome.is_complete:
            return replace(plan, error=f"There are too many letters, or too large ones: {UNKNOWN}")
        return _with_outcome(plan, outcome)

    def _may_go(self, topic: str) -> Allowed:
        """Return what tells whether rows may go to a topic: one of the jobs whose letters these are reads it."""
        readers = [self._allowed(each) for each in self._jobs() if each.topic == topic]
        return lambda name: any(reads(name) for reads in readers)

    def _job(self, topic: str) -> LetterJob:
        for each in self._jobs():
            if each.topic == topic:
                return each
        raise TopicNotFound(
            f"{short_repr(topic)} is not the topic of dead letters of a job of this server", topic=topic[:200]
        )

    def _topic(self, job: LetterJob, snapshot: TopicsSnapshot, until: float) -> LetterTopic:
        topic, problem = job.topic, ""
        counts: LetterCounts | None = None
        try:
            version = self._version(topic, snapshot)
            wait = max(0.0, until - time.monotonic())
            counts = _raised(
                self._counts.get(topic, version, lambda: self._questions.count(topic, self._stopped), wait=wait)
            )
        except JobpipeError as error:
            problem = error.message
            counts = self._counts.known(topic)
        with self._lock:
            redrive = self._redrives.get(topic)
        return LetterTopic(
            pipeline=job.pipeline, job=job.job, topic=topic, counts=counts, problem=problem, redrive=redrive
        )

    def _version(self, topic: str, snapshot: TopicsSnapshot) -> tuple[str, int, int]:
        """Return what changes as soon as other letters are there.

        Raises:
            TopicNotFound: the topic is not served now.
        """
        status = _raised(snapshot.topics.get(topic) or snapshot.error)
        if status is not None:
            return status.log, status.tail, status.head
        raise TopicNotFound(
            f"topic {topic} is not served now, so that its letters cannot be read here; `jobpipe dead-letters list` "
            "reads them on the host that keeps them",
            topic=topic,
        )


def _raised(found: T | JobpipeError | None) -> T | None:
    if isinstance(found, JobpipeError):
        raise type(found)(found.message, **found.fields)  # each caller gets an error of its own
    return found


def _with_outcome(view: RedriveView, outcome: Outcome) -> RedriveView:
    """Return a redrive with what became of the letters; reasons do not quote values, which may be masked."""
    left: Counter[str] = Counter()
    for why, letters in outcome.left.items():
        left[without_value(why)] += letters
    reasons = left.most_common(MOST_REASONS)
    shown = [LeftView(reason=why, letters=letters) for why, letters in reasons]
    if others := left.total() - sum(letters for _, letters in reasons):
        shown.append(LeftView(reason="other reasons", letters=others))
    return replace(view, published=dict(outcome.published), already=outcome.already, left=tuple(shown))
