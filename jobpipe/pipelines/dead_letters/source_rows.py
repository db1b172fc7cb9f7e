"""Rows of a topic from the JSON in a dead letter: exactly the values that the topic had, or a reason why not.

Both ways in which letters are written are read: Spark's ``to_json`` and
:mod:`jobpipe.pipelines.transforms.json_values`. A type whose values JSON does not keep is refused as a whole, so
nothing is rounded, cut or guessed.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from jobpipe.errors import SchemaMismatch, short_repr

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(Z|[+-]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,20}", re.ASCII)
_DECIMAL = re.compile(r"-?\d{1,80}(?:\.\d{1,80})?(?:E[+-]?\d{1,3})?", re.ASCII)
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MICROSECOND = timedelta(microseconds=1)
_Read = Callable[[Any], Any]


class RowReader:
    """Reads rows of one schema.

    Args:
        topic: whose schema.
        schema: of the topic.
        others: returns the other schemas that the topic has, or had.

    Raises:
        SchemaMismatch: a column has a type whose values JSON does not keep, or has bytes where it had another type: a
            text of then would be read as base64. Names it.
    """

    def __init__(self, topic: str, schema: pa.Schema, others: Callable[[], Iterable[pa.Schema]] = lambda: ()) -> None:
        self.schema = schema
        self._columns: dict[str, _Read] = {}
        for field in schema:
            try:
                if field.name in self._columns:
                    raise ValueError("another column has the same name")
                self._columns[field.name] = _reader(field)
                if "binary" in str(field.type):
                    _require_same(field, others())
            except ValueError as error:
                raise SchemaMismatch(
                    f"topic {topic!r}, column {field.name!r} of type {field.type}: {error}; dead letters of this topic "
                    "cannot be published again",
                    topic=topic,
                    column=field.name,
                ) from error

    def values(self, text: str) -> dict[str, Any]:
        """Return the values of a row, as Arrow takes them.

        Raises:
            ValueError: it is no row of the schema; names the column.
        """
        try:
            row = json.loads(text, parse_float=Decimal, parse_constant=_no_number, object_pairs_hook=_object)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        if not isinstance(row, dict):
            raise ValueError("it is not a JSON object")
        if missing := [name for name in self._columns if name not in row]:
            raise ValueError(f"it lacks column {', '.join(missing)}, which the topic has now")
        if unknown := [name for name in row if name not in self._columns]:
            raise ValueError(f"it has column {', '.join(unknown)}, which the topic does not have now")
        return {name: _taken(name, read, row[name]) for name, read in self._columns.items()}

    def batch(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Return rows that :meth:`values` returned as a record batch."""
        arrays = [pa.array([row[field.name] for row in rows], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _require_same(field: pa.Field[Any], schemas: Iterable[pa.Schema]) -> None:
    """See that a column has the same type in all schemas that have it.

    Raises:
        ValueError: it does not.
    """
    for schema in schemas:
        for other in schema:
            if other.name == field.name and other.type != field.type:
                raise ValueError(f"it was of type {other.type} before, and a text does not say which of them it is of")


def _taken(name: str, read: _Read, value: Any) -> Any:
    try:
        return read(value)
    except (ValueError, InvalidOperation, OverflowError) as error:
        raise ValueError(f"column {name}: {error}") from error


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice in an object")
    return found


def _reader(field: pa.Field[Any]) -> _Read:
    """Return what reads values of a column, an element or a struct's field.

    Raises:
        ValueError: JSON does not keep such values.
    """
    read, nullable = _reader_of(field.type), field.nullable

    def taken(value: Any) -> Any:
        if value is None and not nullable:
            raise ValueError("null, where none may be")
        return None if value is None else read(value)

    return taken


def _reader_of(kind: Any) -> _Read:
    types = pa.types
    if types.is_boolean(kind):
        return _of(bool, "true or false")
    if types.is_integer(kind):
        return _integer(kind)
    if types.is_float32(kind) or types.is_float64(kind):
        return _float32 if types.is_float32(kind) else _float
    if types.is_decimal(kind):
        return _decimal(kind)
    if types.is_string(kind) or types.is_large_string(kind):
        return _text
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _bytes
    if types.is_date32(kind):
        return _date
    if types.is_timestamp(kind) and kind.unit == "us":
        return _timestamp(zoned=kind.tz is not None)
    if types.is_list(kind) or types.is_large_list(kind):
        return _list(_reader(kind.value_field))
    if types.is_struct(kind):
        return _struct(kind)
    if types.is_map(kind):
        return _map(kind)
    if types.is_null(kind):
        return _of(type(None), "null")
    raise ValueError("JSON does not keep its values")


def _of(kind: type, words: str) -> _Read:
    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _wrong(value, words)
        return value

    return read


def _wrong(value: Any, expected: str) -> ValueError:
    return ValueError(f"{short_repr(value)} is not {expected}")


def _integer(kind: Any) -> _Read:
    signed = pa.types.is_signed_integer(kind)
    least = -(2 ** (kind.bit_width - 1)) if signed else 0
    most = 2 ** (kind.bit_width - (1 if signed else 0)) - 1

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _wrong(value, f"a whole number from {least} to {most}")
        return value

    return read


def _float(value: Any) -> float:
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise _wrong(value, "a number")
    found = float(value)
    if not math.isfinite(found):
        raise _wrong(str(value), "a number of 64 bits")
    return found


def _float32(value: Any) -> float:
    found = _float(value)
    (narrow,) = struct.unpack("<f", struct.pack("<f", found)) if math.isfinite(found) else (found,)
    return float(narrow)


def _decimal(kind: Any) -> _Read:
    most = kind.precision - kind.scale

    def read(value: Any) -> Decimal:
        text = isinstance(value, str) and _DECIMAL.fullmatch(value) is not None  # Decimal takes "1_0" and " 1 ", too
        if isinstance(value, bool) or not (text or isinstance(value, (int, Decimal))) or len(str(value)) > 100:
            raise _wrong(value, f"a number of type {kind}")
        found = Decimal(value)
        if not found.is_finite() or (found and (found.adjusted() >= most or _places(found) > kind.scale)):
            raise _wrong(str(value), f"a number of type {kind}")
        return found

    return read


def _places(number: Decimal) -> int:
    """Return how many digits after the point a number needs."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - it is finite
    return len("".join(map(str, digits)).rstrip("0")) - len(digits) - exponent


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(value, "a text")
    value.encode()  # half a character is a UnicodeEncodeError, which is a ValueError
    return value


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as error:
        raise _wrong(value, "bytes in base64") from error


def _date(value: Any) -> date:
    if not isinstance(value, str) or _DATE.fullmatch(value) is None:
        raise _wrong(value, "a day of the years 1 to 9999")
    return date.fromisoformat(value)


def _timestamp(*, zoned: bool) -> _Read:
    def read(value: Any) -> int:
        found = _TIME.fullmatch(value) if isinstance(value, str) else None
        if found is None or (found[1] is not None) != zoned:
            raise _wrong(value, f"a time of the years 1 to 9999, {'with' if zoned else 'without'} an offset from UTC")
        at = datetime.fromisoformat(value)
        since = datetime(1970, 1, 1, tzinfo=UTC if zoned else None)
        return (at - since) // _MICROSECOND

    return read


def _list(read: _Read) -> _Read:
    def items(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(value, "a list")
        return [read(each) for each in value]

    return items


def _struct(kind: Any) -> _Read:
    fields = {each.name: _reader(each) for each in _fields(kind)}
    if len(fields) != kind.num_fields:
        raise ValueError("two fields of a struct have the same name")

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or value.keys() != fields.keys():
            raise _wrong(value, f"an object with {', '.join(fields)}")
        return {name: _taken(name, each, value[name]) for name, each in fields.items()}

    return read


def _fields(kind: Any) -> Iterable[Any]:
    return (kind.field(place) for place in range(kind.num_fields))


def _map(kind: Any) -> _Read:
    item = _reader(kind.item_field)
    if pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type):
        key: _Read = _text
    elif pa.types.is_integer(kind.key_type):
        whole = _integer(kind.key_type)

        def key(value: Any) -> Any:
            if _WHOLE.fullmatch(value) is None:
                raise _wrong(value, "a whole number")
            return whole(int(value))
    else:
        raise ValueError("JSON does not keep the keys of a map that are neither texts nor whole numbers")

    def read(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        return [(key(name), item(each)) for name, each in value.items()]

    return read
