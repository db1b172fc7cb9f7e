"""Rows on their way into a table: the task that copies a partition into the staging table.

Each call of the task marks its rows with a tag of its own, and returns it with its report. Spark takes one report a
partition, that of the attempt that counts; so rows of other attempts (retried, copied by speculation, or of a cut-off
driver) have tags that are never asked for.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf

from jobpipe.errors import ConfigError, JobpipeError, from_fault, to_fault
from jobpipe.pipelines.databases.database_api import Database
from jobpipe.spark.session.collect_rows import collect_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TAG = "_jobpipe_tag"
DELETED = "_jobpipe_deleted"
ORDER = "_jobpipe_order"
HASH = "_jobpipe_hash"
_REPORT = "tag string, rows bigint, error string"
_REPORT_FIELDS: list[tuple[str, pa.DataType]] = [("tag", pa.string()), ("rows", pa.int64()), ("error", pa.string())]


@dataclass(frozen=True)
class CopyOrder:
    """The order to a task; no secrets, since Spark writes it to disk.

    Attributes:
        staging: schema and name of the table.
        columns: all but the tag, in the order of the rows, which have other names for them.
    """

    database: Database
    application: str
    staging: tuple[str, str]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Copied:
    """What the tasks of one micro-batch copied: the tags that count, and how many rows they have."""

    tags: tuple[str, ...]
    rows: int


def as_json(name: str) -> Column:
    """Return a struct, map or array as JSON."""
    return sf.to_json(named(name), {"ignoreNullFields": "false"})


def hash_of(columns: Sequence[Column]) -> Column:
    """Return a hash by which rows are told apart, those with nulls in other columns too."""
    parts = [part for column in columns for part in (column.isNull(), column)]  # Spark's hash passes over nulls
    return sf.xxhash64(*parts)


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


def _copy(connection: Any, order: CopyOrder, tag: str, batch: pa.RecordBatch) -> None:
    """Copy one record batch."""
    values = [order.database.values(name, batch.column(at)) for at, name in enumerate(order.columns)]
    order.database.insert(
        connection, order.staging, (TAG, *order.columns), zip(repeat(tag, batch.num_rows), *values, strict=True)
    )


def require_columns(key: str, names: Sequence[str], there: Sequence[str]) -> None:
    """See that an option names columns that the rows have.

    Raises:
        ConfigError: they lack one, or have it twice.
    """
    missing = [name for name in dict.fromkeys(names) if there.count(name) != 1]
    if missing:
        what = f"{key} names {', '.join(missing)}, and the rows have the columns {', '.join(there)}"
        raise ConfigError(f"{what}; each name must be that of one column", key=key, columns=missing)
