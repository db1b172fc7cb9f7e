"""Values of rows as JSON has them, in Spark's words: NaN as ``"NaN"``, bytes in base64, times in ISO 8601."""

from __future__ import annotations

import base64
import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def json_number(value: float) -> float | str:
    """Return a number, or, since JSON has no others than finite ones, the text that Spark's ``to_json`` writes.

    >>> json_number(1.5), json_number(float("nan")), json_number(float("-inf"))
    (1.5, 'NaN', '-Infinity')
    """
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def json_row(batch: pa.RecordBatch, number: int) -> dict[str, Any]:
    """Return a row of a record batch, column by column, as :func:`json_value` says."""
    return {name: json_value(column[number]) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def json_value(scalar: pa.Scalar[Any]) -> Any:
    """Return a value that ``json.dumps`` takes, whatever is in it: times outside of Python's years are Arrow's text."""
    import pyarrow as pa

    kind: Any = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {kind.field(place).name: json_value(_item(scalar, place)) for place in range(kind.num_fields)}
    if pa.types.is_map(kind):
        return {str(json_value(_item(pair, 0))): json_value(_item(pair, 1)) for pair in _values(scalar)}
    if hasattr(scalar, "values"):  # lists of all kinds
        return [json_value(each) for each in _values(scalar)]
    if pa.types.is_float32(kind) and math.isfinite(scalar.as_py()):
        return float(scalar.cast(pa.string()).as_py())  # 0.1, not 0.10000000149011612
    try:
        value = scalar.as_py()
    except Exception:  # noqa: BLE001 - pyarrow raises several
        return _text(scalar)
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    return value if isinstance(value, (bool, int, str)) else str(value)


def _item(scalar: Any, place: int) -> Any:
    return scalar[place]


def _values(scalar: Any) -> Any:
    return scalar.values


def _text(scalar: Any) -> str:
    """Return the text of a value that Python does not have: a time of another year, bytes that are no UTF-8."""
    import pyarrow as pa

    try:
        return str(scalar.cast(pa.string()).as_py())
    except UnicodeDecodeError:
        return bytes(scalar.cast(pa.large_binary()).as_py()).decode("utf-8", "backslashreplace")
    except Exception:  # noqa: BLE001
        return str(scalar)
