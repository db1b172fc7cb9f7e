"""Publishes the files of a folder, one a micro-batch.

``publish.py MASTER TOPIC FOLDER CHECKPOINT WRITE_PATH REQUIRED_SUBSCRIBERS...``
"""

import json
import sys

from session import session

from jobpipe import JobPipeSink

master, topic, folder, checkpoint, write_path, *required = sys.argv[1:]
spark = session(master)
sink = JobPipeSink(topic, parallelism=3, partition_by="partition", write_path=write_path, required_subscribers=required)
files = (
    spark.readStream.schema("partition int, number bigint, payload string, digest bigint")
    .option("maxFilesPerTrigger", 1)
    .parquet(folder)
)
query = files.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
sink.close(final=True)
print(json.dumps({"spark": spark.version, "master": master}))
spark.stop()
