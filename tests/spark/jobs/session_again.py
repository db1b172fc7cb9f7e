"""Publishes, ends its session, and publishes on in a new one, as a notebook does: ``session_again.py TOPIC FOLDER``.

The query of the first session waits for its next micro-batch when that ends. Prints the number of batches published.
"""

import json
import sys
import time

from session import session

import jobpipe

SECONDS = 60.0
topic, folder = sys.argv[1:]
published = 0
for _ in range(2):
    spark = session("local[1]")
    sink = jobpipe.JobPipeSink(topic, replace=True)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = (
        rows.writeStream.foreachBatch(sink)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="1 hour")
        .start()
    )
    deadline = time.monotonic() + SECONDS
    while query.lastProgress is None or query.status["isTriggerActive"]:
        assert time.monotonic() < deadline, query.exception()
        time.sleep(0.05)
    published += sink.status()["sink"]["batches"]
    spark.stop()
sink.close()
print(json.dumps(published))
