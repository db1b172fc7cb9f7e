"""Which partition a row goes to, and that order holds within it (K6)."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobpipe.errors import ConfigError
from jobpipe.spark.sink.foreach_batch_sink import HASH_MAX_ROWS
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.spark.kit import Place, Received, file_stream, forget_commit, run_to_end, write_files

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


def test_few_and_many_rows_are_hashed_alike(spark: SparkSession, place: Place) -> None:
    """In the driver where they are few, by Spark where they are many, or more than were expected."""
    sink = place.sink("grows", parallelism=4, partition_by="k", write_path="collect")
    sizes = [10, HASH_MAX_ROWS + 1, HASH_MAX_ROWS + 1, 10, 0, 10]
    for batch_id, size in enumerate(sizes):
        rows = spark.range(batch_id * 10_000, batch_id * 10_000 + size)
        sink(rows.selectExpr("id", "concat('key ', id % 100) AS k"), batch_id)
    assert sink.status()["sink"]["collect"] == len(sizes)
    sink.close()
    read = place.read(spark, "grows", includeMetadata=True)
    assert read.count() == sum(sizes)
    assert read.where("_jobpipe.partition <> pmod(hash(k), 4)").count() == 0


@pytest.mark.parametrize("path", ["collect", "tasks"])
def test_what_is_hashed_is_what_spark_has(spark: SparkSession, place: Place, path: str) -> None:
    """A declared type that is wider, and a collation, change nothing."""
    name = f"as-it-is-{path}"
    sink = place.sink(name, parallelism=8, partition_by="k", schema="k bigint, was int", write_path=path)
    sink(spark.range(50).selectExpr("CAST(id AS INT) AS k").selectExpr("k", "pmod(hash(k), 8) AS was"), 0)
    sink.close()
    assert place.read(spark, name, includeMetadata=True).where("_jobpipe.partition <> was").count() == 0
    sink = place.sink(f"{name}-collated", parallelism=8, partition_by="k", write_path=path)
    keys = spark.range(50).selectExpr("if(id % 2 = 0, upper(hex(id)), lower(hex(id - 1))) COLLATE UTF8_LCASE AS k")
    sink(keys.selectExpr("k", "pmod(hash(k), 8) AS was"), 0)
    sink.close()
    assert place.read(spark, f"{name}-collated", includeMetadata=True).where("_jobpipe.partition <> was").count() == 0


# What Spark documents for its hash(), and what 4.3.0 says of the rest: a topic's keys stay where they are.
PINNED = {
    "'ABC'": -757602832,
    "'ABC', 'DEF'": 599895104,
    "'Spark', array(123), 2": -1321691492,
    "''": 142593372,
    "'Ä'": 108889837,
    "1": -559580957,
    "1L": -1712319331,
    "-1L": -939490007,
    "1.5D": 1290763749,
    "1.50BD": -2056712946,
    "true": -559580957,
    "date'2013-01-01'": -1477305664,
    "timestamp'2013-01-01 00:00:00Z'": -1715587102,
    "X'00FF'": 1246198977,
    "named_struct('a', 1, 'b', 'x')": -1305545736,
    "cast(null as string)": 42,
    "cast(null as string), 1": -559580957,
}


def test_the_hash_is_the_same_in_every_version(spark: SparkSession, place: Place) -> None:
    """Murmur3 with seed 42: a key's partition is a number known beforehand, whoever publishes it and when."""
    columns = [f"hash({values}) AS `{values}`" for values in PINNED]
    assert spark.sql(f"SELECT {', '.join(columns)}").first().asDict() == PINNED  # type: ignore[union-attr]
    customers = {"ABC": -757602832, "": 142593372, "Ä": 108889837, None: 42}
    sink = place.sink("pinned", parallelism=8, partition_by="customer")
    sink(spark.createDataFrame([(customer,) for customer in customers], "customer string"), 0)
    sink.close()
    read = place.read(spark, "pinned", includeMetadata=True).select("customer", "_jobpipe.partition").collect()
    assert dict(map(tuple, read)) == {customer: number % 8 for customer, number in customers.items()}


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
    with pytest.raises(
        ConfigError, match=r"names customer; each name must match exactly one column, .* the columns id"
    ):
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


