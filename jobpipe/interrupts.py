"""Signals of programs: handlers that are in force inside a block."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def handled(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle signals inside the block, and as before after it.

    In another thread than the main one nothing is changed: Python lets the main thread alone handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, present in before.items():
            signal.signal(number, present)


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set."""
    stopped = threading.Event()
    with handled((signal.SIGINT, signal.SIGTERM), lambda number, frame: stopped.set()):
        yield stopped
