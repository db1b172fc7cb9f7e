"""Sends alerts to webhooks, patiently and within bounds: one that does not answer delays no other one.

It is in memory alone. The control server stores which alerts wait: :mod:`jobpipe.control.job_alerts`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError
from jobpipe.jobs.alerts.webhook import (
    TOTAL_SECONDS,
    Webhook,
    WebhookError,
    WebhookRefused,
    WebhookRejected,
    post,
)

log = logging.getLogger(__name__)

SENDERS = 4
MOST_DESTINATIONS = 100
MOST_WAITING = 50  # alerts of one destination
FIRST_DELAY = 1.0
MOST_DELAY = 300.0
GIVE_UP_SECONDS = 7200.0
REJECTED_ATTEMPTS = 10  # of an alert that the webhook itself refuses: over 8 minutes


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One message to one webhook.

    Attributes:
        event: its number, by which a receiver knows one that comes twice.
        number: of the webhook in the file, from 1.
        since: when it was first to be sent, in seconds since 1970.
    """

    name: str
    pipeline: str
    job: str | None
    at: float
    event: int
    detail: str
    number: int
    since: float
    url: Secret = field(repr=False)

    @property
    def message(self) -> dict[str, Any]:
        return {
            "alert": self.name,
            "pipeline": self.pipeline,
            "job": self.job,
            "at": self.at,
            "event": self.event,
            "detail": self.detail[:2000],
        }

    @property
    def undelivered(self) -> str:
        """What is logged of one that could not be delivered; the address is not in it."""
        where = f"{self.pipeline}/{self.job}" if self.job else self.pipeline
        return f"alert {self.name} of {where} could not be delivered to webhook {self.number}"


@dataclass
class _Destination:
    """The alerts for one address.

    Attributes:
        due: when the next attempt is made, by the monotonic clock.
        failures: attempts in a row.
        rejected: how often it has refused the first alert.
        busy: an attempt is being made.
    """

    alerts: deque[Alert] = field(default_factory=deque)
    due: float = 0.0
    failures: int = 0
    rejected: int = 0
    busy: bool = False


class AlertQueue:
    """Sends what it is given with a few threads, at most one for each address; :meth:`close` ends them.

    Args:
        environ: where references ``env:NAME`` lead; None: of this process.
        done: told of each alert that was sent, or given up.
        first_delay: before the second attempt; doubled for each further one, up to some minutes.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        done: Callable[[Alert], None] = lambda alert: None,
        first_delay: float = FIRST_DELAY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._environ = environ
        self._done = done
        self._first_delay = first_delay
        self._clock = clock
        self._news = threading.Condition()  # and the lock of what follows
        self._destinations: dict[str, _Destination] = {}
        self._closed = False
        self._threads = [threading.Thread(target=self._send_all, name="alert", daemon=True) for _ in range(SENDERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, alert: Alert) -> None:
        """Let an alert be sent; returns at once. Where too many wait for its address, the oldest is given up."""
        key, dropped, why = self._key(alert), None, f"more than {MOST_WAITING} wait for it"
        with self._news:
            if key not in self._destinations and len(self._destinations) >= MOST_DESTINATIONS:
                dropped, why = alert, f"alerts for {MOST_DESTINATIONS} webhooks wait already"
            else:
                destination = self._destinations.setdefault(key, _Destination())
                destination.alerts.append(alert)
                if len(destination.alerts) > MOST_WAITING:
                    dropped = destination.alerts[int(destination.busy)]
                    destination.alerts.remove(dropped)
                self._news.notify()
        if dropped is not None:
            self._give_up(dropped, why)

    def close(self, within: float = 0.0, join: float = TOTAL_SECONDS + 5.0) -> int:
        """End; return how many alerts were neither sent nor given up.

        Args:
            within: seconds that what waits may take.
            join: seconds that an attempt that is being made may take after that.
        """
        with self._news:
            self._news.wait_for(lambda: not self._destinations, within)
            self._closed = True
            left = sum(len(each.alerts) for each in self._destinations.values())
            self._news.notify_all()
        until = time.monotonic() + join
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))
        return left

    def _key(self, alert: Alert) -> str:
        """Return what stands for the address; it is itself a secret, which is kept no longer than it is needed."""
        try:
            return hashlib.sha256(alert.url.reveal(self._environ).encode()).hexdigest()
        except ConfigError:
            return alert.url.reference

    def _send_all(self) -> None:
        while (found := self._next_alert()) is not None:
            key, alert = found
            error = self._send_one(alert)
            given_up = self._note_result(key, alert, error)
            if given_up:
                self._give_up(alert, given_up)
            elif error is None:
                self._done(alert)
            with self._news:
                destination = self._destinations[key]
                destination.busy = False
                if not destination.alerts:
                    del self._destinations[key]
                self._news.notify_all()

    def _next_alert(self) -> tuple[str, Alert] | None:
        """Wait for an alert that is due; None: it is the end."""
        with self._news:
            while not self._closed:
                now = time.monotonic()
                waiting = [(each.due, key) for key, each in self._destinations.items() if not each.busy]
                due, key = min(waiting, default=(None, ""))
                if due is not None and due <= now:
                    self._destinations[key].busy = True
                    return key, self._destinations[key].alerts[0]
                self._news.wait(None if due is None else due - now)
        return None

    def _send_one(self, alert: Alert) -> WebhookError | None:
        try:
            hook = Webhook.parse(alert.url.reveal(self._environ))
            post(hook, alert.message)
        except WebhookError as error:
            return error
        except ConfigError:
            return WebhookRejected("its secret cannot be read")
        except Exception as error:  # noqa: BLE001 - its text may have the address
            return WebhookRejected(type(error).__name__)
        return None

    def _note_result(self, key: str, alert: Alert, error: WebhookError | None) -> str:
        """Note how an attempt ended; return why the alert is given up, "" if it is not."""
        with self._news:
            destination = self._destinations[key]
            if error is None:
                destination.failures = destination.rejected = 0
                destination.due = 0.0
                destination.alerts.remove(alert)
                return ""
            if isinstance(error, WebhookRefused):
                destination.alerts.remove(alert)
                return str(error)
            destination.failures += 1
            destination.rejected += isinstance(error, WebhookRejected)
            delay = min(self._first_delay * 2 ** min(destination.failures - 1, 30), MOST_DELAY)
            destination.due = time.monotonic() + delay
            if destination.failures == 1:
                hours = GIVE_UP_SECONDS / 3600
                log.warning("%s: %s; trying again for up to %.0f h", alert.undelivered, error, hours)
            if destination.rejected < REJECTED_ATTEMPTS and self._clock() - alert.since < GIVE_UP_SECONDS:
                return ""
            destination.rejected = 0
            destination.alerts.remove(alert)
            return str(error)

    def _give_up(self, alert: Alert, why: str) -> None:
        log.error("%s, and is given up: %s", alert.undelivered, why)
        self._done(alert)