def placed(place: Place, spark: SparkSession, topic: str) -> list[tuple[int, ...]]:
    """Return the partition of each row, with what names the row."""
    read = place.read(spark, topic, includeMetadata=True)
    return sorted(tuple(row) for row in read.select("_jobpipe.partition", *read.columns[:-1]).collect())


def test_round_robin_is_balanced(spark: SparkSession, place: Place) -> None:
    """Within one row for each task, for tiny tasks and tiny batches too; alike in both write paths."""
    batches = [spark.range(0, 1000, 1, 3), spark.range(1000, 1012, 1, 12), *(spark.range(i, i + 1) for i in range(8))]
    found = {}
    for path in ("collect", "tasks"):
        sink = place.sink(f"dealt-{path}", parallelism=4, partitioner="round-robin", write_path=path)
        for batch_id, df in enumerate(batches):
            rows = df.coalesce(1 if batch_id > 1 else 99)  # range(1) has two partitions
            sink(rows.select("id", F.lit(batch_id).alias("batch"), F.spark_partition_id().alias("was")), batch_id)
        assert sink.status()["sink"][path] == len(batches)
        sink.close()
        found[path] = placed(place, spark, f"dealt-{path}")
    assert found["collect"] == found["tasks"]
    counts = Counter((batch, was, partition) for partition, _, batch, was in found["tasks"])
    tasks = {(batch, was) for batch, was, _ in counts}
    assert len(tasks) == 3 + 12 + 8
    for batch, was in tasks:
        of_task = [counts[batch, was, partition] for partition in range(4)]
        assert max(of_task) - min(of_task) <= 1, (batch, was, of_task)
    assert sorted(partition for partition, _, batch, _ in found["tasks"] if batch == 1) == sorted([0, 1, 2, 3] * 3)
    assert sorted(partition for partition, _, batch, _ in found["tasks"] if batch > 1) == sorted([0, 1, 2, 3] * 2)


def by_partition(batch: pa.RecordBatch, partitions: int) -> Any:
    """A user's own partitioner: rows that belong together stay together, in reverse."""
    return pc.subtract(partitions - 1, batch["partition"])


@pytest.mark.parametrize("path", ["collect", "tasks"])
@pytest.mark.parametrize("partitioner", ["hash", "fixed", "round-robin", by_partition])
def test_order_holds_from_end_to_end(spark: SparkSession, place: Place, partitioner: Any, path: str) -> None:
    """The rows of a key, or of a task, arrive in the order they had, each once, replays included."""
    topic = f"order-{getattr(partitioner, '__name__', partitioner)}-{path}".replace("_", "-")
    rows, journal = NumberedRows(topic, partitions=3, rows=1000), Journal()
    files, published = place.folder / topic, place.checkpoint(f"p-{topic}")
    by = "partition" if partitioner == "hash" else None
    counts = []
    for batch_id in range(3):
        write_files(files, rows, [batch_id])
        with journal.sealing(batch_id, rows.ranges(batch_id)):
            pass
        if batch_id:
            forget_commit(published, batch_id - 1)
        sink = place.sink(topic, parallelism=3, partitioner=partitioner, partition_by=by, write_path=path)
        run_to_end(file_stream(spark, files), sink, published)
        counts.append([sink.status()["sink"][what] for what in ("batches", "replayed", path)])
        sink.close()
    assert counts == [[1, 0, 1], [1, 1, 1], [1, 1, 1]]
    received = Received()
    stream = place.stream(spark, topic, topic, startingOffsets="earliest", includeMetadata=True, maxRowsPerTrigger=2000)
    run_to_end(stream, received, place.checkpoint(f"s-{topic}"))
    arrived = pa.concat_tables([table for _, table in sorted(received.batches.items())])
    went = arrived["_jobpipe"].combine_chunks().field("partition")
    if partitioner in ("hash", by_partition):
        checker = Checker(rows, journal)  # the rows of a partition come by one and the same of ours, so in order
        checker.take(arrived.drop_columns(["_jobpipe"]))
        checker.check()
    assert sorted(zip(*(arrived[name].to_pylist() for name in ("partition", "number")), strict=True)) == [
        (partition, number) for partition in range(3) for number in range(3000)
    ]
    for partition in range(3):  # a file is one task, whose rows lie partition by partition, then by number
        mine = arrived.filter(pc.equal(went, partition)).select(["number", "partition"])
        batch_of = pc.divide(mine["number"], 1000)
        keys = list(zip(*(column.to_pylist() for column in (batch_of, mine["partition"], mine["number"])), strict=True))
        assert keys == sorted(keys)
    if partitioner == by_partition:
        assert pc.all(pc.equal(pc.add(went, arrived["partition"].combine_chunks()), 2)).as_py()


