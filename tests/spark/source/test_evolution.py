"""The rules of ``schemaEvolution`` and ``mergeSchema`` as tables, and a property that holds rules and cast together.

No Java here: rules and cast are pure functions of Spark's types and Arrow's arrays.
"""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812

from jobpipe.arrow import arrow_evolution as arrows
from jobpipe.arrow.casting import cast_batch
from jobpipe.errors import SchemaMismatch, UnsupportedType
from jobpipe.spark.schema.spark_arrow_schema import arrow_schema, published_schema, spark_schema
from jobpipe.spark.schema.spark_evolution import differences, left_out, merge, misfits
from jobpipe.spark.source.schema_check import require_fit_in_task

BYTE, SHORT, INT, LONG = T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType()
FLOAT, DOUBLE, STRING, BINARY = T.FloatType(), T.DoubleType(), T.StringType(), T.BinaryType()
DATE, MOMENT, NTZ, YES, VOID = T.DateType(), T.TimestampType(), T.TimestampNTZType(), T.BooleanType(), T.NullType()
COLLATED = T.StringType("UTF8_LCASE")


def decimal(precision: int, scale: int) -> T.DecimalType:
    return T.DecimalType(precision, scale)


def struct(*fields: tuple[str, T.DataType] | tuple[str, T.DataType, bool]) -> T.StructType:
    """A struct of (name, type) and (name, type, nullable)."""
    return T.StructType([T.StructField(*field) for field in fields])


def one(kind: T.DataType, nullable: bool = True) -> T.StructType:
    """A schema with the column ``c``."""
    return struct(("c", kind, nullable))


# -- the rule ----------------------------------------------------------------------------------------------------------

WIDEN = [
    *[(BYTE, SHORT), (BYTE, INT), (BYTE, LONG), (SHORT, INT), (SHORT, LONG), (INT, LONG), (FLOAT, DOUBLE)],
    *[(BYTE, DOUBLE), (SHORT, DOUBLE), (INT, DOUBLE)],
    *[(BYTE, decimal(3, 0)), (SHORT, decimal(7, 2)), (INT, decimal(10, 0)), (LONG, decimal(19, 0))],
    *[(LONG, decimal(38, 19)), (decimal(5, 2), decimal(6, 2)), (decimal(5, 2), decimal(6, 3))],
    *[(decimal(5, 2), decimal(38, 35)), (COLLATED, STRING), (STRING, COLLATED)],
]
REFUSED = [
    *[(narrow, wide) for wide, narrow in WIDEN if not isinstance(wide, T.StringType)],
    *[(LONG, DOUBLE), (LONG, FLOAT), (BYTE, FLOAT), (INT, FLOAT), (DOUBLE, LONG), (DOUBLE, decimal(38, 10))],
    *[(FLOAT, INT), (BYTE, decimal(2, 0)), (SHORT, decimal(5, 1)), (INT, decimal(11, 2)), (LONG, decimal(18, 0))],
    *[(LONG, decimal(38, 20)), (decimal(5, 2), decimal(5, 3)), (decimal(5, 2), decimal(5, 1)), (decimal(5, 0), INT)],
    *[(decimal(5, 2), DOUBLE), (STRING, INT), (INT, STRING), (STRING, BINARY), (BINARY, STRING), (YES, INT)],
    *[(INT, YES), (DATE, MOMENT), (DATE, NTZ), (MOMENT, NTZ), (NTZ, MOMENT), (DATE, STRING), (DATE, INT)],
    *[(LONG, MOMENT), (MOMENT, LONG), (VOID, INT), (INT, VOID), (T.TimeType(0), T.TimeType(6))],
    *[(T.DayTimeIntervalType(0, 3), T.DayTimeIntervalType(0, 0)), (T.GeometryType(4326), T.GeometryType("ANY"))],
    *[(T.VariantType(), struct(("value", BINARY), ("metadata", BINARY))), (INT, struct(("a", INT)))],
    *[(T.ArrayType(INT), INT), (T.MapType(STRING, INT), struct(("key", STRING), ("value", INT)))],
]
WRAPPED = {
    "column": lambda kind: kind,
    "struct": lambda kind: struct(("before", STRING), ("inner", kind)),
    "array": T.ArrayType,
    "value": lambda kind: T.MapType(STRING, kind),
    "key": lambda kind: T.MapType(kind, STRING),
    "deep": lambda kind: T.ArrayType(T.MapType(STRING, struct(("inner", T.ArrayType(kind))))),
}
PATHS = {"column": "c", "struct": "c.inner", "array": "c[]", "value": "c.value", "key": "c.key"}
PATHS["deep"] = "c[].value.inner[]"


