"""Values of Arrow columns as Python's plain values: numbers, texts, bytes. Nested values become JSON.

Times are ISO 8601 with as many digits as their type has, so that their texts are in the order of time; those with a
zone are in UTC and end in Z. Decimals are their digits. NaN is the text ``NaN``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from jobpipe.pipelines.transforms.json_values import json_value

Plain: TypeAlias = bool | int | float | str | bytes | None


def plain_values(column: pa.Array[Any]) -> list[Plain]:
    """Return the values of a column."""
    kind: Any = column.type
    if pa.types.is_dictionary(kind):
        return plain_values(column.cast(kind.value_type))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_binary(kind):
        return column.to_pylist()
    if pa.types.is_floating(kind):
        return [_float(value) for value in _doubles(column)]
    if is_text(kind):
        return _each(column) if _is_broken(column) else column.to_pylist()
    if pa.types.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in column.to_pylist()]
    if pa.types.is_timestamp(kind):
        moments = column if kind.tz is None else column.cast(pa.timestamp(kind.unit, "UTC"))
        texts = moments.cast(pa.string())
        return [*pc.replace_substring(texts, " ", "T", max_replacements=1).to_pylist()]
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return [*column.cast(pa.string()).to_pylist()]
    return _each(column)


def text_of(value: Plain) -> str:
    """Return a value that is not null as text: bytes in hex digits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.hex() if isinstance(value, bytes) else str(value)


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values of a type are texts that others wrote."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Tell whether values of a type are bytes."""
    checks: tuple[Callable[[Any], bool], ...] = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_binary_view,
    )
    return any(check(kind) for check in checks)


def is_number(kind: pa.DataType) -> bool:
    """Tell whether values of a type are numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _doubles(column: pa.Array[Any]) -> list[float | None]:
    if pa.types.is_float32(column.type):  # 0.1, not 0.10000000149011612
        return [None if text is None else float(text) for text in column.cast(pa.string()).to_pylist()]
    found: list[float | None] = column.to_pylist()
    return found


def _float(value: float | None) -> Plain:
    return "NaN" if value is not None and math.isnan(value) else value


def _is_broken(column: pa.Array[Any]) -> bool:
    try:
        column.to_pylist()
    except UnicodeDecodeError:
        return True
    return False


def _each(column: pa.Array[Any]) -> list[Plain]:
    return [_nested(json_value(scalar)) for scalar in column]


def _nested(value: Any) -> Plain:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
