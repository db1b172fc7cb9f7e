"""A thread that does its work now and then, and soon after it is woken."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

log = logging.getLogger(__name__)

CLOSE_SECONDS = 15.0


class PeriodicThread(ABC):
    """One thread; :meth:`close` ends it.

    Args:
        name: of the thread.
        seconds: from the end of its work to the next time, unless it is asked for before.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._seconds = seconds
        self._woken = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    @abstractmethod
    def work(self) -> None:
        """Do it once; what it raises is logged. It ends early if it is :attr:`closed`."""

    @property
    def closed(self) -> bool:
        """Whether it is to end."""
        return self._closed

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """End; work that has begun is waited for, for a while."""
        self._closed = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _loop(self) -> None:
        while True:
            self._woken.clear()
            if self._closed:  # looked at after the event is cleared: one that is set from here on is not lost
                return
            try:
                self.work()
            except Exception:
                log.exception("%s", self._thread.name)
            self._woken.wait(self._seconds)