@pytest.mark.parametrize("where", WRAPPED)
@pytest.mark.parametrize(("published", "asked"), WIDEN, ids=str)
def test_what_widens(published: T.DataType, asked: T.DataType, where: str) -> None:
    """Case 60: under ``compatible``, wherever it stands; under ``strict`` it is a difference, named with both types."""
    wrap = WRAPPED[where]
    assert misfits(one(wrap(published)), one(wrap(asked))) == []
    told = f"{PATHS[where]}: published as {published.simpleString()}, asked for as {asked.simpleString()}"
    assert misfits(one(wrap(published)), one(wrap(asked)), "strict") == [told]


@pytest.mark.parametrize("where", WRAPPED)
@pytest.mark.parametrize(("published", "asked"), REFUSED, ids=str)
def test_what_does_not(published: T.DataType, asked: T.DataType, where: str) -> None:
    """Case 60: everything else is refused by type, whatever the values, and named with both types."""
    wrap = WRAPPED[where]
    told = f"{PATHS[where]}: published as {published.simpleString()}, asked for as {asked.simpleString()}"
    assert misfits(one(wrap(published)), one(wrap(asked))) == [told]


A, B = ("a", INT), ("b", STRING)
SHAPES = [
    # published, asked, compatible, strict
    (struct(A, B), struct(B, A), [], []),
    (struct(A, B), struct(A), [], ["b: published as string, not asked for"]),
    (struct(A), struct(A, B), [], ["b: asked for as string, not published"]),
    (struct(A), struct(A, ("b", STRING, False)), ["b: asked for as string not null, not published"], None),
    (struct(A), struct(("a", INT, False)), ["a: published as int, asked for as int not null"], None),
    (struct(("a", INT, False)), struct(A), [], []),
    (struct(A), struct(("a", STRING, False)), ["a: published as int, asked for as string not null"], None),
    (
        struct(("id", INT)),
        struct(("ID", INT)),
        ["ID: asked for as int, not published, but 'id' is: the case of letters counts"],
        ["id: published as int, not asked for", "ID: asked for as int, not published"],
    ),
    (struct(("id", INT), ("ID", INT)), struct(("ID", INT)), [], ["id: published as int, not asked for"]),
    (
        one(struct(A, B)),
        one(struct(B, ("n", LONG), ("a", LONG))),
        [],
        ["c.a: published as int, asked for as bigint", "c.n: asked for as bigint, not published"],
    ),
    (one(struct(A)), one(struct(A, ("n", INT, False))), ["c.n: asked for as int not null, not published"], None),
    (one(struct()), one(struct(A)), [], ["c.a: asked for as int, not published"]),
    (one(T.ArrayType(INT)), one(T.ArrayType(INT, False)), ["c[]: published as int, asked for as int not null"], None),
    (one(T.ArrayType(INT, False)), one(T.ArrayType(LONG)), [], ["c[]: published as int, asked for as bigint"]),
    (
        one(T.MapType(INT, INT)),
        one(T.MapType(INT, INT, False)),
        ["c.value: published as int, asked for as int not null"],
        None,
    ),
    (
        one(struct(A)),
        struct(("c", struct(("a", STRING)), False)),
        [
            "c.a: published as int, asked for as string",
            "c: published as struct<a:int>, asked for as struct<a:string> not null",
        ],
        None,
    ),
    (one(struct(A, A)), one(struct(A, A)), [], []),
    (
        one(struct(A, A)),
        one(struct(A)),
        ["c: published as struct<a:int,a:int>, asked for as struct<a:int>"],
        None,
    ),
    (struct(), struct(A), [], ["a: asked for as int, not published"]),
]


