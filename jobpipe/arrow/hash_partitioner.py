"""Which partition each row goes to, without Spark: a user's function, checked, and Spark's own hash."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobpipe.errors import ConfigError, UnsupportedType

PartitionFunction = Callable[[pa.RecordBatch, int], Any]

SEED = 42  # of Spark's hash()
MASK = 0xFFFFFFFF
DESCRIBED_MAX = 4096  # characters that a seal carries
DESCRIBED_SHOWN = 1024
CACHED_VALUES = 65_536  # hashes of repeated keys are computed once


def described_hash(columns: Sequence[str]) -> str:
    """Return what the spool keeps of a partitioning by hash; of very long names a digest tells them apart."""
    text = f"hash({', '.join(columns)})"
    if len(text) <= DESCRIBED_MAX:
        return text
    return f"{text[:DESCRIBED_SHOWN]}... {hashlib.sha256(text.encode()).hexdigest()}"


def checked_numbers(
    function: PartitionFunction, batch: pa.RecordBatch, partitions: int, *, where: str, called: str
) -> pa.Int32Array:
    """Return the partitions that the user's function gave, after checking them.

    Args:
        where: the topic, for errors.
        called: what the function is called, for errors.

    Raises:
        ConfigError: it raised, or did not give one number of 0..partitions-1 for each row.
    """
    told = f"{where}: the partitioner, {called},"
    try:
        given = function(batch, partitions)
    except Exception as error:
        raise ConfigError(f"{told} raised {type(error).__name__}: {error}", partitioner=called) from error
    wrong = f"expected {batch.num_rows} whole numbers from 0 to {partitions - 1}, one for each row"
    try:
        array: Any = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else pa.array(given)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{told} gave {_short(given)}: {wrong}", partitioner=called) from error
    problem = _problem(array, batch.num_rows, partitions)
    if problem:
        raise ConfigError(f"{told} gave {problem}: {wrong}", partitioner=called)
    numbers: pa.Int32Array = array.cast(pa.int32())
    return numbers


def _problem(array: Any, rows: int, partitions: int) -> str | None:
    """Return what is wrong with a function's numbers."""
    if len(array) != rows:
        return f"{len(array)} numbers for {rows} rows"
    if array.null_count:
        return f"null for row {array.to_pylist().index(None)}"
    if not pa.types.is_integer(array.type):
        return f"{_short(array[0].as_py())}, and others of type {array.type}"
    extent: Any = pc.min_max(array).as_py()
    if extent["min"] < 0 or extent["max"] >= partitions:
        row, value = next((i, n) for i, n in enumerate(array.to_pylist()) if not 0 <= n < partitions)
        return f"{value} for row {row}"
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


# -- Spark's hash: Murmur3, 32 bits, as org.apache.spark.unsafe.hash.Murmur3_x86_32 has it -----------------------------


