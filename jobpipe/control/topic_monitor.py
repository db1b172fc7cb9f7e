"""Polls the topics of jobs: a job whose publisher waits for a subscriber is BLOCKED, not FAILED; jobs that lag."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from jobpipe.control.periodic_thread import PeriodicThread
from jobpipe.errors import JobpipeError
from jobpipe.jobs.alerts.alert_section import alerts_of
from jobpipe.jobs.monitor.hysteresis import BlockedDetector, LagChange, LagDetector, Threshold, lags_of
from jobpipe.jobs.monitor.topic_poller import Statuses, TopicPoller
from jobpipe.jobs.storage.job_rows import JobRow
from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.dispatcher import Key
from jobpipe.pipelines.model.job_states import JobState

log = logging.getLogger(__name__)

LAGGING, CAUGHT_UP = "lagging", "caught up"  # events
POLL_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class MonitoredJob:
    """What is looked at.

    Attributes:
        publishing: the topics of jobs that run, and which job publishes each.
        reading: of jobs that run and whose lag is reported: which job reads by which topic and subscription.
        thresholds: the lags to report, of all jobs.
    """

    publishing: Mapping[str, Key]
    reading: Mapping[tuple[str, str], Key]
    thresholds: Mapping[Key, Collection[Threshold]]


class TopicMonitor(PeriodicThread):
    """Asks the coordinators, every two seconds.

    Args:
        watched: returns what is looked at, before each look.
        block: told of each job that publishes why it waits, or None.
        tell: told of each job that lags, or has caught up.
        lagging: what it was told before.
    """

    def __init__(
        self,
        admin: Statuses,
        watched: Callable[[], MonitoredJob],
        block: Callable[[Key, str | None], None],
        report: Callable[[LagChange[Key]], None],
        lagging: Iterable[tuple[Key, Threshold]] = (),
    ) -> None:
        super().__init__("room in topics", POLL_SECONDS)
        self._admin = admin
        self._watched = watched
        self._block = block
        self._report = report
        self._blocked_detector: BlockedDetector[Key] = BlockedDetector()
        self._lag_detector: LagDetector[Key] = LagDetector(lagging)
        self._blocked: set[Key] = set()
        self._poller = TopicPoller(admin, ())

    def work(self) -> None:
        """Ask once."""
        try:
            self._poll()
        except JobpipeError as error:  # the registry is away, for instance
            log.info("room in topics: %s", error)

    def _poll(self) -> None:
        watched = self._watched()
        topics = {*watched.publishing, *(topic for topic, _ in watched.reading)}
        if {view.topic for view in self._poller.views} != topics:
            self._poller = TopicPoller(self._admin, sorted(topics))
        self._poller.poll()
        views = self._poller.views
        decided = self._blocked_detector.update(views, watched.publishing)
        for key in self._blocked - set(watched.publishing.values()):
            decided[key] = None
        for key, why in decided.items():
            self._block(key, why)
        self._blocked = {key for key, why in decided.items() if why is not None}
        for change in self._lag_detector.update(lags_of(views, watched.reading), watched.thresholds):
            self._report(change)


class MonitoredJobs:
    """The topics to watch of the jobs of a store, and the events about them. For one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thresholds: dict[tuple[str, int], frozenset[Threshold]] = {}  # of versions of pipelines

    def watched(self) -> MonitoredJob:
        """Return what is to be looked at now."""
        thresholds = self._read_thresholds()
        jobs = self._store.jobs()
        running = [job for job in jobs if self._is_running(job)]
        return MonitoredJob(
            publishing={topic: (job.pipeline, job.name) for job in running for topic in job.publishes},
            reading={
                (each.topic, each.name): (job.pipeline, job.name)
                for job in running
                if thresholds.get(job.pipeline)
                for each in job.subscriptions
            },
            thresholds={(job.pipeline, job.name): thresholds.get(job.pipeline, frozenset()) for job in jobs},
        )

    def report(self, change: LagChange[Key]) -> None:
        """Note that a job lags, or has caught up."""
        self._store.add_event(
            *change.key,
            LAGGING if change.lags else CAUGHT_UP,
            detail=change.detail,
            fields={"lag-rows": change.threshold.rows, "lag-time": change.threshold.seconds},
        )

    def lagging(self) -> set[tuple[Key, Threshold]]:
        """Return what was told of jobs that have not caught up since."""
        found: set[tuple[Key, Threshold]] = set()
        for event in self._store.events_called(LAGGING, CAUGHT_UP):
            threshold = Threshold(event.fields["lag-rows"], event.fields["lag-time"])
            if event.job is not None:
                change = found.add if event.what == LAGGING else found.discard
                change(((event.pipeline, event.job), threshold))
        return found

    def _is_running(self, job: JobRow) -> bool:
        run = self._store.run(job.run) if job.publishes or job.subscriptions else None
        return run is not None and run.state in (JobState.RUNNING, JobState.BLOCKED)

    def _read_thresholds(self) -> dict[str, frozenset[Threshold]]:
        versions = {row.name: row.version for row in self._store.pipelines()}
        self._thresholds = {key: found for key, found in self._thresholds.items() if versions.get(key[0]) == key[1]}
        for key in versions.items():
            if key not in self._thresholds:
                row = self._store.definition(*key)
                alerts = () if row is None else alerts_of(json.loads(row.tree), row.folder)
                self._thresholds[key] = Threshold.of(alerts)
        return {name: found for (name, _), found in self._thresholds.items()}
