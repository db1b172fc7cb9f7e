"""Job 2 of 4: subscribe `flights`, sum up the delays per carrier and day, publish them as the topic `delays`.

    spark-submit examples/flights/delays.py --work /tmp/flights

A job in the middle of a chain: subscriber and publisher at once. Spark's checkpoint holds the position in `flights`
together with the sums, so each flight is counted once, whatever is killed and started again.

In pipeline.yaml this job is `clean` and `daily_delays`; the program below is the same job without a pipeline.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import jobpipe
from jobpipe import JobPipeSink


def clean(flights: DataFrame) -> DataFrame:
    """Keep what the sums need, with a real date. Flights that never left have no dep_time and no dep_delay."""
    return flights.where("carrier IS NOT NULL").select(
        "carrier",
        sf.make_date("year", "month", "day").alias("day"),
        "dep_time",
        "dep_delay",
    )


def daily_delays(flights: DataFrame) -> DataFrame:
    """Sum up per carrier and day. Delays are minutes, negative for an early departure."""
    return (
        flights.groupBy("carrier", "day")
        .agg(
            sf.count("*").alias("flights"),
            sf.count("dep_time").alias("departed"),
            sf.count_if(sf.col("dep_delay") > 15).alias("late"),
            sf.sum("dep_delay").alias("delay_sum"),
            sf.max("dep_delay").alias("delay_max"),
        )
        .withColumn("delay_mean", sf.col("delay_sum") / sf.nullif("departed", sf.lit(0)))
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the four jobs")
    parser.add_argument("--flights", default="flights", help="topic to subscribe (default flights)")
    parser.add_argument("--topic", default="delays", help="topic to publish (default delays)")
    parser.add_argument("--subscribers", default="report", help="subscriptions to keep rows for")
    args = parser.parse_args()

    spark = jobpipe.session(
        SparkSession.builder.appName("delays")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")  # few keys: two state stores are enough
    )
    spark.sparkContext.setLogLevel("WARN")

    flights = (
        spark.readStream.format("jobpipe")
        .option("subscribe", args.flights)
        .option("name", "delays")  # the subscription: unique for the topic, keeps its position
        .option("startingOffsets", "earliest")
        .option("maxRowsPerTrigger", 20_000)  # a backlog is read in pieces of this size
        .load()  # columns and types come from the publisher
    )

    delays = daily_delays(clean(flights))
    sink = JobPipeSink(
        args.topic,
        parallelism=1,
        partition_by=["carrier", "day"],
        schema=delays.schema,
        required_subscribers=args.subscribers.split(","),
    )
    query = (
        delays.writeStream.queryName("delays")
        .outputMode("update")  # each micro-batch publishes the sums that changed
        .foreachBatch(sink)
        .option("checkpointLocation", str(args.work / "checkpoints" / "delays"))
        .start()
    )
    return jobpipe.run(query, final=True)  # ends after the end mark of `flights`, and passes it on


if __name__ == "__main__":
    sys.exit(main())
