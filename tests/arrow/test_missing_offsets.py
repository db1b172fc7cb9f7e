"""Nested columns without values that lack their offsets, as Spark 3.5 sends them, get them where rows come in."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from jobpipe.arrow.list_offsets import table_with_offsets, with_offsets

NONE = pa.py_buffer(b"")
ONE_NULL = [pa.py_buffer(b"\0"), pa.py_buffer(bytes(8))]
WORDS = pa.list_(pa.string())


def empty_words() -> Any:
    """An empty list column without offsets."""
    return pa.Array.from_buffers(WORDS, 0, [None, NONE], children=[pa.array([], pa.string())])


def list_of_lists() -> Any:
    return pa.Array.from_buffers(pa.list_(WORDS), 1, ONE_NULL, children=[empty_words()])


def map_of_lists() -> Any:
    fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", WORDS)]
    entries = pa.StructArray.from_arrays([pa.array([], pa.string()), empty_words()], fields=fields)
    return pa.Array.from_buffers(pa.map_(pa.string(), WORDS), 1, ONE_NULL, children=[entries])


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        pytest.param(list_of_lists(), [None], id="list"),
        pytest.param(map_of_lists(), [None], id="map"),
        pytest.param(pa.StructArray.from_arrays([list_of_lists()], names=["x"]), [{"x": None}], id="struct"),
        pytest.param(pa.FixedSizeListArray.from_arrays(list_of_lists(), 1), [[None]], id="fixed size"),
        pytest.param(empty_words(), [], id="no rows"),
    ],
)
def test_bytes_can_be_counted(column: Any, rows: list[object]) -> None:
    """``nbytes`` of the column as it is would end the process."""
    batch = pa.RecordBatch.from_arrays([column], names=["a"])
    found = with_offsets(batch)
    assert found.schema.equals(batch.schema)
    assert found.column(0).to_pylist() == rows
    assert found.nbytes == table_with_offsets(pa.Table.from_batches([batch])).nbytes


def test_other_rows_are_left_alone() -> None:
    """No copy is made."""
    batch = pa.RecordBatch.from_pylist([{"id": 1, "tags": [["a"], []], "more": {"x": []}}])
    assert with_offsets(batch) is batch
