"""Why an attempt is to stop: its order says so, a signal came, or the program that started it is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from jobpipe.pipelines.loading.snapshot import ParentProcess
from jobpipe_registry.host.process_identity import lives

PARENT_SECONDS = 1.0


class StopAsked(KeyboardInterrupt):
    """A stop was asked for while the attempt was being put together.

    As KeyboardInterrupt, it also lets py4j drop the connection whose call it interrupts. With any other exception the
    next call of this thread, as in a ``finally``, would wait for that one and be given its answer.
    """


class StopRequest:
    """Set once, from any thread, or from a handler of a signal: so nothing here waits for a lock.

    Args:
        seconds: how long the stop may take.

    Attributes:
        seconds: the same.
        boundary_seconds: for how long the end of a micro-batch is waited for.
        why: what asked; "" before.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.boundary_seconds = seconds / 2
        self._asking = threading.Lock()  # taken for good by the first who asks
        self._asked = False
        self._listeners: list[Callable[[], None]] = []
        self._at = 0.0
        self.why = ""
        self._interruptible = False

    def ask(self, why: str) -> None:
        if not self._asking.acquire(blocking=False):
            return
        self.why, self._at = why, time.monotonic()
        self._asked = True
        self._notify_listeners()

    def note_signals(self) -> None:
        """Take SIGINT, SIGTERM and SIGHUP for a stop from now on."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.ask(signal.Signals(number).name)
        if self._interruptible:
            self._interruptible = False
            raise StopAsked

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let a stop interrupt the block, in the main thread: it waits for something, and has changed nothing.

        Raises:
            StopAsked: a stop was asked for.
        """
        self._interruptible = True
        self.listen(lambda: os.kill(os.getpid(), signal.SIGTERM) if self._interruptible else None)
        try:
            yield
        finally:
            self._interruptible = False

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when a stop is asked for; at once if that was done."""
        self._listeners.append(listener)
        if self._asked:  # if it is asked for only now, who asks finds the listener
            self._notify_listeners()

    def _notify_listeners(self) -> None:
        """Call each listener once, also if two threads are here."""
        while True:
            try:
                listener = self._listeners.pop(0)
            except IndexError:
                return
            listener()

    @property
    def asked(self) -> bool:
        return self._asked

    @property
    def hurried(self) -> bool:
        """Whether to stop in the middle of a micro-batch."""
        return self._asked and time.monotonic() - self._at > self.boundary_seconds


def watch_parent(parent: ParentProcess, stop: StopRequest, end: Callable[[], None]) -> None:
    """Ask for a stop when a process has ended; a thread looks every second, as long as this process lives.

    Args:
        end: called if this process still lives when the time of the stop is over: nothing else would end it.
    """

    def watch() -> None:
        while lives(parent.pid, parent.started, parent.ticks) is not False:
            time.sleep(PARENT_SECONDS)
        stop.ask("the program that started this job has ended")
        time.sleep(stop.seconds)
        end()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
