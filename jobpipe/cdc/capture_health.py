"""How a capture's database stands: up to when its changes are published, and a thread that says so to the topics.

The coordinator of a topic is what everything that shows captures asks, wherever these run. What it was told is for
people and alarms; a capture goes on whether or not it arrives.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from jobpipe.errors import JobpipeError
from jobpipe.operations.messages.source_messages import (
    MAX_PLACE,
    MAX_SOURCE_SECONDS,
    MAX_TABLES,
    SourceReport,
    TableReading,
)
from jobpipe.store.catalog.position import MAX_NUMBER

log = logging.getLogger(__name__)

REPORT_SECONDS = 2.0  # between two reports
AGAIN_SECONDS = 10.0  # after which one is repeated though nothing has changed
TELL_SECONDS = 5.0  # for a coordinator to answer
PART = 20  # of the time a thread may spend on reports: a twentieth, for captures of very many topics
LEAVE_SECONDS = 1.0


class Freshness:
    """Up to when all that was committed is published.

    The database's times of commits and this host's clock are compared as they are; so clocks that differ count.
    """

    def __init__(self) -> None:
        self._taken = 0.0  # when the newest transaction was committed that has come whole
        self._published = 0.0  # all that was committed until then is published

    def take(self, committed_ms: int) -> None:
        """Note a transaction that has come whole, and when it was committed, in milliseconds since 1970."""
        self._taken = max(self._taken, committed_ms / 1000)

    def publish(self) -> None:
        """Note that all transactions are published that have come whole."""
        self._published = max(self._published, self._taken)

    def catch_up(self, at: float) -> None:
        """Note that all is published that was committed before a time, in seconds since 1970."""
        self._published = max(self._published, at)

    def seconds(self, *, waits: bool) -> float | None:
        """Return how long ago the newest published transaction was committed; None if that is not known yet.

        Args:
            waits: whether something is not published; without it the answer is 0.
        """
        if not waits:
            return 0.0
        return max(0.0, time.time() - self._published) if self._published else None


class ReportedTopic(Protocol):
    """The writer of a topic, as far as it is needed here."""

    def tell_source(self, report: SourceReport, seconds: float) -> None:
        """Tell the topic's coordinator; raises JobpipeError."""


class SourceReports:
    """A thread that tells the coordinators of a capture's topics how the database stands.

    Args:
        name: of the capture.
        look: asks the database, and returns the report; None while there is no session.
        topics: returns the topics that are open.
        leave: called in the thread when it ends.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], SourceReport | None],
        topics: Callable[[], Mapping[str, ReportedTopic]],
        leave: Callable[[], None],
    ) -> None:
        self._name = name
        self._look = look
        self._topics = topics
        self._leave = leave
        self._told: dict[str, tuple[ReportedTopic, SourceReport, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"cdc-health-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; one that waits for a database that hangs is left."""
        self._ended.set()
        self._thread.join(LEAVE_SECONDS)

    def _run(self) -> None:
        took = 0.0
        try:
            while not self._ended.wait(max(REPORT_SECONDS, PART * took)):
                began = time.monotonic()
                try:
                    self._report()
                except Exception:  # whatever it is, it is no reason to end a capture
                    log.warning("capture %s: how it stands could not be told", self._name, exc_info=True)
                took = time.monotonic() - began
        finally:
            self._leave()

    def _report(self) -> None:
        report = self._look()
        if report is None:
            return
        topics = self._topics()
        self._told = {name: told for name, told in self._told.items() if name in topics}
        for name, topic in topics.items():
            if self._ended.is_set():
                return
            told = self._told.get(name)
            if told is not None and told[0] is topic and told[1] == report and not _is_old(told[2]):
                continue
            try:
                topic.tell_source(report, TELL_SECONDS)
            except JobpipeError as error:
                log.debug("capture %s: topic %s was not told how it stands: %s", self._name, name, error)
                self._told.pop(name, None)
            else:
                self._told[name] = topic, report, time.monotonic()


def source_report(
    *,
    position: str,
    behind_bytes: int,
    behind_seconds: float | None,
    retained_bytes: int | None,
    safe_bytes: int | None,
    tables: Mapping[str, tuple[int, float]],
) -> SourceReport:
    """Return a report, within the bounds that a coordinator takes."""
    named = sorted(tables.items(), key=lambda each: (-each[1][0], each[0]))[:MAX_TABLES]
    return SourceReport(
        position=_text(position),
        behind_bytes=_count(behind_bytes) or 0,
        behind_seconds=None if behind_seconds is None else round(min(max(behind_seconds, 0.0), MAX_SOURCE_SECONDS), 1),
        retained_bytes=_count(retained_bytes),
        safe_bytes=_count(safe_bytes),
        tables=tuple(
            TableReading(_text(name), _count(rows) or 0, _count(estimate) if 0 < estimate < MAX_NUMBER else None)
            for name, (rows, estimate) in named
        ),
        more_tables=max(0, len(tables) - len(named)),
    )


def _is_old(told_at: float) -> bool:
    return time.monotonic() - told_at >= AGAIN_SECONDS


def _count(value: float | None) -> int | None:
    return None if value is None else int(min(max(value, 0), MAX_NUMBER))


def _text(value: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in value[:MAX_PLACE])
