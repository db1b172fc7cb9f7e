"""Publishes with the Spark that runs it: ``publish.py FOLDER TOPIC KILLED_AT``.

The files of ``FOLDER/files`` become micro-batches of TOPIC. With KILLED_AT they are written by tasks, and the program
kills itself as soon as that micro-batch is sealed. With -1 they go through the driver, and the program closes the topic
and publishes the types that this Spark knows, in both ways, each group to a topic of its own. It prints the values as
JSON.
"""

import json
import os
import signal
import sys

from pyspark.sql import DataFrame

import jobpipe
from tests.compat.jobs.common import groups, session, values

folder, topic, killed_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
spark = session()
kept = {"required_subscribers": ["kept"], "parallelism": 2}  # others read it later
write_path = "tasks" if killed_at >= 0 else "collect"
sink = jobpipe.JobPipeSink(topic, partition_by="partition", write_path=write_path, **kept)


def publish(df: DataFrame, batch_id: int) -> None:
    """Publish a micro-batch; it need not have the same tasks when it is repeated."""
    sink(df.repartition(2 if killed_at >= 0 else 3, "partition").sortWithinPartitions("number"), batch_id)
    if batch_id == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)


stream = (
    spark.readStream.schema("partition int, number bigint, payload string, digest bigint")
    .option("maxFilesPerTrigger", 1)
    .parquet(f"{folder}/files")
)
query = (
    stream.writeStream.foreachBatch(publish)
    .option("checkpointLocation", f"{folder}/checkpoint-{topic}")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
counts = sink.status()["sink"]
sink.close(final=True)
published = {}
for group, selected in groups().items():
    df = spark.range(0, 3, 1, 2).selectExpr("id", *selected)
    for way in ("tasks", "collect"):
        kinds = jobpipe.JobPipeSink(f"{topic}-types-{group}", write_path=way, **kept)
        kinds.publish(df, 0, series=way)
        counts[f"types by {way}"] = kinds.status()["sink"][way]
        kinds.close(final=way == "collect")
    published[group] = values(df.union(df))
files = spark.sparkContext._jsc.hadoopConfiguration().get("fs.AbstractFileSystem.file.impl")
print(json.dumps({"spark": spark.version, "sink": counts, "types": published, "files": files}))
spark.stop()
