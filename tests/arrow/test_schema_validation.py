"""What may be published: schemas and values that every subscriber can read, judged before anything is sealed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from jobpipe import flow, flow_test
from jobpipe.arrow import schema_validation as module
from jobpipe.arrow.schema_validation import (
    MAX_DEPTH,
    check_size,
    readable,
    readable_pieces,
    readable_schema,
    require_columns,
)
from jobpipe.errors import FlowFailed, RowTooLarge, SchemaMismatch, UnsupportedType


def published(table: pa.Table) -> pa.Table:
    return readable("t", table, readable_schema("t", table.schema))


def of(kind: Any, *values: Any) -> pa.Table:
    return pa.table({"id": range(len(values)), "c": pa.array(values, kind)})


def nested(kind: Any, depth: int, wrap: Any = pa.list_) -> Any:
    for _ in range(depth):
        kind = wrap(kind)
    return kind


# What Spark has no type for, or does not read, and what is published in its place.
CONVERTED = [
    (pa.uint8(), pa.int16(), 255, 255),
    (pa.uint16(), pa.int32(), 65535, 65535),
    (pa.uint32(), pa.int64(), 2**32 - 1, 2**32 - 1),
    (pa.uint64(), pa.decimal128(20, 0), 2**64 - 1, Decimal(2**64 - 1)),
    (pa.float16(), pa.float32(), 1.5, 1.5),
    (pa.timestamp("ns"), pa.timestamp("us"), 1000, 1),
    (pa.timestamp("s", "Europe/Berlin"), pa.timestamp("us", "Europe/Berlin"), 2, 2_000_000),
    (pa.duration("ns"), pa.duration("us"), 3000, 3),
    (pa.time32("s"), pa.time64("us"), 4, 4_000_000),
    (pa.time64("ns"), pa.time64("us"), 5000, 5),
    (pa.date64(), pa.date32(), 86_400_000, 1),
    (pa.decimal32(5, 2), pa.decimal128(5, 2), Decimal("1.25"), Decimal("1.25")),
    (pa.decimal256(38, 2), pa.decimal128(38, 2), Decimal("1.25"), Decimal("1.25")),
    (pa.decimal128(5, -2), pa.decimal128(7, 0), Decimal("1.2e3"), Decimal(1200)),
    (pa.string_view(), pa.large_string(), "x", "x"),
    (pa.binary_view(), pa.large_binary(), b"x", b"x"),
    (pa.list_(pa.uint8()), pa.list_(pa.int16()), [1, None], [1, None]),
    (pa.list_(pa.float16(), 1), pa.list_(pa.float32(), 1), [1.5], [1.5]),
    (pa.map_(pa.uint8(), pa.uint8()), pa.map_(pa.int16(), pa.int16()), [(1, 2)], [(1, 2)]),
    (pa.struct([("x", pa.uint8())]), pa.struct([("x", pa.int16())]), {"x": 1}, {"x": 1}),
]


@pytest.mark.parametrize(("kind", "instead", "value", "found"), CONVERTED, ids=lambda given: str(given))
def test_a_type_that_another_one_holds(kind: Any, instead: Any, value: Any, found: Any) -> None:
    """P5: no value is lost, nulls included."""
    made = published(of(kind, value, None))["c"]
    assert made.type == instead
    plain = made.cast(pa.int64()) if pa.types.is_temporal(instead) and not pa.types.is_date32(instead) else made
    assert (plain.cast(pa.int32()) if pa.types.is_date32(instead) else plain).to_pylist() == [found, None]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.timestamp("ns"), [1000, None, 1001]),
        (pa.timestamp("s"), [0, 0, 2**60]),
        (pa.duration("ns"), [1000, 2000, 1]),
        (pa.time64("ns"), [1000, 2000, 1]),
        (pa.struct([("deep", pa.list_(pa.timestamp("ns")))]), [None, {"deep": [1000]}, {"deep": [1000, 1]}]),
    ],
)
def test_a_value_that_would_be_lost(kind: Any, values: list[Any]) -> None:
    """P5: refused, with topic, column and row."""
    with pytest.raises(SchemaMismatch, match=r"topic 't', row 2: column 'c' cannot be published, as ") as caught:
        published(of(kind, *values))
    assert caught.value.fields == {"topic": "t", "column": "c", "row": 2}


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (pa.decimal256(50, 2), "c (decimal256"),
        (pa.decimal128(38, -1), "c (decimal128"),
        (pa.month_day_nano_interval(), "c (month_day_nano"),
        (pa.dense_union([pa.field("a", pa.int8())]), "c (dense_union"),
        (pa.run_end_encoded(pa.int32(), pa.int8()), "c (run_end_encoded"),
        (pa.list_view(pa.int8()), "c (list_view"),
        (pa.timestamp("us", "No/where"), "an unknown time zone"),
        (pa.map_(pa.map_(pa.int8(), pa.int8()), pa.int8()), "c.key (a map in the key of a map"),
        (pa.struct([("a.b", pa.list_(pa.decimal256(39, 0)))]), "c.a.b[] (decimal256"),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), "'c' is dictionary-encoded"),
    ],
    ids=str,
)
def test_a_type_that_no_other_one_holds(kind: Any, path: str) -> None:
    """P5: refused by type, with topic and column."""
    with pytest.raises(UnsupportedType, match="topic 't': ") as caught:
        readable_schema("t", pa.schema([("id", pa.int8()), ("c", kind)]))
    assert path in str(caught.value)


MARKS = "SPARK::metadata::json"


def test_metadata_that_are_no_json_object() -> None:
    """P5: Spark fails of it in the driver of each reader."""
    for text in ("{no", "[]", "[" * 100_000):
        with pytest.raises(UnsupportedType, match=r"topic 't'.* c"):
            readable_schema("t", pa.schema([pa.field("c", pa.int8(), metadata={MARKS: text})]))


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ('{"comment": "of a", "n": 7, "x": 0.5, "yes": true}', '{"comment": "of a", "n": 7, "x": 0.5, "yes": true}'),
        ('{"a": [1, "x", null], "b": {"c": 1}, "comment": "k"}', '{"comment": "k"}'),
        ('{"a": NaN, "b": 1e999, "c": 123456789012345678901234567890, "d": null}', None),
        ('{"__CHAR_VARCHAR_TYPE_STRING": "nonsense(", "__COLLATIONS": {"a": "icu.NOPE"}}', None),
        ('{"CURRENT_DEFAULT": "sel ect", "EXISTS_DEFAULT": "((", "spark.watermarkDelayMs": "abc"}', None),
        ("{}", None),
    ],
)
def test_what_spark_makes_of_metadata_goes(told: str, kept: str | None) -> None:
    """P5: what its Metadata do not take, or what it acts on; plain values stay."""
    found = readable_schema("t", pa.schema([pa.field("c", pa.int8(), metadata={MARKS: told, "x": "y"})]))
    assert found.field("c").metadata == {
        b"x": b"y",
        **({} if kept is None else {MARKS.encode(): kept.encode()}),
    }


def test_metadata_that_are_no_text_go() -> None:
    """P5: a plain subscriber takes them, Spark's tasks do not."""
    found = readable_schema("t", pa.schema([pa.field("c", pa.int8(), metadata={b"\xff": b"a", b"b": b"\xfe"})]))
    assert found.field("c").metadata is None


