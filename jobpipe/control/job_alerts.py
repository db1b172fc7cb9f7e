"""Sends events of jobs to their pipelines' webhooks: at least once, also if the server is killed."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jobpipe.config import Config
from jobpipe.control.control_service import Control
from jobpipe.control.scheduler.hold_keeper import GAP
from jobpipe.control.topic_monitor import LAGGING
from jobpipe.errors import JobpipeError, StoreError
from jobpipe.jobs.alerts.alert_queue import FIRST_DELAY, Alert, AlertQueue
from jobpipe.jobs.alerts.alert_section import alerts_of
from jobpipe.jobs.alerts.webhook import Resolve, resolve
from jobpipe.jobs.monitor.hysteresis import Threshold
from jobpipe.jobs.storage.job_rows import Event
from jobpipe.pipelines.file.spec import AlertSpec
from jobpipe.pipelines.model.paths import write_private

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
NAMES = frozenset({"FAILED", "LOST", "BLOCKED", "LAGGING", "GAP"})  # what a file may name
_EACH = (LAGGING, GAP)  # events of which each one is told, also one after the other
MOST_BYTES = 4 * 1024 * 1024  # of the file


@dataclass
class _Progress:
    """How far the alerts are; it is kept in a file.

    Attributes:
        read: the last event that was read; 0: none.
        waiting: by event and webhook, since when each alert waits that is neither sent nor given up.
    """

    read: int = 0
    waiting: dict[tuple[int, int], float] = field(default_factory=dict)

    def dump(self) -> bytes:
        waiting = [[*key, since] for key, since in sorted(self.waiting.items())]
        return json.dumps({"told": self.read, "waiting": waiting}).encode()

    @classmethod
    def load(cls, path: Path) -> _Progress | None:
        """Return what the file says, None if there is none; of a damaged one nothing was read, and nothing is lost."""
        try:
            with path.open("rb") as file:
                found = json.loads(file.read(MOST_BYTES))
            read = int(found["told"])
            waiting = {(int(event), int(number)): float(since) for event, number, since in found.get("waiting", ())}
            if read < 0:
                raise ValueError(f"event {read}")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            what = (
                "%s cannot be read (%s): alerts of all events that are kept are sent, also those that were sent before"
            )
            log.warning(what, path, type(error).__name__)
            return cls()
        return cls(read, waiting)


class Alerts:
    """Follows a core's events, with one thread, and lets a queue send; :meth:`close` ends both.

    How far it is stands in a file, so that what happened while no server ran is told by the next one. At the first
    start it begins with what happens from then on.

    Args:
        environ: where references ``env:NAME`` lead.
        first_delay: before the second attempt; doubled for each further one.
    """

    def __init__(
        self,
        control: Control,
        config: Config,
        *,
        environ: Mapping[str, str] | None = None,
        resolver: Resolve = resolve,
        first_delay: float = FIRST_DELAY,
    ) -> None:
        self._control = control
        self._path = config.home / "server" / "alerts.json"
        self._queue = AlertQueue(
            allowed=config.server_webhooks or (),
            environ=environ,
            resolver=resolver,
            done=self._delivered,
            first_delay=first_delay,
        )
        self._closed = threading.Event()
        self._last: dict[tuple[str, str | None], tuple[str, str | None]] = {}  # each job's name and run, as told last
        self._lock = threading.Lock()
        self._progress = _Progress()
        self._saved = b""  # what is in the file
        self._thread = threading.Thread(target=self._loop, name="alerts", daemon=True)

    def start(self) -> None:
        """Begin."""
        found = _Progress.load(self._path)
        self._progress = _Progress() if found is None else found
        if found is None:
            while events := self._control.events(self._progress.read):
                self._progress.read = events[-1].id
        elif self._progress.read and not self._control.events(self._progress.read - 1, limit=1):
            self._progress = _Progress(read=0)  # of another store: its newest event would still be there
        self._queue.start()
        self._thread.start()

    def close(self) -> None:
        """End; what is not sent yet is sent after the next start."""
        self._closed.set()
        self._thread.join()
        self._queue.close()
        self._save_progress()

    def _loop(self) -> None:
        resumed = False
        while not self._closed.is_set():
            try:
                if not resumed:
                    self._resume()
                    resumed = True
                for event in self._control.events(self._progress.read, wait=POLL_SECONDS, limit=100):
                    self._handle(event)
                self._save_progress()
            except StoreError as error:
                log.warning("events cannot be read; alerts wait: %s", error.message)
                self._closed.wait(POLL_SECONDS)
            except Exception:
                log.exception("events cannot be read; alerts wait")
                self._closed.wait(POLL_SECONDS)

    def _resume(self) -> None:
        """Send what the server before this one did not; drop events that were pruned."""
        waiting, found = dict(self._progress.waiting), []
        for number in sorted({event for event, _ in waiting}):
            events = self._control.events(number - 1, limit=1)
            if events and events[0].id == number:
                found += self._alerts(events[0], waiting)
        with self._lock:
            self._progress.waiting = {(alert.event, alert.number): alert.since for alert in found}
        for alert in found:
            self._queue.add(alert)

    def _handle(self, event: Event) -> None:
        """Queue an event's alerts."""
        key, said = (event.pipeline, event.job), (_name(event), event.fields.get("run"))
        if event.what in ("resume", "restart", "retry", "backfill"):
            self._last.pop(key, None)
        if event.what == "deleted":
            for known in [each for each in self._last if each[0] == event.pipeline]:
                del self._last[known]
        # The store is read before the event counts as known: if it fails, the event is taken again.
        again = event.what not in _EACH and self._last.get(key) == said
        alerts = [] if again else self._alerts(event)
        with self._lock:
            self._progress.waiting |= {(alert.event, alert.number): alert.since for alert in alerts}
            self._progress.read = event.id
        if said[0] and event.job is not None and event.what not in _EACH:
            self._last[key] = said
        for alert in alerts:
            self._queue.add(alert)

    def _alerts(self, event: Event, waiting: Mapping[tuple[int, int], float] | None = None) -> list[Alert]:
        """Return what is told of an event, or of that what waits already."""
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
        with self._lock:
            self._progress.waiting.pop((alert.event, alert.number), None)

    def _save_progress(self) -> None:
        """Write down up to which event all is told, and what waits."""
        with self._lock:
            content = self._progress.dump()
        if content == self._saved:
            return
        try:
            write_private(self._path, content)
            self._saved = content
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)


def _name(event: Event) -> str:
    return event.what.upper() if event.what.upper() in NAMES else event.state or ""
