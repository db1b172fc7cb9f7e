"""Subscribe `ten_thousand` under a name of one's own and keep every row, with its place in the topic.

    spark-submit examples/ten_thousand/subscriber.py --name first --work /tmp/ten
    spark-submit examples/ten_thousand/subscriber.py --name second --work /tmp/ten

Rows go to WORK/<name>/<batch id>/, so a batch that Spark repeats replaces itself.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import jobpipe
from jobpipe import stoppable


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoint and rows")
    parser.add_argument("--name", required=True, help="name of the subscription")
    parser.add_argument("--topic", default="ten_thousand")
    args = parser.parse_args()

    spark = jobpipe.session(SparkSession.builder.appName(f"ten_thousand {args.name}"))
    spark.sparkContext.setLogLevel("WARN")

    rows = (
        spark.readStream.format("jobpipe")
        .option("subscribe", args.topic)
        .option("name", args.name)
        .option("startingOffsets", "earliest")
        .option("includeMetadata", True)
        .load()
        .select("number", "text", "_jobpipe.partition", "_jobpipe.offset", "_jobpipe.row")
    )

    def keep(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(str(args.work / args.name / str(batch_id)))

    query = (
        rows.writeStream.foreachBatch(stoppable(keep))
        .option("checkpointLocation", str(args.work / "checkpoints" / args.name))
        .start()
    )
    return jobpipe.run(query)


if __name__ == "__main__":
    sys.exit(main())
