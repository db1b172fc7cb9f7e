"""``python -m tests.faults.spark.spark_subscribe``: a Spark application that keeps what it reads, by micro-batch.

Takes the order of :mod:`tests.harness.jobs.consume` on standard input, and keeps rows in the same file: a sink that is
idempotent by batch id. A batch that comes again must be the same. It ends at the topic's end mark, or at SIGTERM, which
stops its query as it runs. What its query's progress says of the link goes to the harness's events.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import jobpipe
from jobpipe.errors import WaitTimeout
from tests.faults.spark.spark_rig import OPTIONS, Events, events_of
from tests.harness.jobs.consume import ConsumeOrder, Received, _pack
from tests.spark.jobs.session import session, started


class Kept(Received):
    """Rows by micro-batch id."""

    def keep(self, batch_id: int, table: pa.Table) -> None:
        """Store a micro-batch, or compare it with what it was before."""
        [batch] = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        packed = _pack(batch)
        self._database.execute("begin immediate")
        with self._database:
            found = self._database.execute("select batch from received where id = ?", [batch_id]).fetchone()
            if found is None:
                values = (batch_id, time.monotonic(), 0, 0, table.num_rows, packed)
                self._database.execute("insert into received values (?, ?, ?, ?, ?, ?)", values)
            elif found[0] != packed:
                raise RuntimeError(f"micro-batch {batch_id} came again, and not as it was")


def subscribe(order: ConsumeOrder, stop: threading.Event) -> None:
    """Read until the end mark or ``stop``."""
    spark = session("local[2]", spark_sql_streaming_noDataProgressEventInterval="200")
    store = Path(order.store)
    events = events_of(store.parent, order.name)

    def callback(df: DataFrame, batch_id: int) -> None:
        table = df.toArrow()
        with closing(Kept(store)) as kept:
            kept.keep(batch_id, table)
        stop.wait(order.pause)

    limit = {} if order.max_rows is None else {"maxRowsPerTrigger": order.max_rows}
    more = store.parent / OPTIONS
    limit |= json.loads(more.read_text()) if more.exists() else {}
    stream = (
        spark.readStream.format("jobpipe")
        .options(**order.config)
        .options(subscribe=order.topic, name=order.name, startingOffsets=order.starting, **limit)
        .load()
    )
    checkpoint = str(store.parent / f"checkpoint-{order.name}")
    query = started(
        stream.writeStream.foreachBatch(jobpipe.stoppable(callback)).option("checkpointLocation", checkpoint)
    )
    events.note("started")
    while query.isActive and not stop.is_set() and os.getppid() == order.parent:
        note_progress(query, order.topic, events)
        try:
            jobpipe.await_end(query, timeout=0.2)
        except WaitTimeout:
            continue
    query.stop()
    events.note("stopped")
    failure = query.exception()
    if failure is not None:
        raise failure
    spark.stop()


def note_progress(query: StreamingQuery, topic: str, events: Events) -> None:
    """Note the link's state, its reconnects and the publisher's epoch, if they are others than before."""
    progress = query.lastProgress
    latest = None if progress is None else progress["sources"][0]["latestOffset"]
    heads = json.loads(latest) if isinstance(latest, str) else latest
    if heads is not None:  # nothing was heard yet
        link = heads[topic]
        events.note_change("link", **{key: link[key] for key in ("state", "reconnects", "epoch")})


def main() -> None:
    """Obey one order."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    subscribe(ConsumeOrder(**json.loads(sys.stdin.buffer.readline())), stop)


if __name__ == "__main__":
    main()