@pytest.mark.parametrize(("published", "asked", "compatible", "strict"), SHAPES)
def test_columns_and_nullability(
    published: T.StructType, asked: T.StructType, compatible: list[str], strict: list[str] | None
) -> None:
    """Case 60: columns that come and go, order, what may be null; None: strict says the same."""
    assert misfits(published, asked) == compatible
    assert misfits(published, asked, "strict") == (compatible if strict is None else strict)


def told_as_arrow(published: T.StructType, asked: T.StructType, mode: str) -> list[str]:
    """Return what the rule for flow jobs says of the same schemas, as Arrow has them."""
    return arrows.misfits(arrow_schema(published), arrow_schema(asked), mode)


IN_ARROW = [  # as types of their own: a variant is a struct there, and nothing can be the key of a map
    (published, asked, where)
    for published, asked in [*WIDEN, *REFUSED]
    for where in WRAPPED
    if not (isinstance(published, T.VariantType) or (where == "key" and VOID in (published, asked)))
]


@pytest.mark.parametrize("mode", ["compatible", "strict"])
@pytest.mark.parametrize(("published", "asked", "where"), IN_ARROW, ids=str)
def test_flow_jobs_have_the_same_rule(published: T.DataType, asked: T.DataType, where: str, mode: str) -> None:
    """What is not a type of its own to Arrow, as a collation, is the same there."""
    pair = one(WRAPPED[where](published)), one(WRAPPED[where](asked))
    if arrow_schema(pair[0]).equals(arrow_schema(pair[1])):
        assert told_as_arrow(*pair, mode) == []
    else:
        assert [_path(line) for line in told_as_arrow(*pair, mode)] == [_path(line) for line in misfits(*pair, mode)]


def _path(line: str) -> str:
    return line.partition(": ")[0]


@pytest.mark.parametrize("mode", ["compatible", "strict"])
@pytest.mark.parametrize(("published", "asked", "compatible", "strict"), SHAPES)
def test_flow_jobs_have_the_same_columns(
    published: T.StructType, asked: T.StructType, compatible: list[str], strict: list[str] | None, mode: str
) -> None:
    """Columns that come and go, order, what may be null; what is left out."""
    wanted = strict if mode == "strict" and strict is not None else compatible
    found = told_as_arrow(published, asked, mode)
    assert [_path(line) for line in found] == [_path(line) for line in wanted]
    assert arrows.left_out(arrow_schema(published), arrow_schema(asked)) == left_out(published, asked)


def test_numbers_that_spark_does_not_have_widen_too() -> None:
    """Unsigned ones, and those of 16 bits with a point."""
    kinds = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    kinds += [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(20, 0), pa.decimal128(10, 0)]
    largest = {pa.float16(): 2.0**11, pa.float32(): 2.0**24, pa.float64(): 2.0**53}
    for narrow in kinds:
        for wide in kinds:
            fits = not arrows.misfits(pa.schema([("c", narrow)]), pa.schema([("c", wide)]))
            if pa.types.is_integer(narrow) and pa.types.is_integer(wide):
                signed = str(narrow).startswith("int")
                values = [-(2 ** (narrow.bit_width - 1)), 2 ** (narrow.bit_width - 1) - 1]
                batch = pa.record_batch([pa.array(values if signed else [0, 2**narrow.bit_width - 1], narrow)], ["c"])
                try:
                    cast_batch(batch, pa.schema([("c", wide)]), "here")
                    holds = True
                except SchemaMismatch:
                    holds = False
                assert fits == holds, (narrow, wide)
            elif fits and pa.types.is_integer(narrow):
                assert pa.types.is_decimal(wide) or 2.0**narrow.bit_width <= largest[wide], (narrow, wide)
    assert not arrows.misfits(pa.schema([("c", pa.uint64())]), pa.schema([("c", pa.decimal128(20, 0))]))
    assert arrows.misfits(pa.schema([("c", pa.uint64())]), pa.schema([("c", pa.decimal128(19, 0))]))


