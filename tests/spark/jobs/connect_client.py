"""A client of Spark Connect that has no jobpipe: ``connect_client.py URL FOLDER``. Prints the rows of its batches.

It publishes the files of a folder as a stream, and reads that topic as a stream which it publishes to another one. Then
it copies both, as they are, into files.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

SECONDS = 120
url, folder = sys.argv[1], Path(sys.argv[2])
spark = SparkSession.builder.remote(url).getOrCreate()
assert isinstance(spark, ConnectSession)


def publish(stream: DataFrame, topic: str) -> None:
    """Publish what is there."""
    writer = stream.writeStream.format("jobpipe").options(topic=topic, partition_by="partition", parallelism="2")
    writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{topic}"))
    if not writer.trigger(availableNow=True).start().awaitTermination(SECONDS):
        sys.exit(f"{topic}: not at its end within {SECONDS} s")


columns = "partition int, number bigint, payload string, digest bigint"
publish(spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(str(folder / "files")), "first")
options = {"subscribe": "first", "name": "copier", "startingOffsets": "earliest", "maxRowsPerTrigger": "50"}
publish(spark.readStream.format("jobpipe").options(**options).load(), "second")
for topic in ("first", "second"):
    rows = spark.read.format("jobpipe").option("subscribe", topic).load()
    rows.write.mode("overwrite").parquet(str(folder / f"read-{topic}"))
spark.range(5).write.format("jobpipe").option("topic", "batches").mode("append").save()
batches = spark.read.format("jobpipe").option("subscribe", "batches").load().collect()
assert "jobpipe" not in sys.modules
print(json.dumps(sorted(row.id for row in batches)))
spark.stop()
