"""What may follow what in a topic, when the columns of its tables change."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.cdc.capture_options import SchemaChange
from jobpipe.cdc.topic_schema import TopicSchema
from jobpipe.cdc.topic_writer import followed_by, following, max_note
from jobpipe.errors import SchemaMismatch
from jobpipe.operations.publisher_operations import MAX_NOTE


def rows(**columns: tuple[pa.DataType, list[Any]]) -> pa.Table:
    """Return rows of an envelope with one struct."""
    parts = [pa.array(values, kind) for kind, values in columns.values()]
    fields = [pa.field(name, kind) for name, (kind, _) in columns.items()]
    return pa.table({"op": ["c"] * len(parts[0]), "after": pa.StructArray.from_arrays(parts, fields=fields)})


def schema(mode: SchemaChange, newest: pa.Table | None = None) -> TopicSchema:
    return TopicSchema("t", mode, lambda: None if newest is None else newest.schema)


FIRST = rows(id=(pa.int32(), [1]), amount=(pa.decimal128(6, 2), [None]), note=(pa.string(), ["a"]))
FITTING = {
    "added": rows(id=(pa.int32(), [1]), amount=(pa.decimal128(6, 2), [None]), more=(pa.string(), ["x"])),
    "dropped": rows(id=(pa.int32(), [1])),
    "wider": rows(id=(pa.int64(), [1]), amount=(pa.decimal128(9, 2), [None]), note=(pa.string(), ["a"])),
    "narrower": rows(id=(pa.int16(), [1]), amount=(pa.decimal128(6, 2), [None]), note=(pa.string(), ["a"])),
}


@pytest.mark.parametrize("change", FITTING)
@pytest.mark.parametrize("stopped", [False, True])
def test_what_fits_goes_on(change: str, stopped: bool) -> None:
    topic = schema(SchemaChange.EVOLVE, FIRST if stopped else None)
    if not stopped:
        assert topic.fitted(FIRST) is FIRST
    assert topic.fitted(FITTING[change]) is FITTING[change]
    assert topic.fitted(FIRST) is FIRST


@pytest.mark.parametrize("mode", SchemaChange)
def test_nothing_has_the_columns_of_the_topic(mode: SchemaChange) -> None:
    assert schema(mode).nothing() is None
    assert schema(mode, FIRST).nothing() == FIRST.slice(0, 0)
    topic = schema(mode, FIRST)
    published = topic.fitted(FITTING["added"])
    assert topic.nothing() == published.slice(0, 0)


@pytest.mark.parametrize("stopped", [False, True])
def test_another_type_fails_and_names_the_column(stopped: bool) -> None:
    topic = schema(SchemaChange.EVOLVE, FIRST if stopped else None)
    topic.fitted(FIRST)
    other = rows(id=(pa.int32(), [1]), amount=(pa.string(), ["5"]), note=(pa.string(), ["a"]))
    with pytest.raises(SchemaMismatch, match=re.escape("column amount has another type than before (decimal128(6, 2)")):
        topic.fitted(other)
    assert topic.fitted(FIRST) is FIRST


def test_a_column_that_goes_and_comes_again_as_another_one() -> None:
    topic = schema(SchemaChange.EVOLVE)
    topic.fitted(FIRST)
    gone = rows(id=(pa.int32(), [1]), note=(pa.string(), ["a"]))
    assert topic.fitted(gone) is gone
    with pytest.raises(SchemaMismatch, match="column amount has another type"):
        topic.fitted(rows(id=(pa.int32(), [1]), amount=(pa.string(), ["5"]), note=(pa.string(), ["a"])))
    assert topic.fitted(gone) is gone
    assert topic.fitted(FIRST) is FIRST


def test_a_column_may_become_text_if_it_is_asked_for() -> None:
    other = rows(id=(pa.int32(), [1]), amount=(pa.string(), ["5"]), note=(pa.string(), ["a"]))
    topic = TopicSchema("t", SchemaChange.EVOLVE, lambda: FIRST.schema, ["amount"])
    assert topic.fitted(other) is other


@pytest.mark.parametrize("stopped", [False, True])
def test_ignored_changes_leave_the_first_columns(stopped: bool) -> None:
    topic = schema(SchemaChange.IGNORE, FIRST if stopped else None)
    topic.fitted(FIRST)
    other = rows(more=(pa.string(), ["x", "y"]), note=(pa.int32(), [7, None]), id=(pa.int64(), [3, 4]))
    found = topic.fitted(other)
    assert found.schema == FIRST.schema
    assert found.to_pylist() == [
        {"op": "c", "after": {"id": 3, "amount": None, "note": "7"}},
        {"op": "c", "after": {"id": 4, "amount": None, "note": None}},
    ]


def test_an_ignored_change_with_a_value_that_does_not_fit() -> None:
    """The error has the column, and not the value."""
    topic = schema(SchemaChange.IGNORE, FIRST)
    assert topic.fitted(rows(id=(pa.int64(), [2**31 - 1]))).num_rows == 1
    with pytest.raises(SchemaMismatch, match=r"column after\.id is int64 now") as caught:
        topic.fitted(rows(id=(pa.int64(), [2**31])))
    assert str(2**31) not in str(caught.value)


def test_a_row_that_is_null_stays_null() -> None:
    topic = schema(SchemaChange.IGNORE, FIRST)
    deleted = pa.table({"op": ["d"], "after": pa.nulls(1, pa.struct([pa.field("id", pa.int64())]))})
    assert topic.fitted(deleted).to_pylist() == [{"op": "d", "after": None}]


NO_SAME = {
    "a time for a date": (pa.date32(), [0], pa.timestamp("us"), [3_600_000_000]),
    "a number for a time": (pa.timestamp("us"), [0], pa.int64(), [1_700_000_000]),
    "a number for a boolean": (pa.bool_(), [True], pa.int32(), [5]),
    "digits for a double": (pa.float64(), [0.5], pa.decimal128(30, 20), [Decimal("0.12345678901234567890")]),
    "a zone": (pa.timestamp("us", "UTC"), [0], pa.timestamp("us"), [0]),
}
SAME = {
    "midnight for a date": (pa.date32(), [0], pa.timestamp("us"), [86_400_000_000]),
    "a boolean": (pa.bool_(), [True], pa.int32(), [1]),
    "a decimal": (pa.float64(), [0.5], pa.decimal128(30, 20), [Decimal("0.5")]),
    "a text": (pa.int32(), [1], pa.string(), ["12"]),
    "a number as text": (pa.string(), ["1"], pa.int32(), [12]),
    "no number": (pa.float64(), [1.0], pa.float32(), [float("nan")]),
}


@pytest.mark.parametrize("change", NO_SAME)
def test_ignore_makes_no_other_values(change: str) -> None:
    old, before, new, after = NO_SAME[change]
    topic = schema(SchemaChange.IGNORE)
    topic.fitted(rows(x=(old, before)))
    with pytest.raises(SchemaMismatch, match=r"column after\.x is .* now"):
        topic.fitted(rows(x=(new, after)))


@pytest.mark.parametrize("change", SAME)
def test_ignore_keeps_values_that_fit(change: str) -> None:
    old, before, new, after = SAME[change]
    topic = schema(SchemaChange.IGNORE)
    topic.fitted(rows(x=(old, before)))
    assert topic.fitted(rows(x=(new, after))).schema == rows(x=(old, before)).schema


def test_the_longest_note_can_name_the_topic_that_follows() -> None:
    topic = "public." + "o" * 100
    note = json.dumps({"k": "x" * (max_note(topic) - len('{"k":""}'))}, separators=(",", ":")).encode()
    assert len(note) == max_note(topic)
    last = followed_by(note, f"{topic}.v12345")
    assert len(last) <= MAX_NOTE
    assert following(last) == f"{topic}.v12345"
