"""Sends events of jobs to their pipelines' webhooks: at least once, also if the server is killed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from jobpipe.control.control_service import Control
from jobpipe.control.monitoring.difference_monitor import DIFFERENCE
from jobpipe.control.scheduler.hold_keeper import GAP
from jobpipe.control.topic_monitor import LAGGING
from jobpipe.errors import JobpipeError, StoreError
from jobpipe.jobs.alerts.alert_queue import FIRST_DELAY, Alert, AlertQueue
from jobpipe.jobs.alerts.alert_section import alerts_of
from jobpipe.jobs.monitor.hysteresis import Threshold
from jobpipe.jobs.storage.job_rows import Event
from jobpipe.pipelines.file.spec import AlertSpec

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
NAMES = frozenset({"FAILED", "LOST", "BLOCKED", "LAGGING", "GAP", "DIFFERENCE"})  # what a file may name
_EACH = (LAGGING, GAP, DIFFERENCE)  # events that are sent each time, also one after the other


class Alerts:
    """Follows the server's events, with one thread, and lets a queue send; :meth:`close` ends both.

    The store keeps which event was read last and which alerts wait, so that the next server sends what happened while
    none ran. At the first start it begins with what happens from then on.

    Args:
        environ: where references ``env:NAME`` lead.
        first_delay: before the second attempt; doubled for each further one.
    """

    def __init__(
        self,
        control: Control,
        *,
        environ: Mapping[str, str] | None = None,
        first_delay: float = FIRST_DELAY,
    ) -> None:
        self._control = control
        self._store = control.store
        self._queue = AlertQueue(
            environ=environ,
            done=self._delivered,
            first_delay=first_delay,
        )
        self._closed = threading.Event()
        self._last: dict[tuple[str, str | None], tuple[str, str | None]] = {}  # each job's name and run, as told last
        self._read = 0  # the last event that was read
        self._thread = threading.Thread(target=self._loop, name="alerts", daemon=True)

    def start(self) -> None:
        """Begin.

        Raises:
            StoreError: the store cannot be read or written now.
        """
        found = self._store.last_alerted_event()
        self._read = found or 0
        if found is None:
            while events := self._control.events(self._read):
                self._read = events[-1].id
            self._store.add_alerts(self._read, ())
        self._queue.start()
        self._thread.start()

    def close(self) -> None:
        """End; what is not sent yet is sent after the next start."""
        self._closed.set()
        self._thread.join()
        self._queue.close()

    def _loop(self) -> None:
        resumed = False
        while not self._closed.is_set():
            try:
                if not resumed:
                    self._resume()
                    resumed = True
                events = self._control.events(self._read, wait=POLL_SECONDS, limit=100)
                for event in events:
                    self._handle(event)
                if events:
                    self._store.add_alerts(self._read, ())
            except StoreError as error:
                log.warning("events cannot be read; alerts wait: %s", error.message)
                self._closed.wait(POLL_SECONDS)
            except Exception:
                log.exception("events cannot be read; alerts wait")
                self._closed.wait(POLL_SECONDS)

    def _resume(self) -> None:
        """Send what the server before this one did not; drop alerts of events that were pruned."""
        waiting, found = self._store.waiting_alerts(), []
        for number in sorted({event for event, _ in waiting}):
            events = self._control.events(number - 1, limit=1)
            if events and events[0].id == number:
                found += self._alerts(events[0], waiting)
        for event, webhook in waiting.keys() - {(alert.event, alert.number) for alert in found}:
            self._store.remove_alert(event, webhook)
        for alert in found:
            self._queue.add(alert)

    def _handle(self, event: Event) -> None:
        key, said = (event.pipeline, event.job), (_name(event), event.fields.get("run"))
        if event.what in ("resume", "restart", "retry", "backfill"):
            self._last.pop(key, None)
        if event.what == "deleted":
            for known in [each for each in self._last if each[0] == event.pipeline]:
                del self._last[known]
        # The event counts as read only once its alerts are stored: if the store fails, it is taken again.
        again = event.what not in _EACH and self._last.get(key) == said
        alerts = [] if again else self._alerts(event)
        if alerts:
            self._store.add_alerts(event.id, [(alert.number, alert.since) for alert in alerts])
        self._read = event.id
        if said[0] and event.job is not None and event.what not in _EACH:
            self._last[key] = said
        for alert in alerts:
            self._queue.add(alert)

    def _alerts(self, event: Event, waiting: Mapping[tuple[int, int], float] | None = None) -> list[Alert]:
        """Return the alerts of an event, or those of them that wait already."""
        name = _name(event)
        if name not in NAMES:
            return []
        found = []
        for number, spec in enumerate(self._specs(event.pipeline), 1):
            wanted = name in spec.on
            if event.what == LAGGING:
                wanted = Threshold(event.fields["lag-rows"], event.fields["lag-time"]) in Threshold.of([spec])
            since = time.time() if waiting is None else waiting.get((event.id, number))
            if wanted and since is not None:
                alert = Alert(
                    name=name,
                    pipeline=event.pipeline,
                    job=event.job,
                    at=event.at,
                    event=event.id,
                    detail=event.detail,
                    number=number,
                    since=since,
                    url=spec.url,
                )
                found.append(alert)
        return found

    def _specs(self, pipeline: str) -> tuple[AlertSpec, ...]:
        """Return the alerts of a pipeline, also of one that cannot be started any more; none of one that is gone.

        Raises:
            StoreError: the store cannot be read now.
        """
        try:
            submission = self._control.submission(pipeline)
            return alerts_of(submission.tree, submission.folder)
        except StoreError:
            raise
        except JobpipeError as error:
            log.warning("pipeline %s: its alerts cannot be read: %s", pipeline, error.message.partition("\n")[0])
            return ()

    def _delivered(self, alert: Alert) -> None:
        try:
            self._store.remove_alert(alert.event, alert.number)
        except StoreError as error:
            log.warning("an alert that was sent is sent once more after the next start: %s", error.message)


def _name(event: Event) -> str:
    return event.what.upper() if event.what.upper() in NAMES else event.state or ""
