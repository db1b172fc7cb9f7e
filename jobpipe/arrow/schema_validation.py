"""Which schemas and values may be published: those that every subscriber can read, with Spark or without.

A batch that is sealed stays in the topic, and what comes after it is read only after it. So what some subscriber cannot
read is refused before it is sealed, with topic, column and row; where another type holds every value, it is converted.
The table is of Arrow's types. Spark's publishers have one of Spark's types as well
(:mod:`jobpipe.spark.schema.spark_arrow_schema`); a test holds the two together (tests/spark/sink/test_types.py).
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as types

from jobpipe.errors import RowTooLarge, SchemaMismatch, UnsupportedType
from jobpipe.store.spool.segment import DECODED_MAX, check_schema

Field: TypeAlias = "pa.Field[Any]"

DIGITS = 38  # of Spark's decimals
MAX_DEPTH = 63  # of nested types, the innermost included: what pyarrow reads of a stream
MAX_SCHEMA_BYTES = 2 * 1024 * 1024  # in each of its forms: both travel in one message, of 16 MiB, as JSON

PIECE_BYTES = 256 * 1024 * 1024  # a record batch larger than that is written in pieces, if it has rows enough
ROW_MAX = DECODED_MAX - 16 * 1024 * 1024  # of one row; what Arrow puts around it counts too, for readers
SPARK_METADATA = b"SPARK::metadata::json"
_GEOMETRY = {b"geometry", b"geography", b"srid"}
_INTERPRETED = {"CURRENT_DEFAULT", "EXISTS_DEFAULT", "GENERATION_EXPRESSION"}

_SAME = (
    types.is_boolean,
    types.is_signed_integer,
    types.is_float32,
    types.is_float64,
    types.is_string,
    types.is_large_string,
    types.is_binary,
    types.is_large_binary,
    types.is_fixed_size_binary,
    types.is_date32,
    types.is_null,
)
# What has no type of Spark's, or one that not all values fit, and what is published in its place.
_INSTEAD: tuple[tuple[Any, Any], ...] = (
    (types.is_uint8, pa.int16()),
    (types.is_uint16, pa.int32()),
    (types.is_uint32, pa.int64()),
    (types.is_uint64, pa.decimal128(20, 0)),
    (types.is_float16, pa.float32()),
    (types.is_date64, pa.date32()),
    (types.is_time, pa.time64("us")),
    (types.is_duration, pa.duration("us")),
    (types.is_string_view, pa.large_string()),
    (types.is_binary_view, pa.large_binary()),
)


def readable_schema(topic: str, schema: pa.Schema) -> pa.Schema:
    """Return the schema as it is published: of types that every subscriber reads.

    Raises:
        UnsupportedType: a column's type, name, or what it consists of cannot pass; names topic and columns.
    """
    plain = pa.schema([_decoded(field) for field in schema])
    check_names(topic, plain)
    check_size(topic, plain)
    try:
        check_schema(plain)
    except UnsupportedType as error:
        raise UnsupportedType(f"topic {topic!r}: {error.message}", topic=topic, **error.fields) from None
    bad: dict[str, str] = {}
    fields = [_field(field, field.name, bad) for field in plain]
    if bad:
        named = "; ".join(f"{path} ({why})" for path, why in bad.items())
        raise UnsupportedType(
            f"topic {topic!r}: not every subscriber could read what would be published as: {named}. Cast these columns "
            "before publishing",
            topic=topic,
            columns=bad,
        )
    return pa.schema(fields)


def readable(topic: str | None, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows in the schema that :func:`readable_schema` gave, once their values are found to be right.

    Args:
        topic: where they are published, for errors; None for what a flow's function returned.
        table: its columns in the order of ``schema``.
        schema: as it is published.

    Raises:
        SchemaMismatch: values that the published type does not have, that Arrow's format forbids, or null where none
            may be; names topic, column and row.
    """
    columns, told = [], ("what it returned" if topic is None else f"topic {topic!r}", topic, 0)
    for number, field in enumerate(schema):
        column: Any = table.column(number)
        if column.type != field.type:
            column = _each(told, field, column, partial(_cast, field.type), "cannot be published")
        _each(told, field, column, lambda part: part.validate(full=True), "is malformed")
        if _has_required(field):
            _each(told, field, column, partial(_require_values, field), "is wrong")
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema) if columns else table


