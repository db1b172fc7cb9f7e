"""Publishes and reads with tasks so slow that Spark runs copies of them: ``speculation.py MASTER FOLDER``.

Rows are published by a sink, and by ``write.format("jobpipe")``. Prints the rows that arrived, by partition where they
were not read in order, and by side how many attempts each partition's task had.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from session import session, started

import jobpipe
from jobpipe import JobPipeSink

ROWS, PARTITIONS = 400, 4
SLOW_SECONDS, PATIENCE = 20.0, 60.0

master, folder = sys.argv[1], Path(sys.argv[2])
spark = session(
    master,
    spark_cores_max="2",
    spark_executor_cores="1",
    spark_executor_memory="512m",
    spark_speculation="true",
    spark_speculation_interval="100ms",
    spark_speculation_quantile="0.25",
    spark_speculation_multiplier="1.1",
)


def dawdling(side: str) -> Any:
    """Return a column function that hangs in the first attempt of one task, when it has written most of its rows.

    The copy waits until it hangs: Spark starts a copy also when the first attempt is late with its first row, and a
    copy that has won by then ends an attempt that has done nothing.
    """
    attempts, hangs = folder / side, folder / f"{side}-hangs"

    def work(number: int) -> int:
        context = TaskContext.get()
        if context is not None:
            task = context.partitionId()
            (attempts / f"{task}-{context.taskAttemptId()}").touch()
            if task == 1 and context.attemptNumber() == 0 and number % 100 in (80, 81):
                hangs.touch()
                time.sleep(SLOW_SECONDS)
            deadline = time.monotonic() + PATIENCE
            while task == 1 and context.attemptNumber() > 0 and not hangs.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the first attempt does not hang after {PATIENCE:g} s")
                time.sleep(0.05)
        return number

    attempts.mkdir(parents=True)
    return F.udf(work, "bigint")


def attempts(side: str) -> dict[str, int]:
    """Return how often each task was run."""
    return dict(Counter(path.name.split("-")[0] for path in (folder / side).iterdir()))


sink = JobPipeSink("speculated", parallelism=PARTITIONS, write_path="tasks", required_subscribers=["reader"])
rows = spark.range(0, ROWS, 1, PARTITIONS).withColumn("pad", F.repeat(F.lit("x"), 500))
sink(rows.select(dawdling("written")("id").alias("id"), "pad"), 0)
sink.close(final=True)

writer = rows.select(dawdling("saved")("id").alias("id"), "pad").write.format("jobpipe").mode("append")
writer.options(topic="saved", parallelism=str(PARTITIONS), partitioner="fixed").save()
saved: dict[int, list[int]] = {}
for row in spark.read.format("jobpipe").options(subscribe="saved", includeMetadata="true").load().collect():
    saved.setdefault(row["_jobpipe"].partition, []).append(row.id)

received: dict[int, list[int]] = {}
slow = dawdling("read")


def keep(df: DataFrame, batch_id: int) -> None:
    """Keep the rows of a micro-batch."""
    received[batch_id] = [row.id for row in df.select(slow("id").alias("id")).collect()]


stream = spark.readStream.format("jobpipe").options(subscribe="speculated", name="reader").load()
query = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "checkpoint"))
jobpipe.await_end(started(query), timeout=120)
ids = [number for _, batch in sorted(received.items()) for number in batch]
print(
    json.dumps({"ids": ids, "saved ids": saved, **{side: attempts(side) for side in ("written", "saved", "read")}}),
    flush=True,
)
spark.stop()
