"""Follow the registrations of one topic: a thread that lists, compares, calls back, and waits for a notice.

Notices say only "look again". They may be lost, doubled or late; the list is what counts, and it is made anew at the
latest each 30 s. So a missing topic, one that was deleted and made again, data that changed in place, and a session
that was lost need no code of their own.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from registry.errors import RegistryError
from registry.handler import Watch, WatchCallback
from registry.nodes import Nodes, Notify
from registry.records import RegisterRecord

__all__ = ["Lister", "TreeWatch"]

logger = logging.getLogger(__name__)

Lister = Callable[[str, Notify], list[tuple[int, RegisterRecord]]]
"""(topic, notify) -> (serial, record) of each registration, notices left on all that was read."""

_RELIST_SECONDS = 30.0
_SPACING_SECONDS = 0.05  # n registrations of one publisher come as n notices: list them once or twice
_RETRY_SECONDS = 2.0
_CLOSE_SECONDS = 5.0
_jitter = random.Random()  # noqa: S311 - own, so that our threads do not disturb a program that seeds the global one


class TreeWatch(Watch):
    """A watch and its thread, which ends with :meth:`close`."""

    def __init__(self, nodes: Nodes, topic: str, lister: Lister, callback: WatchCallback) -> None:
        self._nodes = nodes
        self._topic = topic
        self._lister = lister
        self._callback = callback
        self._look = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"registry-watch-{topic}", daemon=True)

    def start(self) -> None:
        self._nodes.listen(self._notify)
        self._thread.start()

    def close(self) -> None:
        self.signal_close()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    @property
    def ended(self) -> bool:
        """Whether the watch was closed; nobody needs to close it any more."""
        return self._closed.is_set() and not self._thread.is_alive()

    def signal_close(self) -> None:
        """Begin to close, without a wait."""
        self._closed.set()
        self._look.set()
        self._nodes.unlisten(self._notify)

    def join(self, timeout: float) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join(max(0.0, timeout))

    def _notify(self, _: object = None) -> None:
        self._look.set()

    def _follow(self) -> None:
        known: list[tuple[int, RegisterRecord]] | None = None
        while not self._closed.is_set():
            self._look.clear()
            wait = _RELIST_SECONDS * _jitter.uniform(0.8, 1.2)
            listed_at = time.monotonic()
            try:
                listed = self._lister(self._topic, self._notify)
            except RegistryError as error:
                if not self._closed.is_set():
                    logger.warning("topic %s: cannot list registrations: %s", self._topic, error)
                wait = _RETRY_SECONDS * _jitter.uniform(0.8, 1.2)
            else:
                if listed != known:
                    known = listed
                    self._call([record for _, record in listed])
            self._look.wait(wait)
            self._closed.wait(max(0.0, listed_at + _SPACING_SECONDS - time.monotonic()))

    def _call(self, records: list[RegisterRecord]) -> None:
        if self._closed.is_set():
            return
        try:
            self._callback(records)
        except Exception:
            logger.exception("topic %s: the watch's callback failed", self._topic)
