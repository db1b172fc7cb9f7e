"""Rows as a file: CSV for spreadsheets, Parquet with its types.

CSV: UTF-8 with a byte order mark, lines end with CR LF, values in quotes; null is nothing between two commas, an empty
text two quotes. A text that a spreadsheet would take for a formula gets an apostrophe before it; numbers stay numbers.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jobpipe.control.rows.arrow_texts import is_number, plain_values, text_of
from jobpipe.control.rows.rows_query import RowsFound
from jobpipe.errors import ConfigError

_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
SLICE_ROWS = 5000


def csv_lines(found: RowsFound) -> Iterator[bytes]:
    """Yield a CSV file, some lines at a time."""
    names = [] if found.schema is None else found.schema.names
    yield b"\xef\xbb\xbf" + _line([_text(name) for name in names])
    for batch in found.batches:
        for start in range(0, batch.num_rows, SLICE_ROWS):
            part = batch.slice(start, SLICE_ROWS)
            columns = [_cells(column) for column in part.columns] or [[""] * part.num_rows]
            yield b"".join(map(_line, zip(*columns, strict=True)))


def parquet_file(found: RowsFound) -> bytes:
    """Return a Parquet file."""
    schema = pa.schema([]) if found.schema is None else found.schema.remove_metadata()
    table = pa.Table.from_batches([batch.replace_schema_metadata() for batch in found.batches], schema)
    made = io.BytesIO()
    try:
        pq.write_table(table, made, compression="zstd", store_schema=False)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise ConfigError(f"Parquet has no such columns; export CSV instead ({error})", key="kind") from error
    return made.getvalue()


def file_name(topic: str, kind: str, *, is_whole: bool) -> str:
    """Return the name for a download, of harmless characters: ``orders.csv``, or ``orders-part.csv`` of a part."""
    safe = _UNSAFE.sub("_", topic)[:100].lstrip(".") or "rows"
    return f"{safe}{'' if is_whole else '-part'}.{kind}"


def _cells(column: pa.Array[Any]) -> list[str]:
    if is_number(column.type) or pa.types.is_boolean(column.type):
        return ["" if value is None else text_of(value) for value in plain_values(column)]
    return ["" if value is None else _text(text_of(value)) for value in plain_values(column)]


def _text(value: str) -> str:
    harmless = f"'{value}" if _FORMULA.match(value) else value
    return '"' + harmless.replace('"', '""') + '"'


def _line(cells: Any) -> bytes:
    return (",".join(cells) + "\r\n").encode("utf-8", "replace")
