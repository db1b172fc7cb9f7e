"""Points of the seal at which a process of the pair can be made to die or to fail: see ``inject/sitecustomize.py``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

INJECT = Path(__file__).parent / "inject"

# In the order in which a batch comes by; where nothing else is said, the batch lies in a file.
PUBLISHER_POINTS = ["before write", "before fsync", "after fsync", "before seal", "after seal"]
COORDINATOR_POINTS = [
    "before directory fsync",
    "after directory fsync",
    "before commit",
    "after commit",
    "before answer",
]


class FaultPoints:
    """Gives orders to the processes that are started from now on, while they run."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._token = folder / "fault-order"
        patch.setenv("PYTHONPATH", str(INJECT), prepend=os.pathsep)
        patch.setenv("JOBPIPE_TESTS_FAULT", str(self._token))

    @classmethod
    def inherited(cls) -> FaultPoints:
        """Return those that this process got by its environment, to give orders to others, and itself."""
        points = cls.__new__(cls)
        points._token = Path(os.environ["JOBPIPE_TESTS_FAULT"])
        return points

    def arm(self, point: str, action: str = "kill", *, times: int = 1, seconds: float = 0.0) -> None:
        """Let the next process that comes to ``point`` obey.

        Args:
            action: ``kill``, ``hang``, ``fsync fails`` (of SQLite), or the name of an ``errno``.
            times: How often, by the same process.
            seconds: How long it hangs at most.
        """
        self._token.with_suffix(".released").unlink(missing_ok=True)
        fresh = self._token.with_suffix(".new")
        fresh.write_text(json.dumps({"point": point, "action": action, "times": times, "seconds": seconds}))
        fresh.rename(self._token)

    def release(self) -> None:
        """Let those that hang go on, and those to come not hang at all."""
        self._token.with_suffix(".released").touch()

    @property
    def used(self) -> bool:
        """True once a process has taken the order."""
        return not self._token.exists()

    def wait_used(self, timeout: float = 60.0) -> None:
        """Wait for that."""
        deadline = time.monotonic() + timeout
        while not self.used:
            assert time.monotonic() < deadline, f"nobody came to that point within {timeout:g} s"
            time.sleep(0.005)
