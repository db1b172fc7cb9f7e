"""Reads a stream to its end mark in small micro-batches: ``limited.py FOLDER TOPIC MAX_BYTES``.

Each micro-batch becomes a file ``FOLDER/BATCH.parquet``, as a sink that is idempotent by batch id keeps it: one that
comes again must be the same.
"""

import json
import os
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from session import session, started

import jobpipe

folder, topic, max_bytes = Path(sys.argv[1]), *sys.argv[2:]
spark = session("local[2]")
folder.mkdir(exist_ok=True)
stream = (
    spark.readStream.format("jobpipe")
    .options(subscribe=topic, name="limited", startingOffsets="earliest", discoveryTimeout="150s")
    .options(maxBytesPerTrigger=max_bytes)
    .load()
)


def keep(df: DataFrame, batch_id: int) -> None:
    table, path = df.toArrow(), folder / f"{batch_id:05}.parquet"
    if path.exists():
        assert pq.read_table(path).equals(table), f"micro-batch {batch_id} came again, and not as it was"
        return
    part = path.with_suffix(".part")
    pq.write_table(table, part)
    os.replace(part, path)


query = started(stream.writeStream.foreachBatch(keep).option("checkpointLocation", f"{folder}/checkpoint"))
jobpipe.await_end(query, timeout=150)
print(json.dumps({"ended": True}))
spark.stop()
