"""Splitting record batches over the partitions of a batch, in bounded memory. Imports no SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobpipe.errors import SchemaMismatch
from jobpipe.store.spool.segment import SegmentFile, SegmentWriter
from jobpipe.store.spool.segment_index import SegmentInfo

MAX_RECORD_BATCH_ROWS = 65_536
MAX_RECORD_BATCH_BYTES = 4 * 1024 * 1024  # what a reader holds in memory at once
MEMORY = 32 * 1024 * 1024


class PartitionedWriter:
    """Writes the rows of one task attempt, or of one driver call, as segments of P partitions.

    Rows keep their order within a partition. Rows with one constant partition go straight to the file; rows with a
    partition each are sorted by partition (one copy) and held until ``memory`` bytes are, then all of them are written.

    Args:
        schema: Of every record batch.
        file: Takes the segments; this writer ends it.
        segment_max_bytes: A segment that has reached this size is followed by a new one.
    """

    def __init__(
        self,
        schema: pa.Schema,
        file: SegmentFile,
        *,
        partitions: int,
        segment_max_bytes: int = 64 * 1024 * 1024,
        compression: str = "none",
        memory: int = MEMORY,
    ) -> None:
        self.rows = 0
        self._schema = schema
        self._file = file
        self._partitions = partitions
        self._segment_max_bytes = segment_max_bytes
        self._compression = compression
        self._memory = memory
        self._writer: SegmentWriter | None = None
        self._open = -1  # partition of the open segment
        self._held: list[list[pa.RecordBatch]] = [[] for _ in range(partitions)]
        self._held_bytes = 0

    def write(self, batch: pa.RecordBatch, partition: int | pa.Int32Array) -> None:
        """Add rows; ``partition`` is one number for all of them or an array with one number a row.

        Raises:
            SchemaMismatch: another schema, or a partition number outside of 0..P-1.
            SpoolError: writing failed; call :meth:`abort`.
        """
        if not batch.schema.equals(self._schema):
            raise SchemaMismatch(
                "a record batch has another schema than the batch", expected=str(self._schema), got=str(batch.schema)
            )
        if batch.num_rows == 0:
            return
        self.rows += batch.num_rows
        if isinstance(partition, int):
            self._check(partition, partition)
            self._flush()
            self._append(partition, batch)
        else:
            self._split(batch, partition)

    def finish(self, *, fsync: bool = True) -> list[SegmentInfo]:
        """Write what is held and end the file; return the segments, each partition's in order."""
        self._flush()
        return self._file.finish(fsync=fsync)

    def abort(self) -> None:
        """Throw all away; idempotent, never raises."""
        self._held = [[] for _ in range(self._partitions)]
        self._file.abort()

    def _check(self, lowest: int, highest: int) -> None:
        if lowest < 0 or highest >= self._partitions:
            raise SchemaMismatch(
                f"partition numbers go from 0 to {self._partitions - 1}", lowest=lowest, highest=highest
            )

    def _split(self, batch: pa.RecordBatch, partition: pa.Int32Array) -> None:
        if len(partition) != batch.num_rows or partition.null_count:
            raise SchemaMismatch(
                "one partition number is needed for each row", rows=batch.num_rows, numbers=len(partition)
            )
        extent: Any = pc.min_max(partition).as_py()
        self._check(extent["min"], extent["max"])
        if extent["min"] == extent["max"]:
            ordered = batch
            runs = {extent["min"]: batch.num_rows}
        else:
            ordered = batch.take(pc.array_sort_indices(partition))  # a stable sort: order within a partition holds
            counted: Any = pc.value_counts(partition)
            runs = {item["values"]: item["counts"] for item in counted.to_pylist()}
        start = 0
        for number in sorted(runs):
            self._held[number].append(ordered.slice(start, runs[number]))
            start += runs[number]
        self._held_bytes += ordered.nbytes + 1  # rows of nothing but nulls have no bytes
        if self._held_bytes >= self._memory:
            self._flush()  # all of them: a slice that stayed would pin its whole parent

    def _flush(self) -> None:
        if not self._held_bytes:
            return
        held, self._held = self._held, [[] for _ in range(self._partitions)]
        self._held_bytes = 0
        for number, batches in enumerate(held):
            if batches:
                self._append(number, _joined(batches))
            held[number] = []

    def _append(self, partition: int, batch: pa.RecordBatch) -> None:
        for piece in _pieces(batch):
            if self._writer is None or self._open != partition or self._writer.length >= self._segment_max_bytes:
                self._writer = self._file.begin(partition, self._schema, self._compression)
                self._open = partition
            self._writer.write(piece)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    joined: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined] # missing in the stubs
    return joined


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    size = max(batch.nbytes, 1)
    step = min(MAX_RECORD_BATCH_ROWS, max(1, batch.num_rows * MAX_RECORD_BATCH_BYTES // size))
    if batch.num_rows <= step:
        yield batch
        return
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)
