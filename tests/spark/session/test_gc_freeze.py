"""What Spark's workers hold at their first task of ours is not walked again after each task."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobpipe.spark.session import python_workers
from jobpipe.spark.session.python_workers import gc_freeze

pytestmark = pytest.mark.spark


def test_not_outside_of_tasks() -> None:
    """The driver, and a program that calls a reader without Spark, keeps its garbage collector as it is."""
    before = gc.get_freeze_count()
    gc_freeze()
    assert gc.get_freeze_count() == before
    assert not python_workers._frozen


def test_once_in_a_worker(spark: SparkSession) -> None:
    """Tens of thousands of objects are spared; what later tasks make is not."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = []
        for _ in range(2):
            gc_freeze()
            counts.append(gc.get_freeze_count())
        for _ in batches:
            yield pa.record_batch([pa.array(counts[:1]), pa.array(counts[1:])], names=["first", "second"])

    (row,) = spark.range(1).mapInArrow(look, "first long, second long").collect()
    assert row.first > 10_000
    assert row.second == row.first
