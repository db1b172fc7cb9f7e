"""Between Spark's schemas and Arrow's: which types pass, and the exact form Spark demands of record batches.

Spark takes only batches whose schema equals ``to_arrow_schema(schema, timezone="UTC")``, nullability
included; it checks the first batch of a task and crashes on a later bad one, so every batch is cast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    GeographyType,
    GeometryType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VarcharType,
    VariantType,
)

from jobpipe.errors import SchemaMismatch, UnsupportedType

__all__ = ["arrow_schema", "as_rows_have_it", "cast_batch", "check_types", "parse_spark_schema", "schema_difference"]

# Tried one by one, in both directions (tests/spark/test_types.py). Not here: year-month and calendar intervals, which
# have no Arrow form in Python, and user-defined types, which Spark cannot unpickle where it makes a data source.
PASSING: tuple[type[DataType], ...] = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    GeographyType,
    GeometryType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,  # with any collation; char and varchar are strings wherever rows are
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
)


def _walk(path: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _walk(f"{path}.{field.name}" if path else field.name, field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _walk(f"{path}[]", kind.elementType)
    elif isinstance(kind, MapType):
        yield from _walk(f"{path}.key", kind.keyType)
        yield from _walk(f"{path}.value", kind.valueType)
    else:
        yield path, kind


def check_types(schema: StructType, topic: str) -> None:
    """Refuse the types that cannot pass.

    Raises:
        UnsupportedType: names every such column and its type.
    """
    bad = [(path, kind) for path, kind in _walk("", schema) if not isinstance(kind, PASSING)]
    if bad:
        named = ", ".join(f"{path} ({kind.simpleString()})" for path, kind in bad)
        raise UnsupportedType(
            f"topic {topic!r}: Spark has no Arrow form, in both directions, for the type of: {named}. Cast these "
            "columns "
            "(an interval to a number or a string, for example) before publishing",
            topic=topic,
            columns={path: kind.simpleString() for path, kind in bad},
        )
    names = [field.name for field in schema.fields]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UnsupportedType(
            f"topic {topic!r}: two columns have the name {', '.join(doubled)}; rename one", topic=topic, columns=doubled
        )


def as_rows_have_it(kind: DataType) -> DataType:
    """Return ``kind`` with ``char(n)`` and ``varchar(n)``, which only tables and DDL know, as the strings they are."""
    if isinstance(kind, (CharType, VarcharType)):
        return StringType()
    if isinstance(kind, StructType):
        return StructType(
            [StructField(f.name, as_rows_have_it(f.dataType), f.nullable, f.metadata) for f in kind.fields]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(as_rows_have_it(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(as_rows_have_it(kind.keyType), as_rows_have_it(kind.valueType), kind.valueContainsNull)
    return kind


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the one Arrow form of a Spark schema that Spark itself accepts."""
    converted: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return converted


def parse_spark_schema(text: str) -> StructType:
    """Return the Spark schema from its JSON."""
    import json

    return StructType.fromJson(json.loads(text))


def schema_difference(published: pa.Schema, asked: pa.Schema) -> list[str]:
    """Return a line for each column in which two schemas differ in name or type; nullability does not count."""
    lines = []
    for name in dict.fromkeys([*published.names, *asked.names]):
        if name not in published.names:
            lines.append(f"{name}: asked for as {asked.field(name).type}, not published")
        elif name not in asked.names:
            lines.append(f"{name}: published as {published.field(name).type}, not asked for")
        elif not _same_type(published.field(name).type, asked.field(name).type):
            lines.append(f"{name}: published as {published.field(name).type}, asked for as {asked.field(name).type}")
    return lines


def _same_type(one: Any, other: Any) -> bool:
    """Tell whether two Arrow types are the same but for nullability and the names of list and map children."""
    if one.equals(other):
        return True
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return (one.tz is None) == (other.tz is None)
    if one.id != other.id or one.num_fields != other.num_fields or not pa.types.is_nested(one):
        return False
    if pa.types.is_struct(one) and [f.name for f in one] != [f.name for f in other]:
        return False
    return all(_same_type(one.field(i).type, other.field(i).type) for i in range(one.num_fields))


def cast_batch(batch: pa.RecordBatch, target: pa.Schema, where: str) -> pa.RecordBatch:
    """Return ``batch`` in exactly the schema ``target``, by column name.

    Raises:
        SchemaMismatch: a column is missing, has another type, or has nulls where none may be; names the column.
    """
    if batch.schema.equals(target):
        return batch
    columns = []
    for field in target:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            raise SchemaMismatch(f"{where}: column {field.name!r} is missing", column=field.name)
        column = batch.column(index)
        if not field.nullable and column.null_count:
            raise SchemaMismatch(
                f"{where}: column {field.name!r} has {column.null_count} nulls, but may have none", column=field.name
            )
        if not column.type.equals(field.type):
            try:
                column = _cast(column, field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise SchemaMismatch(
                    f"{where}: column {field.name!r} is {column.type} and does not fit {field.type}: {error}",
                    column=field.name,
                ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast(array: Any, target: Any) -> Any:
    """Cast an array; children of structs apart from them.

    Arrow's own cast refuses a null struct whose children may not be null, which in Spark is an everyday thing (the
    right side of an outer join).
    """
    kind = array.type
    if pa.types.is_struct(kind) and pa.types.is_struct(target) and [f.name for f in kind] == [f.name for f in target]:
        fields = list(target)
        if not fields:
            return array
        children = [_cast(array.field(i), field.type) for i, field in enumerate(fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if kind.id == target.id and (pa.types.is_list(kind) or pa.types.is_map(kind)) and _holds_struct(target):
        if pa.types.is_map(kind):
            pair = target.field(0).type
            columns = [_cast(array.keys, pair.field(0).type), _cast(array.items, pair.field(1).type)]
            values = pa.StructArray.from_arrays(columns, fields=list(pair))
        else:
            values = _cast(array.values, target.value_type)
        own = array.buffers()[:2]  # validity and offsets, which a slice shares with its whole
        return pa.Array.from_buffers(target, len(array), own, array.null_count, array.offset, children=[values])
    return array.cast(target)


def _holds_struct(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(
        pa.types.is_struct(kind.field(i).type) or _holds_struct(kind.field(i).type) for i in range(kind.num_fields)
    )
