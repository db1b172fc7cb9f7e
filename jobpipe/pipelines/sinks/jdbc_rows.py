"""Rows on their way into PostgreSQL: types, and the task that copies a partition into the staging table.

Each call of the task marks its rows with a tag of its own, and returns it with its report. Spark takes one report a
partition, that of the attempt that counts; so rows of other attempts (retried, copied by speculation, or of a cut-off
driver) have tags that are never asked for.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from jobpipe.errors import ConfigError, JobpipeError, SchemaMismatch, UnsupportedType, from_fault, to_fault
from jobpipe.pipelines.postgres import PostgresDatabase
from jobpipe.spark.collecting import collect_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jobpipe.pipelines.postgres import Connection

TAG = "_jobpipe_tag"
DELETED = "_jobpipe_deleted"
ORDER = "_jobpipe_order"
JSON_TYPES = ("json", "jsonb")
_REPORT = "tag string, rows bigint, error string"
_REPORT_FIELDS: list[tuple[str, pa.DataType]] = [("tag", pa.string()), ("rows", pa.int64()), ("error", pa.string())]
_PLAIN: dict[type[DataType], str] = {
    BooleanType: "boolean",
    ByteType: "smallint",
    ShortType: "smallint",
    IntegerType: "integer",
    LongType: "bigint",
    FloatType: "real",
    DoubleType: "double precision",
    StringType: "text",
    VarcharType: "text",
    CharType: "text",
    BinaryType: "bytea",
    DateType: "date",
    TimestampType: "timestamp with time zone",
    TimestampNTZType: "timestamp without time zone",
}


@dataclass(frozen=True)
class CopyOrder:
    """What a task is told; no secrets, since Spark writes it to disk.

    Attributes:
        staging: schema and name of the table.
        columns: all but the tag, in the order of the rows, which have other names for them.
    """

    database: PostgresDatabase
    application: str
    staging: tuple[str, str]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Copied:
    """What the tasks of one micro-batch copied: the tags that count, and how many rows they have."""

    tags: tuple[str, ...]
    rows: int


def type_of(name: str, kind: DataType) -> str:
    """Return PostgreSQL's type for a column of Spark's.

    Raises:
        UnsupportedType: there is none.
    """
    found = _simple(kind)
    if found is None:
        what = f"column {name}: type {kind.simpleString()} cannot be written to PostgreSQL; cast it, or leave it out"
        raise UnsupportedType(what, column=name, type=kind.simpleString())
    return found


def _simple(kind: DataType) -> str | None:
    if isinstance(kind, (StructType, MapType)):
        return "jsonb"
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, ArrayType):
        inner = _simple(kind.elementType)
        if inner is None or inner == "jsonb":
            return inner
        return inner if inner.endswith("[]") else f"{inner}[]"
    return next((text for each, text in _PLAIN.items() if isinstance(kind, each)), None)


def of_rows(name: str, kind: DataType, target: str) -> Column:
    """Return the column as tasks copy it into one of type ``target``: structs, maps, and arrays for JSON, as JSON."""
    column = named(name)
    if _simple(kind) == "jsonb" or (isinstance(kind, ArrayType) and target in JSON_TYPES):
        return sf.to_json(column, {"ignoreNullFields": "false"})
    return column


def named(name: str) -> Column:
    """Return the column of exactly that name, dots and all."""
    return sf.col("`" + name.replace("`", "``") + "`")


def copy_rows(frame: DataFrame, order: CopyOrder) -> Copied:
    """Let tasks copy all rows; raise the first of their errors."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return copy_partition(order, batches)

    reports = collect_rows(frame.mapInArrow(task, _REPORT))
    for report in reports:
        if report["error"] is not None:
            raise from_fault(*json.loads(report["error"]))
    with_rows = [report for report in reports if report["rows"]]
    return Copied(tuple(report["tag"] for report in with_rows), sum(report["rows"] for report in with_rows))


def copy_partition(order: CopyOrder, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Copy the rows of a partition; yield its report.

    An error of ours is part of the report: Spark would repeat the task, and pass on nothing but a text.
    """
    tag, rows, error = str(uuid.uuid4()), 0, None
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is not None:
        try:
            with order.database.connection(order.application, order.columns) as connection:
                batch: pa.RecordBatch | None = first
                while batch is not None:
                    _copy(connection, order, tag, batch)
                    rows += batch.num_rows
                    batch = next(filled, None)
        except JobpipeError as found:
            error = json.dumps(to_fault(found))
    yield pa.RecordBatch.from_pylist([{"tag": tag, "rows": rows, "error": error}], schema=pa.schema(_REPORT_FIELDS))


def _copy(connection: Connection, order: CopyOrder, tag: str, batch: pa.RecordBatch) -> None:
    """Copy one record batch, in a transaction of its own: a task that stands still holds no lock for long."""
    from psycopg import sql

    values = [_values(name, batch.column(at)) for at, name in enumerate(order.columns)]
    names = sql.SQL(", ").join(map(sql.Identifier, (TAG, *order.columns)))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(*order.staging), names)
    with (
        order.database.transaction(connection),
        connection.cursor() as cursor,
        cursor.copy(statement) as copy,
    ):
        for row in zip(*values, strict=True):
            copy.write_row((tag, *row))


def _values(name: str, column: pa.Array[Any]) -> Sequence[Any]:
    _check_texts(name, column)
    if isinstance(column.type, pa.TimestampType) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        what = f"column {name}: a date or time is outside of the years 1 to 9999, which cannot be written"
        raise SchemaMismatch(what, column=name) from None


def _check_texts(name: str, column: pa.Array[Any]) -> None:
    while isinstance(column, (pa.ListArray, pa.LargeListArray)):
        column = column.flatten()
    if isinstance(column, (pa.StringArray, pa.LargeStringArray)) and pc.any(pc.match_substring(column, "\0")).as_py():
        what = f"column {name}: a text has a NUL character, which PostgreSQL cannot keep; remove it, or write binary"
        raise SchemaMismatch(what, column=name)


def require_columns(key: str, names: Sequence[str], there: Sequence[str]) -> None:
    """See that an option names columns that the rows have.

    Raises:
        ConfigError: they lack one.
    """
    missing = [name for name in names if name not in there]
    if missing:
        what = f"{key} names {', '.join(missing)}, and the rows have the columns {', '.join(there)}"
        raise ConfigError(what, key=key, columns=missing)
