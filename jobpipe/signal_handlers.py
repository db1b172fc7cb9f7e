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
    """Handle signals inside the block, and as before after it. SIGHUP stays ignored where it is, as under ``nohup``.

    In another thread than the main one nothing is changed: Python lets the main thread alone handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in numbers if not _is_under_nohup(number)]
    before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield
    finally:
        for number, present in before.items():
            signal.signal(number, present)


def _is_under_nohup(number: signal.Signals) -> bool:
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set."""
    stopped = threading.Event()
    with handled((signal.SIGINT, signal.SIGTERM), lambda number, frame: stopped.set()):
        yield stopped
