"""What needs a session of its own: ``trials.py FOLDER``. Prints what happened; ends without closing its last sink.

The session tries a failed task again, and takes no results of more than 1 MiB in the driver.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter
from session import session

from jobpipe import JobPipeSink, stoppable
from jobpipe.publishing.coordinator_launcher import _coordinators
from tests.spark.kit import until

folder = Path(sys.argv[1])
spark = session("local[2,3]", spark_driver_maxResultSize="1m")
outcome: dict[str, Any] = {}
open_sinks: list[JobPipeSink] = []


def fragile(number: int) -> int:
    """Fail in the first attempt of every other task, after it has written rows."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0 and context.partitionId() % 2 and number % 200 == 199:
        raise RuntimeError("the test wants this attempt to fail")
    return number


def fragile_once(side: str) -> Any:
    """Return a column function that does so, and counts the failures: a file in the folder ``side`` for each."""
    failed = folder / side
    failed.mkdir(parents=True)

    def work(number: int) -> int:
        try:
            return fragile(number)
        except RuntimeError:
            (failed / str(number)).touch()
            raise

    return F.udf(work, "bigint")


def jvm() -> psutil.Process:
    """Return the JVM of this driver: what it publishes by the format is its own."""
    return next(child for child in psutil.Process().children(recursive=True) if child.name() == "java")


def retries() -> None:
    """Publish rows whose tasks fail once; the chain reads them later."""
    sink = JobPipeSink("retries", parallelism=2, partition_by="id", write_path="tasks", segment_max_bytes="64KiB")
    rows = spark.range(0, 8_000, 1, 4).withColumn("pad", F.repeat(F.lit("x"), 100))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    for batch_id in range(2):
        sink(rows.select(F.udf(fragile, "bigint")("id").alias("id"), "pad"), batch_id)
    outcome["retries"] = sink.status()["sink"]
    open_sinks.append(sink)


def retries_by_format() -> None:
    """Publish rows whose tasks fail once by ``write`` and ``writeStream``."""
    given = {"parallelism": "2", "partition_by": "id", "segment_max_bytes": "64KiB"}
    rows = spark.range(0, 8_000, 1, 4).withColumn("pad", F.repeat(F.lit("x"), 100))
    writer = rows.select(fragile_once("failed-saved")("id").alias("id"), "pad").write.format("jobpipe").mode("append")
    writer.options(topic="saved", **given).save()
    stream = files("streamed", 2, rows=4_000).withColumn("pad", F.repeat(F.lit("x"), 100))
    go_on_by_format(stream.select(fragile_once("failed-streamed")("id").alias("id"), "pad"), "streamed", **given)
    for side in ("saved", "streamed"):
        outcome[f"failed {side}"] = len(list((folder / f"failed-{side}").iterdir()))


def too_large() -> None:
    """Publish a batch that the driver cannot take, then a small one."""
    sink = JobPipeSink("large", parallelism=2, write_path="collect")
    large = spark.range(0, 60_000, 1, 4).withColumn("pad", F.expr("concat(uuid(), uuid(), uuid())"))
    sink(large, 0)
    sink(large.limit(10), 1)
    outcome["large"] = sink.status()["sink"]
    sink.close(final=True)


def slow(seconds: float) -> Any:
    """Return a column function that takes its time."""
    return F.udf(lambda number: (time.sleep(seconds), number)[1], "bigint")


def files(topic: str, count: int, rows: int = 100) -> DataFrame:
    """Return a stream of ``count`` micro-batches of so many rows."""
    target = folder / topic
    for part in range(count):
        if not (target / str(part)).exists():
            spark.range(rows * part, rows * part + rows, 1, 2).write.parquet(str(target / str(part)))
    return spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 2).parquet(str(target / "*"))


def stopped(
    source: DataFrame, topic: str, sink: Callable[[DataFrame, int], None], pause: float, seconds: float
) -> dict[str, Any]:
    """Stop a query while its sink works; tell how it ended."""
    entered = threading.Event()

    def callback(df: DataFrame, batch_id: int) -> None:
        entered.set()
        sink(df.select(slow(pause)("id").alias("id")) if pause else df, batch_id)

    query = (
        source.writeStream.foreachBatch(callback)
        .option("checkpointLocation", str(folder / "checkpoints" / topic))
        .start()
    )
    assert entered.wait(60)
    time.sleep(seconds)
    began = time.monotonic()
    query.stop()
    return {"error": str(query.exception() or ""), "seconds": time.monotonic() - began, "active": query.isActive}


