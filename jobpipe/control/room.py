"""Looks whether the topics that jobs publish have room: a job that waits for a subscriber is BLOCKED, not FAILED."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from jobpipe.control.supervisor import Key
from jobpipe.errors import JobpipeError
from jobpipe.pipelines.topic_watch import Statuses, Watcher

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
CLOSE_SECONDS = 10.0


class RoomWatch:
    """A thread that asks the coordinators; :meth:`close` ends it.

    Args:
        publishing: returns the topics of jobs that run, and which job publishes each.
        block: told of each of these jobs why it waits, or None.
    """

    def __init__(
        self,
        admin: Statuses,
        publishing: Callable[[], Mapping[str, Key]],
        block: Callable[[Key, str | None], None],
    ) -> None:
        self._admin = admin
        self._publishing = publishing
        self._block = block
        self._blocked: set[Key] = set()
        self._watcher = Watcher(admin, ())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="room", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _follow(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            try:
                self.look()
            except JobpipeError as error:
                log.info("room in topics: %s", error)
            except Exception:
                log.exception("room in topics")

    def look(self) -> None:
        """Ask once."""
        publishing = self._publishing()
        if {view.topic for view in self._watcher.views} != publishing.keys():
            self._watcher = Watcher(self._admin, publishing)
        self._watcher.poll()
        waiting: dict[Key, str] = {}
        for view in self._watcher.views:
            if view.waiting:
                waiting.setdefault(publishing[view.topic], f"topic {view.topic} has no room: {view.waiting}")
        for key in self._blocked - waiting.keys():
            self._block(key, None)
        for key, why in waiting.items():
            self._block(key, why)
        self._blocked = set(waiting)
