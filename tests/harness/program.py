"""A program of the test kit as a process that is started, hurt and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import psutil

DEADLINE_SECONDS = 60.0  # of a wait that names none; the machine may be slow
END_SECONDS = 10.0
MARK = "JOBPIPE_TESTING_MARK"  # in the environment of all that a harness starts, and of what they start
NAME = "JOBPIPE_TESTING_PROGRAM"  # beside it: the name of the program


class Order(Protocol):
    """What a program is told when it starts."""

    def line(self) -> bytes:
        """Return one line for its standard input."""
        ...


class Program:
    """A program that can be started again and again, each time with its own memory of what it did.

    Args:
        module: Run as ``python -m module``.
        make_order: What to tell it; gets the keywords of :meth:`start`.
        log: Standard output and error of all its lives.
        environ: Its environment.
    """

    def __init__(
        self, module: str, make_order: Callable[..., Order], log: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self.starts = 0
        self._module = module
        self._make_order = make_order
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._hurt = False  # it was killed, or told to end

    def __repr__(self) -> str:
        return f"<{self._module} {'pid ' + str(self.pid) if self.alive else 'not running'}>"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The present, or last, life."""
        if self._process is None:
            raise RuntimeError(f"{self._module} was never started")
        return self._process

    @property
    def pid(self) -> int:
        """Process id of the present, or last, life."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs; a stopped one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def failure(self) -> str | None:
        """Why it ended, if it was not hurt on purpose and its exit code is not 0."""
        if self._process is None or self._hurt or self._process.poll() in (None, 0):
            return None
        return f"{self._module} ended with code {self._process.returncode}: {self.log_end()}"

    def start(self, **changes: Any) -> Program:
        """Start it; returns at once.

        Args:
            changes: Fields of its order, for this life.
        """
        if self.alive:
            raise RuntimeError(f"{self!r} runs already")
        order = self._make_order(**changes)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=dict(os.environ if self._environ is None else self._environ),
                start_new_session=True,
            )
        self._hurt = False
        self.starts += 1
        self._tell(order.line())
        return self

    def _tell(self, line: bytes) -> None:
        pipe = self.process.stdin
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # it died at once; its log says why
                pipe.write(line)
                pipe.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; none if it has ended."""
        self._hurt = self._hurt or number in (signal.SIGKILL, signal.SIGTERM)
        if self.alive:
            self.process.send_signal(number)

    def kill(self) -> None:
        """``kill -9``; it is gone on return."""
        self.signal(signal.SIGKILL)
        self.process.wait(END_SECONDS)

    def suspend(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def terminate(self, timeout: float = END_SECONDS) -> int:
        """SIGTERM; return the exit code.

        Raises:
            AssertionError: it did not end in time.
        """
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float = DEADLINE_SECONDS) -> int:
        """Wait for the end; return the exit code.

        Raises:
            AssertionError: it did not come in time.
        """
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self!r} did not end within {timeout:g} s: {self.log_end()}") from None

    def log_end(self, lines: int = 15) -> str:
        """Return the end of its log."""
        if not self.log.exists():
            return "no log"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def module_of(process: psutil.Process) -> str:
    """Return the module that a Python process runs (``python -m``); empty if it runs something else.

    Raises:
        psutil.Error: it has ended.
    """
    line = process.cmdline()
    return line[line.index("-m") + 1] if "-m" in line[:-1] else ""


def name_of(process: psutil.Process) -> str:
    """Return the name of the program that a process is of; empty if there is none, or it has ended."""
    try:
        return str(process.environ().get(NAME, ""))
    except psutil.Error:
        return ""


def marked(mark: str) -> list[psutil.Process]:
    """Return what lives and inherited this mark; this process not included."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(MARK) == mark
            ):
                found.append(process)
    return found
