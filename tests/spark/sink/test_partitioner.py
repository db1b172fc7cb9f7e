"""Which partitioners the sink takes, and what a user's own function may answer (K6)."""

from __future__ import annotations

import functools
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from jobpipe.errors import ConfigError
from jobpipe.spark.options.partitioner import Partitioner
from jobpipe.spark.schema.spark_arrow_schema import arrow_schema
from tests.spark.kit import Place

FOUR = pa.record_batch({"id": [10, 11, 12, 13]})


def by_id(batch: pa.RecordBatch, partitions: int) -> list[int]:
    return [number % partitions for number in batch["id"].to_pylist()]


class ById:
    def __call__(self, batch: pa.RecordBatch, partitions: int) -> list[int]:
        return by_id(batch, partitions)


@pytest.mark.parametrize(
    ("partitioner", "partition_by", "described"),
    [
        (None, None, "fixed"),
        (None, "a", "hash(a)"),
        (None, ["a", "b.c"], "hash(a, b.c)"),
        ("hash", ["a"], "hash(a)"),
        ("fixed", None, "fixed"),
        ("fixed", [], "fixed"),
        ("round-robin", None, "round-robin"),
        (by_id, None, "function tests.spark.sink.test_partitioner.by_id"),
        (ById(), None, "function tests.spark.sink.test_partitioner.ById"),
        (functools.partial(by_id), None, "function functools.partial"),
        (lambda batch, n: [0] * len(batch), None, "function tests.spark.sink.test_partitioner.<lambda>"),
    ],
)
def test_the_partitioner_that_is_asked_for(partitioner: Any, partition_by: Any, described: str) -> None:
    """``hash`` with ``partition_by``, else ``fixed``, unless told; the description is what plans are cut by."""
    assert str(Partitioner.choose("t", partitioner, partition_by)) == described


@pytest.mark.parametrize(
    ("partitioner", "partition_by", "message"),
    [
        ("hash", None, "partitioner='hash' needs partition_by, the columns to hash"),
        ("fixed", "a", "partition_by=a is for partitioner='hash', and the partitioner is fixed"),
        ("round-robin", ["a", "b"], "partition_by=a, b is for partitioner='hash', and the partitioner is round-robin"),
        (by_id, "a", "and the partitioner is function tests.spark.sink.test_partitioner.by_id"),
        (lambda batch: [0], None, "cannot be called with a pyarrow.RecordBatch and the number of partitions: too many"),
        (lambda a, b, c: [0], None, "the number of partitions: missing a required argument: 'c'"),
        (lambda batch, *, partitions: [0], None, "cannot be called with"),
        (lambda batch, n, lock=threading.Lock(): [0], None, "cannot be sent to the executors: "),  # noqa: B008
    ],
)
def test_arguments_that_do_not_fit(tmp_path: Path, partitioner: Any, partition_by: Any, message: str) -> None:
    """Told by the sink's constructor, before it takes the topic."""
    place = Place(tmp_path, {"jobpipe.home": str(tmp_path / "home"), "jobpipe.spool.dir": str(tmp_path / "spool")})
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        place.sink("never", partitioner=partitioner, partition_by=partition_by)
    assert caught.value.message.startswith("topic 'never': ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "here"),
    [
        (StringType(), True),
        (LongType(), True),
        (DecimalType(38, 2), True),
        (TimestampType(), True),
        (TimestampNTZType(), True),
        (BinaryType(), True),
        (StringType("UTF8_LCASE"), False),
        (ArrayType(IntegerType()), False),
        (StructType().add("a", IntegerType()), False),
        (DayTimeIntervalType(), False),
    ],
    ids=str,
)
def test_what_the_driver_can_hash(kind: DataType, here: bool) -> None:
    """Of all columns that are hashed; of the others the type does not matter."""
    schema = StructType().add("other", ArrayType(IntegerType())).add("k", kind).add("id", IntegerType())
    arrow = arrow_schema(schema)
    assert Partitioner.choose("t", None, ["k", "id"]).hashes_here(schema, arrow, (1, 2)) is here
    assert not Partitioner.choose("t", None, None).hashes_here(schema, arrow, ())


@pytest.mark.parametrize(
    "given",
    [
        [2, 3, 0, 1],
        (2, 3, 0, 1),
        np.array([2, 3, 0, 1], dtype=np.uint8),
        pd.Series([2, 3, 0, 1]),
        pa.array([2, 3, 0, 1], pa.int64()),
        pa.chunked_array([pa.array([2, 3], pa.int16()), pa.array([0, 1], pa.int16())]),
    ],
    ids=lambda given: type(given).__module__ + "." + type(given).__name__,
)
def test_numbers_of_every_form(given: Any) -> None:
    """Lists, arrays and series of whole numbers, of any width."""
    numbers = Partitioner.choose("t", lambda batch, n: given, None).numbers(FOUR, 4, "topic 't'")
    assert numbers.equals(pa.array([2, 3, 0, 1], pa.int32()))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([0, 1, 2], "gave 3 numbers for 4 rows"),
        ([], "gave 0 numbers for 4 rows"),
        ([0, 1, 4, -1], "gave 4 for row 2"),
        ([0, 1, 2, -1], "gave -1 for row 3"),
        (pa.array([0, 0, 2**63, 0], pa.uint64()), "gave 9223372036854775808 for row 2"),
        ([0, None, 1, 2], "gave null for row 1"),
        ([None] * 4, "gave null for row 0"),
        (pd.Series([0, np.nan, 1, 2]), "gave null for row 1"),
        ([0.0, 1.0, 2.0, 3.0], "gave 0.0, and others of type double"),
        ([True, False, True, False], "gave True, and others of type bool"),
        (["0", "1", "2", "3"], "gave '0', and others of type string"),
        ([0, "1", 2, 3], "gave [0, '1', 2, 3]"),
        ([2**70] * 4, "gave [1180591620717411303424"),
        (None, "gave None"),
        (7, "gave 7"),
    ],
)
def test_numbers_that_are_wrong(given: Any, problem: str) -> None:
    """One error: where, which function, what it gave, what was expected."""
    partitioner = Partitioner.choose("t", lambda batch, n: given, None)
    with pytest.raises(ConfigError) as caught:
        partitioner.numbers(FOUR, 4, "topic 't', task 5")
    told = f"topic 't', task 5: the partitioner, {partitioner}, "
    expected = ": expected 4 whole numbers from 0 to 3, one for each row"
    assert caught.value.message.startswith(told + problem)
    assert caught.value.message.endswith(expected)


def test_a_function_that_fails() -> None:
    """Its own error is told, and stays the cause."""
    partitioner = Partitioner.choose("t", lambda batch, n: batch["customer"], None)
    with pytest.raises(ConfigError, match=r"topic 't': the partitioner, .*<lambda>, raised KeyError: .*customer") as e:
        partitioner.numbers(FOUR, 4, "topic 't'")
    assert isinstance(e.value.__cause__, KeyError)