def require_readable(where: str, batch: pa.RecordBatch, topic: str, before: int = 0) -> None:
    """Check that every subscriber can read rows as they are.

    Args:
        where: begins the message of an error.
        before: rows of earlier record batches, which count in the row number of an error.

    Raises:
        SchemaMismatch: values that Arrow's format forbids, such as a text that is no UTF-8, or null where none may be;
            names topic, column and row.
    """
    required = [field for field in batch.schema if _has_required(field)]
    if not required:
        try:
            batch.validate(full=True)
            return
        except (pa.ArrowException, ValueError):
            pass  # the column and its row are looked for
    for field, column in zip(batch.schema, batch.columns, strict=True):
        chunked = pa.chunked_array([column])
        told = (where, topic, before)
        _each(told, field, chunked, lambda part: part.validate(full=True), "is malformed")
        if field in required:
            _each(told, field, chunked, partial(_require_values, field), "is wrong")


def require_columns(topic: str, schema: pa.Schema) -> None:
    """Refuse rows without columns: Arrow's tables do not even count them.

    Raises:
        UnsupportedType: there is no column.
    """
    if not len(schema):
        raise UnsupportedType(
            f"topic {topic!r}: the rows have no columns; publish one at least, such as their numbers", topic=topic
        )


def check_names(topic: str, schema: pa.Schema) -> None:
    """Refuse names by which columns, or fields of a struct, could not be told apart or not be passed on.

    Raises:
        UnsupportedType: names topic and columns.
    """
    for path, names in _names("", list(schema)):
        where = f"column {path!r}: two fields" if path else "two columns"
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise UnsupportedType(
                f"topic {topic!r}: {where} have the name {', '.join(doubled)}; rename one", topic=topic, columns=doubled
            )
        nul = [name for name in names if "\0" in name]
        if nul:
            raise UnsupportedType(
                f"topic {topic!r}: the name {nul[0]!r} contains a NUL character, which Arrow's schemas cannot carry; "
                "rename the column",
                topic=topic,
                columns=nul,
            )


def check_size(topic: str, schema: pa.Schema, spark_schema: str | None = None) -> None:
    """Refuse a schema larger than what can be sent and read, or nested more deeply than readers go.

    Raises:
        UnsupportedType: names the limit, and the columns that take most of it.
    """
    for field in schema:
        depth = _depth(field.type)
        if depth > MAX_DEPTH:
            raise UnsupportedType(
                f"topic {topic!r}: column {field.name!r} is nested {depth} deep or more, and readers take {MAX_DEPTH}; "
                "flatten it, or publish it as a string, such as JSON",
                topic=topic,
                column=field.name,
                depth=depth,
                limit=MAX_DEPTH,
            )
    size = max(schema.serialize().size, len((spark_schema or "").encode()))
    if size > MAX_SCHEMA_BYTES:
        sizes = {field.name: pa.schema([field]).serialize().size for field in schema}
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        raise UnsupportedType(
            f"topic {topic!r}: the schema takes {size} bytes, with names and metadata of all columns, and a topic's "
            f"schema may take {MAX_SCHEMA_BYTES} (schema bytes); nothing was published. Most of it is in "
            f"{', '.join(f'{name!r:.100} ({sizes[name]} bytes)' for name in largest)}: remove metadata, or columns",
            topic=topic,
            size=size,
            limit=MAX_SCHEMA_BYTES,
            columns=largest,
        )


def readable_pieces(
    topic: str, batches: Iterable[tuple[pa.RecordBatch, pa.Int32Array | int]]
) -> Iterator[tuple[pa.RecordBatch, pa.Int32Array | int]]:
    """Yield record batches, and the partitions of their rows, in pieces that are joined without fear of their size.

    Raises:
        RowTooLarge: a row has more bytes than a reader takes of a record batch, which has one row at least.
    """
    before = 0  # rows
    for batch, partition in batches:
        waiting = [(0, batch)]
        while waiting:
            start, piece = waiting.pop()
            if piece.nbytes > min(PIECE_BYTES, ROW_MAX) and piece.num_rows > 1:
                half = piece.num_rows // 2
                waiting += [(start + half, piece.slice(half)), (start, piece.slice(0, half))]
                continue
            if piece.nbytes > ROW_MAX:
                raise _too_large(topic, piece, before + start)
            yield piece, partition if isinstance(partition, int) else partition.slice(start, piece.num_rows)
        before += batch.num_rows