def require_hashable(topic: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise if a column does not exist, or its values cannot be hashed here as Spark hashes them.

    Raises:
        ConfigError: there is no such column.
        UnsupportedType: nested types, times and intervals; give a function as the partitioner instead.
    """
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise ConfigError(
            f"topic {topic!r}: partition_by names {', '.join(missing)}, and the rows have the columns "
            f"{', '.join(schema.names)}",
            topic=topic,
            columns=missing,
        )
    for name in columns:
        kind = schema.field(name).type
        if not is_hashable(kind):
            raise UnsupportedType(
                f"topic {topic!r}: partition_by={name!r} has the type {kind}, which cannot be hashed without Spark; "
                "use partitioner=, a function of the record batch and the number of partitions",
                topic=topic,
                column=name,
            )


def is_hashable(kind: pa.DataType) -> bool:
    """Tell whether :func:`hash_numbers` hashes values of this type as Spark does."""
    return _form(kind) is not None


def hash_numbers(batch: pa.RecordBatch, columns: Sequence[str] | Sequence[int], partitions: int) -> pa.Int32Array:
    """Return ``pmod(hash(columns), partitions)`` of each row: the partitions that a ``JobPipeSink`` would choose.

    Args:
        batch: of which the columns' types are hashable (:func:`is_hashable`).
        columns: names, or places.
        partitions: their number.
    """
    hashes = [SEED] * batch.num_rows
    for name in columns:
        column = batch.column(name)
        form = _form(column.type)
        assert form is not None  # noqa: S101 - the caller has seen to it
        hashes = [
            seed if value is None else spark_hash(form, value, seed)
            for value, seed in zip(_plain_values(column), hashes, strict=True)
        ]
    return pa.array((_signed(value) % partitions for value in hashes), pa.int32())


def _plain_values(column: Any) -> list[Any]:
    """Return values as ``spark_hash`` takes them: dates as days, timestamps as microseconds, both since 1970."""
    if pa.types.is_timestamp(column.type):
        zone = column.type.tz
        column = column.cast(pa.timestamp("us", tz=zone), safe=False).cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.date32()).cast(pa.int32())
    values: list[Any] = column.to_pylist()
    return values


def _form(kind: Any) -> str | None:
    """Return how Spark hashes a type: by 4 bytes, by 8, by all bytes; None if it is not known here."""
    types = pa.types
    if types.is_boolean(kind) or types.is_int8(kind) or types.is_int16(kind) or types.is_int32(kind):
        return "int"
    if types.is_date(kind):
        return "int"
    if types.is_int64(kind) or types.is_timestamp(kind):
        return "long"
    if types.is_float32(kind):
        return "float"
    if types.is_float64(kind):
        return "double"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return "bytes"
    if types.is_decimal(kind):
        return "long decimal" if kind.precision <= 18 else "decimal"
    return None


@lru_cache(CACHED_VALUES)
def spark_hash(form: str, value: Any, seed: int) -> int:
    """Return the 32 bits, unsigned, of Spark's hash of one value that is not null."""
    if form == "int":
        return _of_words([int(value) & MASK], 4, seed)
    if form == "float":
        value = float(value) + 0.0  # -0.0 and 0.0 are one key
        bits = 0x7FC00000 if value != value else int.from_bytes(struct.pack("<f", value), "little")
        return _of_words([bits], 4, seed)
    if form == "double":
        value = float(value) + 0.0
        bits = 0x7FF8000000000000 if value != value else int.from_bytes(struct.pack("<d", value), "little")
        return _of_long(bits, seed)
    if form == "long":
        return _of_long(int(value), seed)
    if form == "bytes":
        return _of_bytes(value.encode() if isinstance(value, str) else bytes(value), seed)
    unscaled = _unscaled(value)
    if form == "long decimal":
        return _of_long(unscaled, seed)
    length = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1  # as java.math.BigInteger has it
    return _of_bytes(unscaled.to_bytes(length, "big", signed=True), seed)


def _unscaled(value: Decimal) -> int:
    sign, digits, _exponent = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def _of_long(value: int, seed: int) -> int:
    return _of_words([value & MASK, (value >> 32) & MASK], 8, seed)


def _of_bytes(data: bytes, seed: int) -> int:
    whole = len(data) & ~3
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, whole, 4)]
    words += [(byte - 256 if byte > 127 else byte) & MASK for byte in data[whole:]]  # each by itself, with its sign
    return _of_words(words, len(data), seed)


def _of_words(words: list[int], length: int, seed: int) -> int:
    mixed = seed & MASK
    for word in words:
        word = (word * 0xCC9E2D51) & MASK
        word = ((word << 15) | (word >> 17)) & MASK
        mixed ^= (word * 0x1B873593) & MASK
        mixed = ((mixed << 13) | (mixed >> 19)) & MASK
        mixed = (mixed * 5 + 0xE6546B64) & MASK
    mixed ^= length
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & MASK
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & MASK
    return mixed ^ (mixed >> 16)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
