"""Reads with the Spark that runs it: ``subscribe.py FOLDER TOPIC NAME KILLED_AT``.

Each micro-batch becomes a file ``FOLDER/NAME/BATCH.parquet``. The program kills itself as soon as that of KILLED_AT is
written; with -1 it reads what is there, by the trigger ``availableNow``, and ends by itself.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from tests.compat.jobs.common import SECONDS, session

folder, topic, name, killed_at = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
target = folder / name
target.mkdir(exist_ok=True)
spark = session()


def keep(df: DataFrame, batch_id: int) -> None:
    """Write a micro-batch; one that comes again must have the same rows."""
    path, table = target / f"{batch_id:05}.parquet", df.toArrow()
    if path.exists():
        assert pq.read_table(path).equals(table), f"batch {batch_id} came again with other rows"
    pq.write_table(table, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)
    if batch_id == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)


stream = spark.readStream.format("jobpipe").options(subscribe=topic, name=name, startingOffsets="earliest").load()
writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", f"{folder}/checkpoint-{name}")
query = (writer if killed_at >= 0 else writer.trigger(availableNow=True)).start()
assert query.awaitTermination(SECONDS), "it did not end in time"
print(json.dumps({"spark": spark.version}))
spark.stop()
