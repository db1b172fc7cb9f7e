"""Publishes with the Spark that runs it: ``publish.py FOLDER TOPIC WRITE_PATH KILLED_AT``.

The files of ``FOLDER/files`` become micro-batches of TOPIC. With KILLED_AT the program kills itself as soon as that
micro-batch is sealed; with -1 it closes the topic, publishes the types that this Spark knows, each group to a topic of
its own, and prints the values as JSON.
"""

import json
import os
import signal
import sys

from pyspark.sql import DataFrame

import jobpipe
from tests.compat.jobs.common import groups, session, values

folder, topic, write_path, killed_at = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
spark = session()
kept = {"required_subscribers": ["kept"], "write_path": write_path, "parallelism": 2}  # others read it later
sink = jobpipe.JobPipeSink(topic, partition_by="partition", **kept)


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
    kinds = jobpipe.JobPipeSink(f"{topic}-types-{group}", **kept)
    kinds(df, 0)
    kinds.close(final=True)
    published[group] = values(df)
files = spark.sparkContext._jsc.hadoopConfiguration().get("fs.AbstractFileSystem.file.impl")
print(json.dumps({"spark": spark.version, "sink": counts, "types": published, "files": files}))
spark.stop()
