"""``python -m tests.faults.spark_publish``: a Spark application that publishes numbered rows until it is told to end.

Takes the order of :mod:`tests.harness.publish` on standard input, and keeps the same journal. Its source makes the
same rows again when Spark replays a batch. SIGTERM lets it stop its query and close its sink, as a job should; a file
``finish`` makes it seal an end mark before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from jobpipe import JobPipeSink
from jobpipe.testing import Journal, NumberedRows
from tests.faults.spark_rig import events_of
from tests.harness.publish import PublishOrder, _drop_torn_line, _force
from tests.spark.jobs.session import session

COLUMNS = "partition int, number bigint, payload string, digest bigint"
TASKS = 2


def numbered(rows: NumberedRows) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what makes the rows of the numbers of one task; those of a partition come from one task, in order."""

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = batch.column("value").to_pylist()
            made = [rows.table(value % rows.partitions, at := value // rows.partitions, at + 1) for value in values]
            if made:
                yield from pa.concat_tables(made).combine_chunks().to_batches()

    return make


def publish(order: PublishOrder, stop: threading.Event) -> None:
    """Publish until ``stop`` or ``order.finish``."""
    rows = NumberedRows(order.topic, partitions=order.partitions, rows=order.rows, payload=order.payload)
    assert rows.partitions % TASKS == 0
    _drop_torn_line(order.journal)
    journal = Journal(order.journal)
    events = events_of(order.journal.parent)
    spark = session("local[2]")
    spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()  # a cold worker is not what is measured
    events.note("constructing")
    settings = {**order.config, "jobpipe.parallelism": str(order.partitions)}
    sink = JobPipeSink(order.topic, partition_by="partition", **settings, **order.options)
    events.note("constructed")

    def callback(df: DataFrame, batch_id: int) -> None:
        journal.intend(batch_id, rows.ranges(batch_id))
        _force(order.journal)
        sink(df, batch_id)
        journal.seal(batch_id)
        _force(order.journal)
        events.note("sealed", batch=batch_id)
        stop.wait(order.pause)

    stream = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=rows.partitions * rows.rows, numPartitions=TASKS)
        .load()
        .select("value")
        .mapInArrow(numbered(rows), COLUMNS)
    )
    checkpoint = str(order.journal.parent / "checkpoint-publisher")
    query = stream.writeStream.foreachBatch(callback).option("checkpointLocation", checkpoint).start()
    while query.isActive and not order.finish.exists() and not stop.wait(0.1):
        if os.getppid() != order.parent:
            break  # the harness is gone
    if stop.is_set():
        events.note("told to end")
    query.stop()
    failure = query.exception()
    if failure is not None:
        raise failure
    sink.close(final=order.finish.exists())
    spark.stop()


def main() -> None:
    """Obey one order."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    publish(PublishOrder(**json.loads(sys.stdin.buffer.readline())), stop)


if __name__ == "__main__":
    main()
