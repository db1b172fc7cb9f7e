"""Alerts: what happens to a job is told to its pipeline's webhooks. At least once, also if the server is killed."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobpipe.config import Config
from jobpipe.config.secrets import Secret
from jobpipe.control.interface import Control, Event
from jobpipe.control.room import LAGGING
from jobpipe.control.webhook import Hook, HookError, HookRefused, Resolve, post, resolve
from jobpipe.errors import ConfigError, JobpipeError, StoreError
from jobpipe.pipelines.alert_section import alerts_of
from jobpipe.pipelines.lasting import Threshold
from jobpipe.pipelines.places import write_private
from jobpipe.pipelines.spec import AlertSpec

log = logging.getLogger(__name__)

WAITING = 256
SENDERS = 4
ATTEMPTS = 5
FIRST_DELAY = 1.0
POLL_SECONDS = 1.0
TOLD = frozenset({"FAILED", "LOST", "BLOCKED", "LAGGING"})  # what happens in this version, of what a file may name
NAMES = TOLD | {"GAP"}


@dataclass(frozen=True)
class _Alert:
    event: Event
    name: str
    number: int  # of the webhook in the file, from 1
    url: Secret = field(repr=False)


class Alerts:
    """Follows a core's events, with one thread, and sends with a few; :meth:`close` ends them.

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
        self._environ = environ
        self._allowed = frozenset(config.server_webhooks or ())
        self._resolver = resolver
        self._first_delay = first_delay
        self._place = config.home / "server" / "alerts.json"
        self._queue: queue.Queue[_Alert] = queue.Queue(WAITING)
        self._closed = threading.Event()
        self._last: dict[tuple[str, str | None], tuple[str, str | None]] = {}  # each job's name and run, as told last
        self._lock = threading.Lock()
        self._pending: dict[int, int] = {}  # by event: alerts that are not done
        self._read = 0  # the last event that was read
        self._threads = [threading.Thread(target=self._follow, name="alerts", daemon=True)]
        self._threads += [threading.Thread(target=self._send_all, name="alert", daemon=True) for _ in range(SENDERS)]

    def start(self) -> None:
        """Begin."""
        self._read = _read_place(self._place)
        if self._read < 0:
            self._read = 0
            while events := self._control.events(self._read):
                self._read = events[-1].id
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End; what is not sent yet is sent after the next start."""
        self._closed.set()
        for thread in self._threads:
            thread.join()
        self._keep()

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                for event in self._control.events(self._read, wait=POLL_SECONDS, limit=100):
                    if not self._take(event):
                        return
                self._keep()
            except StoreError as error:
                log.warning("events cannot be read; alerts wait: %s", error.message)
                self._closed.wait(POLL_SECONDS)
            except Exception:
                log.exception("events cannot be read; alerts wait")
                self._closed.wait(POLL_SECONDS)

    def _take(self, event: Event) -> bool:
        """Let an event be told; False: we are to end."""
        alerts = self._alerts(event)
        with self._lock:
            if alerts:
                self._pending[event.id] = len(alerts)
            self._read = event.id
        for alert in alerts:
            while True:
                with contextlib.suppress(queue.Full):
                    self._queue.put(alert, timeout=POLL_SECONDS)
                    break
                if self._closed.is_set():
                    return False
        return True

    def _alerts(self, event: Event) -> list[_Alert]:
        if event.what == LAGGING:
            wanted = Threshold(event.fields["lag-rows"], event.fields["lag-time"])
            numbered = enumerate(self._specs(event.pipeline), 1)
            return [_Alert(event, "LAGGING", n, spec.url) for n, spec in numbered if wanted in Threshold.of([spec])]
        name = event.what.upper() if event.what.upper() in NAMES else event.state or ""
        key = (event.pipeline, event.job)
        if event.what == "deleted":
            for known in [each for each in self._last if each[0] == event.pipeline]:
                del self._last[known]
        said = (name, event.fields.get("run"))
        if not name or self._last.get(key) == said:
            return []
        # The store is read before the event counts as known: if it fails, the event is taken again.
        specs = enumerate(self._specs(event.pipeline) if name in NAMES else (), 1)
        if event.job is not None:
            self._last[key] = said
        return [_Alert(event, name, number, spec.url) for number, spec in specs if name in spec.on]

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

    def _send_all(self) -> None:
        while not self._closed.is_set():
            try:
                alert = self._queue.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if self._send(alert):
                self._done(alert.event.id)

    def _send(self, alert: _Alert) -> bool:
        """Send one, again and again within bounds; False: we are to end before that."""
        event, why = alert.event, ""
        what = f"alert {alert.name} of {event.pipeline}" + (f"/{event.job}" if event.job else "")
        for attempt in range(ATTEMPTS):
            if attempt and self._closed.wait(self._first_delay * 2 ** (attempt - 1)):
                return False
            try:
                hook = Hook.parse(alert.url.reveal(self._environ))
                post(hook, _message(alert), allowed=self._allowed, resolver=self._resolver)
                return True
            except HookRefused as error:
                why = str(error)
                break
            except HookError as error:
                why = str(error)
            except ConfigError:
                why = "its secret cannot be read"
        log.error("%s could not be delivered to webhook %d: %s", what, alert.number, why)
        return True

    def _done(self, event: int) -> None:
        with self._lock:
            left = self._pending.pop(event) - 1
            if left:
                self._pending[event] = left

    def _keep(self) -> None:
        """Write down up to which event all is told."""
        with self._lock:
            place = min(self._pending, default=self._read + 1) - 1
        try:
            if _read_place(self._place) == place:
                return
            write_private(self._place, json.dumps({"told": place}).encode())
        except OSError as error:
            log.warning("%s cannot be written: %s", self._place, error.strerror)


def _message(alert: _Alert) -> dict[str, Any]:
    event = alert.event
    return {
        "alert": alert.name,
        "pipeline": event.pipeline,
        "job": event.job,
        "at": event.at,
        "event": event.id,
        "detail": event.detail[:2000],
    }


def _read_place(path: Path) -> int:
    """Return up to which event all was told; -1 if that is not known."""
    try:
        found = json.loads(path.read_bytes()[:1000])
        place = found["told"] if isinstance(found, dict) else -1
    except (OSError, ValueError, KeyError):
        return -1
    return place if isinstance(place, int) and place >= 0 else -1
