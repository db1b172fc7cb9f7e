"""The reader of our output goes, and the writer notices it in two ways at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

ROUNDS = """
import os, signal, sys, threading, time
from jobpipe.cli.common.broken_pipe import while_read

def block():
    print("begun", flush=True)
    os.close(read)
    until = time.monotonic() + offset  # the watcher wakes at once, and the print fails at nearly the same time
    while time.monotonic() < until:
        pass
    while True:
        print("more", flush=True)

for n in range(300):
    offset = n * 1e-6
    read, write = os.pipe()
    os.dup2(write, 1)
    os.close(write)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    while_read(block)
    assert threading.active_count() == 1, threading.enumerate()
sys.stderr.write("done")
"""


@pytest.mark.processes
def test_a_failed_print_and_the_watcher_at_one_time() -> None:
    ran = subprocess.run([sys.executable, "-c", ROUNDS], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "done")
