"""Executes a program with PR_SET_PDEATHSIG: ``python -m ….die_with_parent PID PROGRAM …``

A program of its own, since code between fork and exec is unsafe in a process with threads. Only Linux knows parent
death signals; elsewhere the program merely starts, and the next supervisor ends an orphan it finds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind to the parent, whose pid is the first argument, and become the program in the others."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we were bound
        sys.exit(1)
    os.execv(program[0], program)  # noqa: S606 - no shell is what we want


if __name__ == "__main__":
    main()
