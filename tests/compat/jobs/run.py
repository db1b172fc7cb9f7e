"""Publishes a row a tenth of a second until it is told to end: ``run.py FOLDER TOPIC``; the README's way."""

import sys

import jobpipe
from tests.compat.jobs.common import session

folder, topic = sys.argv[1], sys.argv[2]
spark = session()
rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load().selectExpr("value AS id")
sink = jobpipe.JobPipeSink(topic, parallelism=1)
query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", f"{folder}/checkpoint-{topic}").start()
sys.exit(jobpipe.run(query))
