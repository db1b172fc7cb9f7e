"""One line from, and to, a child; with a deadline on each wait."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.side_by_side.processes import RunFailed


def read_line(child: subprocess.Popen[bytes], timeout: float, what: str) -> str:
    """Return the next line of a child's standard output.

    Raises:
        RunFailed: none came in time, or the child ended.
    """
    assert child.stdout is not None
    deadline = time.monotonic() + timeout
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise RunFailed(f"{what} does not answer within {timeout:g} s")
            piece = os.read(child.stdout.fileno(), 65536)  # unbuffered; one question, one line
            if not piece:
                raise RunFailed(f"{what} ended with code {child.wait(10.0)}")
            line += piece
    return line.decode().strip()


class Child:
    """A job that is told what to do by a line of JSON, and answers each by one."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, log: Path) -> None:
        self.process = process
        self.name = name
        self._log = log

    def ask(self, do: str, timeout: float = 120.0, **args: Any) -> Any:
        """Let it do something; return its answer.

        Raises:
            RunFailed: it has ended, failed, or does not answer in time; with the end of its log.
        """
        self.tell(do, **args)
        return self.answer(timeout)

    def tell(self, do: str, **args: Any) -> None:
        """Let it do something; :meth:`answer` waits for the end of that."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **args}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RunFailed(f"{self.name} has ended{self._end_of_log()}") from None

    def answer(self, timeout: float) -> Any:
        """Return what it answers."""
        try:
            reply = json.loads(read_line(self.process, timeout, self.name))
        except RunFailed as error:
            raise RunFailed(f"{error}{self._end_of_log()}") from None
        if "error" in reply:
            raise RunFailed(f"{self.name}: {reply['error']}{self._end_of_log()}")
        return reply["answer"]

    def _end_of_log(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "; its log ends:\n" + "\n".join(line for line in lines[-200:] if not line.startswith("\tat "))[-3000:]
