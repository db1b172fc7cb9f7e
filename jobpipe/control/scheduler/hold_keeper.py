"""Keeps what schedules still need of their topics from retention, by a hold for each source of a scheduled job."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from jobpipe.control.periodic_thread import PeriodicThread
from jobpipe.errors import HoldNotFound, JobpipeError
from jobpipe.jobs.storage.interval_store import HoldRow, IntervalStore
from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.dispatcher import Key
from jobpipe.operations.admin_operations import HoldReply
from jobpipe.plural import counted
from jobpipe.store.reading.boundary import Boundary

log = logging.getLogger(__name__)

GAP = "gap"  # an event
POLL_SECONDS = 30.0


class Holder(Protocol):
    """What is asked here of :class:`jobpipe.admin.Admin`."""

    def holds(self, topic: str) -> list[HoldReply]: ...

    def hold(self, topic: str, name: str, to: Boundary) -> HoldReply: ...

    def release(self, topic: str, name: str) -> HoldReply: ...


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What a schedule needs of one topic.

    Attributes:
        name: of the hold, which is that of the subscription by which the job would read.
        since: the publish time from which rows are needed; None: that cannot be known now.
    """

    key: Key
    topic: str
    name: str
    since: datetime | None


class HoldKeeper(PeriodicThread):
    """A thread that moves the holds; :meth:`close` ends it, and leaves them where they are.

    Args:
        needed: returns what all schedules need now.
    """

    def __init__(self, store: Store, admin: Holder, needed: Callable[[], Iterable[Needed]]) -> None:
        super().__init__("holds", POLL_SECONDS)
        self._store = store
        self._intervals = IntervalStore(store)
        self._admin = admin
        self._needed = needed
        self._gaps: dict[tuple[str, str], str] = {}  # as told last

    def work(self) -> None:
        self.move_all()

    def move_all(self) -> None:
        """Move each that has to be moved, once; give those back that nothing needs any more."""
        needed = {(each.topic, each.name): each for each in self._needed()}
        known = {(row.topic, row.name): row for row in self._intervals.holds()}
        for topic in sorted({topic for topic, _ in (*needed, *known)}):
            if self.closed:
                return
            try:
                existing = {each.name: each for each in self._admin.holds(topic)}
            except JobpipeError as error:  # the topic is not there yet, or away
                log.info("holds of topic %s cannot be moved now: %s", topic, error)
                continue
            for key in sorted(key for key in {*needed, *known} if key[0] == topic):
                self._reconcile(needed.get(key), known.get(key), existing)

    def _reconcile(self, each: Needed | None, row: HoldRow | None, existing: Mapping[str, HoldReply]) -> None:
        try:
            if each is not None:
                self._move_hold(each, row, existing)
            elif row is not None:
                self._remove_hold(row, existing)
        except JobpipeError as error:
            log.warning("a hold of a schedule cannot be moved: %s", error)
            if each is not None:
                self._report_gap(
                    each, f"rows may be removed before a run has read them, since they cannot be held: {error}"
                )

    def _move_hold(self, each: Needed, row: HoldRow | None, existing: Mapping[str, HoldReply]) -> None:
        """Let a hold be where it is needed."""
        if each.since is None:
            return  # what it needs cannot be known now
        if row is None:
            row = HoldRow(topic=each.topic, name=each.name)
            self._intervals.put_hold(row)
        other = replace(row, second=not row.second)
        if other.hold_name in existing:  # of a move back that was cut short
            self._release(each.topic, other.hold_name)
        held = existing.get(row.hold_name)
        if row.since is not None:
            if held is None:
                self._report_gap(each, f"hold {row.hold_name} is gone: it was dropped, or the topic was made again")
            elif held.gap is not None:
                self._report_gap(each, f"{held.gap}; {counted(held.lost, 'batch')} may be missing")
        if held is not None and held.gap is None:
            if row.since == each.since:
                self._gaps.pop((each.topic, each.name), None)
                return
            if row.since is not None and each.since < row.since:
                self._set_hold(other, each.since)  # before the one that stands is released: nothing is free in between
                self._release(each.topic, row.hold_name)
                return
        elif held is not None:
            self._release(each.topic, row.hold_name)  # a gap: it would not go back either
        self._set_hold(row, each.since)

    def _set_hold(self, row: HoldRow, since: datetime) -> None:
        place = Boundary.of(since, "since")
        self._admin.hold(row.topic, row.hold_name, Boundary(place.kind, place.value, "latest"))
        self._intervals.put_hold(replace(row, since=since))

    def _remove_hold(self, row: HoldRow, existing: Mapping[str, HoldReply]) -> None:
        for name in (row.hold_name, replace(row, second=not row.second).hold_name):
            if name in existing:
                self._release(row.topic, name)
        self._intervals.remove_hold(row.topic, row.name)
        self._gaps.pop((row.topic, row.name), None)

    def _release(self, topic: str, name: str) -> None:
        with contextlib.suppress(HoldNotFound):
            self._admin.release(topic, name)

    def _report_gap(self, each: Needed, why: str) -> None:
        """Tell once of rows that may be gone before a run has read them."""
        if self._gaps.get((each.topic, each.name)) == why:
            return
        self._gaps[(each.topic, each.name)] = why
        self._store.add_event(*each.key, GAP, detail=f"topic {each.topic}: {why}", fields={"topic": each.topic})
