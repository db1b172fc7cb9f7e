"""Rows as CSV and Parquet."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobpipe.control.rows.rows_export import csv_lines, file_name, parquet_file
from jobpipe.control.rows.rows_query import FoundPlace, RowsFound

TYPES = pa.record_batch(
    {
        "n": pa.array([-1, None], pa.int32()),
        "price": pa.array([Decimal("-0.10"), None], pa.decimal128(12, 2)),
        "at": pa.array([datetime(2026, 11, 21, 10, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 11, 21), None], pa.date32()),
        "raw": [b"\x00\xff", None],
        "flag": [True, None],
        "text": ['it\'s "x",\r\ny', ""],
        "tags": pa.array([["a"], None], pa.list_(pa.string())),
        "buyer": pa.array([{"name": "Ann"}, None], pa.struct([("name", pa.string())])),
    }
)


def found(*batches: pa.RecordBatch) -> RowsFound:
    """Return what a read would."""
    count = sum(batch.num_rows for batch in batches)
    return RowsFound(
        schema=batches[0].schema if batches else None,
        batches=batches,
        places=[FoundPlace(0, 0, number, 0.0) for number in range(count)],
    )


def lines(given: RowsFound) -> list[list[str]]:
    """Return what a program reads from the CSV."""
    text = b"".join(csv_lines(given)).decode("utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def test_csv() -> None:
    """Null is nothing, an empty text two quotes; numbers and times stay as they are."""
    content = b"".join(csv_lines(found(TYPES)))
    assert content.startswith(b'\xef\xbb\xbf"n","price"')
    assert content.endswith(b',,,,,,"",,\r\n')
    header, first, second = lines(found(TYPES))
    assert header == TYPES.schema.names
    assert first == [
        *("-1", "-0.10", "2026-11-21T10:00:00.000000Z", "2026-11-21", "00ff", "true"),
        *('it\'s "x",\r\ny', '["a"]', '{"name": "Ann"}'),
    ]
    assert second == [""] * 9


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", '=HYPERLINK("http://x")', "＝1", "－1"]
)
def test_a_text_that_a_spreadsheet_would_run(text: str) -> None:
    """Also as the name of a column; one that is harmless stays as it is."""
    batch = pa.RecordBatch.from_arrays([pa.array([text, "a=1"])], names=[text])
    assert lines(found(batch)) == [[f"'{text}"], [f"'{text}"], ["a=1"]]


def test_parquet_has_the_types_of_the_topic() -> None:
    table = pq.read_table(io.BytesIO(parquet_file(found(TYPES, TYPES))))
    assert table.num_rows == 4
    assert table.schema.equals(TYPES.schema)
    assert table.to_pylist() == TYPES.to_pylist() * 2


def test_no_rows() -> None:
    """Files all the same."""
    assert lines(found()) == [[]]
    assert pq.read_table(io.BytesIO(parquet_file(found()))).num_rows == 0
    assert lines(found(TYPES.slice(0, 0))) == [TYPES.schema.names]
    assert pq.read_table(io.BytesIO(parquet_file(found(TYPES.slice(0, 0))))).schema.equals(TYPES.schema)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [("orders.v1", "orders.v1.csv"), ('x"\r\nSet-Cookie: a', "x___Set-Cookie__a.csv"), ("..", "rows.csv")],
)
def test_the_name_of_a_file_is_harmless(topic: str, expected: str) -> None:
    assert file_name(topic, "csv", is_whole=True) == expected
    assert file_name("orders", "parquet", is_whole=False) == "orders-part.parquet"
