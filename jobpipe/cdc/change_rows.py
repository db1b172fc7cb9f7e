"""Rows of a topic made from changes: Debezium's envelope, or flat rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from jobpipe.cdc.changes import UNCHANGED, Change, Column, Operation, Table, Unconvertible, Value, Values
from jobpipe.errors import SchemaMismatch

UNCHANGED_FIELD = pa.list_(pa.string())


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
        columns: makes them of changes; null for rows that were read.
    """

    fields: tuple[pa.Field[Any], ...]
    columns: Callable[[Sequence[Change]], list[pa.Array[Any]]]


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
        table, count = changes[0].table, len(changes)
        unchanged = _Unchanged(table.columns)
        befores = [change.before for change in changes]
        afters = [unchanged.filled(change) for change in changes]
        schema = self.schema(table)
        places = self.origin.columns(changes)
        operations = pa.array([change.operation for change in changes], pa.string())
        committed = pa.array([change.committed_ms for change in changes], pa.int64())
        if self.form is RowFormat.FLAT:
            shown: list[Values | None] = [
                before if after is None else after for before, after in zip(befores, afters, strict=True)
            ]
            names = pa.array([str(change.table) for change in changes], pa.string())
            known: list[pa.Array[Any]] = [operations, names, committed, *places, unchanged.column()]
            return pa.Table.from_arrays([*columns_of(table, shown), *known], schema=schema)
        if _one_table(changes):
            named: list[pa.Array[Any]] = [_constant(text, count) for text in self._names(table)]
        else:
            named = [_texts(texts) for texts in zip(*(self._names(each.table) for each in changes), strict=True)]
        read = pa.array([change.operation is Operation.READ for change in changes], pa.bool_())
        source = [*named, read, committed, *places]
        return pa.Table.from_arrays(
            [
                operations,
                _structs(table, befores),
                _structs(table, afters),
                pa.StructArray.from_arrays(source, fields=self.source_fields),
                _constant(_now_ms(), count),
                unchanged.column(),
            ],
            schema=schema,
        )

    def read(self, table: Table, texts: pa.Table) -> pa.Table:
        """Return rows that were read from a table, from the texts of its columns.

        Raises:
            SchemaMismatch: as :meth:`rows`.
        """
        count, now, schema = texts.num_rows, _now_ms(), self.schema(table)
        columns = [
            convert_column(table, column, texts.column(place).combine_chunks())
            for place, column in enumerate(table.columns)
        ]
        operation, when = _constant(Operation.READ, count), _constant(now, count)
        places = [pa.nulls(count, field.type) for field in self.origin.fields]
        nothing = pa.nulls(count, UNCHANGED_FIELD)
        if self.form is RowFormat.FLAT:
            known: list[pa.Array[Any]] = [operation, _constant(str(table), count), when, *places, nothing]
            return pa.Table.from_arrays([*columns, *known], schema=schema)
        named = [_constant(text, count) for text in self._names(table)]
        source = [*named, pa.repeat(pa.scalar(True), count), when, *places]
        fields = _fields(table)
        return pa.Table.from_arrays(
            [
                operation,
                pa.nulls(count, pa.struct(fields)),
                pa.StructArray.from_arrays(columns, fields=fields),
                pa.StructArray.from_arrays(source, fields=self.source_fields),
                when,
                nothing,
            ],
            schema=schema,
        )

    def _names(self, table: Table) -> tuple[str, ...]:
        return (table.schema, table.name) if self.database is None else (self.database, table.schema, table.name)


class _Unchanged:
    """Which values the database did not send, of each change."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self._columns = columns
        self._lists: list[list[str] | None] = []

    def filled(self, change: Change) -> Values | None:
        """Return the new values; one that is unchanged is the old one, if that was sent."""
        after, before = change.after, change.before
        if after is None or UNCHANGED not in after:
            self._lists.append(None)
            return after
        filled: list[Value] = []
        names: list[str] = []
        for place, value in enumerate(after):
            known: Value = value
            if value is UNCHANGED:
                known = before[place] if before is not None and change.table.whole_rows else None
                if not change.table.whole_rows or known is UNCHANGED:
                    names.append(self._columns[place].name)
                    known = None
            filled.append(known)
        self._lists.append(names or None)
        return filled

    def column(self) -> pa.Array[Any]:
        """Return the column of names; null where all values are there."""
        return pa.array(self._lists, UNCHANGED_FIELD)


def columns_of(table: Table, rows: Sequence[Values | None]) -> list[pa.Array[Any]]:
    """Return the columns of some rows; all are null where there is no row.

    Raises:
        SchemaMismatch: a value has no place in its column's type.
    """
    made = []
    for place, column in enumerate(table.columns):
        given = pa.array([None if row is None else row[place] for row in rows], column.type.given)
        made.append(convert_column(table, column, given))
    return made


def convert_column(table: Table, column: Column, given: pa.Array[Any]) -> pa.Array[Any]:
    """Return a column from what the database gives.

    Raises:
        SchemaMismatch: one has no place in the column's type.
    """
    try:
        return column.type.convert(given)
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


def _structs(table: Table, rows: Sequence[Values | None]) -> pa.StructArray:
    mask = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(columns_of(table, rows), fields=_fields(table), mask=mask)


def _one_table(changes: Sequence[Change]) -> bool:
    first = changes[0].table
    return all(change.table is first or change.table.number == first.number for change in changes)


def _constant(value: str | int, count: int) -> pa.Array[Any]:
    if isinstance(value, str):
        return pa.repeat(pa.scalar(value, pa.string()), count)
    return pa.repeat(pa.scalar(value, pa.int64()), count)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _texts(texts: Sequence[str]) -> pa.Array[Any]:
    return pa.array(texts, pa.string())
