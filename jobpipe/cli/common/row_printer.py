"""Prints rows as they come: one JSON object a line, or columns whose widths the first rows decide."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from typing import Any, Protocol

import click
import pyarrow as pa

from jobpipe.cli.common.output import printable
from jobpipe.pipelines.transforms.json_values import json_number, json_value

SLICE_ROWS = 500  # turned into Python objects at a time
WIDEST = 40  # characters of a column; a longer value moves its line to the right


class RowPrinter(Protocol):
    """Prints record batches."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Print all rows of ``batch``."""


class JsonLines:
    """One JSON object a row. Times in ISO 8601, binary in base64, decimals and NaN as strings."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Print all rows of ``batch``."""
        names = batch.schema.names
        for rows in _slices(batch):
            click.echo("\n".join(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows))


class TableLines:
    """Aligned columns below a header, which is printed again when the columns change."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._widths: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Print all rows of ``batch``."""
        right = [_is_number(field.type) for field in batch.schema]
        for rows in _slices(batch):
            lines = [[_text(value) for value in row] for row in rows]
            if self._schema is None or not self._schema.equals(batch.schema):
                self._schema = batch.schema
                names = [printable(name) for name in batch.schema.names]
                self._widths = [min(max(map(len, column)), WIDEST) for column in zip(names, *lines, strict=True)]
                lines.insert(0, names)
            click.echo("\n".join(self._line(line, right) for line in lines))

    def _line(self, cells: list[str], right: list[bool]) -> str:
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, self._widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()


def _slices(batch: pa.RecordBatch) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows as tuples of JSON values, some at a time."""
    for start in range(0, batch.num_rows, SLICE_ROWS):
        part = batch.slice(start, SLICE_ROWS)
        yield list(zip(*(map(_plain, _values(column)) for column in part.columns), strict=True)) or [()] * part.num_rows


def _values(column: pa.Array[Any]) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except (ValueError, OverflowError):  # times outside Python's range, or finer than microseconds
        values = [json_value(each) for each in column]
    return values


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON can say it."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return printable(value)
    return printable(json.dumps(value, ensure_ascii=False))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