INSIDE = [
    pa.field("a", pa.int32(), nullable=False),
    pa.field("s", pa.struct([pa.field("x", pa.int32(), nullable=False)]), nullable=False),
    pa.field("l", pa.list_(pa.field("item", pa.struct([pa.field("x", pa.int8(), nullable=False)]), nullable=False))),
    pa.field("g", pa.large_list(pa.field("item", pa.struct([pa.field("x", pa.int8(), nullable=False)])))),
    pa.field("f", pa.list_(pa.field("item", pa.int8(), nullable=False), 2)),
    pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))),
]


def test_all_may_be_null() -> None:
    """A learned schema takes rows without any of its columns, wherever they are; the published rows fit as they are."""
    schema = pa.schema(INSIDE)
    learned = arrows.as_nullable(schema)
    assert not arrows.misfits(schema, learned)
    assert not arrows.misfits(pa.schema([]), learned)
    values = {"a": 1, "s": {"x": 2}, "l": [{"x": 3}], "g": [{"x": 4}], "f": [5, 6], "m": [("k", 7)]}
    batch = pa.RecordBatch.from_pylist([values, values], schema=schema).slice(1)
    found = cast_batch(batch, learned, "here", evolve=True)
    found.validate(full=True)
    assert found.schema.equals(learned)
    assert found.to_pylist() == [values]
    other = pa.record_batch([pa.array([1])], ["other"])
    nothing = cast_batch(other, learned, "here", evolve=True)
    assert nothing.to_pylist() == [dict.fromkeys(values)]


# -- one schema of several topics --------------------------------------------------------------------------------------

MERGED = [
    *[(narrow, wide, wide) for narrow, wide in WIDEN if not isinstance(narrow, T.StringType)],
    (INT, FLOAT, DOUBLE),
    (decimal(5, 2), decimal(6, 1), decimal(7, 2)),
    (LONG, decimal(5, 2), decimal(21, 2)),
    (STRING, STRING, STRING),
]
APART = [(LONG, FLOAT), (LONG, DOUBLE), (STRING, INT), (decimal(38, 0), decimal(2, 1)), (DATE, MOMENT), (VOID, INT)]
APART += [(STRING, COLLATED), (DOUBLE, decimal(3, 1)), (INT, T.ArrayType(INT))]


@pytest.mark.parametrize("where", WRAPPED)
@pytest.mark.parametrize(("left", "right", "wanted"), MERGED, ids=str)
def test_common_types(left: T.DataType, right: T.DataType, wanted: T.DataType, where: str) -> None:
    """The narrowest type that holds both, in whatever order they come."""
    wrap = WRAPPED[where]
    for pair in ((left, right), (right, left)):
        assert merge(one(wrap(pair[0])), one(wrap(pair[1])), ("x", "y")) == (one(wrap(wanted)), [])


@pytest.mark.parametrize("where", WRAPPED)
@pytest.mark.parametrize(("left", "right"), APART, ids=str)
def test_no_common_type(left: T.DataType, right: T.DataType, where: str) -> None:
    """The column is named with both types and topics."""
    wrap = WRAPPED[where]
    for pair in ((left, right), (right, left)):
        _, lines = merge(one(wrap(pair[0])), one(wrap(pair[1])), ("x", "y"))
        assert lines == [f"{PATHS[where]}: {pair[0].simpleString()} in 'x', {pair[1].simpleString()} in 'y'"]