def test_marks_of_spark_types() -> None:
    """P5: a variant is one only with two binary parts that are never null; a geometry's bytes nobody has checked."""
    parts = [pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False, {"variant": "true"})]
    variant = readable_schema("t", pa.schema([("v", pa.struct(parts))])).field("v").type
    assert variant.field("metadata").metadata == {b"variant": b"true"}
    for wrong in (
        [parts[0].with_nullable(True), parts[1]],
        [parts[0], parts[1].with_type(pa.string())],
        [*parts, pa.field("more", pa.int8())],
        [pa.field("srid", pa.int32()), pa.field("wkb", pa.binary(), True, {"geometry": "true", "srid": "4326"})],
    ):
        found = readable_schema("t", pa.schema([("v", pa.list_(pa.struct(wrong)))])).field("v").type.value_type
        assert [found.field(number).metadata for number in range(found.num_fields)] == [None] * found.num_fields


def test_rows_below_null_do_not_count() -> None:
    """P5: of a struct that is null, whatever its fields hold."""
    times = pa.array([2**62 + 1, 5], pa.timestamp("s"))
    column = pa.StructArray.from_arrays([times], ["t"], mask=pa.array([True, False]))
    table = pa.table({"c": column})
    found = readable("t", table, readable_schema("t", table.schema))
    assert found["c"].combine_chunks().field("t").to_pylist()[1].second == 5
    assert found["c"].is_null().to_pylist() == [True, False]


