"""Keeps what schedules still need of their topics from retention, by a hold for each source of a scheduled job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from jobpipe.control.schedules.interval_store import IntervalStore
from jobpipe.control.store import Store
from jobpipe.control.supervisor import Key
from jobpipe.errors import DataLoss, HoldNotFound, JobpipeError
from jobpipe.operations.administration import HoldReply
from jobpipe.store.boundary import Boundary

log = logging.getLogger(__name__)

GAP = "gap"  # an event
LOOK_SECONDS = 30.0
CLOSE_SECONDS = 15.0


class Holder(Protocol):
    """What is asked here of :class:`jobpipe.admin.Admin`."""

    def hold(self, topic: str, name: str, to: Boundary) -> HoldReply: ...

    def release(self, topic: str, name: str) -> HoldReply: ...


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What a schedule needs of one topic.

    Attributes:
        name: of the hold, which is that of the subscription by which the job would read.
        since: the publish time from which rows are needed.
    """

    key: Key
    topic: str
    name: str
    since: datetime


class HoldKeeper:
    """A thread that moves the holds; :meth:`close` ends it, and leaves them where they are.

    Args:
        needed: returns what all schedules need now.
    """

    def __init__(self, store: Store, admin: Holder, needed: Callable[[], Iterable[Needed]]) -> None:
        self._store = store
        self._books = IntervalStore(store)
        self._admin = admin
        self._needed = needed
        self._kept: dict[tuple[str, str], datetime] = {}  # of each topic and hold, from where it was last moved to
        self._gaps: dict[tuple[str, str], str] = {}  # as told last
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._follow, name="holds", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def look(self) -> None:
        """Move them soon."""
        self._wake.set()

    def close(self) -> None:
        """End."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _follow(self) -> None:
        while not self._closed:
            self._wake.clear()
            try:
                self.move_all()
            except Exception:
                log.exception("holds of schedules")
            self._wake.wait(LOOK_SECONDS)

    def move_all(self) -> None:
        """Move each that has to be moved, once; give those back that nothing needs any more."""
        found = {(each.topic, each.name): each for each in self._needed()}
        for (topic, name), each in found.items():
            if self._closed:
                return
            if self._kept.get((topic, name)) != each.since:
                self._move(each)
        for topic, name in self._books.holds():
            if (topic, name) not in found and not self._closed:
                self._give_back(topic, name)

    def _give_back(self, topic: str, name: str) -> None:
        try:
            self._admin.release(topic, name)
        except HoldNotFound:
            pass
        except JobpipeError as error:
            log.info("hold %s of topic %s cannot be released now: %s", name, topic, error)
            return
        self._books.remove_hold(topic, name)
        self._kept.pop((topic, name), None)

    def _move(self, each: Needed) -> None:
        place = Boundary.of(each.since, "since")
        self._books.add_hold(each.topic, each.name)
        try:
            held = self._admin.hold(each.topic, each.name, Boundary(place.kind, place.value, "latest"))
        except DataLoss as error:
            self._told(each, error.message)
            self._kept[(each.topic, each.name)] = each.since
            return
        except JobpipeError as error:  # the topic is not there yet, or away
            log.info("hold %s of topic %s cannot be moved now: %s", each.name, each.topic, error)
            return
        if held.gap is not None:
            self._told(each, f"{held.gap}; {held.lost} batches are missing")
        self._kept[(each.topic, each.name)] = each.since

    def _told(self, each: Needed, why: str) -> None:
        """Tell once of rows that are gone before a run has read them."""
        if self._gaps.get((each.topic, each.name)) == why:
            return
        self._gaps[(each.topic, each.name)] = why
        self._store.add_event(*each.key, GAP, detail=f"topic {each.topic}: {why}", fields={"topic": each.topic})
