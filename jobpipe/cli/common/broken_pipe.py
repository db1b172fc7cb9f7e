"""Notices when the reader of our output is gone, also while there is nothing to print (``tail TOPIC | head``)."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

_POLL_MILLISECONDS = 500


def while_read(block: Callable[[], None]) -> None:
    """Run ``block`` until it ends or the reader of standard output is gone, which ends it silently.

    Only a pipe has a reader, and only the main thread can be interrupted; else the block just runs. It is a function
    and no context manager: the interrupt may come at any call, and the first of a context manager's end is not its own.
    """
    pipe = _pipe()
    if pipe is None or threading.current_thread() is not threading.main_thread():
        block()
        return
    ended, gone = threading.Event(), threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(pipe, 0)  # poll reports errors unasked
        while not ended.is_set():
            if poll.poll(_POLL_MILLISECONDS) and not ended.is_set():
                gone.set()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return

    watcher = threading.Thread(target=watch, name="audience", daemon=True)
    try:
        try:
            watcher.start()
            block()
        finally:
            ended.set()
            if watcher.is_alive():
                watcher.join(2.0)
    except (KeyboardInterrupt, BrokenPipeError) as error:  # a print may notice it before the watcher does
        if isinstance(error, KeyboardInterrupt) and not gone.is_set():
            raise
        drop_output()


def drop_output() -> None:
    """Send what is still buffered for standard output nowhere, so that it does not fail at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _pipe() -> int | None:
    try:
        descriptor = sys.stdout.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
    except (OSError, ValueError):
        return None
