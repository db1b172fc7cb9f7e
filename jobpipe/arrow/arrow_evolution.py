"""The rules of ``schemaEvolution`` for Arrow's types: which published rows fit what a flow's function gets.

They are those of :mod:`jobpipe.spark.schema.spark_evolution`, where Spark has a type for what Arrow has; a test holds
them together (tests/spark/source/test_evolution.py). Here the names of types are Arrow's, and the numbers that Spark
lacks widen too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

Field: TypeAlias = "pa.Field[Any]"

DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}  # of the largest integer of so many bits
EXACT_IN_DOUBLE = 32  # bits of an integer: 53 bits of mantissa
NOT_ASKED_FOR = "not asked for"
SHOWN = 200  # characters of a type in an error


def misfits(published: pa.Schema, asked: pa.Schema, evolution: str = "compatible") -> list[str]:
    """Return a line for each column of which published rows do not fit what is asked for; none if they fit.

    ``compatible``: columns that were not asked for are dropped, nullable ones that are not published are null, numbers
    widen without loss; inside structs (by field name), lists and maps too. ``strict``: names and types are the same. In
    both, rows that may be null fit no column that may not; the other way round they do. The order of columns and fields
    never counts, upper and lower case do.
    """
    return list(_fields("", list(published), list(asked), evolution == "strict"))


def left_out(published: pa.Schema, asked: pa.Schema) -> list[str]:
    """Return the columns, and the fields of structs by their path, that are published and were not asked for."""
    lines = _fields("", list(published), list(asked), True)
    return [line.partition(": ")[0] for line in lines if line.endswith(NOT_ASKED_FOR)]


def as_nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema all of whose columns, and what is inside them, may be null."""
    metadata: Any = schema.metadata
    return pa.schema([_nullable(field) for field in schema], metadata)


def _nullable(field: Field) -> Field:
    kind: Any = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(each) for each in kind])
    elif pa.types.is_map(kind):
        key: Any = _nullable(kind.key_field).with_nullable(False)
        item: Any = _nullable(kind.item_field)
        kind = pa.map_(key, item, kind.keys_sorted)
    elif _is_list(kind):
        kind = _list_like(kind, _nullable(kind.value_field))
    return field.with_type(kind).with_nullable(True)


def _list_like(kind: Any, value: Field) -> Any:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    return pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)


def _is_list(kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


# -- does it fit -------------------------------------------------------------------------------------------------------


def _fields(path: str, published: Sequence[Field], asked: Sequence[Field], strict: bool) -> Iterator[str]:
    have, want = {field.name: field for field in published}, {field.name: field for field in asked}
    if len(have) < len(published) or len(want) < len(asked):  # there is no telling them apart but by place
        if list(published) != list(asked):
            yield f"{path or 'columns'}: two of one name"
        return
    for field in published:
        at = _join(path, field.name)
        if field.name in want:
            yield from _part(at, field, want[field.name], strict)
        elif strict:
            yield f"{at}: published as {_text(field.type)}, {NOT_ASKED_FOR}"
    cases = {name.lower(): name for name in have if name not in want}
    for field in asked:
        if field.name in have:
            continue
        said = f"{_join(path, field.name)}: asked for as {_text(field.type, field.nullable)}, not published"
        if strict or not field.nullable:
            yield said
        elif field.name.lower() in cases:  # null in every row would be a poor answer to a slip
            yield f"{said}, but {cases[field.name.lower()]!r} is: the case of letters counts"


def _part(path: str, published: Field, asked: Field, strict: bool) -> Iterator[str]:
    one: Any = published.type
    other: Any = asked.type
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        yield from _fields(path, list(one), list(other), strict)
    elif pa.types.is_map(one) and pa.types.is_map(other):
        yield from _part(f"{path}.key", one.key_field, other.key_field, strict)
        yield from _part(f"{path}.value", one.item_field, other.item_field, strict)
    elif _is_list(one) and _is_list(other) and (one.id == other.id or pa.types.is_list(other)):
        yield from _part(f"{path}[]", one.value_field, other.value_field, strict)
    elif not (_same(one, other) or (not strict and _widens(one, other))):
        yield f"{path}: published as {_text(one)}, asked for as {_text(other, asked.nullable)}"
        return
    if published.nullable and not asked.nullable:
        yield f"{path}: published as {_text(one)}, asked for as {_text(other, False)}"


def _same(one: Any, other: Any) -> bool:
    """Tell whether two types have the same values: how long a text may be, all told, is no part of them."""
    return bool(one == other) or any(test(one) and test(other) for test in (_is_text, _is_binary))


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_binary(kind: Any) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _widens(narrow: Any, wide: Any) -> bool:
    """Tell whether every value of one type is, unchanged, one of the other, which is not the same."""
    if pa.types.is_decimal(wide):
        shape = _decimal_shape(narrow)
        return shape is not None and wide.precision - wide.scale >= shape[0] and wide.scale >= shape[1]
    if pa.types.is_integer(narrow) and pa.types.is_integer(wide):
        signs = pa.types.is_signed_integer(narrow), pa.types.is_signed_integer(wide)
        return bool(signs != (True, False) and wide.bit_width >= narrow.bit_width + (signs == (False, True)))
    if pa.types.is_float64(wide):
        if pa.types.is_integer(narrow):
            return bool(narrow.bit_width <= EXACT_IN_DOUBLE)
        return bool(pa.types.is_floating(narrow))
    return bool(pa.types.is_float32(wide) and pa.types.is_float16(narrow))


def _decimal_shape(kind: Any) -> tuple[int, int] | None:
    """Return the digits before and after the point that hold all values; None for other numbers."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    if not pa.types.is_integer(kind):
        return None
    return DIGITS[kind.bit_width] + (kind == pa.uint64()), 0


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _text(kind: Any, nullable: bool = True) -> str:
    text = re.sub(r"\s+", " ", str(kind))
    return (text if len(text) <= SHOWN else f"{text[:SHOWN]}...") + ("" if nullable else " not null")
