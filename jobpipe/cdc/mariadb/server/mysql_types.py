"""What types of MariaDB and MySQL become in a topic: docs/cdc-mysql.md has the table.

A type is named by its kind, which the catalog and the log tell alike: ``int unsigned``, ``decimal(10,2)``, ``string``
for all that has a character set. Snapshot and stream give values as the server's texts, those of binary kinds as they
are.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobpipe.cdc.changes import ColumnType
from jobpipe.cdc.text_conversions import TEXT, CastType, FunctionType

_DECIMAL_DIGITS = 38  # of Spark
_YEARS = "a date that is zero, or has no such month or day"
_NUMBER = "a number"
_INTEGERS: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "tinyint unsigned": pa.int16(),
    "smallint": pa.int16(),
    "smallint unsigned": pa.int32(),
    "mediumint": pa.int32(),
    "mediumint unsigned": pa.int32(),
    "int": pa.int32(),
    "int unsigned": pa.int64(),
    "bigint": pa.int64(),
    "bigint unsigned": pa.decimal128(20, 0),
    "year": pa.int16(),
}
_TEXTS = {"string", "enum", "set", "json", "time", "uuid", "inet4", "inet6"}
_ORDERED = {*_INTEGERS, "string", "bytes", "date", "datetime", "timestamp", "time", "uuid", "inet4", "inet6"}


def _same(values: pa.Array[Any]) -> pa.Array[Any]:
    return values


def _bits(values: pa.Array[Any]) -> pa.Array[Any]:
    return pc.equal(values, pa.scalar(b"\x01", pa.binary()))


def _instants(texts: pa.Array[Any]) -> pa.Array[Any]:
    return texts.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))


BINARY = FunctionType(pa.binary(), _same, given=pa.binary())
BIT = FunctionType(pa.bool_(), _bits, given=pa.binary())
_TYPES: dict[str, ColumnType] = {
    **{kind: CastType(arrow, _NUMBER) for kind, arrow in _INTEGERS.items()},
    **dict.fromkeys(_TEXTS, TEXT),
    "float": CastType(pa.float32(), _NUMBER),
    "double": CastType(pa.float64(), _NUMBER),
    "date": CastType(pa.date32(), _YEARS),
    "datetime": CastType(pa.timestamp("us"), _YEARS),
    "timestamp": FunctionType(pa.timestamp("us", "UTC"), _instants, why=_YEARS),
    "bytes": BINARY,
    "geometry": BINARY,
    "bit(1)": BIT,
}


def column_type(kind: str, *, as_text: bool = False) -> ColumnType | None:
    """Return what a kind becomes; None for a kind that is not known.

    Args:
        as_text: it stays the server's text, unless it is binary.
    """
    if kind.startswith(("bit(", "binary(")):
        return _TYPES.get(kind, BINARY)
    if (digits := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)) is not None:
        precision, scale = map(int, digits.groups())
        if as_text or precision > _DECIMAL_DIGITS:
            return TEXT
        return CastType(pa.decimal128(precision, scale), _NUMBER)
    found = _TYPES.get(kind)
    return TEXT if as_text and found is not None and not is_binary(kind) else found


def is_binary(kind: str) -> bool:
    """Tell whether values of a kind have no text."""
    return kind in ("bytes", "geometry") or kind.startswith(("bit(", "binary("))


def is_ordered(kind: str) -> bool:
    """Tell whether a table can be read in the order of a key with a column of a kind.

    Enums are ordered by their numbers, and compared with texts by their texts; floating numbers equal no literal.
    """
    return kind in _ORDERED or kind.startswith(("binary(", "decimal("))


def is_integer(kind: str) -> bool:
    """Tell whether its texts are whole numbers."""
    return kind in _INTEGERS
