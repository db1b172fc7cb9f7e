"""What PostgreSQL's types become in a topic: docs/cdc.md has the table. Snapshot and stream are converted alike.

Both give values as texts, in the session's settings of :data:`SETTINGS`. A type that Arrow, or Spark, lacks stays the
text. Without PostgreSQL's catalog nothing is known but the built-in types; :mod:`.database_catalog` asks for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobpipe.cdc.changes import ColumnType, Unconvertible
from jobpipe.cdc.text_conversions import TEXT, CastType, FunctionType

SETTINGS = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
    "search_path": "",
}
"""Of all sessions whose values are read."""

NUMERIC = 1700
_DECIMAL_DIGITS = 38  # of Spark
_UTC = "+00"
_YEARS = "a time that is infinite, or not in the years 1 to 9999"
_KINDS: dict[int, tuple[pa.DataType, str]] = {
    20: (pa.int64(), "a number"),
    21: (pa.int16(), "a number"),
    23: (pa.int32(), "a number"),
    26: (pa.int64(), "a number"),  # oid, which has no sign
    700: (pa.float32(), "a number"),
    701: (pa.float64(), "a number"),
    1082: (pa.date32(), _YEARS),
    1114: (pa.timestamp("us"), _YEARS),
}
UNLIKE_ARRAYS = {22, 30, 1020}
"""int2vector, oidvector and box[], which are written in another way than the other arrays."""


@dataclass(frozen=True)
class ArrayType:
    """An array of one dimension."""

    element: ColumnType

    @property
    def arrow(self) -> pa.DataType:
        """A list."""
        return pa.list_(self.element.arrow)

    @property
    def given(self) -> pa.DataType:
        """A string."""
        return pa.string()

    def convert(self, given: pa.Array[Any]) -> pa.Array[Any]:
        """Split each text, then convert all elements at once."""
        elements: list[str | None] = []
        ends: list[int | None] = [0]
        lists: list[bool] = []
        for text in given.to_pylist():
            if text is not None:
                elements += array_elements(text)
            lists.append(text is None)
            ends.append(len(elements))
        values = self.element.convert(pa.array(elements, pa.string()))
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, mask=pa.array(lists, pa.bool_()))


def array_elements(text: str) -> list[str | None]:
    """Return the elements of an array of one dimension, as PostgreSQL writes it.

    >>> array_elements('{1,NULL,"a \\\\"b\\\\", c"}')
    ['1', None, 'a "b", c']

    Raises:
        Unconvertible: it has more dimensions, or another lower bound than 1.
    """
    if not text.startswith("{"):
        raise Unconvertible("an array whose first index is not 1")
    if text == "{}":
        return []
    elements: list[str | None] = []
    at, end = 1, len(text) - 1
    while at < end:
        if text[at] == "{":
            raise Unconvertible("an array of more than one dimension")
        if text[at] != '"':
            stop = text.find(",", at)
            stop = end if stop < 0 else stop
            word = text[at:stop]
            elements.append(None if word == "NULL" else word)
            at = stop + 1
            continue
        pieces: list[str] = []
        at += 1
        while text[at] != '"':
            if text[at] == "\\":
                at += 1
            pieces.append(text[at])
            at += 1
        elements.append("".join(pieces))
        at += 2
    return elements


def _booleans(texts: pa.Array[Any]) -> pa.Array[Any]:
    return pc.equal(texts, pa.scalar("t"))


def _binaries(texts: pa.Array[Any]) -> pa.Array[Any]:
    found = [None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()]
    return pa.array(found, pa.binary())


def _instants(texts: pa.Array[Any]) -> pa.Array[Any]:
    """Texts end with +00, as the session's time zone is UTC."""
    if pc.all(pc.ends_with(texts, _UTC)).as_py() is False:
        raise Unconvertible(_YEARS)
    try:
        return pc.utf8_slice_codeunits(texts, 0, -len(_UTC)).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        raise Unconvertible(_YEARS) from None


BOOLEAN = FunctionType(pa.bool_(), _booleans)
BINARY = FunctionType(pa.binary(), _binaries)
INSTANT = FunctionType(pa.timestamp("us", "UTC"), _instants)
_FUNCTIONS: dict[int, ColumnType] = {16: BOOLEAN, 17: BINARY, 1184: INSTANT}


def base_type(oid: int, modifier: int) -> ColumnType:
    """Return what a built-in type that is no array becomes.

    Args:
        modifier: of the column; -1 for none.
    """
    if oid in _FUNCTIONS:
        return _FUNCTIONS[oid]
    if oid in _KINDS:
        return CastType(*_KINDS[oid])
    if oid == NUMERIC and modifier >= 0:
        precision, scale = ((modifier - 4) >> 16) & 0xFFFF, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
        if precision <= _DECIMAL_DIGITS and 0 <= scale <= precision:
            return CastType(pa.decimal128(precision, scale), "a number that is NaN")
    return TEXT


def string_array(values: Sequence[object]) -> pa.StringArray:
    """Return texts as an array."""
    return pa.array(values, pa.string())
