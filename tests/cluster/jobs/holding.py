"""Tasks that stop in the middle of their rows for as long as a folder exists, and tell so by a file in it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

HOLD_SECONDS = 300.0


def held(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what passes rows on, and stops after half a record batch while ``folder`` exists.

    The file in it is named by the task's host and process id.
    """

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            deadline = time.monotonic() + HOLD_SECONDS
            while os.path.isdir(folder):
                with contextlib.suppress(FileNotFoundError):  # it is over just now
                    Path(folder, f"{socket.gethostname()}:{os.getpid()}").touch()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{folder} is still there")
                time.sleep(0.05)
            yield batch.slice(half)

    return pass_on
