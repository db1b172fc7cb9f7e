"""Rows of a topic made from changes: Debezium's envelope, or flat rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobpipe.cdc.changes import (
    UNCHANGED_FIELD,
    Change,
    ChangeColumns,
    Column,
    Operation,
    RowImage,
    Table,
    Unconvertible,
)
from jobpipe.errors import SchemaMismatch


class RowFormat(StrEnum):
    """How a change stands in the topic."""

    ENVELOPE = "envelope"
    """Columns before, after, source, op, ts_ms and unchanged, as Debezium's."""
    FLAT = "flat"
    """The table's columns, and others whose names begin with ``__``: the new values; of a deleted row the old ones."""


@dataclass(frozen=True)
class Origin:
    """Where a change stands in a database's log, as columns.

    Attributes:
        fields: their names and types.
        columns: makes them of changes; null for rows that were read. None: changes come as columns, with them.
    """

    fields: tuple[pa.Field[Any], ...]
    columns: Callable[[Sequence[Change]], list[pa.Array[Any]]] | None = None


@dataclass(frozen=True)
class ChangeRows:
    """Makes rows of the changes of one server.

    Attributes:
        database: which one; None: the tables' schemas are databases, as in MySQL.
    """

    form: RowFormat
    database: str | None
    origin: Origin

    @property
    def source_fields(self) -> list[pa.Field[Any]]:
        """Fields of column source of an envelope."""
        named = ("db", "table") if self.database is None else ("db", "schema", "table")
        return [
            *(pa.field(name, pa.string()) for name in named),
            pa.field("snapshot", pa.bool_()),
            pa.field("ts_ms", pa.int64()),
            *self.origin.fields,
        ]

    @property
    def flat_fields(self) -> list[pa.Field[Any]]:
        """What flat rows have after the table's columns."""
        return [
            pa.field("__op", pa.string()),
            pa.field("__table", pa.string()),
            pa.field("__source_ts_ms", pa.int64()),
            *(field.with_name(f"__{field.name}") for field in self.origin.fields),
            pa.field("__unchanged", UNCHANGED_FIELD),
        ]

    def schema(self, table: Table) -> pa.Schema:
        """Return the topic's schema.

        Raises:
            SchemaMismatch: flat rows would have a column twice.
        """
        fields = _fields(table)
        if self.form is RowFormat.ENVELOPE:
            row = pa.struct(fields)
            return pa.schema(
                [
                    pa.field("op", pa.string()),
                    pa.field("before", row),
                    pa.field("after", row),
                    pa.field("source", pa.struct(self.source_fields)),
                    pa.field("ts_ms", pa.int64()),
                    pa.field("unchanged", UNCHANGED_FIELD),
                ]
            )
        if taken := {field.name for field in self.flat_fields} & {column.name for column in table.columns}:
            raise SchemaMismatch(
                f"table {table}: flat rows have a column {', '.join(sorted(taken))} of their own; use format: envelope",
                table=str(table),
            )
        return pa.schema([*fields, *self.flat_fields])

    def rows(self, changes: Sequence[Change]) -> pa.Table:
        """Return the rows of some changes, of one table or of tables with the same columns.

        Raises:
            SchemaMismatch: a value has no place in its column's type; names table and column.
        """
        assert self.origin.columns is not None  # noqa: S101
        return self.of_columns(ChangeColumns.of(changes, self.origin.columns(changes)))

    def of_columns(self, changes: ChangeColumns) -> pa.Table:
        """Return the rows of changes, as :meth:`rows`."""
        table, count, schema = changes.table, len(changes), self.schema(changes.table)
        operations, committed, places = changes.operations, changes.committed_ms, changes.places
        if self.form is RowFormat.FLAT:
            names = pc.binary_join_element_wise(changes.schemas, changes.names, ".")  # type: ignore[call-overload]
            known: list[pa.Array[Any]] = [operations, names, committed, *places, changes.unchanged]
            return pa.Table.from_arrays([*_converted(table, changes.shown), *known], schema=schema)
        named = [changes.schemas, changes.names]
        if self.database is not None:
            named.insert(0, _constant(self.database, count))
        source = [*named, pc.equal(operations, pa.scalar(Operation.READ.value)), committed, *places]
        return pa.Table.from_arrays(
            [
                operations,
                _structs(table, changes.before, count),
                _structs(table, changes.after, count),
                pa.StructArray.from_arrays(source, fields=self.source_fields),
                _constant(_now_ms(), count),
                changes.unchanged,
            ],
            schema=schema,
        )

    def read(self, table: Table, texts: pa.Table) -> pa.Table:
        """Return rows that were read from a table, from the texts of its columns.

        Raises:
            SchemaMismatch: as :meth:`rows`.
        """
        count = texts.num_rows
        columns = [texts.column(place).combine_chunks() for place in range(len(table.columns))]
        return self.of_columns(
            ChangeColumns(
                table=table,
                schemas=_constant(table.schema, count),
                names=_constant(table.name, count),
                operations=_constant(Operation.READ, count),
                before=None,
                after=RowImage(columns, None),
                unchanged=pa.nulls(count, UNCHANGED_FIELD),
                committed_ms=_constant(_now_ms(), count),
                places=[pa.nulls(count, field.type) for field in self.origin.fields],
            )
        )


def convert_column(table: Table, column: Column, given: pa.Array[Any]) -> pa.Array[Any]:
    """Return a column from what the database gives.

    Raises:
        SchemaMismatch: one has no place in the column's type.
    """
    try:
        return column.type.convert(given.cast(column.type.given))
    except (Unconvertible, pa.ArrowInvalid) as error:
        why = error if isinstance(error, Unconvertible) else "a value of another form"  # Arrow's text quotes the value
        raise SchemaMismatch(
            f"table {table}, column {column.name} ({column.declared}): a row has {why}, which {column.type.arrow} "
            f"cannot hold; nothing of it was published. Publish this column as text: add {table}.{column.name} to "
            "text-columns",
            table=str(table),
            column=column.name,
        ) from None


def _fields(table: Table) -> list[pa.Field[Any]]:
    return [pa.field(column.name, column.type.arrow) for column in table.columns]


def _converted(table: Table, given: Sequence[pa.Array[Any]]) -> list[pa.Array[Any]]:
    """Return columns from what the database gives; see :func:`convert_column`."""
    return [convert_column(table, column, each) for column, each in zip(table.columns, given, strict=True)]


def _structs(table: Table, image: RowImage | None, count: int) -> pa.Array[Any]:
    fields = _fields(table)
    if image is None:
        return pa.nulls(count, pa.struct(fields))
    return pa.StructArray.from_arrays(_converted(table, image.columns), fields=fields, mask=image.missing)


def _constant(value: str | int, count: int) -> pa.Array[Any]:
    if isinstance(value, str):
        return pa.repeat(pa.scalar(value, pa.string()), count)
    return pa.repeat(pa.scalar(value, pa.int64()), count)


def _now_ms() -> int:
    return int(time.time() * 1000)
