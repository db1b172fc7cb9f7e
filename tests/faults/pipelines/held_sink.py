"""A sink of the user's that notes each micro-batch in a journal, and stays in one of them until it may go on."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame

HELD_SECONDS = 600.0  # nothing is held longer, whatever became of the test
POLL_SECONDS = 0.02
HELD_BY = "JOBPIPE_TESTS_HELD"
"""Environment variable of an attempt, a JSON object.

``attempt`` is its number, ``hold`` the micro-batch to stay in (each one after that is held no more), ``release`` the
file whose appearance ends that.
"""


@dataclass(frozen=True)
class Entry:
    """The beginning (``begin``) or end (``end``) of a micro-batch, with the numbers of its rows."""

    what: str
    batch: int
    attempt: int
    rows: list[int]


def read_journal(path: Path) -> list[Entry]:
    """Return what was noted, in order."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [Entry(**json.loads(line)) for line in lines if line.endswith("\n")]


class HeldSink:
    """For ``foreach-batch``. What is of one attempt comes by the environment: its options are those of all attempts.

    Args:
        journal: where micro-batches are noted; attempts share it.
    """

    def __init__(self, journal: str) -> None:
        order = json.loads(os.environ[HELD_BY])
        self._journal = journal
        self._attempt = int(order["attempt"])
        self._hold = int(order["hold"])
        self._release = Path(order["release"])

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = sorted(row["number"] for row in batch.select("number").collect())
        self._note(Entry("begin", batch_id, self._attempt, rows))
        if batch_id == self._hold:
            deadline = time.monotonic() + HELD_SECONDS
            while not self._release.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"batch {batch_id} was held for {HELD_SECONDS:g} s")
                time.sleep(POLL_SECONDS)
        self._note(Entry("end", batch_id, self._attempt, rows))

    def _note(self, entry: Entry) -> None:
        file = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, json.dumps(asdict(entry)).encode() + b"\n")
        finally:
            os.close(file)
