"""The end of a job's log file, escaped for a terminal."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

_MOST_BYTES = 4 * 1024 * 1024
_MOST_CHARACTERS = 4096  # of a line
FAILED_BECAUSE = "jobpipe: failed: "  # begins the line in which an attempt says why it failed


def log_lines(log: Path, count: int) -> tuple[str, ...]:
    """Return the last lines of a log, with those of the file before it if it is short; control characters escaped."""
    data = _end(log, _MOST_BYTES)
    if data.count(b"\n") < count:
        data = _end(log.with_name(f"{log.name}.1"), _MOST_BYTES - len(data)) + data
    lines = data.decode(errors="replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    return tuple(_escaped(line.removesuffix("\r")[:_MOST_CHARACTERS]) for line in deque(lines, count))


def _end(path: Path, most: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return b""
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        file.seek(max(0, size - most))
        return file.read(min(size, most))


def _escaped(text: str) -> str:
    text = text.replace("\t", "    ")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
