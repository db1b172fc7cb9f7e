"""Reads streams of topics to their end marks: ``subscribe.py MASTER FOLDER TOPICS...``.

Each micro-batch becomes a file ``FOLDER/TOPICS/BATCH.parquet``. One query for each argument.
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from session import session, started

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

    writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", f"{folder}/checkpoints/{topics}")
    queries.append(started(writer))
for query in queries:
    jobpipe.await_end(query, timeout=150)
print(json.dumps({"queries": len(queries)}))
spark.stop()
