"""Maps a part of a file into memory, for sending it without a copy."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

__all__ = ["map_range"]


def map_range(path: Path, offset: int, length: int) -> tuple[memoryview, int]:
    """Map ``length`` bytes from ``offset``; return a view of the map and where ``offset`` is in it.

    Only this part is mapped, and only while it is sent: mapped pages count as memory of the process. A transport may
    hold a slice for a while, so the map is not closed but let go: it ends with its last slice. Safe for segments:
    they are immutable, and only ever unlinked.

    Raises:
        OSError, ValueError: the file cannot be read, or is too short.
    """
    first = offset - offset % mmap.ALLOCATIONGRANULARITY
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        mapped = mmap.mmap(descriptor, offset + length - first, access=mmap.ACCESS_READ, offset=first)
        return memoryview(mapped), offset - first
    finally:
        os.close(descriptor)
