"""``python -m tests.faults.spark.spark_publish``: a Spark application that publishes numbered rows until its end.

Takes the order of :mod:`tests.harness.jobs.publish` on standard input, and keeps the same journal. It publishes by a
sink, or, with the option ``way="format"``, by ``writeStream.format("jobpipe")``. Its source makes the same rows again
when Spark replays a batch. SIGTERM lets it stop its query and close its sink, as a job should; a file ``finish`` makes
it seal an end mark before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from jobpipe import JobPipeSink
from jobpipe.testing import Journal, NumberedRows
from tests.faults.spark.spark_rig import events_of
from tests.harness.jobs.publish import PublishOrder, _drop_torn_line, _force
from tests.spark.jobs.session import session

COLUMNS = "partition int, number bigint, payload string, digest bigint"
TASKS = 2
GATE_SECONDS = 120.0  # for which rows wait until their batch is intended


def numbered(
    rows: NumberedRows, intended: Path | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what makes the rows of the numbers of one task; those of a partition come from one task, in order.

    Args:
        rows: what they are.
        intended: a file with the number of the newest batch that may be written; rows of later ones wait for it.
    """
    size = rows.partitions * rows.rows

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = batch.column("value").to_pylist()
            made = [rows.table(value % rows.partitions, at := value // rows.partitions, at + 1) for value in values]
            if made:
                if intended is not None:
                    await_intended(intended, max(values) // size)
                yield from pa.concat_tables(made).combine_chunks().to_batches()

    return make


def await_intended(intended: Path, batch_id: int) -> None:
    """Wait until a batch may be written."""
    deadline = time.monotonic() + GATE_SECONDS
    while int(intended.read_text()) < batch_id:
        if time.monotonic() > deadline:
            raise TimeoutError(f"batch {batch_id} is not intended within {GATE_SECONDS:g} s")
        time.sleep(0.01)


class Job:
    """What publishes by one order, in one of two ways."""

    def __init__(self, order: PublishOrder, stop: threading.Event) -> None:
        self.order = order
        self.stop = stop
        self.rows = NumberedRows(order.topic, partitions=order.partitions, rows=order.rows, payload=order.payload)
        assert self.rows.partitions % TASKS == 0
        _drop_torn_line(order.journal)
        self.journal = Journal(order.journal)
        self.events = events_of(order.journal.parent)
        self.checkpoint = order.journal.parent / "checkpoint-publisher"
        self.settings: dict[str, Any] = {**order.config, "jobpipe.parallelism": str(order.partitions)}
        self.spark = session("local[2]")
        # A cold worker is not what is measured.
        self.spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()

    @property
    def goes_on(self) -> bool:
        """Whether nobody wants it to end: the harness may also be gone."""
        return not (self.stop.is_set() or self.order.finish.exists() or os.getppid() != self.order.parent)

    def stream(self, intended: Path | None = None) -> DataStreamWriter:
        """Return the writer of the numbered rows."""
        stream = (
            self.spark.readStream.format("rate-micro-batch")
            .options(rowsPerBatch=self.rows.partitions * self.rows.rows, numPartitions=TASKS)
            .load()
            .select("value")
            .mapInArrow(numbered(self.rows, intended), COLUMNS)
        )
        return stream.writeStream.option("checkpointLocation", str(self.checkpoint))

    def intend(self, batch_id: int) -> None:
        """Note a batch that is about to be written."""
        self.journal.intend(batch_id, self.rows.ranges(batch_id))
        _force(self.order.journal)

    def sealed(self, batch_id: int) -> None:
        """Note a batch that is known to be sealed."""
        self.journal.seal(batch_id)
        _force(self.order.journal)
        self.events.note("sealed", batch=batch_id)

    def end(self, query: StreamingQuery) -> None:
        """Stop the query; raise what it failed by."""
        if self.stop.is_set():
            self.events.note("told to end")
        query.stop()
        failure = query.exception()
        if failure is not None:
            raise failure

    def by_sink(self, **options: Any) -> None:
        """Publish by ``foreachBatch(JobPipeSink(...))``."""
        self.events.note("constructing")
        sink = JobPipeSink(self.order.topic, partition_by="partition", **self.settings, **options)
        self.events.note("constructed")

        def callback(df: DataFrame, batch_id: int) -> None:
            self.intend(batch_id)
            sink(df, batch_id)
            self.sealed(batch_id)
            self.stop.wait(self.order.pause)

        query = self.stream().foreachBatch(callback).start()
        while query.isActive and self.goes_on:
            self.stop.wait(0.1)
        self.end(query)
        sink.close(final=self.order.finish.exists())

    def by_format(self, **options: Any) -> None:
        """Publish by ``writeStream.format("jobpipe")``.

        The driver is not told when Spark begins a batch. So it is the rows of a batch that wait until it is intended,
        and the query's progress that says that it is sealed.
        """
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
        given = {"topic": self.order.topic, "partition_by": "partition", **self.settings, **texts}
        intended = self.order.journal.parent / "intended"
        done = committed(self.checkpoint)
        for batch_id in range(done + 1):  # committed by Spark, and so sealed, when an earlier life was killed
            if self.journal.is_open(batch_id):
                self.sealed(batch_id)
        self._allow(intended, done)
        self.events.note("constructing")
        query = self.stream(intended).format("jobpipe").options(**given).start()
        self.events.note("constructed")
        while query.isActive and self.goes_on:
            self.intend(done + 1)
            self._allow(intended, done + 1)
            while query.isActive and not self.stop.is_set() and last_batch(query) <= done:
                self.stop.wait(0.02)
            if last_batch(query) > done:
                done += 1
                self.sealed(done)
                self.stop.wait(self.order.pause)
        self.end(query)
        if self.order.finish.exists():
            nothing = self.spark.createDataFrame([], COLUMNS)
            nothing.write.format("jobpipe").options(**given, final="true").mode("append").save()

    def _allow(self, intended: Path, batch_id: int) -> None:
        fresh = intended.with_suffix(".new")
        fresh.write_text(str(batch_id))
        fresh.rename(intended)


def committed(checkpoint: Path) -> int:
    """Return the number of the last batch that Spark has committed; -1 if there is none."""
    folder = checkpoint / "commits"
    found = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.exists() else []
    return max(found, default=-1)


def last_batch(query: StreamingQuery) -> int:
    """Return the number of the last batch that a query has ended in this run; -1 before."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def publish(order: PublishOrder, stop: threading.Event) -> None:
    """Publish until ``stop`` or ``order.finish``; its option ``way`` may be ``format``."""
    job = Job(order, stop)
    options = {name: value for name, value in order.options.items() if name != "way"}
    if order.options.get("way") == "format":
        job.by_format(**options)
    else:
        job.by_sink(**options)
    job.spark.stop()


def main() -> None:
    """Obey one order."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    publish(PublishOrder(**json.loads(sys.stdin.buffer.readline())), stop)


if __name__ == "__main__":
    main()
