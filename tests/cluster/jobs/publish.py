"""Publishes the flights that its test gives it, one file a micro-batch, until a file ``finish`` is there.

Its one argument is an order as JSON: ``topic``, ``input``, ``checkpoint``, ``events``, ``hold``, ``finish``,
``widths`` (how many tasks write, batch after batch in turn) and ``options`` of the sink. While the folder ``hold``
exists, tasks stop in the middle of their rows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from jobpipe import JobPipeSink
from tests.cluster.flights import SCHEMA
from tests.cluster.jobs.holding import held
from tests.faults.spark.spark_rig import Events


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
    widths = order["widths"]

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
    spark.stop()


if __name__ == "__main__":
    main()
