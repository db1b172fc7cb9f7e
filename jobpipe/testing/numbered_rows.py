"""Rows that prove what they are: a number within their partition, and a payload that follows from it."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

_FIELDS: list[pa.Field[Any]] = [
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("number", pa.int64(), nullable=False),
    pa.field("payload", pa.string(), nullable=False),
    pa.field("digest", pa.int64(), nullable=False),
]
SCHEMA = pa.schema(_FIELDS)

Ranges: TypeAlias = Mapping[int, tuple[int, int]]
"""Partition -> (first number, number after the last) of one batch."""


class NumberedRows:
    """The rows of one topic. The same batch id always gives the same rows, so a replay can be played.

    Within a partition numbers count on from batch to batch: batch ``b`` has ``b * rows`` to ``(b + 1) * rows - 1``.

    Args:
        topic: Part of every payload: a row of another topic is told apart.
        partitions: Of each batch.
        rows: Of each partition of each batch.
        payload: Characters of a payload; 100 and 1,000 rows make a batch too large for the catalog itself.
    """

    def __init__(self, topic: str, *, partitions: int = 1, rows: int = 10, payload: int = 16) -> None:
        self.topic = topic
        self.partitions = partitions
        self.rows = rows
        self.payload = payload

    def ranges(self, batch_id: int) -> dict[int, tuple[int, int]]:
        """Return the numbers of a batch, by partition."""
        return dict.fromkeys(range(self.partitions), (batch_id * self.rows, (batch_id + 1) * self.rows))

    def tables(self, batch_id: int) -> list[pa.Table]:
        """Return the tables of a batch, one for each partition."""
        return [self.table(part, first, end) for part, (first, end) in self.ranges(batch_id).items()]

    def table(self, partition: int, first: int, end: int) -> pa.Table:
        """Return the rows ``first`` to ``end - 1`` of a partition."""
        numbers = range(first, end)
        payloads = [self._payload(partition, number) for number in numbers]
        columns: list[pa.Array[Any]] = [
            pa.array([partition] * len(numbers), pa.int32()),
            pa.array(numbers, pa.int64()),
            pa.array(payloads, pa.string()),
            pa.array([zlib.crc32(payload.encode()) for payload in payloads], pa.int64()),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    def is_sound(self, partition: int, number: int, payload: str, digest: int) -> bool:
        """Tell whether a row is one of ours, unchanged."""
        return zlib.crc32(payload.encode()) == digest and payload == self._payload(partition, number)

    def _payload(self, partition: int, number: int) -> str:
        word = hashlib.blake2b(f"{self.topic}/{partition}/{number}".encode(), digest_size=16).hexdigest()
        return (word * (self.payload // len(word) + 1))[: self.payload]