def test_merged_columns() -> None:
    """Those of the first, then new ones; what one does not have, or may have as null, may be null."""
    left = struct(("k", INT, False), ("s", struct(A, ("z", INT, False)), False), ("x", INT, False))
    right = struct(("n", STRING, False), ("s", struct(("y", INT, False), ("a", INT, False)), False), ("k", LONG, False))
    wanted = struct(
        ("k", LONG, False),
        ("s", struct(("a", INT), ("z", INT), ("y", INT)), False),
        ("x", INT),
        ("n", STRING),
    )
    assert merge(left, right, ("x", "y")) == (wanted, [])
    assert merge(struct(("id", INT)), struct(("ID", INT)), ("x", "y"))[1] == ["ID: 'id' in 'x', 'ID' in 'y'"]


def test_differences_of_topics() -> None:
    """Names and types count; order and nullability do not."""
    left = struct(A, ("b", STRING, False), ("l", INT), ("s", struct(A, B)))
    right = struct(("s", struct(("b", STRING, False), A)), ("b", STRING), ("a", LONG), ("r", INT))
    assert differences(left, right, ("x", "y")) == [
        "a: int in 'x', bigint in 'y'",
        "l: int in 'x', not in 'y'",
        "r: int in 'y', not in 'x'",
    ]


# -- the cast ----------------------------------------------------------------------------------------------------------


def cast(batch: pa.RecordBatch, asked: T.StructType, evolve: bool = True) -> pa.RecordBatch:
    """Cast, and look at every byte of the result."""
    target = arrow_schema(asked)
    result = cast_batch(batch, target, "here", evolve=evolve)
    result.validate(full=True)
    assert result.schema.equals(target)
    assert result.num_rows == batch.num_rows
    return result


def batch_of(schema: T.StructType, **columns: list[Any]) -> pa.RecordBatch:
    """A batch as it is published."""
    target = arrow_schema(schema)
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in target], schema=target)


INNER = struct(("a", INT, False), ("b", STRING))


