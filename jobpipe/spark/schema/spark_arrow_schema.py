"""Between Spark's schemas and Arrow's: which types pass, and the form that Spark demands.

Spark takes only batches whose schema equals that of its ``to_arrow_schema``, with UTC and nullability included.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema
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
    VarcharType,
)

from jobpipe.arrow.ipc_validation import parse_arrow_schema
from jobpipe.arrow.schema_validation import DIGITS as MAX_DIGITS
from jobpipe.arrow.schema_validation import check_size, readable_schema
from jobpipe.errors import UnsupportedType
from jobpipe.spark.schema.json_schemas import parse_spark_schema
from jobpipe.spark.session.spark_versions import NEWER_TYPES, to_arrow_schema

# Tried one by one, in both directions (tests/spark/sink/test_types.py). Not here: year-month and calendar intervals,
# which have no Arrow form in Python, and user-defined types, which Spark cannot unpickle where it makes a data source.
PASSING: tuple[type[DataType], ...] = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,  # with any collation; char and varchar are strings wherever rows are
    TimestampNTZType,
    TimestampType,
    *NEWER_TYPES,
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
    """Refuse the types that cannot pass, and names and sizes that some reader could not take.

    Raises:
        UnsupportedType: names the columns, and what is wrong with them.
    """
    bad = [(path, kind) for path, kind in _walk("", schema) if not isinstance(kind, PASSING) or _is_odd(kind)]
    if bad:
        named = ", ".join(f"{path} ({kind.simpleString()})" for path, kind in bad)
        raise UnsupportedType(
            f"topic {topic!r}: Spark has no Arrow form, in both directions, for the type of: {named}. Cast these "
            "columns "
            "(an interval to a number or a string, for example) before publishing",
            topic=topic,
            columns={path: kind.simpleString() for path, kind in bad},
        )
    arrow = arrow_schema(schema)
    readable_schema(topic, arrow)
    check_size(topic, arrow, schema.json())


def _is_odd(kind: DataType) -> bool:
    """Tell whether a type is a decimal that Spark makes only with spark.sql.legacy settings, if at all."""
    return isinstance(kind, DecimalType) and not 0 <= kind.scale <= kind.precision <= MAX_DIGITS


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
    return to_arrow_schema(schema)


def published_schema(topic: str, arrow: bytes, spark: str | None) -> StructType:
    """Return a topic's schema as Spark has it, from Arrow's serialized form and, if its publisher was Spark, its JSON.

    Raises:
        UnsupportedType: its publisher was not, and Spark has no type for one of its columns; or what it says is refused
            (:mod:`jobpipe.spark.schema.json_schemas`, :mod:`jobpipe.arrow.ipc_validation`).
    """
    if spark is not None:
        return parse_spark_schema(topic, spark)
    return spark_schema(topic, parse_arrow_schema(topic, arrow))


def spark_schema(topic: str, schema: pa.Schema) -> StructType:
    """Return as Spark schema what Arrow's tells; collations, for example, it does not.

    Raises:
        UnsupportedType: Spark has no type for a column; names topic and columns.
    """
    fields, bad = [], {}
    for field in schema:
        try:
            made = from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True).fields
        except (PySparkTypeError, TypeError, ValueError):  # the others: of metadata that are not Spark's
            bad[field.name] = str(field.type)
            continue
        if any(_is_odd(kind) for _, kind in _walk("", StructType(made))):
            bad[field.name] = str(field.type)
        fields += made
    if bad:
        named = ", ".join(f"{name} ({kind})" for name, kind in bad.items())
        raise UnsupportedType(
            f"topic {topic!r}: Spark has no type for what was published as: {named}. Cast these columns before "
            "publishing",
            topic=topic,
            columns=bad,
        )
    return StructType(fields)