def test_dictionaries_of_nested_values() -> None:
    """P5: decoded as flat ones are."""
    values = pa.array([{"a": 1}, {"a": 2}])
    table = pa.table({"c": pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), values)})
    assert readable("t", table, readable_schema("t", table.schema))["c"].to_pylist() == [{"a": 2}, {"a": 1}, None]


def test_rows_without_columns() -> None:
    """P5: Arrow's tables do not count them, so they would vanish."""
    with pytest.raises(UnsupportedType, match="topic 't': the rows have no columns"):
        require_columns("t", pa.schema([]))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (pa.schema([("c", pa.int8()), ("d", pa.int8()), ("c", pa.int8())]), "two columns have the name c"),
        (pa.schema([("s", pa.struct([("x", pa.int8())] * 2))]), "column 's': two fields have the name x"),
        (
            pa.schema([("s", pa.map_(pa.int8(), pa.list_(pa.struct([("x", pa.int8())] * 2))))]),
            "two fields have the name x",
        ),
        (pa.schema([("a\0b", pa.int8())]), r"the name 'a\\x00b' contains a NUL character"),
        (pa.schema([("s", pa.struct([("\0", pa.int8())]))]), "contains a NUL character"),
    ],
    ids=["columns", "fields", "deep fields", "NUL", "NUL in a field"],
)
def test_names_that_no_reader_can_tell_apart(names: pa.Schema, said: str) -> None:
    """P6: refused in structs too. Names that differ by case can be told apart, and are."""
    with pytest.raises(UnsupportedType, match=f"topic 't': .*{said}"):
        readable_schema("t", names)
    other = pa.schema([("c", pa.int8()), ("C", pa.int8()), ("s", pa.struct([("x", pa.int8()), ("X", pa.int8())]))])
    assert readable_schema("t", other) == other


REQUIRED = pa.field("x", pa.int64(), nullable=False)
TWO = pa.array([1, None])