def test_null_structs_slices_and_empty_structs() -> None:
    """Case 60: null structs of fields that may not be null; slices, which share with their whole; empty structs."""
    published = struct(("s", INNER), ("l", T.ArrayType(INNER)), ("m", T.MapType(STRING, INNER)), ("e", struct()))
    wide = struct(("n", INNER), ("a", LONG, False))  # n is new, and holds what may not be null
    asked = struct(
        ("e", struct(("x", INT))), ("m", T.MapType(STRING, wide)), ("l", T.ArrayType(wide)), ("s", wide), ("x", INNER)
    )
    values = [{"a": 1, "b": "x"}, None, {"a": 3, "b": None}, {"a": 4, "b": "y"}]
    whole = batch_of(
        published,
        s=values,
        l=[values[:2], None, [], values[1:]],
        m=[[("k", values[0])], [("k", None), ("l", values[2])], None, []],
        e=[{}, None, {}, None],
    )

    def widened(value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else {"n": None, "a": value["a"]}

    wanted = {
        "e": [{"x": None}, None, {"x": None}, None],
        "m": [
            [("k", widened(values[0]))],
            [("k", None), ("l", widened(values[2]))],
            None,
            [],
        ],
        "l": [[widened(value) for value in values[:2]], None, [], [widened(value) for value in values[1:]]],
        "s": [widened(value) for value in values],
        "x": [None] * 4,
    }
    for start in range(4):
        for length in range(5 - start):
            found = cast(whole.slice(start, length), asked)
            assert found.to_pydict() == {name: rows[start : start + length] for name, rows in wanted.items()}
    emptied = cast(whole.slice(1, 3), struct(("s", struct())))
    assert emptied.to_pydict() == {"s": [None, {}, {}]}
    assert cast(whole, struct()).num_rows == 4


def test_forms_of_arrow_that_spark_does_not_write() -> None:
    """A publisher without Spark: large and fixed-size types, other units and zones; what would be lost is refused."""
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
    kinds: dict[str, tuple[pa.DataType, Any]] = {
        "s": (pa.large_string(), "x"),
        "b": (pa.large_binary(), b"x"),
        "f": (pa.binary(2), b"xy"),
        "l": (pa.large_list(pa.struct([pa.field("a", pa.int32(), nullable=False)])), [{"a": 1}, None]),
        "k": (pa.list_(pa.int32(), 2), [1, None]),
        "t": (pa.timestamp("ns", "America/Los_Angeles"), moment),
        "u": (pa.timestamp("us", "+02:00"), moment),
        "n": (pa.timestamp("ns"), moment.replace(tzinfo=None)),
        "i": (pa.duration("ms"), datetime.timedelta(milliseconds=5)),
    }
    schema = pa.schema([(name, kind) for name, (kind, _) in kinds.items()])
    batch = pa.record_batch([pa.array([value, None], kind) for kind, value in kinds.values()], schema=schema)
    asked = spark_schema("t", schema)
    require_fit_in_task(schema, arrow_schema(asked), "strict", "t", "here")
    assert cast(batch, asked).to_pylist() == [
        {name: value for name, (_, value) in kinds.items()},
        dict.fromkeys(kinds),
    ]
    lossy = pa.record_batch([pa.array([1001], pa.timestamp("ns"))], names=["n"])
    with pytest.raises(SchemaMismatch, match=r"'n' is timestamp.*does not fit"):
        cast(lossy, struct(("n", NTZ)))


def test_types_that_spark_does_not_have() -> None:
    """Named with topic and column, not in Spark's words."""
    schema = pa.schema([("a", pa.uint64()), ("b", pa.int32()), ("c", pa.list_(pa.float16()))])
    with pytest.raises(UnsupportedType, match=r"topic 't'.*a \(uint64\), c \(list") as caught:
        published_schema("t", schema.serialize().to_pybytes(), None)
    assert list(caught.value.fields["columns"]) == ["a", "c"]


def test_a_task_refuses_by_type() -> None:
    """Values that happen to fit make no difference, and neither do no values at all."""
    found = arrow_schema(struct(("a", LONG), ("s", STRING), B))
    with pytest.raises(SchemaMismatch) as caught:
        require_fit_in_task(found, arrow_schema(struct(A, ("s", INT))), "compatible", "t", "topic 't', partition 1")
    lines = ["a: published as bigint, asked for as int", "s: published as string, asked for as int"]
    assert caught.value.fields == {"topic": "t", "columns": lines}
    with pytest.raises(SchemaMismatch, match="b: published as string, not asked for"):
        require_fit_in_task(found, arrow_schema(struct(("a", LONG), ("s", STRING))), "strict", "t", "here")
    require_fit_in_task(arrow_schema(one(COLLATED)), arrow_schema(one(STRING)), "strict", "t", "here")  # Arrow has none


def test_a_publisher_fills_and_drops_nothing() -> None:
    """What a declared schema has, rows must have, inside structs too."""
    declared = one(struct(A, B))
    with pytest.raises(SchemaMismatch, match=r"'c'.*fields a, and not a, b"):
        cast(batch_of(one(struct(A)), c=[{"a": 1}]), declared, evolve=False)
    with pytest.raises(SchemaMismatch, match="'c' is missing"):
        cast(batch_of(struct(A), a=[1]), declared, evolve=False)
    with pytest.raises(SchemaMismatch, match="'a' has 1 nulls"):
        cast(batch_of(struct(A), a=[None]), struct(("a", INT, False)))


# -- rules and cast are one --------------------------------------------------------------------------------------------

NUMBERS = [BYTE, SHORT, INT, LONG, FLOAT, DOUBLE]
LEAVES = st.one_of(
    st.sampled_from([*NUMBERS, *NUMBERS, STRING, BINARY, YES, DATE, MOMENT, NTZ]),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: decimal(p, s))),
)
NAMES = st.sampled_from("abcd")