def gives_too_much(batch: pa.RecordBatch, partitions: int) -> Any:
    return [partitions if number == 7 else 0 for number in batch["id"].to_pylist()]


def fails_itself(batch: pa.RecordBatch, partitions: int) -> Any:
    return batch["no-such"]


@pytest.mark.parametrize("path", ["collect", "tasks"])
def test_a_wrong_function_seals_nothing(spark: SparkSession, place: Place, path: str) -> None:
    """One error of ours, which names topic, function and value, wherever the function is called."""
    for function, told in (
        (gives_too_much, r"gave 2 for row \d+: expected \d+ whole numbers from 0 to 1, one for each row"),
        (fails_itself, r"raised KeyError: "),
    ):
        topic = f"wrong-{function.__name__}-{path}".replace("_", "-")
        sink = place.sink(topic, parallelism=2, partitioner=function, write_path=path)
        with pytest.raises((ConfigError, PySparkException)) as caught:
            sink(spark.range(20), 0)
        where = r", task \d+" if path == "tasks" else ""
        named = rf"topic '{topic}'{where}: the partitioner, function [\w.]+\.{function.__name__}, {told}"
        text = f"{type(caught.value).__module__}.{type(caught.value).__name__}: {caught.value}"
        assert re.search(named, text), text
        assert set(re.findall(r"jobpipe\.errors\.(\w+):", text)) == {"ConfigError"}, text
        assert sink.status()["head"] == 0
        sink(spark.range(5).where("id < 0"), 1)  # the sink is none the worse
        sink.close()


def test_another_partitioner_ends_a_micro_batch(spark: SparkSession, place: Place) -> None:
    """What was divided in different ways is never read together."""
    sinks: list[dict[str, Any]] = [{"partition_by": "id"}, {}, {"partitioner": "round-robin"}, {"partitioner": halves}]
    for number, given in enumerate([*sinks, sinks[-1]]):
        sink = place.sink("divided", parallelism=2, **given)
        for batch_id in range(2):
            sink(rows_of(spark, 2 * number + batch_id), batch_id)
        sink.close()
    received = Received()
    run_to_end(place.stream(spark, "divided", "d", startingOffsets="earliest"), received, place.checkpoint("divided"))
    assert [sorted(table["id"].to_pylist()) for _, table in sorted(received.batches.items())] == [
        [0, 1, 10, 11],
        [20, 21, 30, 31],
        [40, 41, 50, 51],
        [60, 61, 70, 71, 80, 81, 90, 91],
    ]


def halves(batch: pa.RecordBatch, partitions: int) -> list[int]:
    return [2 * row // batch.num_rows for row in range(batch.num_rows)]


def rows_of(spark: SparkSession, number: int) -> DataFrame:
    return spark.range(10 * number, 10 * number + 2)
