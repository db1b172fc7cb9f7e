"""Follow a part of the registry: a thread that looks, compares, calls back, and waits for a notice.

Notices say only "look again". They may be lost, doubled or late; what is seen counts, and it is looked at again at the
latest each 30 s. So a missing node, one that was deleted and made again, data that changed in place, and a session
that was lost need no code of their own.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from jobpipe_registry.nodes import Nodes, Notify
from jobpipe_registry.registry_errors import NotStarted, RegistryError

logger = logging.getLogger(__name__)

Seen = TypeVar("Seen")
Read = Callable[[Notify], Seen]
"""Return what there is, comparable; leave notices on all that was read."""

_RELIST_SECONDS = 30.0
_FEW_WATCHES = 40  # of one session; more share what these would ask for
_SPACING_SECONDS = 0.05  # at least, between two looks
_TURN_SECONDS = 0.1  # at most, from a notice to the look: thousands of readers get the same one at once
_POLL_SECONDS = 2.0
_RETRY_SECONDS = 2.0
_CLOSE_SECONDS = 5.0
_jitter = random.Random()  # noqa: S311 - own, so that our threads do not disturb a program that seeds the global one


class Watch(ABC):
    """A subscription to the registrations of a topic, or to the state of a job."""

    @abstractmethod
    def close(self) -> None:
        """End the watch: once this returns no callback begins any more.

        Waits for a running callback, at most 5 s, and not at all when called from the callback itself. Idempotent.
        """


class TreeWatch(Watch, Generic[Seen]):
    """A watch and its thread, which ends with :meth:`close`.

    Args:
        what: it is, for the log.
        read: returns what there is.
        on_seen: called with it, when it is not what it was before.
        watches: returns how many watches the session has.
    """

    def __init__(
        self,
        nodes: Nodes,
        what: str,
        read: Read[Seen],
        on_seen: Callable[[Seen], None],
        watches: Callable[[], int] = lambda: 1,
    ) -> None:
        self._watches = watches
        self._nodes = nodes
        self._what = what
        self._read = read
        self._on_seen = on_seen
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"registry-watch {what}", daemon=True)

    def start(self) -> None:
        self._nodes.listen(self._notify)
        self._thread.start()

    def close(self) -> None:
        self.signal_close()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    @property
    def ended(self) -> bool:
        """Whether the watch was closed; it needs no closing any more."""
        return self._closed.is_set() and not self._thread.is_alive()

    def signal_close(self) -> None:
        """Begin to close, without a wait."""
        self._closed.set()
        self._wake.set()
        self._nodes.unlisten(self._notify)

    def join(self, timeout: float) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join(max(0.0, timeout))

    def _notify(self, _: object = None) -> None:
        self._wake.set()

    def _follow(self) -> None:
        known: list[Seen] = []
        while not self._closed.is_set():
            self._wake.clear()
            wait = _RELIST_SECONDS * max(1.0, self._watches() / _FEW_WATCHES) * _jitter.uniform(0.8, 1.2)
            looked_at = time.monotonic()
            try:
                seen = self._read(self._notify)
            except RegistryError as error:
                if not self._closed.is_set():
                    logger.warning("%s: cannot look after it: %s", self._what, error)
                wait = _RETRY_SECONDS * _jitter.uniform(0.8, 1.2)
            else:
                if known != [seen]:
                    known = [seen]
                    self._call(seen)
            if self._wake.wait(wait):
                turn = _jitter.uniform(0.0, _TURN_SECONDS)
                self._closed.wait(max(turn, looked_at + _SPACING_SECONDS - time.monotonic()))

    def _call(self, seen: Seen) -> None:
        if not self._closed.is_set():
            _call(self._what, self._on_seen, seen)


class PolledWatch(Watch, Generic[Seen]):
    """A watch on what cannot tell of a change: it is read every two seconds."""

    def __init__(self, what: str, read: Callable[[], Seen], on_seen: Callable[[Seen], None]) -> None:
        self._what = what
        self._read = read
        self._on_seen = on_seen
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"registry-watch {what}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def _follow(self) -> None:
        known: list[Seen] = []
        while not self._closed.is_set():
            try:
                seen = self._read()
            except NotStarted:
                return  # the session has ended
            except RegistryError as error:
                logger.warning("%s: cannot look after it: %s", self._what, error)
            else:
                if known != [seen] and not self._closed.is_set():
                    known = [seen]
                    _call(self._what, self._on_seen, seen)
            self._closed.wait(_POLL_SECONDS * _jitter.uniform(0.8, 1.2))


def _call(what: str, on_seen: Callable[[Seen], None], seen: Seen) -> None:
    try:
        on_seen(seen)
    except Exception:
        logger.exception("%s: the watch's callback failed", what)