def fields_of(kinds: st.SearchStrategy[T.DataType], least: int = 0) -> st.SearchStrategy[T.StructType]:
    field = st.tuples(NAMES, kinds, st.booleans())
    fields = st.lists(field, min_size=least, max_size=4, unique_by=lambda field: field[0])
    return fields.map(lambda fields: struct(*fields))


KINDS = st.recursive(
    LEAVES,
    lambda kinds: st.one_of(
        fields_of(kinds),
        st.tuples(kinds, st.booleans()).map(lambda given: T.ArrayType(*given)),
        st.tuples(st.sampled_from([*NUMBERS[:4], STRING]), kinds, st.booleans()).map(lambda given: T.MapType(*given)),
    ),
    max_leaves=6,
)
SCHEMAS = fields_of(KINDS, least=1)


def decimals_near(kind: T.DataType) -> list[T.DataType]:
    """Decimals with about as many digits before and behind the point as a type needs, and one more or less."""
    whole, scale = {BYTE: 3, SHORT: 5, INT: 10, LONG: 19}.get(kind, 0), 0
    if isinstance(kind, T.DecimalType):
        whole, scale = kind.precision - kind.scale, kind.scale
    shapes = [(whole + w, scale + s) for w in (-1, 0, 1) for s in (-1, 0, 1)] if whole + scale else []
    return [decimal(w + s, s) for w, s in shapes if w >= 0 <= s and 0 < w + s <= 38]


@st.composite
def evolved(draw: st.DrawFn, kind: T.DataType) -> T.DataType:
    """A type that the given one has become: mostly one that fits."""
    if isinstance(kind, T.StructType):
        kept = [
            T.StructField(field.name, draw(evolved(field.dataType)), field.nullable or draw(st.booleans()))
            for field in kind.fields
            if draw(st.integers(0, 5))
        ]
        names = {field.name for field in kind.fields}
        new = [T.StructField(name, draw(LEAVES), True) for name in draw(st.sets(NAMES, max_size=1)) - names]
        return T.StructType(draw(st.permutations([*kept, *new])))
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(draw(evolved(kind.elementType)), kind.containsNull or draw(st.booleans()))
    if isinstance(kind, T.MapType):
        key, value = draw(evolved(kind.keyType)), draw(evolved(kind.valueType))
        return T.MapType(key, value, kind.valueContainsNull or draw(st.booleans()))
    wider = [wide for wide in (*NUMBERS, *decimals_near(kind)) if not misfits(one(kind), one(wide))]
    return draw(st.sampled_from([kind, *wider]))


@st.composite
def value_of(draw: st.DrawFn, kind: T.DataType, nullable: bool) -> Any:
    """A value, extremes among them."""
    if nullable and not draw(st.integers(0, 4)):
        return None
    match kind:
        case T.StructType():
            return {field.name: draw(value_of(field.dataType, field.nullable)) for field in kind.fields}
        case T.ArrayType():
            return draw(st.lists(value_of(kind.elementType, kind.containsNull), max_size=3))
        case T.MapType():
            values = value_of(kind.valueType, kind.valueContainsNull)
            return list(draw(st.dictionaries(value_of(kind.keyType, False), values, max_size=2)).items())
        case T.DecimalType():
            bound = 10**kind.precision - 1
            unscaled = draw(st.integers(-bound, bound))
            return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -kind.scale))
        case T.FloatType() | T.DoubleType():
            return draw(st.floats(width=32 if isinstance(kind, T.FloatType) else 64))
        case T.StringType():
            return draw(st.text(max_size=3))
        case T.BinaryType():
            return draw(st.binary(max_size=3))
        case T.BooleanType():
            return draw(st.booleans())
        case T.DateType():
            return draw(st.dates())
        case T.TimestampNTZType():
            return draw(st.datetimes())
        case T.TimestampType():
            return draw(st.datetimes(timezones=st.just(datetime.UTC)))
    bits = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}[kind.simpleString()]
    return draw(st.one_of(st.sampled_from([-(2**bits), 2**bits - 1]), st.integers(-(2**bits), 2**bits - 1)))


