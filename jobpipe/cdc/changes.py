"""What a source of change data hands on, whichever database it is: tables, their columns, and changes of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa


class Operation(StrEnum):
    """What happened to a row, in the letters of Debezium."""

    READ = "r"
    """It was there when the table was read."""
    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    TRUNCATE = "t"
    """All rows of the table are gone; the change has none."""


class _Unchanged:
    """A value that an update left alone, and that the database did not send."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged()
Value: TypeAlias = "bytes | _Unchanged | None"
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
