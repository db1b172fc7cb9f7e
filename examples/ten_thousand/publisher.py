"""Publish 10,000 rows a second, a number and a text each, for 30 seconds, into the topic `ten_thousand`.

    spark-submit examples/ten_thousand/publisher.py --work /tmp/ten

run.py starts this job and two subscribers, and checks what they got.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import jobpipe
from jobpipe import JobPipeSink, stoppable


class Record:
    """What was sealed, batch by batch, in the file WORK/sealed.json."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.batches: dict[int, dict[str, int]] = {}
        self.rows = 0
        self.last_batch = -1

    def add(self, batch_id: int, batch: DataFrame) -> None:
        # The rate source makes the same rows again, so reading them twice is allowed here.
        found = batch.agg(sf.count("*").alias("rows"), sf.sum("number").alias("sum")).collect()[0].asDict()
        self.batches[batch_id] = found
        self.file.write_text(json.dumps(self.batches))
        self.rows += found["rows"]
        self.last_batch = batch_id


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoint and record")
    parser.add_argument("--topic", default="ten_thousand")
    parser.add_argument("--subscribers", default="first,second", help="subscriptions to keep rows for")
    parser.add_argument("--rows-per-second", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=30)
    args = parser.parse_args()
    total = args.rows_per_second * args.seconds

    spark = jobpipe.session(SparkSession.builder.appName("ten_thousand publisher"))
    spark.sparkContext.setLogLevel("WARN")

    rows = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", args.rows_per_second)
        .option("numPartitions", 1)  # one task makes all numbers, so they rise within every partition of the topic
        .load()
        .where(sf.col("value") < total)
        .select(sf.col("value").cast("int").alias("number"), sf.format_string("row %d", "value").alias("text"))
    )

    sink = JobPipeSink(
        args.topic,
        parallelism=2,
        partition_by=["number"],
        schema=rows.schema,
        required_subscribers=args.subscribers.split(","),
    )
    record = Record(args.work / "sealed.json")

    def publish(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        record.add(batch_id, batch)  # only after the sink returned: the batch is sealed

    query = (
        rows.writeStream.foreachBatch(stoppable(publish))  # the stop below may come in the middle of an empty batch
        .option("checkpointLocation", str(args.work / "checkpoints" / "publisher"))
        .trigger(processingTime="1 second")
        .start()
    )

    def finished() -> bool:
        progress = query.lastProgress  # of the last batch that Spark has committed
        return record.rows >= total and progress is not None and progress.batchId >= record.last_batch

    def stop_at_the_end() -> None:
        while query.isActive and not finished():
            time.sleep(0.1)
        query.stop()

    threading.Thread(target=stop_at_the_end, daemon=True).start()
    code = jobpipe.run(query, final=True)  # closes the sink, with an end mark unless it is interrupted
    print(f"sealed {record.rows:,} rows in {len(record.batches)} batches")
    return code


if __name__ == "__main__":
    sys.exit(main())