def go_on(source: DataFrame, topic: str, sink: JobPipeSink) -> None:
    """Run the query to its end."""
    query = (
        source.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoints" / topic))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def by_format(source: DataFrame, topic: str, **given: str) -> DataStreamWriter:
    """Return what publishes a stream by ``writeStream.format("jobpipe")``."""
    writer = source.writeStream.format("jobpipe").options(topic=topic, **given)
    return writer.option("checkpointLocation", str(folder / "checkpoints" / topic))


def go_on_by_format(source: DataFrame, topic: str, **given: str) -> None:
    """Run the query to its end."""
    query = by_format(source, topic, **given).trigger(availableNow=True).start()
    assert query.awaitTermination(120)


def stopped_by_format(topic: str, run: int) -> dict[str, Any]:
    """Stop a query that publishes by the format while its tasks write; tell how it ended."""
    middle = folder / f"middle-{run}"

    def work(number: int) -> int:
        time.sleep(0.05)
        if number % 50 == 20:  # of 50 rows of a task
            middle.touch()
        return number

    query = by_format(files(topic, 3).select(F.udf(work, "bigint")("id").alias("id")), topic, parallelism="1").start()
    until(lambda: middle.exists() or not query.isActive, "a task in the middle of its rows")
    began = time.monotonic()
    query.stop()
    return {"error": str(query.exception() or ""), "seconds": time.monotonic() - began, "active": query.isActive}


def stops_by_format() -> None:
    """Stop the query of a format in the middle of a batch, several times; then let it go on."""
    topic = "stop-format"
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    outcome[topic] = [stopped_by_format(topic, run) for run in range(2)]
    go_on_by_format(files(topic, 3), topic, parallelism="1")


def stops() -> None:
    """Stop a publisher's query in each of its waits, in both write paths, several times; then let it go on."""
    for path in ("collect", "tasks"):
        topic = f"stop-{path}"
        sink = JobPipeSink(topic, parallelism=1, write_path=path)
        outcome[topic] = [stopped(files(topic, 3), topic, sink, 0.1, seconds) for seconds in (0.0, 2.0)]
        go_on(files(topic, 3), topic, sink)
        outcome[f"{topic} sink"] = sink.status()["sink"]
        sink.close(final=True)
    sink = JobPipeSink(
        "stop-acks",
        parallelism=1,
        acks="all",
        required_subscribers=["nobody"],
        write_path="collect",
        acks_timeout="5min",
    )
    outcome["stop-acks"] = [stopped(files("stop-acks", 3), "stop-acks", sink, 0.0, 4.0)]
    outcome["stop-acks sink"] = sink.status()["sink"]
    sink.close()


def chain() -> None:
    """Stop a query that subscribes a topic, then one that publishes another; let that one go on."""

    def retried(name: str) -> DataFrame:
        options = {"startingOffsets": "earliest", "maxRowsPerTrigger": 3000}
        return spark.readStream.format("jobpipe").options(subscribe="retries", name=name, **options).load()

    collect = stoppable(lambda df, batch_id: df.toArrow())
    outcome["reader"] = [stopped(retried("reader"), "reader", collect, 0.001, seconds) for seconds in (0.0, 1.5)]
    source = retried("chain")
    sink = JobPipeSink("chained", parallelism=2)
    outcome["chained"] = [stopped(source, "chained", sink, 0.001, seconds) for seconds in (0.0, 1.5)]
    go_on(source, "chained", sink)
    sink.close(final=True)
    open_sinks.pop().close(final=True)


for trial in (retries, retries_by_format, too_large, stops, stops_by_format, chain):
    began = time.monotonic()
    trial()
    print(f"{trial.__name__}: {time.monotonic() - began:.1f} s", flush=True)
last = JobPipeSink("left-open", parallelism=1)
last(spark.range(10), 0)
outcome["coordinators"] = [coordinator.process.pid for coordinator in _coordinators.values()]
outcome["jvm"] = jvm().pid
outcome["ended"] = time.time()
print(json.dumps(outcome), flush=True)
