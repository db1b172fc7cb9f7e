"""Reads topics by pattern to their end marks: ``pattern.py FOLDER PATTERN TOPIC``.

Each micro-batch becomes a file ``FOLDER/rows/BATCH.parquet``; one that comes again must be the same. Once for each of
the files ``kill-offset`` and ``kill-rows`` in the folder the application kills itself, before Spark can commit: in the
first batch whose logged end names TOPIC, and in the first with rows of it.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from session import session, started

import jobpipe

folder, pattern, topic = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
spark = session("local[2]")
java = spark.sparkContext._jvm.ProcessHandle.current().pid()
(folder / "rows").mkdir(exist_ok=True)


def die(order: str) -> None:
    """Obey an order to die, if there is one."""
    if (folder / order).exists():
        (folder / order).unlink()
        os.kill(java, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def keep(df: DataFrame, batch_id: int) -> None:
    """Store a micro-batch, or compare it with what it was."""
    path = folder / "rows" / f"{batch_id:05}.parquet"
    table = df.toArrow()
    if not path.exists():
        pq.write_table(table, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)
    assert pq.read_table(path).equals(table), f"batch {batch_id} came again, and not as it was"
    if topic in (folder / "checkpoint" / "offsets" / str(batch_id)).read_text():
        die("kill-offset")
    if topic in {value["topic"] for value in table["_jobpipe"].to_pylist()}:
        die("kill-rows")


stream = (
    spark.readStream.format("jobpipe")
    .options(subscribePattern=pattern, name="pattern", startingOffsets="earliest", includeMetadata=True)
    .options(maxRowsPerTrigger=40)
    .load()
)
query = started(stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "checkpoint")))
jobpipe.await_end(query, timeout=200)
print(json.dumps({"ended": True}))
spark.stop()
