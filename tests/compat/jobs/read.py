"""Reads what is there with the Spark that runs it: ``read.py FOLDER TOPIC...``; also by a stream that ends by itself.

The rows of each topic go to files ``FOLDER/read-SPARK-TOPIC.parquet`` and ``FOLDER/now-SPARK-TOPIC/BATCH.parquet``. The
values of the topics with types, or why one is refused, are printed as JSON.
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tests.compat.jobs.common import GROUPS, session, values

folder, topics = Path(sys.argv[1]), sys.argv[2:]
spark = session()
version = ".".join(spark.version.split(".")[:2])
found: dict[str, dict[str, object]] = {}
for topic in topics:
    rows = spark.read.format("jobpipe").options(subscribe=topic, includeMetadata="true").load()
    pq.write_table(rows.toArrow(), folder / f"read-{version}-{topic}.parquet")
    target = folder / f"now-{version}-{topic}"
    target.mkdir()

    def keep(df: DataFrame, batch_id: int, target: Path = target) -> None:
        """Write a micro-batch."""
        pq.write_table(df.toArrow(), target / f"{batch_id:05}.parquet")

    stream = spark.readStream.format("jobpipe").options(subscribe=topic, name=f"now-{version}")
    writer = stream.option("startingOffsets", "earliest").load().writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint-now-{version}-{topic}")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    for group in (f"{major}.{minor}" for major, minor in GROUPS):
        try:
            kinds = spark.read.format("jobpipe").options(subscribe=f"{topic}-types-{group}", discoveryTimeout="2s")
            found.setdefault(topic, {})[group] = values(kinds.load())
        except PySparkException as error:
            found.setdefault(topic, {})[group] = str(error)
print(json.dumps(found))
spark.stop()
