"""Job 1 of 4: stream the flights from CSV files into the topic `flights`.

    python examples/flights/prepare.py --work /tmp/flights
    spark-submit examples/flights/publish_flights.py --work /tmp/flights

The other jobs may be started before or after this one. Publishing from Spark takes one object: JobPipeSink is a
callable for foreachBatch. In pipeline.yaml this job is a few lines without code.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import jobpipe
from jobpipe import JobPipeSink

# The subscribers read this schema from the topic; they need not repeat it.
FLIGHTS = Path(__file__).with_name("flights.ddl").read_text()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the four jobs")
    parser.add_argument("--topic", default="flights", help="topic to publish (default flights)")
    parser.add_argument("--subscribers", default="delays,audit", help="subscriptions to keep rows for")
    args = parser.parse_args()

    spark = jobpipe.session(SparkSession.builder.appName("publish_flights").config("spark.sql.session.timeZone", "UTC"))
    spark.sparkContext.setLogLevel("WARN")

    flights = (
        spark.readStream.schema(FLIGHTS)
        .option("header", True)
        .option("nullValue", "NA")
        .option("maxFilesPerTrigger", 1)  # one part file, one micro-batch
        .csv(str(args.work / "input"))
    )

    # Each micro-batch is sealed in the topic as a whole, once, also when Spark repeats it after a crash.
    # All flights of a carrier go to the same partition, so they arrive in the order in which they were read.
    sink = JobPipeSink(
        args.topic,
        parallelism=2,
        partition_by=["carrier"],
        schema=flights.schema,  # known before the first batch, so the subscribers can plan at once
        required_subscribers=args.subscribers.split(","),
    )
    query = (
        flights.writeStream.queryName("publish_flights")
        .foreachBatch(sink)
        .option("checkpointLocation", str(args.work / "checkpoints" / "publish_flights"))
        .trigger(availableNow=True)  # read all the files there are, then stop
        .start()
    )
    # At its end it closes the sink, final: an end mark tells the subscribers that no more will come.
    return jobpipe.run(query, final=True)


if __name__ == "__main__":
    sys.exit(main())
