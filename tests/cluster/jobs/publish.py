"""Publishes the flights that its test gives it, one file a micro-batch, until a file ``finish`` is there.

Its one argument is an order as JSON: ``topic``, ``input``, ``checkpoint``, ``events``, ``hold``, ``finish``,
``partitions`` (how many tasks write, batch after batch in turn) and ``options`` of the sink. While the folder ``hold``
exists, tasks stop in the middle of their rows, and tell so by a file in it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from jobpipe import JobPipeSink
from tests.cluster.flights import SCHEMA
from tests.faults.spark_rig import Events

HOLD_SECONDS = 120.0


def held(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what passes rows on, and stops after the first half of them while ``folder`` exists."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            deadline = time.monotonic() + HOLD_SECONDS
            while os.path.isdir(folder):
                with open(f"{folder}/{socket.gethostname()}", "a"):
                    pass
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{folder} is still there")
                time.sleep(0.05)
            yield batch.slice(half)

    return pass_on


def main() -> None:
    """Obey one order."""
    order = json.loads(sys.argv[1])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    events = Events(Path(order["events"]))
    spark = SparkSession.builder.appName("publisher").getOrCreate()
    events.note("application", id=spark.sparkContext.applicationId)
    flights = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(order["input"])
    sink = JobPipeSink(
        order["topic"], partition_by="carrier", schema=flights.schema, write_path="tasks", **order["options"]
    )
    events.note("open")
    widths = order["partitions"]

    def publish(batch: DataFrame, batch_id: int) -> None:
        width = widths[batch_id % len(widths)]
        rows = batch.repartition(width, "carrier").sortWithinPartitions("id")
        sink(rows.mapInArrow(held(order["hold"]), batch.schema), batch_id)
        events.note("sealed", batch=batch_id, width=width, status=sink.status())

    query = flights.writeStream.foreachBatch(publish).option("checkpointLocation", order["checkpoint"]).start()
    while query.isActive and not os.path.exists(order["finish"]) and not stop.wait(0.1):
        pass
    if os.path.exists(order["finish"]) and query.isActive:
        query.processAllAvailable()
    query.stop()
    failure = query.exception()
    if failure is not None:
        raise failure
    sink.close(final=not stop.is_set())
    events.note("closed", status=None)
    spark.stop()


if __name__ == "__main__":
    main()
