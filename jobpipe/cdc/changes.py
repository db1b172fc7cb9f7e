"""What a source of change data hands on, whichever database it is: tables, and changes of rows, also as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc


class Operation(StrEnum):
    """What happened to a row, in the letters of Debezium."""

    READ = "r"
    """It was there when the table was read."""
    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    TRUNCATE = "t"
    """All rows of the table are gone; the change has none."""


UNCHANGED_FIELD: Final = pa.list_(pa.string())
"""Of a topic: the names of columns."""
Value: TypeAlias = bytes | None
"""A column's value as the database writes it, in UTF-8 unless it is binary; None is null."""
Values: TypeAlias = Sequence[Value]


class Unconvertible(Exception):
    """A value has no place in its column's type; says why, without the value."""


class ColumnType(Protocol):
    """How values of a column become Arrow's."""

    @property
    def arrow(self) -> pa.DataType:
        """The type in the topic."""

    @property
    def given(self) -> pa.DataType:
        """The type in which the database gives values: a string; binary for what has no text."""

    def convert(self, given: pa.Array[Any]) -> pa.Array[Any]:
        """Return values from what the database gives.

        Raises:
            Unconvertible: one has no place in the type.
        """


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        declared: its type, in the words of the database.
        key: it belongs to the key by which the database names a changed row.
    """

    name: str
    type: ColumnType
    declared: str
    key: bool


@dataclass(frozen=True)
class Table:
    """A table as it is at some point of the database's log.

    Attributes:
        number: the database's own for it; it outlives a new name.
        whole_rows: the database sends all of a row's old values with a change, not only the key.
    """

    number: int
    schema: str
    name: str
    columns: tuple[Column, ...]
    whole_rows: bool = False

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def has_columns_of(self, other: Table) -> bool:
        """Tell whether rows of both may be in one topic, and in one batch."""
        return same_columns(self.columns, other.columns)

    @property
    def keys(self) -> tuple[int, ...]:
        """Places of the columns of the key."""
        return tuple(place for place, column in enumerate(self.columns) if column.key)


def same_columns(one: Sequence[Column], other: Sequence[Column]) -> bool:
    """Tell whether rows have the same columns in a topic."""
    return one is other or [(each.name, each.type.arrow) for each in one] == [
        (each.name, each.type.arrow) for each in other
    ]


class Change(NamedTuple):
    """A change of one row.

    Attributes:
        before: old values, of which those that the database did not send are None; None where there are none.
        after: new values; None where there are none.
        transaction: its number in PostgreSQL; 0 for rows that were read.
        at: where it was committed, in PostgreSQL's log, or where its transaction begins, in the file of MySQL's; 0 for
            rows that were read.
        committed_ms: when, in milliseconds since 1970; of rows that were read, when that was.
        gtid, file: of its transaction in MySQL; empty for rows that were read.
    """

    table: Table
    operation: Operation
    before: Values | None
    after: Values | None
    transaction: int
    at: int
    committed_ms: int
    gtid: str = ""
    file: str = ""


@dataclass(frozen=True)
class RowImage:
    """The old, or the new, values of changed rows.

    Attributes:
        columns: what the database gives, of each column of the table.
        missing: which rows have none; None: all have them.
    """

    columns: list[pa.Array[Any]]
    missing: pa.Array[Any] | None

    def take(self, places: pa.Array[Any]) -> RowImage:
        """Return the images of some rows."""
        missing = None if self.missing is None else self.missing.take(places)
        return RowImage([column.take(places) for column in self.columns], missing)


@dataclass(frozen=True)
class ChangeColumns:
    """Changes of a table, or of tables with the same columns.

    Attributes:
        table: one of them.
        schemas, names: of the tables.
        operations: letters.
        before, after: as those of a :class:`.Change`; None: no row has it.
        unchanged: of each row, the columns whose new values the database did not send; null for none of them.
        committed_ms: when, in milliseconds since 1970.
        places: where a change stands in the database's log, as :class:`.Origin` has it.
    """

    table: Table
    schemas: pa.Array[Any]
    names: pa.Array[Any]
    operations: pa.Array[Any]
    before: RowImage | None
    after: RowImage | None
    unchanged: pa.Array[Any]
    committed_ms: pa.Array[Any]
    places: list[pa.Array[Any]]

    def __len__(self) -> int:
        return len(self.operations)

    @classmethod
    def of(cls, changes: Sequence[Change], places: list[pa.Array[Any]]) -> ChangeColumns:
        """Return some changes, at least one, as columns; the database sent all their values."""
        table, count = changes[0].table, len(changes)
        one = all(change.table is table for change in changes)
        return cls(
            table=table,
            schemas=_repeated(table.schema, count) if one else _texts([each.table.schema for each in changes]),
            names=_repeated(table.name, count) if one else _texts([each.table.name for each in changes]),
            operations=_texts([change.operation for change in changes]),
            before=_image(table, [change.before for change in changes]),
            after=_image(table, [change.after for change in changes]),
            unchanged=pa.nulls(count, UNCHANGED_FIELD),
            committed_ms=pa.array([change.committed_ms for change in changes], pa.int64()),
            places=places,
        )

    @property
    def shown(self) -> list[pa.Array[Any]]:
        """The new values of each row, or the old ones where there are none."""
        images = [image for image in (self.after, self.before) if image is not None]
        if not images:
            kinds: list[Any] = [column.type.given for column in self.table.columns]
            return [pa.nulls(len(self), kind) for kind in kinds]
        if len(images) == 1 or images[0].missing is None:
            return images[0].columns
        new, old = images
        return [pc.if_else(new.missing, one, other) for one, other in zip(old.columns, new.columns, strict=True)]

    def take(self, places: pa.Array[Any]) -> ChangeColumns:
        """Return some of the changes."""
        return replace(
            self,
            schemas=self.schemas.take(places),
            names=self.names.take(places),
            operations=self.operations.take(places),
            before=None if self.before is None else self.before.take(places),
            after=None if self.after is None else self.after.take(places),
            unchanged=self.unchanged.take(places),
            committed_ms=self.committed_ms.take(places),
            places=[column.take(places) for column in self.places],
        )


def _image(table: Table, rows: Sequence[Values | None]) -> RowImage | None:
    missing = [row is None for row in rows]
    if all(missing):
        return None
    none = (None,) * len(table.columns)
    values = zip(*(none if row is None else row for row in rows), strict=True)
    columns = [pa.array(each, column.type.given) for each, column in zip(values, table.columns, strict=True)]
    return RowImage(columns, pa.array(missing, pa.bool_()) if any(missing) else None)


def _repeated(text: str, count: int) -> pa.Array[Any]:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _texts(texts: Sequence[str | Operation]) -> pa.Array[Any]:
    return pa.array(texts, pa.string())
