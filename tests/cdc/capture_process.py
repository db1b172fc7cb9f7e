"""Captures in processes of their own, to be killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.bus.kit import MARK, PATIENCE, ROOT, marked

PROGRAM = Path(__file__).with_name("capture_program.py")


class CaptureProcess:
    """One process of a capture; it has begun to stream once this is made.

    Args:
        product: postgres or mysql.
        settings: of jobpipe.
        password: of the database.
        given: other options of the capture.
    """

    def __init__(self, product: str, settings: dict[str, str], password: str, **given: Any) -> None:
        known = {"hostname": "127.0.0.1", "password": "env:CDC_PROCESS_PASSWORD", "batch_rows": 200, "heartbeat": 0.2}
        order = {"product": product, "settings": settings, "options": {**known, **given}}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), json.dumps(order)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'registry'}", "CDC_PROCESS_PASSWORD": password},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the capture ended with {self._process.wait(PATIENCE)}"

    def kill(self) -> None:
        """``kill -9``; its coordinators go on."""
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None


def coordinators() -> list[int]:
    """Return the coordinators that this module has started, and that live."""
    found = []
    for process in marked(os.environ[MARK]):
        with contextlib.suppress(psutil.Error):
            if "jobpipe.coordinator" in process.cmdline():
                found.append(process.pid)
    return found