def read_as(value: Any, published: T.DataType, asked: T.DataType) -> Any:
    """What a reader must get: the model."""
    if value is None:
        return None
    match published, asked:
        case T.StructType(), T.StructType():
            kinds = {field.name: field.dataType for field in published.fields}
            return {
                field.name: read_as(value[field.name], kinds[field.name], field.dataType)
                if field.name in kinds
                else None
                for field in asked.fields
            }
        case T.ArrayType(), T.ArrayType():
            return [read_as(item, published.elementType, asked.elementType) for item in value]
        case T.MapType(), T.MapType():
            return [
                (read_as(key, published.keyType, asked.keyType), read_as(item, published.valueType, asked.valueType))
                for key, item in value
            ]
    return value


def same(found: Any, wanted: Any) -> bool:
    """Equal, number by number and exactly: Python compares whole, decimal and floating numbers without rounding."""
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict) and found.keys() == wanted.keys() and all(same(found[k], wanted[k]) for k in wanted)
        )
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, float):
        if math.isnan(wanted):
            return isinstance(found, float) and math.isnan(found)
        return bool(found == wanted) and math.copysign(1, found) == math.copysign(1, wanted)
    return bool(found == wanted) and (found is None) == (wanted is None)


def rows_of(schema: T.StructType) -> st.SearchStrategy[list[Any]]:
    return st.lists(value_of(schema, False), max_size=5)


@st.composite
def cases(draw: st.DrawFn) -> tuple[T.StructType, T.StructType, list[Any]]:
    published = draw(SCHEMAS)
    asked = draw(st.one_of(evolved(published), evolved(published), SCHEMAS))
    assert isinstance(asked, T.StructType)
    return published, asked, draw(rows_of(published))


@pytest.mark.slow
@given(cases(), st.integers(0, 5), st.integers(0, 5))
def test_what_fits_is_cast_without_loss(
    case: tuple[T.StructType, T.StructType, list[Any]], start: int, length: int
) -> None:
    """Case 60: a schema that the rule lets pass gives every value exactly, in exactly the asked form, slices too.

    So a cast that loses something was refused by the rule. What fits in the driver fits in the task.
    """
    published, asked, rows = case
    fits = not misfits(published, asked)
    event(f"fits: {fits}")
    assert fits or misfits(published, asked, "strict")  # strict lets nothing pass that compatible does not
    assume(fits)
    schema = arrow_schema(published)
    whole = pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct(list(schema))))
    batch = whole.slice(start, length)
    require_fit_in_task(batch.schema, arrow_schema(asked), "compatible", "t", "here")
    found = cast(batch, asked).to_pylist()
    wanted = [read_as(row, published, asked) for row in rows[start : start + length]]
    assert same(found, wanted), (found, wanted)


@pytest.mark.slow
@given(SCHEMAS, SCHEMAS, SCHEMAS)
def test_merging(first: T.StructType, second: T.StructType, third: T.StructType) -> None:
    """What has a common schema fits it; order makes no difference but to the columns' order; nothing is its own."""
    assert merge(first, first, ("x", "x")) == (first, [])
    both, lines = merge(first, second, ("x", "y"))
    event(f"common: {not lines}")
    back, lines_back = merge(second, first, ("y", "x"))
    assert bool(lines) == bool(lines_back)
    if lines:
        return
    assert not misfits(first, both)
    assert not misfits(second, both)
    assert not misfits(both, back, "strict")
    assert not misfits(back, both, "strict")
    conflict = bool(merge(both, third, ("x", "z"))[1])
    pairs = [merge(one_of_them, third, ("x", "z"))[1] for one_of_them in (first, second)]
    assert conflict == any(pairs)  # so two topics can always be named
