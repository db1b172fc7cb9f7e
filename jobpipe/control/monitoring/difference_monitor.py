"""Watches the ledgers of jobs: where a subscription of a job has committed other rows than were published, an event."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from jobpipe.control.periodic_thread import PeriodicThread
from jobpipe.jobs.storage.job_rows import Event
from jobpipe.jobs.storage.job_store import Store
from jobpipe.ledger.difference_words import difference_words, hop_name
from jobpipe.ledger.hop_states import NEWS_SECONDS, newest_since
from jobpipe.metrics.metric_samples import TopicsSnapshot
from jobpipe.operations.messages.ledger_messages import HopCounts, RowDifference
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.plural import counted

DIFFERENCE = "difference"  # an event
LOOK_SECONDS = 20.0
AGAIN_SECONDS = 60.0  # between two events of one subscription, however many ranges differ meanwhile

Place = tuple[str, str, str, str]
"""Pipeline, job, topic and subscription."""


@dataclass(frozen=True)
class _Noted:
    """The newest difference that an event was written about, and when."""

    first: int
    end: int
    found: float
    at: float

    def is_of(self, difference: RowDifference) -> bool:
        return (self.first, self.end, self.found) == (difference.first, difference.end, difference.found)


class DifferenceMonitor(PeriodicThread):
    """Looks every 20 s. What an event was written about is read from the store, so that no restart repeats it.

    Args:
        snapshot: returns how topics stand, at most so many seconds old.
        clock: seconds since 1970.
    """

    def __init__(
        self, store: Store, snapshot: Callable[[float], TopicsSnapshot], clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__("differences", LOOK_SECONDS)
        self._store = store
        self._snapshot = snapshot
        self._clock = clock
        self._noted: dict[Place, _Noted] | None = None  # None before the store was read

    def work(self) -> None:
        """Look once."""
        if self._noted is None:
            self._noted = dict(map(_noted, self._store.events_called(DIFFERENCE)))
        jobs = {f"{job.pipeline}.{job.name}": (job.pipeline, job.name) for job in self._store.jobs() if job.reads}
        noted = self._noted = {place: each for place, each in self._noted.items() if place[:2] in jobs.values()}
        if not jobs:
            return
        now = self._clock()
        for topic, status in self._snapshot(LOOK_SECONDS).topics.items():
            for line in status.subscriptions if isinstance(status, TopicStatus) else ():
                job = jobs.get(line.name) or jobs.get(line.name.rpartition(".")[0])  # a job, or its view
                newest = newest_since(line.counts, now - NEWS_SECONDS)
                if job is None or newest is None or line.counts is None:
                    continue
                place = (*job, topic, line.name)
                known = noted.get(place)
                if known is None or not (known.is_of(newest) or 0 <= now - known.at < AGAIN_SECONDS):
                    noted[place] = self._write(place, newest, line.counts, now)

    def _write(self, place: Place, newest: RowDifference, counts: HopCounts, now: float) -> _Noted:
        pipeline, job, topic, name = place
        more = "" if counts.differences < 2 else f"; {counted(counts.differences, 'range')} differ in all"
        self._store.add_event(
            pipeline,
            job,
            DIFFERENCE,
            detail=f"{hop_name(topic, name)}: {difference_words(newest)}{more}",
            fields={
                "topic": topic,
                "subscription": name,
                "first": newest.first,
                "end": newest.end,
                "found": newest.found,
            },
        )
        return _Noted(newest.first, newest.end, newest.found, now)


def _noted(event: Event) -> tuple[Place, _Noted]:
    fields = event.fields
    place = (event.pipeline, event.job or "", fields["topic"], fields["subscription"])
    return place, _Noted(fields["first"], fields["end"], fields["found"], event.at)
