"""Whether a topic has its publisher, and how long it is served without one."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe_registry.host.process_identity import lives

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1  # between two looks at a process, for those who ask how topics stand


@dataclass(frozen=True)
class WatchedParent:
    """The process whose end ends the coordinator; see :func:`jobpipe_registry.host.process_identity.lives`."""

    pid: int
    started: float
    ticks: int = 0


@dataclass(frozen=True)
class PublisherLiveness:
    """What the coordinator knows of a topic's publisher.

    Attributes:
        publishing: A publisher has the topic, and its process lives.
        gone: Seconds since its process was found dead; None if it lives, or had closed before.
        served_for: Seconds for which the topic is served yet, unless a subscription advances or a publisher comes; None
            while there is no such limit.
    """

    publishing: bool
    gone: float | None = None
    served_for: float | None = None


class ParentWatch:
    """Knows whether the publisher's process lives, and counts from the moment when it was found dead.

    Args:
        parent: None where no process ends the coordinator.
        linger: seconds for which a topic is served after its publisher, or the last progress of its readers.
    """

    def __init__(self, parent: WatchedParent | None, linger: float) -> None:
        self._parent = parent
        self._linger = linger
        self._dead_since: float | None = None
        self._looked_at = float("-inf")

    def is_dead(self) -> bool:
        """Tell whether the publisher's process is gone, and note since when."""
        if self._dead_since is None and self._parent is not None:
            parent, self._looked_at = self._parent, time.monotonic()
            if lives(parent.pid, parent.started, parent.ticks) is False:
                self._dead_since = time.monotonic()
                log.info("the publisher's process is gone; serving what is sealed for %g s", self._linger)
        return self._dead_since is not None

    def left(self, topic: ServedTopic) -> float:
        """Return for how many seconds a topic without a publisher is served if nothing advances."""
        begun = max(topic.progress_at, self._dead_since or 0.0)
        return max(0.0, begun + self._linger - time.monotonic())

    def liveness(self, topic: ServedTopic, *, lagging: bool) -> PublisherLiveness:
        """Return what is known of a topic's publisher; ``lagging``: a subscription has not read everything."""
        looked_now = self._dead_since is None and time.monotonic() - self._looked_at < _LOOK_SECONDS
        dead = not looked_now and self.is_dead()
        if (topic.publishing or topic.asked.serve) and not dead:
            return PublisherLiveness(topic.publishing)
        if not topic.publishing or self._dead_since is None:
            return PublisherLiveness(False, served_for=self.left(topic) if lagging else 0.0)
        return PublisherLiveness(False, time.monotonic() - self._dead_since, self.left(topic))
