"""Job 4 of 4: subscribe `flights` a second time, under another name, and check that nothing is missing or doubled.

    spark-submit examples/flights/audit.py --work /tmp/flights

Writes WORK/audit.json and ends with exit code 0 if all is as expected, else 1.

In pipeline.yaml this job is `totals` and class Audit; the program below is the same job without a pipeline.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import jobpipe
from jobpipe import stoppable

# Facts about the file, known beforehand.
EXPECTED = {"rows": 336_776, "distance": 350_217_607, "without_dep_time": 8_255, "carriers": 16}


def totals(flights: DataFrame) -> DataFrame:
    """Count per carrier: rows, miles, and rows whose dep_time is null."""
    return flights.groupBy("carrier").agg(
        sf.count("*").alias("rows"),
        sf.sum("distance").alias("distance"),
        sf.count_if(sf.col("dep_time").isNull()).alias("without_dep_time"),
    )


def findings(totals: DataFrame) -> dict[str, int]:
    """Add up the totals of all carriers."""
    rows = totals.collect()
    found = {fact: sum(row[fact] for row in rows) for fact in ("rows", "distance", "without_dep_time")}
    return {**found, "carriers": len(rows)}


class Audit:
    """Writes the findings as audit.json of a work folder: a callback for foreachBatch."""

    def __init__(self, work: str | Path) -> None:
        self.result = Path(work) / "audit.json"

    def __call__(self, totals_so_far: DataFrame, batch_id: int) -> None:
        """Replace the findings by those of all rows so far; the same again if Spark repeats the batch."""
        unfinished = self.result.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(findings(totals_so_far), indent=2) + "\n")
        os.replace(unfinished, self.result)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the four jobs")
    parser.add_argument("--flights", default="flights", help="topic to subscribe (default flights)")
    args = parser.parse_args()

    spark = jobpipe.session(
        SparkSession.builder.appName("audit")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
    )
    spark.sparkContext.setLogLevel("WARN")

    flights = (
        spark.readStream.format("jobpipe")
        .option("subscribe", args.flights)
        .option("name", "audit")
        .option("startingOffsets", "earliest")
        .load()
    )

    audit = Audit(args.work)
    query = (
        totals(flights)
        .writeStream.queryName("audit")
        .outputMode("complete")  # the totals live in Spark's state: each row enters it once
        .foreachBatch(stoppable(audit))
        .option("checkpointLocation", str(args.work / "checkpoints" / "audit"))
        .start()
    )
    if code := jobpipe.run(query):
        return code

    found = json.loads(audit.result.read_text())
    for fact, expected in EXPECTED.items():
        print(f"{fact}: expected {expected:,}, found {found[fact]:,}")
    return 0 if found == EXPECTED else 1


if __name__ == "__main__":
    sys.exit(main())