def _too_large(topic: str, row: pa.RecordBatch, number: int) -> RowTooLarge:
    sizes = {name: column.nbytes for name, column in zip(row.schema.names, row.columns, strict=True)}
    name = max(sizes, key=lambda name: sizes[name])
    return RowTooLarge(
        f"topic {topic!r}, row {number}: it has {row.nbytes} bytes, {sizes[name]} of them in column {name!r}, and a "
        f"row may have {ROW_MAX}: neither Arrow's record batches nor Spark's rows hold more. Nothing was published; "
        "split the value over several rows, or publish where it is stored",
        topic=topic,
        row=number,
        column=name,
        size=row.nbytes,
        limit=ROW_MAX,
    )


# -- types -------------------------------------------------------------------------------------------------------------


def _decoded(field: Field) -> Field:
    """Return a column as it is without a dictionary: a segment has no room for one."""
    kind: Any = field.type
    return field.with_type(kind.value_type) if types.is_dictionary(kind) else field


def _field(field: Field, path: str, bad: dict[str, str], *, key: bool = False, variant: bool = False) -> Field:
    found = _form(field.type, path, bad, key=key)
    kept = _kept_metadata(field, path, bad, variant=variant)
    return pa.field(field.name, found, field.nullable, kept or None)


def _form(kind: Any, path: str, bad: dict[str, str], *, key: bool = False) -> Any:
    """Return the type that is published for one; note what cannot be under ``bad``."""
    if types.is_struct(kind):
        variant = _is_variant(kind)
        return pa.struct([_field(each, f"{path}.{each.name}", bad, variant=variant) for each in kind])
    if types.is_map(kind):
        if key:
            bad[path] = "a map in the key of a map"
        keys = _field(kind.key_field, f"{path}.key", bad, key=True)
        return pa.map_(keys, _field(kind.item_field, f"{path}.value", bad), kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field, f"{path}[]", bad, key=key), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field, f"{path}[]", bad, key=key))
    if types.is_list(kind):
        return pa.list_(_field(kind.value_field, f"{path}[]", bad, key=key))
    if types.is_decimal(kind):
        found = _decimal(kind)
        if found is None:
            bad[path] = f"{kind}: at most {DIGITS} digits"
        return found or kind
    if any(test(kind) for test in _SAME):
        return kind
    if types.is_timestamp(kind):
        if not _has_zone(kind):
            bad[path] = f"{kind}: an unknown time zone"
        return pa.timestamp("us", kind.tz)
    for test, instead in _INSTEAD:
        if test(kind):
            return instead
    bad[path] = f"{kind!s:.200}"
    return kind


def _has_zone(kind: Any) -> bool:
    try:
        pa.scalar(0, kind).as_py()
    except (ValueError, LookupError, pa.ArrowException):
        return False
    return True


def _decimal(kind: Any) -> Any:
    """Return the decimal of Spark's that holds all values; None if there is none."""
    scale = max(kind.scale, 0)
    precision = max(kind.precision - min(kind.scale, 0), scale)
    return pa.decimal128(precision, scale) if precision <= DIGITS else None


def _is_variant(kind: Any) -> bool:
    """Tell whether a struct is what Spark writes for a variant, but for its mark."""
    parts = {each.name: each for each in kind}
    return set(parts) == {"value", "metadata"} and all(
        types.is_binary(each.type) and not each.nullable for each in parts.values()
    )


def _kept_metadata(field: Field, path: str, bad: dict[str, str], *, variant: bool) -> dict[bytes, bytes]:
    """Return a column's metadata without what would make Spark read another type than Arrow's, or fail.

    The mark of a geometry goes: whether its bytes are one, Spark finds out too late, in a task.
    """
    kept = {}
    for name, value in (field.metadata or {}).items():
        if name == SPARK_METADATA:
            told = _parsed(value)
            if told is None:
                bad[path] = f"its metadata {SPARK_METADATA.decode()} are not a JSON object"
            elif plain := {each: what for each, what in told.items() if _is_plain(each, what)}:
                kept[name] = value if plain == told else json.dumps(plain).encode()
        elif name not in _GEOMETRY and (variant or name != b"variant") and _is_text(name) and _is_text(value):
            kept[name] = value
    return kept


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _is_plain(name: str, value: object) -> bool:
    """Tell whether Spark's Metadata take a value, and make nothing of it."""
    if name.startswith(("__", "spark.")) or name in _INTERPRETED:
        return False
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return isinstance(value, str) and value.isprintable()


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _depth(kind: Any) -> int:
    deepest, parts = 0, [(kind, 1)]
    while parts:
        part, depth = parts.pop()
        deepest = max(deepest, depth)
        if depth <= MAX_DEPTH:
            parts += [(part.field(number).type, depth + 1) for number in range(part.num_fields)]
    return deepest


