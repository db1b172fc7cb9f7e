"""Asks the coordinators for the state of the topics, and keeps the last answer of those that have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from jobpipe.jobs.monitor.throughput import Throughput
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.store.log.catalog_status import CatalogStatus

ASK_SECONDS = 2.0
AWAY_SECONDS = 10.0  # without an answer, before what was last heard is not shown as how a topic stands now


class Statuses(Protocol):
    """The one question of :class:`jobpipe.admin.Admin` that is asked here."""

    def statuses(self, topics: Sequence[str], timeout: float) -> dict[str, TopicStatus]: ...


@dataclass(frozen=True)
class SubscriptionView:
    """One subscription as shown."""

    name: str
    state: str
    lag_batches: int
    lag_rows: int
    reconnects: int


@dataclass(frozen=True)
class TopicView:
    """One topic as shown; ``state`` is ``waiting`` before it is there, ``live``, ``away``, or ``ended``."""

    topic: str
    state: str = "waiting"
    rows: int = 0
    rows_per_second: float = 0.0
    bytes_per_second: float = 0.0
    waiting: str | None = None
    subscriptions: tuple[SubscriptionView, ...] = ()


class TopicPoller:
    """The newest view of some topics."""

    def __init__(self, admin: Statuses, topics: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._clock = clock
        self._views = {topic: TopicView(topic) for topic in topics}
        self._throughputs = {topic: Throughput() for topic in self._views}
        self._last_seen = {topic: clock() for topic in self._views}  # when each has last answered

    @property
    def views(self) -> list[TopicView]:
        """The topics in the order in which they were named."""
        return list(self._views.values())

    def poll(self) -> None:
        """Ask for each topic that has not ended. One that does not answer keeps its counts."""
        asked = [topic for topic, view in self._views.items() if view.state != "ended"]
        found = self._admin.statuses(asked, ASK_SECONDS) if asked else {}
        now = self._clock()
        for topic in asked:
            view = self._views[topic]
            if topic in found:
                self._last_seen[topic] = now
                self._views[topic] = self._read(topic, found[topic])
            elif (
                view.state == "live" and now - self._last_seen[topic] > AWAY_SECONDS
            ):  # it was busy, or gone after its end
                self._views[topic] = replace(
                    view, state="away", rows_per_second=0.0, bytes_per_second=0.0, waiting=None
                )

    def end(self, catalog: Callable[[str], CatalogStatus | None]) -> None:
        """All has ended: take the last state from the catalogs, and show the rates of the whole run.

        Args:
            catalog: returns ``read_status`` of a topic (store/log/spool_folders.py); None if it is served still, or not
                here: its last view stays.
        """
        for topic, view in self._views.items():
            status = catalog(topic)
            if status is None:
                continue
            reconnects = {line.name: line.reconnects for line in view.subscriptions}
            lines = tuple(
                SubscriptionView(line.name, "absent", line.lag.batches, line.lag.rows, reconnects.get(line.name, 0))
                for line in status.subscriptions
            )
            found = self._live(topic, status.total_rows, status.total_bytes, lines)
            self._views[topic] = self._ended(found) if status.ended else found

    def _read(self, topic: str, status: TopicStatus) -> TopicView:
        lines = tuple(
            SubscriptionView(line.name, line.state, line.lag.batches, line.lag.rows, line.reconnects)
            for line in status.subscriptions
        )
        view = replace(self._live(topic, status.rows, status.bytes, lines), waiting=status.waiting)
        return self._ended(view) if status.ended and not any(line.lag_batches for line in lines) else view

    def _live(self, topic: str, rows: int, size: int, lines: tuple[SubscriptionView, ...]) -> TopicView:
        per_second = self._throughputs[topic].add(self._clock(), rows, size)
        return TopicView(topic, "live", rows, *per_second, subscriptions=lines)

    def _ended(self, view: TopicView) -> TopicView:
        per_second = self._throughputs[view.topic].overall()
        return replace(view, state="ended", rows_per_second=per_second[0], bytes_per_second=per_second[1])
