"""How many dead letters a micro-batch may have: of the rows that it brought, whatever stages make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from jobpipe.errors import TooManyDeadLetters
from jobpipe.pipelines.context import JobContext
from jobpipe.pipelines.dead_letters import DeadLetters
from jobpipe.pipelines.parameters import RunValues
from jobpipe.pipelines.plugins import DEAD, UNPARSED, Transform
from jobpipe.pipelines.spec import Mode
from jobpipe.pipelines.transforms.columns import dead_struct

pytestmark = pytest.mark.spark

Handle = Callable[..., list[int]]


class Stage(Transform):
    """Makes ``copies`` of each row, none of odd ones if ``odd`` is false; rows from id ``dead_from`` on are dead."""

    type = "stage"
    tolerant = True

    def __init__(self, copies: int, dead_from: int, *, odd: bool = True) -> None:
        self._copies = copies
        self._dead_from = dead_from
        self._odd = odd

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Fail."""
        raise NotImplementedError

    def apply_tolerant(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Make the copies."""
        is_dead = sf.col("id") >= self._dead_from
        copies = sf.when(is_dead, 1).when(~sf.lit(self._odd) & (sf.col("id") % 2 == 1), 0).otherwise(self._copies)
        found = frame.withColumn(DEAD, sf.when(is_dead, dead_struct(frame, sf.lit("Bad"), sf.lit("bad"))))
        return found.withColumn("n", sf.explode(sf.sequence(sf.lit(0), copies))).where("n > 0").drop("n")


@pytest.fixture
def handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Handle:
    """Return what handles a micro-batch; it returns how many rows are published as dead, and how many are written."""

    def handle(batch: DataFrame, ratio: float | None, *stages: Transform) -> list[int]:
        job = JobContext(pipeline="p", job="a", mode=Mode.BATCH, storage="", folder=tmp_path, run=RunValues("r1"))
        letters, found = DeadLetters(job, "dead", "csv", [("stage", stage) for stage in stages], ratio), []
        monkeypatch.setattr(letters, "_publish", lambda rows, batch_id: found.append(rows.count()))
        letters.handle(batch, 0, lambda rows, batch_id: found.append(rows.count()))
        return found

    return handle


def test_rows_that_a_stage_drops_count(spark: SparkSession, handle: Handle) -> None:
    """One of a hundred is dead, and one is left: that is one in a hundred."""
    drops = Stage(0, 99)
    assert handle(spark.range(100), 0.01, drops) == [1, 0]
    with pytest.raises(TooManyDeadLetters, match=r"1 dead letters of 100 rows are more than errors\.max-ratio 0\.009"):
        handle(spark.range(100), 0.009, drops)


def test_rows_that_a_stage_makes_do_not_count(spark: SparkSession, handle: Handle) -> None:
    """Nine of ten are dead, and of the other a hundred are made: that is nine in ten."""
    makes = Stage(100, 1)
    with pytest.raises(TooManyDeadLetters, match="9 dead letters of 10 rows"):
        handle(spark.range(10), 0.8, makes)
    assert handle(spark.range(10), 0.9, makes) == [9, 100]
    assert handle(spark.range(10), None, makes) == [9, 100]


def test_a_later_stage_and_the_source(spark: SparkSession, handle: Handle) -> None:
    """The dead of all stages, of the rows of the source with those that it could not parse."""
    text = sf.when(sf.col("id") == 0, sf.lit("x"))
    batch = spark.range(10).withColumn(UNPARSED, text)
    stages = Stage(1, 100, odd=False), Stage(1, 8)  # of 1 to 9 four are left, of which one is dead
    assert handle(batch, 0.2, *stages) == [2, 3]
    with pytest.raises(TooManyDeadLetters, match="2 dead letters of 10 rows"):
        handle(batch, 0.19, *stages)


@pytest.mark.parametrize("ratio", [None, 0.5])
def test_the_source_is_read_once(spark: SparkSession, handle: Handle, ratio: float | None) -> None:
    read = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    batch: Any = spark.range(0, 4, numPartitions=1).mapInArrow(count, "id long")
    assert handle(batch, ratio, Stage(1, 3)) == [1, 3]
    assert read.value == 4
