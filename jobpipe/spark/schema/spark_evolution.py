"""The rules of ``schemaEvolution`` and ``mergeSchema``: which published rows fit what is read, and what topics share.

Pure functions of Spark's types; they decide by type, never by the values that happen to come. What they let pass,
:mod:`jobpipe.arrow.casting` casts without loss; the two are one rule in two places, and a property test holds them
together (tests/spark/source/test_evolution.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

# Decimal digits of the largest value; in the order in which they widen.
INTEGERS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
EXACT_IN_DOUBLE = (ByteType, ShortType, IntegerType, FloatType)  # 53 bits of mantissa; a long has 63
DECIMAL_DIGITS = 38
SHOWN = 200  # characters of a type in an error


@dataclass(frozen=True)
class _Words:
    """How a line tells of the two sides."""

    one: str
    other: str
    not_in_one: str
    not_in_other: str

    def both(self, path: str, one: str, other: str) -> str:
        return f"{path}: {self.one.format(one)}, {self.other.format(other)}"


_READ = _Words("published as {}", "asked for as {}", "not published", "not asked for")


def misfits(published: StructType, asked: StructType, evolution: str = "compatible") -> list[str]:
    """Return a line for each column of which published rows do not fit what is asked for; none if they fit.

    ``compatible``: columns that were not asked for are dropped, nullable ones that are not published are null, numbers
    widen without loss, strings of any collation are strings; inside structs (by field name), arrays and maps too.
    ``strict``: names and types are the same. In both, rows that may be null fit no column that may not; the other way
    round they do. The order of columns and fields never counts, upper and lower case do.
    """
    return list(_struct("", published, asked, evolution == "strict", _READ))


def left_out(published: StructType, asked: StructType) -> list[str]:
    """Return the columns, and the fields of structs by their path, that are published and were not asked for."""
    lines = _struct("", published, asked, True, _READ)
    return [line.partition(": ")[0] for line in lines if line.endswith(_READ.not_in_other)]


def differences(one: StructType, other: StructType, names: tuple[str, str]) -> list[str]:
    """Return a line for each column whose name or type two topics do not share; nullability and order do not count."""
    words = _Words(f"{{}} in {names[0]!r}", f"{{}} in {names[1]!r}", f"not in {names[0]!r}", f"not in {names[1]!r}")
    return list(_struct("", one._as_nullable(), other._as_nullable(), True, words))


def merge(one: StructType, other: StructType, names: tuple[str, str]) -> tuple[StructType, list[str]]:
    """Return the schema that the rows of both fit, and a line for each column that keeps them from having one.

    Columns, and fields of structs, come in the order of ``one``, then what only ``other`` has. What one of them does
    not have, or what may be null in one of them, may be null. Numbers have the narrowest type that holds both.
    """
    lines: list[str] = []
    words = _Words(f"{{}} in {names[0]!r}", f"{{}} in {names[1]!r}", "", "")
    return _merge_structs("", one, other, words, lines), lines


# -- does it fit -------------------------------------------------------------------------------------------------------


def _struct(path: str, published: StructType, asked: StructType, strict: bool, words: _Words) -> Iterator[str]:
    if _doubled(published) or _doubled(asked):  # only inside structs; there is no telling them apart but by place
        if published != asked:
            yield words.both(path or "columns", _text(published), _text(asked))
        return
    wanted = {field.name: field for field in asked.fields}
    for field in published.fields:
        at = _join(path, field.name)
        if field.name in wanted:
            asks = wanted[field.name]
            yield from _part(at, (field.dataType, field.nullable), (asks.dataType, asks.nullable), strict, words)
        elif strict:
            yield f"{at}: {words.one.format(_text(field.dataType))}, {words.not_in_other}"
    cases = {name.lower(): name for name in published.names if name not in wanted}
    for field in asked.fields:
        if field.name in published.names:
            continue
        at, kind = _join(path, field.name), _text(field.dataType, field.nullable)
        if strict or not field.nullable:
            yield f"{at}: {words.other.format(kind)}, {words.not_in_one}"
        elif field.name.lower() in cases:  # null in every row would be a poor answer to a slip
            other = cases[field.name.lower()]
            yield f"{at}: {words.other.format(kind)}, {words.not_in_one}, but {other!r} is: the case of letters counts"


def _part(
    path: str, published: tuple[DataType, bool], asked: tuple[DataType, bool], strict: bool, words: _Words
) -> Iterator[str]:
    (one, may_be_null), (other, takes_null) = published, asked
    if isinstance(one, StructType) and isinstance(other, StructType):
        yield from _struct(path, one, other, strict, words)
    elif isinstance(one, ArrayType) and isinstance(other, ArrayType):
        elements = (one.elementType, one.containsNull), (other.elementType, other.containsNull)
        yield from _part(f"{path}[]", *elements, strict, words)
    elif isinstance(one, MapType) and isinstance(other, MapType):
        values = (one.valueType, one.valueContainsNull), (other.valueType, other.valueContainsNull)
        yield from _part(f"{path}.key", (one.keyType, True), (other.keyType, True), strict, words)  # no key is null
        yield from _part(f"{path}.value", *values, strict, words)
    elif one != other and (strict or not _widens(one, other)):
        yield words.both(path, _text(one), _text(other, takes_null))
        return
    if may_be_null and not takes_null:
        yield words.both(path, _text(one), _text(other, takes_null))


def _widens(narrow: DataType, wide: DataType) -> bool:
    """Tell whether every value of one type is, unchanged, one of the other, which is not the same."""
    if isinstance(narrow, StringType) and isinstance(wide, StringType):
        return True  # a collation says how to compare, and is not in the values
    common = _common_number(narrow, wide)
    return common is not None and common == wide


def _common_number(one: DataType, other: DataType) -> DataType | None:
    """Return the narrowest number that holds all values of both without loss; None where there is none."""
    kinds = (type(one), type(other))
    if kinds[0] in INTEGERS and kinds[1] in INTEGERS:
        return one if INTEGERS[kinds[0]] >= INTEGERS[kinds[1]] else other
    shapes = (_decimal_shape(one), _decimal_shape(other))
    if shapes[0] is not None and shapes[1] is not None:
        digits, scale = max(shapes[0][0], shapes[1][0]), max(shapes[0][1], shapes[1][1])
        return DecimalType(digits + scale, scale) if digits + scale <= DECIMAL_DIGITS else None
    if kinds == (FloatType, FloatType):
        return one
    floats = any(kind in (FloatType, DoubleType) for kind in kinds)
    return DoubleType() if floats and all(kind in (*EXACT_IN_DOUBLE, DoubleType) for kind in kinds) else None


def _decimal_shape(kind: DataType) -> tuple[int, int] | None:
    """Return the digits before and after the point that hold all values; None for other numbers."""
    if isinstance(kind, DecimalType):
        return kind.precision - kind.scale, kind.scale
    return (INTEGERS[type(kind)], 0) if type(kind) in INTEGERS else None


# -- what two topics share ---------------------------------------------------------------------------------------------


def _merge_structs(path: str, one: StructType, other: StructType, words: _Words, lines: list[str]) -> StructType:
    if _doubled(one) or _doubled(other):
        if one != other:
            lines.append(words.both(path or "columns", _text(one), _text(other)))
        return one
    theirs = {field.name: field for field in other.fields}
    fields = []
    for field in one.fields:
        match = theirs.pop(field.name, None)
        if match is None:
            fields.append(StructField(field.name, field.dataType, True, field.metadata))
            continue
        kind = _merge_types(_join(path, field.name), field.dataType, match.dataType, words, lines)
        fields.append(StructField(field.name, kind, field.nullable or match.nullable, field.metadata))
    cases = {field.name.lower(): field.name for field in fields}
    for name, field in theirs.items():
        if name.lower() in cases:
            lines.append(words.both(_join(path, name), repr(cases[name.lower()]), repr(name)))
        fields.append(StructField(name, field.dataType, True, field.metadata))
    return StructType(fields)


def _merge_types(path: str, one: DataType, other: DataType, words: _Words, lines: list[str]) -> DataType:
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _merge_structs(path, one, other, words, lines)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        element = _merge_types(f"{path}[]", one.elementType, other.elementType, words, lines)
        return ArrayType(element, one.containsNull or other.containsNull)
    if isinstance(one, MapType) and isinstance(other, MapType):
        key = _merge_types(f"{path}.key", one.keyType, other.keyType, words, lines)
        value = _merge_types(f"{path}.value", one.valueType, other.valueType, words, lines)
        return MapType(key, value, one.valueContainsNull or other.valueContainsNull)
    if one == other:
        return one
    common = _common_number(one, other)
    if common is None:
        lines.append(words.both(path, _text(one), _text(other)))
    return common or one


def _doubled(struct: StructType) -> bool:
    return len(set(struct.names)) != len(struct.names)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _text(kind: DataType, nullable: bool = True) -> str:
    text = kind.simpleString()
    return (text if len(text) <= SHOWN else f"{text[:SHOWN]}...") + ("" if nullable else " not null")
