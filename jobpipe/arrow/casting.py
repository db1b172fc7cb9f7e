"""Record batches in exactly the form that is asked for.

Spark checks the first batch of a task, and crashes on a later bad one, so every batch is cast. A flow's function gets
them all in one form too.

What may be cast to what is decided by type before: :mod:`jobpipe.spark.schema.spark_evolution`,
:mod:`jobpipe.arrow.arrow_evolution`. Nothing here narrows what they let pass.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from jobpipe.errors import SchemaMismatch


def cast_batch(batch: pa.RecordBatch, target: pa.Schema, where: str, *, evolve: bool = False) -> pa.RecordBatch:
    """Return ``batch`` in exactly the schema ``target``, by column name.

    Args:
        batch: columns that ``target`` does not have are left out.
        target: what is asked for.
        where: begins the message of an error.
        evolve: nullable columns, and fields of structs, that ``batch`` does not have are null; fields that ``target``
            does not have are left out.

    Raises:
        SchemaMismatch: a column is missing, has another type, or has nulls where none may be; names the column.
    """
    if batch.schema.equals(target):
        return batch
    columns = []
    for field in target:
        index = batch.schema.get_field_index(field.name)
        if index < 0 and not (evolve and field.nullable):
            raise SchemaMismatch(f"{where}: column {field.name!r} is missing", column=field.name)
        column = batch.column(index) if index >= 0 else pa.nulls(batch.num_rows, field.type)
        if not field.nullable and column.null_count:
            raise SchemaMismatch(
                f"{where}: column {field.name!r} has {column.null_count} nulls, but may have none", column=field.name
            )
        try:
            columns.append(_cast(column, field.type, evolve))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise SchemaMismatch(
                f"{where}: column {field.name!r} is {column.type} and does not fit {field.type}: {error}",
                column=field.name,
            ) from error
    if not columns:  # their number of rows is all that batches without columns have
        return pa.RecordBatch.from_struct_array(_structs_without_fields(batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast(array: Any, target: Any, evolve: bool) -> Any:
    """Cast an array; children of structs, lists and maps apart from it.

    Arrow's own cast refuses a null struct whose children may not be null, which in Spark is an everyday thing (the
    right side of an outer join).
    """
    kind = array.type
    if kind.equals(target):
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(target):
        return _cast_struct(array, target, evolve)
    if pa.types.is_map(kind) and pa.types.is_map(target):
        pair = target.field(0).type
        columns = [_cast(array.keys, pair.field(0).type, evolve), _cast(array.items, pair.field(1).type, evolve)]
        return _same_places(array, target, pa.StructArray.from_arrays(columns, fields=list(pair)))
    if pa.types.is_large_list(kind) and pa.types.is_large_list(target):
        return _same_places(array, target, _cast(array.values, target.value_type, evolve))
    if pa.types.is_list(target):
        if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            array = array.cast(pa.list_(kind.value_field))
        if pa.types.is_list(array.type):
            return _same_places(array, target, _cast(array.values, target.value_type, evolve))
    return array.cast(target)


def _cast_struct(array: Any, target: Any, evolve: bool) -> Any:
    have, want = [field.name for field in array.type], [field.name for field in target]
    if have == want:  # also where two fields have one name
        children = [_cast(array.field(i), field.type, evolve) for i, field in enumerate(target)]
    elif not evolve:
        raise pa.ArrowTypeError(f"it has the fields {', '.join(have)}, and not {', '.join(want)}")
    else:
        children = [
            _cast(array.field(field.name), field.type, evolve)
            if field.name in have
            else pa.nulls(len(array), field.type)
            for field in target
        ]
    if children:
        return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())
    return _structs_without_fields(len(array), array.is_valid())


def _structs_without_fields(length: int, valid: Any = None) -> Any:
    bits, offset = (None, 0) if valid is None else (valid.buffers()[1], valid.offset)
    return pa.Array.from_buffers(pa.struct([]), length, [bits], offset=offset)


def _same_places(array: Any, target: Any, values: Any) -> Any:
    """Return the lists, or maps, of ``array`` over other values; a slice shares its offsets with its whole."""
    own = array.buffers()[:2]
    return pa.Array.from_buffers(target, len(array), own, array.null_count, array.offset, children=[values])
