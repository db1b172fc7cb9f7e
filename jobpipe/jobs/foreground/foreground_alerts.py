"""The alerts of a run in the foreground: the same as the control server's, for as long as the run lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from jobpipe.jobs.alerts.alert_queue import Alert, AlertQueue
from jobpipe.jobs.foreground.foreground_jobs import JobView
from jobpipe.jobs.monitor.hysteresis import LagDetector, Threshold, lags_of
from jobpipe.jobs.monitor.topic_poller import TopicView
from jobpipe.pipelines.file.spec import AlertSpec
from jobpipe.pipelines.model.graph import subscriptions_of
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.model.pipeline import Pipeline

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0  # for what is not sent at the end of the run
JOIN_SECONDS = 1.0
_STATES = frozenset({JobState.FAILED, JobState.LOST, JobState.BLOCKED})
_RUNS = frozenset({JobState.RUNNING, JobState.BLOCKED})


class ForegroundAlerts:
    """Tells what it sees; a context manager, whose end waits for a while until all was sent.

    Args:
        topics: those that the run looks at.
        queue: not started yet; it is started if the pipeline has alerts.
    """

    def __init__(self, pipeline: Pipeline, topics: Sequence[str], queue: AlertQueue) -> None:
        self._pipeline = pipeline
        self._queue = queue
        self._states: dict[str, JobState] = {}
        self._lag_detector: LagDetector[str] = LagDetector()
        self._thresholds = Threshold.of(pipeline.spec.alerts)
        names = [(topic, name) for topic in topics for name in subscriptions_of(pipeline, topic)]
        self._readers: Mapping[tuple[str, str], str] = {pair: pair[1].split(".")[1] for pair in names}
        self._event = 0

    def __enter__(self) -> ForegroundAlerts:
        if self._pipeline.spec.alerts:
            self._queue.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self._queue.close(CLOSE_SECONDS if error is None else 0.0, JOIN_SECONDS)
        if left:
            log.error("pipeline %s: %d alerts could not be delivered before the end", self._pipeline.name, left)

    def update(self, jobs: Sequence[JobView], topics: Sequence[TopicView]) -> None:
        if not self._pipeline.spec.alerts:
            return
        for job in jobs:
            if job.state in _STATES and self._states.get(job.name) is not job.state:
                self._send(job.name, job.state.value, _detail(job), self._pipeline.spec.alerts)
            self._states[job.name] = job.state
        running = {job.name for job in jobs if job.state in _RUNS}
        lags = {name: rows for name, rows in lags_of(topics, self._readers).items() if name in running}
        for change in self._lag_detector.update(lags, {job.name: self._thresholds for job in jobs}):
            if change.lags:
                to = [spec for spec in self._pipeline.spec.alerts if change.threshold in Threshold.of([spec])]
                self._send(change.key, "LAGGING", change.detail, to)

    def _send(self, job: str, name: str, detail: str, to: Sequence[AlertSpec]) -> None:
        now = time.time()
        self._event = max(self._event + 1, int(now * 1000))  # runs have no numbers in common
        for number, spec in enumerate(self._pipeline.spec.alerts, 1):
            if name in spec.on and spec in to:
                alert = Alert(
                    name=name,
                    pipeline=self._pipeline.name,
                    job=job,
                    at=now,
                    event=self._event,
                    detail=detail,
                    number=number,
                    since=now,
                    url=spec.url,
                )
                self._queue.add(alert)


def _detail(job: JobView) -> str:
    """Return why, without what the error says: that may have values of rows."""
    return job.detail.replace(job.cause, job.cause.partition(":")[0]) if job.cause else job.detail
