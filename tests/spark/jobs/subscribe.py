"""Reads streams of topics to their end marks: ``subscribe.py MASTER FOLDER TOPICS...``.

Each micro-batch becomes a file ``FOLDER/TOPICS/BATCH.parquet``. One query for each argument.
"""

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from session import session

import jobpipe

master, folder, *subscriptions = sys.argv[1:]
spark = session(master)
queries = []
for topics in subscriptions:
    target = Path(folder) / topics.replace(",", "+")
    target.mkdir(parents=True)
    stream = (
        spark.readStream.format("jobpipe")
        .options(subscribe=topics, name=f"{Path(folder).name}-{topics.replace(',', '.')}")
        .options(startingOffsets="earliest", includeMetadata=True, discoveryTimeout="150s")
        .load()
    )

    def keep(df: DataFrame, batch_id: int, target: Path = target) -> None:
        pq.write_table(df.toArrow(), target / f"{batch_id:05}.parquet")

    # One after the other: Spark gives the Python process of a stream's source 10 s to start, whatever else starts.
    for attempts_left in range(9, -1, -1):
        query = (
            stream.writeStream.foreachBatch(keep).option("checkpointLocation", f"{folder}/checkpoints/{topics}").start()
        )
        while query.isActive and query.status["message"].startswith(("Initializing", "Terminated")):
            time.sleep(0.05)
        if query.isActive or not attempts_left or "failed to connect back" not in str(query.exception()):
            break
    queries.append(query)
for query in queries:
    jobpipe.await_end(query, timeout=150)
print(json.dumps({"queries": len(queries)}))
spark.stop()
