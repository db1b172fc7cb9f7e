"""Keeps what it reads of a topic, a folder of parquet files for each micro-batch, until the topic's end mark.

Its one argument is an order as JSON: ``output``, ``checkpoint``, ``events``, ``hold`` and ``options`` of the source.
The folder of a micro-batch is written as a whole, by the executors, and anew when Spark repeats it. While the folder
``hold`` exists, tasks that begin stop in the middle of their rows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import jobpipe
from jobpipe.errors import WaitTimeout
from tests.cluster.jobs.holding import held
from tests.faults.spark.spark_rig import Events
from tests.spark.jobs.session import started


def main() -> None:
    """Obey one order."""
    order = json.loads(sys.argv[1])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    events = Events(Path(order["events"]))
    spark = SparkSession.builder.appName("subscriber").getOrCreate()
    events.note("application", id=spark.sparkContext.applicationId)

    def keep(batch: DataFrame, batch_id: int) -> None:
        if os.path.isdir(order["hold"]):
            batch = batch.mapInArrow(held(order["hold"]), batch.schema)
        batch.write.mode("overwrite").parquet(f"{order['output']}/{batch_id:06}")

    stream = spark.readStream.format("jobpipe").options(includeMetadata="true", **order["options"]).load()
    query = started(
        stream.writeStream.foreachBatch(jobpipe.stoppable(keep)).option("checkpointLocation", order["checkpoint"])
    )
    events.note("started")
    while query.isActive and not stop.is_set():
        events.note_change("link", report=_report(query))
        try:
            jobpipe.await_end(query, timeout=0.2)
        except WaitTimeout:
            continue
    events.note_change("link", report=_report(query))
    query.stop()
    failure = query.exception()
    if failure is not None:
        raise failure
    events.note("ended")
    spark.stop()


def _report(query: StreamingQuery) -> Any:
    """Return what the source says of its topics in the query's last progress."""
    progress = query.lastProgress
    if progress is None:
        return None
    found = progress["sources"][0].get("latestOffset")
    topics = json.loads(found) if isinstance(found, str) else found
    shown = ("state", "epoch", "n", "reconnects", "losses", "lost_rows", "ended", "last_error")
    return {topic: {key: line[key] for key in shown if key in line} for topic, line in (topics or {}).items()}


if __name__ == "__main__":
    main()
