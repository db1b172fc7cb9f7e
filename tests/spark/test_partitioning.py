"""Which partition a row goes to, and that order holds within it."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobpipe.errors import ConfigError
from tests.spark.kit import Place, Received, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS = 3000


@pytest.mark.parametrize("path", ["collect", "tasks"])
def test_partition_by_is_sparks_own_hash(spark: SparkSession, place: Place, path: str) -> None:
    """``pmod(hash(columns), P)`` in both write paths, nulls included; the order of each key comes back."""
    key = F.when(F.col("id") % 7 != 3, F.concat(F.lit("k"), F.col("id") % 7))
    rows = spark.range(0, ROWS, 1, 5).select(key.alias("k"), (F.col("id") % 3).alias("m"), F.col("id").alias("seq"))
    sink = place.sink(f"hash-{path}", parallelism=4, partition_by=["k", "m"], write_path=path)
    for batch_id in range(2):
        sink(rows.withColumn("seq", F.col("seq") + batch_id * ROWS), batch_id)
    assert sink.status()["sink"][path] == 2
    sink.close()
    read = place.read(spark, f"hash-{path}", includeMetadata=True)
    assert read.where("_jobpipe.partition <> pmod(hash(k, m), 4)").count() == 0
    assert read.count() == read.select("seq").distinct().count() == 2 * ROWS
    back = read.orderBy("_jobpipe.offset", "_jobpipe.partition", "_jobpipe.row").select("k", "m", "seq").collect()
    last: dict[tuple[str, int], int] = {}
    for row in back:
        assert row.seq > last.get((row.k, row.m), -1), f"{row} came after {last[(row.k, row.m)]}"
        last[(row.k, row.m)] = row.seq
    assert len(last) == 21


@pytest.mark.parametrize("path", ["collect", "tasks"])
def test_without_partition_by_the_partitions_are_as_they_come(spark: SparkSession, place: Place, path: str) -> None:
    """The DataFrame's partitions modulo the parallelism; fewer of them leave some empty."""
    sink = place.sink(f"plain-{path}", parallelism=3, write_path=path)
    sink(spark.range(0, 700, 1, 7).withColumn("was", F.spark_partition_id()), 0)
    sink(spark.range(700, 800, 1, 1).withColumn("was", F.spark_partition_id()), 1)
    sink.close()
    read = place.read(spark, f"plain-{path}", includeMetadata=True)
    assert read.where("_jobpipe.partition <> was % 3").count() == 0
    rows = read.orderBy("_jobpipe.offset", "_jobpipe.partition", "_jobpipe.row").select("id", "was").collect()
    last: dict[int, int] = {}
    for row in rows[:700]:
        assert row.id > last.get(row.was, -1)
        last[row.was] = row.id
    assert [row.id for row in rows[700:]] == list(range(700, 800))


def test_parallelism_by_default_and_changed(spark: SparkSession, place: Place) -> None:
    """Spark's default parallelism, unless given; a change of it ends a micro-batch of the subscriber, no more."""
    for parallelism in (None, 5, 1):
        sink = place.sink("changing", parallelism=parallelism, partition_by="id")
        assert sink.status()["parallelism"] == (parallelism or spark.sparkContext.defaultParallelism)
        for batch_id in range(2):
            first = 100 * batch_id + 1000 * (parallelism or 0)
            sink(spark.range(first, first + 100), batch_id)
        sink.close()
    received = Received()
    stream = place.stream(spark, "changing", "c", startingOffsets="earliest", includeMetadata=True)
    run_to_end(stream, received, place.checkpoint("changing"))
    shapes = [{value["parallelism"] for value in table["_jobpipe"].to_pylist()} for table in received.batches.values()]
    assert shapes == [{2}, {5}, {1}]
    ids = sorted(number for table in received.batches.values() for number in table["id"].to_pylist())
    assert ids == sorted(n for base in (0, 5000, 1000) for n in range(base, base + 200))


def test_partition_by_a_column_that_is_not_there(spark: SparkSession, place: Place) -> None:
    """Told by name, with the columns there are."""
    sink = place.sink("no-such", parallelism=2, partition_by=["id", "customer"])
    with pytest.raises(ConfigError, match="partition_by names customer, and the rows have the columns id"):
        sink(spark.range(3), 0)
    assert sink.status()["head"] == 0
    sink.close()


def test_columns_with_dots_and_ticks_in_their_names(spark: SparkSession, place: Place) -> None:
    """A name of ``partition_by`` is a column's name, never a path."""
    rows = spark.range(50).selectExpr("id as `a.b`", "named_struct('b', 1) as a", "id % 3 as `c``d`")
    sink = place.sink("dots", parallelism=3, partition_by=["a.b", "c`d"], write_path="collect")
    sink(rows, 0)
    read = place.read(spark, "dots", includeMetadata=True)
    assert read.where("_jobpipe.partition = pmod(hash(`a.b`, `c``d`), 3)").count() == 50
    sink.close()
