"""A topic's row out of a dead letter's JSON has exactly the values that it had, of each type; or it is refused."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.errors import SchemaMismatch
from jobpipe.pipelines.dead_letters.source_rows import RowReader
from jobpipe.pipelines.transforms.json_values import json_row
from tests.docs.troubleshooting import on_page

BERLIN = pa.timestamp("us", tz="Europe/Berlin")
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "tinyint": (pa.int8(), [-128, 127, 0]),
    "smallint": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1, 2**53 + 1]),
    "float": (pa.float32(), [0.1, -0.0, math.inf, -math.inf, math.nan, 3.4028235e38, 1e-45, 16777217.0]),
    "double": (pa.float64(), [0.1, -0.0, math.inf, -math.inf, math.nan, 1.7976931348623157e308, 5e-324, 2.0**53 + 2]),
    "decimal(10,2)": (pa.decimal128(10, 2), [Decimal("12345678.90"), Decimal("-0.01"), Decimal("0.00")]),
    "decimal(38,0)": (pa.decimal128(38, 0), [Decimal("9" * 38), Decimal("-1" + "0" * 37)]),
    "decimal(38,38)": (pa.decimal128(38, 38), [Decimal("0." + "9" * 38), Decimal("-1E-38")]),
    "string": (pa.string(), ["", "ä\u0000\n\"\\", "NaN", "null", "\U0001f600"]),
    "binary": (pa.binary(), [b"", b"\x00\xff", b"abc"]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31)]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)],
    ),
    "timestamp of a zone": (BERLIN, [datetime(1890, 1, 1, 0, 0, 1, 1, UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)]),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 1)]),  # noqa: DTZ001
    "void": (pa.null(), []),
    "array": (pa.list_(pa.int32()), [[], [1, None, 2]]),
    "struct": (pa.struct([("a", pa.int32()), ("b.c", pa.list_(pa.binary()))]), [{"a": None, "b.c": [b"\x01"]}]),
    "map": (pa.map_(pa.string(), pa.decimal128(3, 1)), [[], [("b", Decimal("1.5")), ("a", None)]]),
    "map of numbers": (pa.map_(pa.int64(), pa.string()), [[(-5, "x"), (2**62, None)]]),
    "nested": (
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.timestamp("us", tz="UTC"))))])),
        [[{"m": [("k", [datetime(2026, 1, 1, 0, 0, 0, 7, UTC)])]}, None]],
    ),
}  # fmt: skip


def letter(batch: pa.RecordBatch, number: int) -> str:
    """Return a row as a task writes it into a dead letter."""
    return json.dumps(json_row(batch, number), ensure_ascii=False, allow_nan=False)


@pytest.mark.parametrize("name", KINDS)
def test_each_type_comes_back_as_it_was(name: str) -> None:
    kind, values = KINDS[name]
    schema = pa.schema([("value", kind), ("with a.dot", pa.string())])
    made = pa.record_batch([pa.array([*values, None], kind), pa.array(["x"] * (len(values) + 1))], schema=schema)
    reader = RowReader("orders", schema)
    again = reader.batch([reader.values(letter(made, number)) for number in range(made.num_rows)])
    assert repr(again.to_pylist()) == repr(made.to_pylist())  # NaN is not equal to itself, and -0.0 is to 0.0
    again.validate(full=True)


SPARK: dict[str, tuple[Any, str, Any]] = {
    "decimal": (pa.decimal128(20, 3), "12345678901234567.890", Decimal("12345678901234567.890")),
    "small decimal": (pa.decimal128(10, 8), "1E-8", Decimal("1E-8")),
    "double": (pa.float64(), "1.0E10", 1e10),
    "NaN": (pa.float64(), '"NaN"', math.nan),
    "float": (pa.float32(), "3.4028235E38", 3.4028234663852886e38),
    "timestamp": (pa.timestamp("us", tz="UTC"), '"1890-01-01T00:00:01.000001Z"', datetime(1890, 1, 1, 0, 0, 1, 1, UTC)),
    "zone": (
        BERLIN,
        '"2026-07-01T02:00:00.000000+02:00"',
        datetime(2026, 7, 1, 2, tzinfo=timezone(timedelta(hours=2))),
    ),
    "timestamp_ntz": (pa.timestamp("us"), '"2026-07-01T02:00:00.000000"', datetime(2026, 7, 1, 2)),  # noqa: DTZ001
}


@pytest.mark.parametrize("name", SPARK)
def test_what_spark_writes(name: str) -> None:
    """By ``to_json``, with the options of dead letters; tests/spark compares them."""
    kind, text, value = SPARK[name]
    reader = RowReader("orders", pa.schema([("value", kind)]))
    (found,) = reader.batch([reader.values(f'{{"value":{text}}}')]).to_pylist()
    assert repr(found["value"]) == repr(pa.array([value], kind)[0].as_py())


@given(st.floats(width=32), st.floats(), st.integers(-(2**63), 2**63 - 1), st.text(), st.binary(), st.datetimes())
def test_any_value(narrow: float, wide: float, whole: int, text: str, data: bytes, at: datetime) -> None:
    kinds = [
        pa.float32(),
        pa.float64(),
        pa.int64(),
        pa.string(),
        pa.binary(),
        pa.timestamp("us", tz="Asia/Tokyo"),
    ]
    values = [narrow, wide, whole, text.encode("utf-8", "replace").decode(), data, at.replace(tzinfo=UTC)]
    schema = pa.schema([(str(number), kind) for number, kind in enumerate(kinds)])
    made = pa.record_batch([pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)], schema=schema)
    reader = RowReader("orders", schema)
    try:
        text = letter(made, 0)
        row = reader.values(text)
    except ValueError as error:
        assert "years 1 to 9999" in str(error)  # noqa: PT017 - of a time zone whose first or last day is another year's
        return
    again = reader.batch([row])
    assert repr(again.to_pylist()) == repr(made.to_pylist())


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (pa.bool_(), "true", ["1", '"true"']),
        (pa.int8(), "127", ["128", "-129", "1.0", '"1"', "true", "1e1"]),
        (pa.int64(), "1", ["9223372036854775808", "1" * 5000]),
        (pa.float64(), "1", ["1e400", '"1"', '"nan"', "true", "NaN", "[1]"]),
        (pa.float32(), "1.5", ["1e39"]),
        (pa.decimal128(5, 2), "123.45", ["1234.5", "0.001", '"x"', '"NaN"', '"Infinity"', "1e99999999", "true"]),
        (pa.string(), '"x"', ["1", r'"\ud800"']),
        (pa.binary(), '"AAA="', ['"AAA"', '"A_A="', "1", '"AA A="']),
        (pa.date32(), '"2026-01-31"', ['"2026-02-30"', '"12026-01-01"', '"20260131"', "7", '"2026-01-31T00:00:00"']),
        (
            pa.timestamp("us", tz="UTC"),
            '"2026-01-31T00:00:00Z"',
            ['"2026-01-31T00:00:00"', '"2026-01-31T00:00:00.0000001Z"', '"+12026-01-31T00:00:00Z"', "1"],
        ),
        (pa.timestamp("us"), '"2026-01-31T00:00:00"', ['"2026-01-31T00:00:00Z"', '"2026-01-31T25:00:00"']),
        (pa.list_(pa.int8()), "[1]", ["1", "[1000]", "{}"]),
        (pa.struct([("a", pa.int8())]), '{"a":1}', ["{}", '{"a":1,"b":2}', '{"a":1,"a":1}', "[1]"]),
        (pa.map_(pa.int8(), pa.int8()), '{"1":1}', ['{"x":1}', '{"1000":1}', '{"1":1,"1":2}', "[]", '{"１":1}']),
        (pa.null(), "null", ["1"]),
    ],
)  # fmt: skip
def test_what_is_not_a_value_of_the_type(kind: Any, right: str, wrong: list[str]) -> None:
    reader = RowReader("orders", pa.schema([("value", kind)]))
    assert reader.batch([reader.values(f'{{"value":{right}}}')]).num_rows == 1
    for text in wrong:
        with pytest.raises(ValueError):  # noqa: PT011 - json's own errors among them
            reader.values(f'{{"value":{text}}}')


def test_the_columns_must_be_the_topics() -> None:
    reader = RowReader("orders", pa.schema([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.int8())]))
    assert reader.values('{"b":null,"a":1}') == {"a": 1, "b": None}
    for text, why in (
        ('{"a":1}', "it lacks column b, which the topic has now"),
        ('{"a":1,"b":2,"c":3}', "it has column c, which the topic does not have now"),
        ('{"a":null,"b":2}', "column a: null"),
        ("[]", "not a JSON object"),
        ("1,2", "Extra data"),
        ("[" * 100_000, "nested too deeply"),
    ):
        with pytest.raises(ValueError, match=why):
            reader.values(text)


@pytest.mark.parametrize(
    "kind",
    [
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.time64("us"),
        pa.timestamp("ns"),
        pa.date64(),
        pa.map_(pa.date32(), pa.int8()),
        pa.map_(pa.float64(), pa.int8()),
        pa.list_(pa.duration("us")),
        pa.struct([("a", pa.int8()), ("a", pa.int8())]),
        pa.dictionary(pa.int8(), pa.string()),
    ],
)
def test_types_that_json_does_not_keep(kind: Any) -> None:
    RowReader("orders", pa.schema([("id", pa.int8())]))
    with pytest.raises(SchemaMismatch, match=r"topic 'orders', column 'v' of type .*: .*cannot be published again"):
        RowReader("orders", pa.schema([("id", pa.int8()), ("v", kind)]))


def test_a_type_that_json_does_not_keep() -> None:
    RowReader("orders", pa.schema([("id", pa.int8())]))
    with pytest.raises(SchemaMismatch) as refused:
        RowReader("orders", pa.schema([("took", pa.duration("us"))]))
    on_page(refused.value, "SchemaMismatch: topic '…', column '…' of type …")


@pytest.mark.parametrize("text", ["1_0", " 1 ", "1 ", "\u0661", "1e1", "+1", ".5", "NaN", "1E9999"])
def test_a_decimal_is_written_as_it_is_by_those_who_write_letters(text: str) -> None:
    """Python's own Decimal takes more."""
    reader = RowReader("orders", pa.schema([("value", pa.decimal128(10, 2))]))
    assert reader.values(json.dumps({"value": "1E+1"})) == {"value": Decimal(10)}
    with pytest.raises(ValueError, match="column value"):
        reader.values(json.dumps({"value": text}))


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.binary())])
def test_bytes_that_were_texts(kind: Any) -> None:
    """The text "abcd" of then would come back as three bytes."""
    now, then = (pa.schema([("id", pa.int64()), ("value", each)]) for each in (kind, pa.string()))
    RowReader("orders", now, lambda: [now, pa.schema([("id", pa.string())])])
    with pytest.raises(SchemaMismatch) as refused:
        RowReader("orders", now, lambda: [then, now])
    assert refused.value.fields["column"] == "value"
    assert "was of type string before" in str(refused.value)