def _names(path: str, fields: list[Field]) -> Iterator[tuple[str, list[str]]]:
    waiting = [(path, fields, True)]
    while waiting:
        above, among, told = waiting.pop()
        if told:
            yield above, [field.name for field in among]
        for field in among:
            kind: Any = field.type
            inner = [kind.field(number) for number in range(kind.num_fields)]
            waiting.append((f"{above}.{field.name}" if above else field.name, inner, types.is_struct(kind)))


# -- values ------------------------------------------------------------------------------------------------------------


def _each(
    told_as: tuple[str, str | None, int], field: Field, column: Any, work: Callable[[Any], Any], what: str
) -> Any:
    """Do something with a column; if it cannot be done, say with which row it cannot.

    Args:
        told_as: where the rows are, their topic, and how many rows come before them.
    """
    try:
        return _done(column, work)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        first, last, told = 0, len(column), error
        with contextlib.suppress(pa.ArrowException, ValueError, OverflowError):
            return _done(_alone(column, 0, last), work)
        while last - first > 1:  # the first half that fails has the first row that fails
            half = (first + last) // 2
            try:
                _done(_alone(column, first, half), work)
                first = half
            except (pa.ArrowException, ValueError, OverflowError) as found:
                last, told = half, found
        where, topic, before = told_as
        remedy = "cast or clean the column before publishing"
        if "UTF8" in str(told):
            remedy = "a text must be UTF-8. Read files in another encoding with option encoding, or convert them"
        raise SchemaMismatch(
            f"{where}, row {before + first}: column {field.name!r} {what}, as {field.type!s:.200}: {told!s:.300}. "
            f"Every subscriber must be able to read it: {remedy}",
            topic=topic,
            column=field.name,
            row=before + first,
        ) from error


def _alone(column: Any, first: int, last: int) -> Any:
    """Return some rows without what lies next to them: of a slice's lists Arrow casts the values of the whole."""
    part = column.slice(first, last - first)
    try:  # also without what lies below nulls
        return part.take(pa.array(range(len(part)), pa.int64(), mask=part.is_null().to_numpy(zero_copy_only=False)))
    except (pa.ArrowException, ValueError):  # what is malformed may not be copied
        return part


def _cast(kind: Any, part: Any) -> Any:
    plain = part.dictionary.take(part.indices) if types.is_dictionary(part.type) else part
    return plain.cast(kind)


def _done(column: Any, work: Callable[[Any], Any]) -> Any:
    chunks = [work(chunk) for chunk in column.chunks]
    return column if not chunks or chunks[0] is None else pa.chunked_array(chunks)


def _has_required(field: Field) -> bool:
    """Tell whether a column, or a part of it, may not be null; keys of maps never are, which Arrow sees to."""
    kind: Any = field.type
    if types.is_map(kind):
        return not field.nullable or _has_required(kind.item_field) or _has_required(kind.key_field.with_nullable(True))
    return not field.nullable or any(_has_required(kind.field(number)) for number in range(kind.num_fields))


def _require_values(field: Field, array: Any) -> None:
    """Raise ValueError if there is null where none may be; below a null nothing counts."""
    if not field.nullable and array.null_count:
        raise ValueError(f"{field.name!r} is null, and may not be")
    kind: Any = field.type
    if not kind.num_fields or not any(_has_required(kind.field(number)) for number in range(kind.num_fields)):
        return
    valid = array.filter(array.is_valid()) if array.null_count else array
    if types.is_struct(kind):
        for number, each in enumerate(kind):
            _require_values(each, valid.field(number))
    elif types.is_map(kind):
        first, last = (valid.offsets[at].as_py() for at in (0, len(valid)))  # keys and items are those of a whole
        _require_values(kind.key_field, valid.keys[first:last])
        _require_values(kind.item_field, valid.items[first:last])
    else:
        _require_values(kind.value_field, valid.flatten())
