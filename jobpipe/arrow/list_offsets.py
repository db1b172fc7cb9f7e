"""Repairs Arrow data of Spark 3.5, in which empty nested columns lack their list-offset buffer.

Arrow's format lets an array without values have no offsets. pyarrow 26 takes such arrays everywhere but where it counts
bytes: ``nbytes`` of an empty list inside a list reads memory that is not there, and ends the process.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as types

_LISTS = (types.is_list, types.is_large_list, types.is_map)


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with all offsets; columns are copied only if some are missing."""
    if not any(types.is_nested(kind) for kind in batch.schema.types):
        return batch
    columns: list[Any] = batch.columns
    lacking = [_lacks_offsets(each) for each in columns]
    if not any(lacking):
        return batch
    whole = [pa.concat_arrays([each]) if lacks else each for each, lacks in zip(columns, lacking, strict=True)]
    return pa.RecordBatch.from_arrays(whole, schema=batch.schema)


def table_with_offsets(table: pa.Table) -> pa.Table:
    """Return the same of a table."""
    if not any(types.is_nested(kind) for kind in table.schema.types):
        return table
    return pa.Table.from_batches([with_offsets(batch) for batch in table.to_batches()], schema=table.schema)


def _lacks_offsets(array: Any) -> bool:
    kind = array.type
    if types.is_struct(kind):
        return any(_lacks_offsets(array.field(at)) for at in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        return _lacks_offsets(array.values)
    if not any(test(kind) for test in _LISTS):
        return False
    offsets = array.buffers()[1]
    if offsets is None or offsets.size == 0:
        return True
    return any(map(_lacks_offsets, (array.keys, array.items) if types.is_map(kind) else (array.values,)))
