"""Up to where a stream reads in this run: to the ends that its options name, and with ``availableNow`` what is there.

The publisher's coordinator decides where an end lies (:mod:`jobpipe.store.reading.offset_resolution`) and tells it with
each plan; what it has decided stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jobpipe.net.retry import RETRYABLE
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import LATEST, Boundary
from jobpipe.subscribing.subscriber_session import SubscriberSession

log = logging.getLogger(__name__)

Positions = Mapping[str, Position]


class StreamEnds:
    """The ends of one stream's topics.

    Args:
        end_of: where the options let a topic end; None for nowhere.
    """

    def __init__(self, end_of: Callable[[str], Boundary | None]) -> None:
        self._end_of = end_of
        self._stops: dict[str, Position] = {}  # the ends that are decided
        self._now: dict[str, Position] | None = None  # availableNow: no further, and no other topic

    @property
    def now(self) -> bool:
        """True for a run that reads what was there when it started (``availableNow``)."""
        return self._now is not None

    def stop_now(self, session: SubscriberSession, topics: Iterable[str]) -> None:
        """Read up to the heads of now, or to the ends that lie before them."""
        self._now = {topic: session.end(topic, self._end_of(topic) or LATEST) for topic in topics}

    def fix_latest(self, session: SubscriberSession, topics: Iterable[str]) -> None:
        """Fix the ends at ``latest``, of all topics before any is planned; one that is away comes with its plan."""
        for topic in topics:
            if self._now is None and topic not in self._stops and self._end_of(topic) == LATEST:
                try:
                    self._stops[topic] = session.end(topic, LATEST, wait=False)
                except RETRYABLE as error:
                    log.info("topic %s: its end is not known yet (%s)", topic, error)

    def of(self, topic: str) -> Boundary | None:
        """Return up to where ``topic`` may be planned."""
        stop = self._stops.get(topic) if self._now is None else self._now[topic]
        return self._end_of(topic) if stop is None else Boundary("position", stop)

    def excludes(self, topic: str) -> bool:
        """Tell whether ``topic`` came too late for this run."""
        return self._now is not None and topic not in self._now

    def note_stop(self, topic: str, stop: Position | None) -> None:
        """Take from a plan whether the end is decided, and where it is."""
        if stop is not None and self._now is None:
            self._stops[topic] = stop

    def ahead(self, positions: Positions) -> dict[str, Position]:
        """Return the topics that are not at their end; news of the others does not count."""
        return {topic: position for topic, position in positions.items() if not self.is_past_end(topic, position)}

    def report(self, heads: dict[str, Any], positions: Positions) -> None:
        """Put the ends that are decided in the place of the heads; a topic that was read to its end has ended."""
        for topic in heads.keys() & self._stops.keys():
            here = positions.get(topic)
            end = here if here is not None and self.is_past_end(topic, here) else self._stops[topic]
            heads[topic].update(end.to_json(), ended=True)

    def is_past_end(self, topic: str, position: Position) -> bool:
        """Tell whether nothing of ``topic`` is to be read at ``position`` any more."""
        stop = (self._stops if self._now is None else self._now).get(topic)
        return stop is not None and stop.log == position.log and position.place >= stop.place
