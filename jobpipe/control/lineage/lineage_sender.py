"""Sends the events of an outbox, in their order, with one thread; patiently, so that nothing is lost in an outage."""

from __future__ import annotations

import logging
import threading

from jobpipe.control.lineage.lineage_destinations import Destination, EventRefusedError, NotSentError
from jobpipe.control.lineage.lineage_outbox import LineageOutbox, WaitingEvent
from jobpipe.errors import StoreError

log = logging.getLogger(__name__)

FIRST_DELAY = 1.0
MOST_DELAY = 300.0
REFUSED_ATTEMPTS = 3  # of an event that the backend itself refuses
JOIN_SECONDS = 30.0  # for an attempt that is being made, though it is cut


class LineageSender:
    """Takes events out of an outbox; :meth:`close` ends it, and what waits stays there.

    Args:
        first_delay: seconds before the second attempt; doubled for each further one, up to some minutes.

    Attributes:
        sent: how many events were sent since the start.
    """

    def __init__(self, outbox: LineageOutbox, destination: Destination, *, first_delay: float = FIRST_DELAY) -> None:
        self._outbox = outbox
        self._destination = destination
        self._first_delay = first_delay
        self._news = threading.Event()
        self._closed = threading.Event()
        self.sent = 0
        self._failures = 0
        self._refused = (0, 0)  # an event's number, and how often it was refused
        self._thread = threading.Thread(target=self._loop, name="lineage-sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Tell that an event was added; returns at once."""
        self._news.set()

    def close(self) -> None:
        """End; what is being sent is cut."""
        self._closed.set()
        self._news.set()
        self._destination.close()
        self._thread.join(JOIN_SECONDS)

    def _loop(self) -> None:
        while not self._closed.is_set():
            self._news.clear()
            try:
                waiting = self._outbox.oldest()
                if waiting is None:
                    self._news.wait()
                    continue
                delay = self._send(waiting)
            except StoreError as error:
                log.warning("lineage events wait: %s", error.message)
                delay = FIRST_DELAY
            except Exception:
                log.exception("lineage events wait")
                delay = MOST_DELAY
            if delay:
                self._closed.wait(delay)

    def _send(self, waiting: WaitingEvent) -> float:
        """Try once; return after how many seconds to go on."""
        try:
            self._destination.send(waiting.text)
        except NotSentError as error:
            if self._closed.is_set():
                return 0.0
            return self._after_failure(waiting, error)
        if self._failures:
            log.info("%s takes lineage events again", self._destination.name)
        self._failures = 0
        self.sent += 1
        self._outbox.remove(waiting.number)
        return 0.0

    def _after_failure(self, waiting: WaitingEvent, error: NotSentError) -> float:
        if isinstance(error, EventRefusedError):
            number, times = self._refused
            times = times + 1 if number == waiting.number else 1
            self._refused = (waiting.number, times)
            if times >= REFUSED_ATTEMPTS:
                self._failures = 0
                self._outbox.give_up(waiting.number, f"{self._destination.name} refuses it: {error}")
                return 0.0
        self._failures += 1
        if self._failures == 1:
            log.warning("%s does not take lineage events, which wait: %s", self._destination.name, error)
        return min(self._first_delay * 2.0 ** min(self._failures - 1, 30), MOST_DELAY)
