"""Handlers of signals inside a block."""

from __future__ import annotations

import os
import signal

import pytest

from jobpipe.signal_handlers import handled


@pytest.mark.parametrize(
    ("number", "heard"), [(signal.SIGHUP, []), (signal.SIGINT, [signal.SIGINT]), (signal.SIGTERM, [signal.SIGTERM])]
)
def test_only_a_hang_up_stays_ignored(number: signal.Signals, heard: list[int]) -> None:
    """As ``nohup`` wants it. SIGINT, which a shell's jobs in the background ignore, stops them all the same."""
    found: list[int] = []
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with handled([number], lambda number, frame: found.append(number)):
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert found == heard
