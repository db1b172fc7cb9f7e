"""The JVM that has started the runner, where Spark runs it in cluster mode: the driver's."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress


class DriverJvm:
    """The JVM that has started this process: the driver's. What ends it ends this process, too.

    A driver is canceled by its JVM's end, and a worker that goes takes the JVM along. Python would notice that only
    when it calls it.
    """

    def __init__(self) -> None:
        self._pid = os.getppid()
        with suppress(PermissionError):  # leads one already
            os.setsid()  # so that what this process starts can be told from the worker's
        self._process = os.pidfd_open(self._pid)

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call ``on_end`` when it has ended, in a thread that ends with this process."""

        def wait() -> None:
            poll = select.poll()
            poll.register(self._process, select.POLLIN)
            poll.poll()
            on_end()

        threading.Thread(target=wait, name="jvm-watch", daemon=True).start()

    def kill(self) -> None:
        """End it where it is."""
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
