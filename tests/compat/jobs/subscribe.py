"""Reads with the Spark that runs it: ``subscribe.py FOLDER TOPIC NAME ROWS KILLED_AT``.

Each micro-batch becomes a file ``FOLDER/NAME/BATCH.parquet``; the program ends when these hold ROWS rows. With
KILLED_AT it kills itself as soon as the file of that micro-batch is written.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from tests.compat.jobs.common import SECONDS, session

folder, topic, name, rows, killed_at = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
target = folder / name
target.mkdir(exist_ok=True)
spark = session()
done = threading.Event()


def keep(df: DataFrame, batch_id: int) -> None:
    """Write a micro-batch; one that comes again must have the same rows."""
    path, table = target / f"{batch_id:05}.parquet", df.toArrow()
    if path.exists():
        assert pq.read_table(path).equals(table), f"batch {batch_id} came again with other rows"
    pq.write_table(table, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)
    if batch_id == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)
    if sum(pq.read_metadata(each).num_rows for each in target.glob("*.parquet")) >= rows:
        done.set()


stream = spark.readStream.format("jobpipe").options(subscribe=topic, name=name, startingOffsets="earliest").load()
query = stream.writeStream.foreachBatch(keep).option("checkpointLocation", f"{folder}/checkpoint-{name}").start()
while not done.is_set():
    if query.awaitTermination(0.1):  # raises its error
        break
    SECONDS.check()
query.processAllAvailable()
query.stop()
print(json.dumps({"spark": spark.version, "progress": len(query.recentProgress)}))
spark.stop()
