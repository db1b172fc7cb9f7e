"""What most contestants need not say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import StructType

from benchmarks.side_by_side.arrivals import Arrivals
from benchmarks.side_by_side.contestants.contestant import Told
from benchmarks.side_by_side.processes import Processes
from benchmarks.side_by_side.shapes import Shape


class Plain:
    """No carrier, no jars, nothing to prepare."""

    chained = True

    def __init__(self, told: Told) -> None:
        self.told = told
        self.arrivals = Arrivals()
        self.folder = Path(told["folder"])
        self.cores = int(told["cores"])

    @contextmanager
    def carrier(self, run: Processes) -> Iterator[Told]:
        yield {}

    def environ(self) -> Mapping[str, str]:
        return {}

    def conf(self) -> Mapping[str, str]:
        return {}

    def prepare(self, spark: SparkSession, stream: str, rows: DataFrame) -> None:
        pass

    def release(self, stream: str, batches: int) -> None:
        pass

    def close(self) -> None:
        pass


def schema_of(spark: SparkSession, shape: Shape) -> StructType:
    """Return the columns of a shape, as those must know them whose carrier does not tell."""
    return shape.of(spark.range(1).withColumn("made", F.lit(0).cast("long"))).schema
