"""Which numbers an epoch may have."""

from __future__ import annotations

from registry.errors import BadRecord

__all__ = ["MAX_EPOCH", "MAX_STEP", "parse_epoch"]

MAX_EPOCH = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly: epochs travel as JSON numbers."""

MAX_STEP = 1_000_000
"""By how much the registry's epoch may lie above that of the topic's log.

Each take-over raises it by one and takes a good part of a second, so a registry would have to see a take-over each
second for eleven days that never reach the log. A larger step is not ours: somebody wrote it, and to go on from there
would use up the numbers that the topic has left.
"""


def parse_epoch(data: bytes) -> int:
    """Return a stored epoch.

    Raises:
        BadRecord: it is no decimal number from 0 to :data:`MAX_EPOCH`; guessing would break fencing.
    """
    if not 1 <= len(data) <= len(str(MAX_EPOCH)) or not data.isdigit() or int(data) > MAX_EPOCH:
        raise BadRecord("epoch", f"a decimal number up to {MAX_EPOCH}")
    return int(data)
