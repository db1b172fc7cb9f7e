"""Tables of the binary log, and the images of their rows before and after a change.

Source: MySQL's documentation of ``Rows_event``; MariaDB's "Replication Protocol".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from jobpipe.cdc.mariadb.binlog.stream_values import Reader
from jobpipe.errors import ConfigError

Image: TypeAlias = "tuple[bytes | None, ...]"
RowImages: TypeAlias = "list[tuple[Image | None, Image | None]]"


@dataclass(frozen=True)
class BinlogColumn:
    """A column.

    Attributes:
        kind: its type, as far as the log knows: ``int unsigned``, ``decimal(10,2)``, ``string``, ``binary(16)`` ...
        key: it is in the primary key.
    """

    name: str
    kind: str
    key: bool
    nullable: bool


@dataclass(frozen=True)
class BinlogTable:
    """A table as it is at a place of the log; ``number`` is the server's own, until it opens the table again."""

    number: int
    database: str
    name: str
    columns: tuple[BinlogColumn, ...]

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


class TableReader:
    """Reads rows of a table.

    Args:
        table: with all columns that the log has.
        hidden: how many of the last ones are left out of what is read.
    """

    def __init__(self, table: BinlogTable, readers: tuple[Reader, ...], hidden: int = 0) -> None:
        self.table = replace(table, columns=table.columns[:-hidden]) if hidden else table
        self._columns = table.columns
        self._shown = len(readers) - hidden
        self._hides = hidden > 0
        self._readers = readers
        self._all = (1 << len(readers)) - 1
        self._bitmap = (len(readers) + 7) // 8

    def check(self, data: bytes, at: int, kind: str) -> int:
        """Return where the images of rows begin, after what tells which columns they have.

        Raises:
            ConfigError: they lack columns.
        """
        count, at = packed_number(data, at)
        if count != len(self._readers):
            raise ValueError(f"rows of {count} columns for the {len(self._readers)} of {self.table}")
        for _ in range(2 if kind == "update" else 1):
            self._check_all_present(data[at : at + self._bitmap])
            at += self._bitmap
        return at

    def read_images(self, data: bytes, at: int, kind: str) -> RowImages:
        """Return the rows that begin at a place, up to the end.

        Raises:
            SchemaMismatch: a value is not of its column's character set.
        """
        rows: RowImages = []
        end = len(data)
        image = self._image
        while at < end:
            first, at = image(data, at)
            if kind == "insert":
                rows.append((None, first))
            elif kind == "delete":
                rows.append((first, None))
            else:
                second, at = image(data, at)
                rows.append((first, second))
        if at > end:
            raise ValueError("a row is cut off")
        return rows

    def _image(self, data: bytes, at: int) -> tuple[Image, int]:
        start = at + self._bitmap
        nulls = int.from_bytes(data[at:start], "little") & self._all
        at = start
        values: list[bytes | None] = []
        append = values.append
        if not nulls:
            for read in self._readers:
                value, at = read(data, at)
                append(value)
            return tuple(values[: self._shown] if self._hides else values), at
        for read in self._readers:
            if nulls & 1:
                append(None)
            else:
                value, at = read(data, at)
                append(value)
            nulls >>= 1
        return tuple(values[: self._shown] if self._hides else values), at

    def _check_all_present(self, bitmap: bytes) -> None:
        present = int.from_bytes(bitmap, "little") & self._all
        if present != self._all:
            missing = [each.name for place, each in enumerate(self._columns) if not present >> place & 1]
            raise ConfigError(
                f"the binary log has rows of {self.table} without the columns {', '.join(missing)}: "
                "SET GLOBAL binlog_row_image = FULL, and let sessions that are connected now connect again",
                table=str(self.table),
                columns=missing,
            )


def taken(data: bytes, at: int, length: int) -> bytes:
    """Return so many bytes.

    Raises:
        ValueError: there are not so many.
    """
    part = data[at : at + length]
    if len(part) != length:
        raise ValueError("it is cut off")
    return part


def packed_number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number whose first byte tells its length, and the place after it."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = _SIZES[first]
    return int.from_bytes(taken(data, at + 1, size), "little"), at + 1 + size


_SIZES = {252: 2, 253: 3, 254: 8}
