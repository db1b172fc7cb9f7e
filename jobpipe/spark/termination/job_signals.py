"""SIGINT and SIGTERM of a job: noted, not raised, so that no call of the JVM is cut in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE_SECONDS = 0.5  # a terminal, or systemd, signals the JVM as well, and that passes its signal on to us
BY_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"  # in the environment of a program that a JVM started


class JobSignals:
    """Which signals came in a block; see :meth:`noted`.

    Attributes:
        first: the first one, None before it.
        again: another one came, half a second later or more.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.again = False
        self._at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals inside the block, up to the second; later ones, and those after it, do what they did before.

        Only the main thread gets signals: elsewhere nothing is changed.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        try:
            with _passed_on_by_jvm():
                yield
        finally:
            self._restore()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first, self._at = signal.Signals(number), now
        elif now - self._at > ONE_SECONDS:
            self.again = True
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _JvmSignalForwarder:
    """Takes the signals of a JVM that started this program."""

    def handle(self, received: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT if received.getName() == "INT" else signal.SIGTERM)

    class Java:
        implements = ("sun.misc.SignalHandler",)


@contextlib.contextmanager
def _passed_on_by_jvm() -> Iterator[None]:
    """Let a JVM that started us, as spark-submit does, leave the end to us: it would stop Spark too early.

    One that we started ignores Ctrl-C from the beginning, and ends when we have ended.
    """
    if BY_SPARK_SUBMIT not in os.environ or "pyspark" not in sys.modules:
        yield
        return
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    context = SparkContext._active_spark_context
    if context is None:
        yield
        return
    jvm: Any = SparkContext._jvm
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    taken, handler = jvm.sun.misc.Signal, _JvmSignalForwarder()
    before = {name: taken.handle(taken(name), handler) for name in ("INT", "TERM")}
    try:
        yield
    finally:
        with contextlib.suppress(Py4JError, OSError):  # the JVM may be gone
            for name, former in before.items():
                taken.handle(taken(name), former)
