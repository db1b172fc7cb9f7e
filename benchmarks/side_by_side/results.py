"""What was measured, as JSON: one file for each time a measure was run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
COMPARED = {
    "latency": {"jobpipe", "kafka-json"},
    "throughput": {"floor", "jobpipe", "kafka-json"},
    "fanout": {"jobpipe", "kafka-json"},
    "alone": {"floor", "jobpipe"},
    "transport": {"jobpipe", "flight", "tls"},
    "flows": {"plain-flow", "plain-flow-8", "plain-flow-flow", "flow", "kafka-json"},
    "growth": {"topics", "partitions", "subscribers", "backlog", "catalog"},
}
"""Whom results must have to be published; of growth, what grows."""


def _machine() -> dict[str, Any]:
    """Name the machine by what counts: cores and memory."""
    return {"cores": psutil.cpu_count(), "memory_gib": round(psutil.virtual_memory().total / 2**30)}


class Results:
    """The results of a measure, in a file of their own beside older ones; whole after every round."""

    def __init__(self, folder: Path, measure: str, setting: dict[str, Any]) -> None:
        now = datetime.now(UTC)
        self.path = folder / f"{measure}-{now:%Y%m%dT%H%M%S}.json"
        self._content: dict[str, Any] = {
            "measure": measure,
            "at": now.isoformat(timespec="seconds"),
            "commit": _commit(),
            "machine": _machine(),
            "versions": {name: version(name) for name in ("pyspark", "pyarrow")},
            "setting": setting,
            "rounds": [],
        }

    def add(self, rounds: list[dict[str, Any]]) -> None:
        """Add rounds."""
        self._content["rounds"] += rounds
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self._content))
        fresh.rename(self.path)

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """All that were added."""
        return list(self._content["rounds"])


def runs(rounds: list[dict[str, Any]]) -> int:
    """Return how many runs there are of the contestant that has the fewest."""
    by_name: dict[str, set[int]] = {}
    for each in rounds:
        by_name.setdefault(each["contestant"], set()).add(each["run"])
    return min(map(len, by_name.values()), default=0)


def keep_newest(folder: Path, kept: Path, measure: str, least: int) -> dict[str, Any] | None:
    """Return the newest results of a measure in either folder that have so many runs; ``kept`` has no others then.

    Those of settings (``jobpipe:KEY=VALUE``), or without what jobpipe is compared to, are trials.
    """
    paths = sorted((*folder.glob(f"{measure}-*.json"), *kept.glob(f"{measure}-*.json")), key=lambda path: path.name)
    for path in reversed(paths):
        found = json.loads(path.read_text())
        trial = _why_a_trial(found, measure, least)
        if trial is not None:
            print(f"passed over: {path.name}, which has {trial}", file=sys.stderr)
        else:
            for other in kept.glob(f"{measure}-*.json"):
                if other.name != path.name:
                    other.unlink()
            if path.parent != kept:
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, kept / path.name)
            return dict(found)
    return None


def _why_a_trial(found: dict[str, Any], measure: str, least: int) -> str | None:
    names = {each["contestant"] for each in found["rounds"]}
    missing = (set(found["setting"].get("contestants", ())) | COMPARED.get(measure, set())) - names
    if any(":" in name for name in names):
        return "contestants with other settings"
    if missing:
        return f"nothing of {', '.join(sorted(missing))}"
    return f"{runs(found['rounds'])} runs" if runs(found["rounds"]) < least else None


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() or "unknown"


def load_now() -> float:
    """Return how many processors others keep busy, over a second: figures of a busy machine mean nothing."""
    return psutil.cpu_percent(interval=1.0) / 100 * (psutil.cpu_count() or 1)