@pytest.mark.parametrize(
    "column",
    [
        pa.StructArray.from_arrays([TWO], fields=[REQUIRED]),
        pa.ListArray.from_arrays([0, 1, 2], TWO, type=pa.list_(REQUIRED)),
        pa.MapArray.from_arrays([0, 1, 2], ["k", "l"], TWO, type=pa.map_(pa.string(), REQUIRED)),
        pa.FixedSizeListArray.from_arrays(TWO, type=pa.list_(REQUIRED, 1)),
        pa.StringArray.from_buffers(2, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff")),
    ],
    ids=["struct", "list", "map", "fixed size list", "no UTF-8"],
)
def test_values_that_arrow_forbids(column: Any) -> None:
    """P5: readers would fail of them, or take what is null for a value. A slice is judged without its neighbours."""
    with pytest.raises(SchemaMismatch, match="topic 't', row 1: column 'c' is "):
        published(pa.table({"c": column}))
    assert published(pa.table({"c": column}).slice(0, 1)).num_rows == 1
    with pytest.raises(SchemaMismatch, match=r"row 1: column 'x' is wrong.*'x' is null"):
        published(pa.Table.from_arrays([TWO], schema=pa.schema([REQUIRED])))


def test_a_slice_of_lists_is_judged_by_its_own_rows() -> None:
    """Arrow's cast of a slice looks at the values of all."""
    table = of(pa.list_(pa.timestamp("ns")), [1], [1000], [2000])
    found = published(table.slice(1))["c"]
    assert found.equals(pa.chunked_array([pa.array([[1], [2]], pa.list_(pa.timestamp("us")))]))
    with pytest.raises(SchemaMismatch, match="row 0: column 'c'"):
        published(table)


def test_what_lies_below_a_null_does_not_count() -> None:
    """As after an outer join: a null struct whose fields may not be null."""
    column = pa.StructArray.from_arrays([pa.array([1, None])], fields=[REQUIRED], mask=pa.array([False, True]))
    assert published(pa.table({"c": column}))["c"].to_pylist() == [{"x": 1}, None]


def test_depth() -> None:
    """P9: a type that is nested more deeply than pyarrow reads is refused, with both numbers."""
    for wrap in (pa.list_, lambda kind: pa.struct([("f", kind)])):
        deepest = nested(pa.int8(), MAX_DEPTH - 1, wrap)
        schema = readable_schema("t", pa.schema([("c", deepest)]))
        with pa.ipc.open_stream(pa.py_buffer(schema.serialize())) as stream:
            assert stream.schema == schema
        with pytest.raises(UnsupportedType, match=f"column 'c' is nested {MAX_DEPTH + 1} deep or more") as caught:
            readable_schema("t", pa.schema([("c", nested(deepest, 300, wrap))]))
        assert caught.value.fields["limit"] == MAX_DEPTH


def test_the_size_of_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: the limit that was met is told by its name, with what takes the room."""
    large = pa.field("large", pa.int8(), metadata={"comment": "x" * 5000})
    monkeypatch.setattr(module, "MAX_SCHEMA_BYTES", 4096)
    with pytest.raises(
        UnsupportedType, match=r"may take 4096 \(schema bytes\).*Most of it is in 'large' \(5"
    ) as caught:
        readable_schema("t", pa.schema([("id", pa.int8()), large]))
    assert caught.value.fields["limit"] == 4096
    with pytest.raises(UnsupportedType, match="schema bytes"):
        check_size("t", pa.schema([("id", pa.int8())]), '{"spark": "%s"}' % ("ä" * 2100))


def test_a_row_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: refused with its number among all rows, the column that has most of it, and the limit."""
    monkeypatch.setattr(module, "ROW_MAX", 100)
    small = pa.record_batch({"id": [1, 2], "b": ["x", "y"]})
    batch = pa.record_batch({"id": [1, 2, 3], "b": ["x", "y" * 99, "z"]})
    with pytest.raises(
        RowTooLarge, match=r"topic 't', row 3: it has 1\d\d bytes, 1\d\d of them in column 'b'"
    ) as caught:
        list(readable_pieces("t", [(small, 0), (batch, 1)]))
    assert (caught.value.fields["limit"], caught.value.fields["row"]) == (100, 3)
    numbers = pa.array([2, 0, 1], pa.int32())
    monkeypatch.setattr(module, "ROW_MAX", 120)
    found = list(readable_pieces("t", [(batch, numbers)]))
    assert pa.Table.from_batches([piece for piece, _ in found]).equals(pa.Table.from_batches([batch]))
    assert [number for _, part in found for number in part.to_pylist()] == [2, 0, 1]  # type: ignore[union-attr]


def test_what_a_flow_returns() -> None:
    """P5, P6: a flow publishes by the same table; its schema is judged at once, its rows where they are returned."""
    nanoseconds = pa.schema([("at", pa.timestamp("ns")), ("n", pa.uint8())])
    batch = pa.record_batch({"at": pa.array([1000, 2001], pa.timestamp("ns")), "n": pa.array([1, 2], pa.uint8())})
    (found,) = flow_test(lambda given, _: given.slice(0, 1), [batch], schema=nanoseconds)
    assert found.schema.types == [pa.timestamp("us"), pa.int16()]
    with pytest.raises(FlowFailed, match="what it returned, row 1: column 'at' cannot be published"):
        flow_test(lambda given, _: given, [batch], schema=nanoseconds)
    doubled = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    with pytest.raises(FlowFailed, match=r"columns \['n'\] are not in the flow's schema"):
        flow_test(lambda given, _: doubled, [batch], schema=pa.schema([("n", pa.int64())]))
    for wrong in (pa.schema([("n", pa.int8()), ("n", pa.int8())]), pa.schema([("n", pa.decimal256(50, 0))])):
        with pytest.raises(UnsupportedType, match=r"topic 'target': .* n"):
            flow(function=lambda given, _: given, subscribe="source", name="f", publish="target", schema=wrong)
