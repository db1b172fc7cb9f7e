"""Rows as lines."""

from __future__ import annotations

import datetime
import decimal
import json

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from jobpipe.cli.common.row_printer import SLICE_ROWS, JsonLines, RowPrinter, TableLines


def lines(printer: RowPrinter, *batches: pa.RecordBatch) -> list[str]:
    @click.command()
    def command() -> None:
        for batch in batches:
            printer.write(batch)

    result = CliRunner().invoke(command)
    assert result.exception is None
    return result.output.splitlines()


def batch(**columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (pa.array([1]), 1),
        (pa.array([None], pa.int64()), None),
        (pa.array([True]), True),
        (pa.array([1.5]), 1.5),
        (pa.array([float("nan")]), "NaN"),
        (pa.array([float("-inf")]), "-Infinity"),
        (pa.array(["a\n\x1b"]), "a\n\x1b"),
        (pa.array([b"\x00\xff"]), "AP8="),
        (pa.array([decimal.Decimal("1.50")]), "1.50"),
        (pa.array([datetime.date(2013, 1, 2)]), "2013-01-02"),
        (pa.array([datetime.datetime(2013, 1, 2, 3)], pa.timestamp("us")), "2013-01-02T03:00:00"),  # noqa: DTZ001
        (pa.array([0], pa.timestamp("us", "UTC")), "1970-01-01T00:00:00+00:00"),
        (pa.array([2**62], pa.timestamp("us")), None),  # beyond Python's years: Arrow's own text
        (
            pa.array([{"x": -800_000}], pa.struct({"x": pa.int32()})).cast(pa.struct({"x": pa.date32()})),
            {"x": "-0221-09-04"},
        ),
        (pa.array([[float("nan")]], pa.list_(pa.float32())), ["NaN"]),
        (pa.array([datetime.timedelta(seconds=90)]), "0:01:30"),
        (pa.array([{"x": [1, None], "y": {"z": b"a"}}]), {"x": [1, None], "y": {"z": "YQ=="}}),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), {"k": 1}),
        (pa.array([[(7, 1)]], pa.map_(pa.int64(), pa.int64())), {"7": 1}),
    ],
)
def test_every_type_becomes_json(array: pa.Array, value: object) -> None:
    (line,) = lines(JsonLines(), batch(a=array))
    got = json.loads(line)["a"]
    assert got == value if value is not None or array.null_count else isinstance(got, str)


def test_json_has_one_object_a_row() -> None:
    rows = 2 * SLICE_ROWS + 1
    got = [json.loads(line) for line in lines(JsonLines(), batch(n=list(range(rows)), t=["x"] * rows))]
    assert got == [{"n": n, "t": "x"} for n in range(rows)]


def test_a_table_is_aligned_by_its_first_rows() -> None:
    got = lines(TableLines(), batch(n=[1, 200], name=["ab", None]), batch(n=[3], name=["longer than before"]))
    assert got == ["  n  name", "  1  ab", "200  null", "  3  longer than before"]


def test_a_table_tells_new_columns() -> None:
    assert lines(TableLines(), batch(a=[1]), batch(b=["x"]), batch(b=["y"])) == ["a", "1", "b", "x", "y"]


def test_a_table_keeps_the_terminal_safe() -> None:
    (_, line) = lines(TableLines(), batch(**{"a\x1b": ["\x1b[2J"]}))
    assert line == "\\x1b[2J"


def test_empty_batches_print_nothing() -> None:
    assert lines(TableLines(), batch(a=pa.array([], pa.int64()))) == []
    assert lines(JsonLines(), batch(a=pa.array([], pa.int64()))) == []
