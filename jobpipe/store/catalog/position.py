"""Positions in a topic's log, and the order in which the record batches of one batch are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobpipe.errors import RemoteProtocolError, short_repr

MAX_NUMBER = 2**63 - 1  # SQLite's largest integer
_KEYS = {"log", "epoch", "n", "r"}
_LOG = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class Position:
    """A place between two record batches of a log.

    Attributes:
        log: The log's id, 16 hex digits.
        epoch: The epoch that sealed batch ``n - 1``; 0 when ``n`` is 0.
        n: The number of batches that lie before.
        r: The number of record batches already read inside batch ``n``, in the order of :func:`prefix`.
    """

    log: str
    epoch: int
    n: int
    r: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of this position."""
        return {"epoch": self.epoch, "log": self.log, "n": self.n, "r": self.r}

    @classmethod
    def from_json(cls, value: object) -> Position:
        """Return the position that :meth:`to_json` wrote.

        Raises:
            RemoteProtocolError: ``value`` is anything else, unknown keys included.
        """
        if not isinstance(value, Mapping) or set(value) != _KEYS:
            raise RemoteProtocolError(f"a position has exactly the keys {sorted(_KEYS)}", value=short_repr(value))
        log = value["log"]
        if not isinstance(log, str) or _LOG.fullmatch(log) is None:
            raise RemoteProtocolError("a position's log is 16 hex digits", value=short_repr(log))
        for key in ("epoch", "n", "r"):
            number = value[key]
            if type(number) is not int or not 0 <= number <= MAX_NUMBER:
                raise RemoteProtocolError(
                    f"a position's {key} is an integer from 0 to 2^63-1", key=key, value=short_repr(number)
                )
        return cls(log, value["epoch"], value["n"], value["r"])

    @property
    def place(self) -> tuple[int, int]:
        """(n, r): orders the positions of one log."""
        return (self.n, self.r)


def prefix(counts: Sequence[int], r: int) -> list[int]:
    """Return how many record batches of each partition lie among the first ``r`` of a batch.

    The record batches of a batch are ordered by (index within the partition, partition), so a prefix takes from
    each partition a prefix, evenly. ``counts`` holds the record batches of each partition.
    """
    if r <= 0:
        return [0] * len(counts)
    if r >= sum(counts):
        return list(counts)
    low, high = 0, max(counts)
    while low < high:  # the largest level that is taken whole
        level = (low + high + 1) // 2
        if sum(min(count, level) for count in counts) <= r:
            low = level
        else:
            high = level - 1
    taken = [min(count, low) for count in counts]
    rest = r - sum(taken)
    for partition, count in enumerate(counts):
        if rest == 0:
            break
        if count > low:
            taken[partition] += 1
            rest -= 1
    return taken
