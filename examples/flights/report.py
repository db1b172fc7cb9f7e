"""Job 3 of 4: subscribe `delays`, keep the last word on each carrier and day, write it as a table.

    spark-submit examples/flights/report.py --work /tmp/flights

`delays` says something about a day each time its sums change. The table keeps only the newest: the newest folder in
WORK/report/, and WORK/report.csv.

In pipeline.yaml this job is class Report; the program below is the same job without a pipeline.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import pyarrow.csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import jobpipe
from jobpipe import stoppable

KEY = ["carrier", "day"]


def newest(rows: DataFrame) -> DataFrame:
    """Keep one row of each key, the one published last.

    One micro-batch of this job may hold several batches of the topic, with the same key in each. The column `order`
    (offset of the batch in the topic, row in the batch) tells which was published last: rows of a key share a
    partition, and within a partition offset and row only grow.
    """
    return rows.groupBy(KEY).agg(sf.max_by(sf.struct("*"), "order").alias("newest")).select("newest.*")


class Table:
    """A table in a folder, one version per micro-batch: version n is version n-1 with the changes of batch n.

    So a batch that Spark repeats after a crash writes the same version again, and nothing is counted twice.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def versions(self) -> list[int]:
        return sorted(int(path.parent.name) for path in self.folder.glob("*/_SUCCESS"))

    def path(self, version: int) -> str:
        return str(self.folder / str(version))

    def update(self, changes: DataFrame, batch_id: int) -> None:
        """Write the version of this batch; a callback for foreachBatch."""
        rows = changes.select("*", sf.struct("_jobpipe.offset", "_jobpipe.row").alias("order")).drop("_jobpipe")
        before = [version for version in self.versions() if version < batch_id]
        if before:
            rows = rows.unionByName(changes.sparkSession.read.parquet(self.path(before[-1])))
        newest(rows).write.mode("overwrite").parquet(self.path(batch_id))
        for version in before[:-1]:
            shutil.rmtree(self.path(version))


class Report:
    """Keeps the table of a work folder, and writes it as report.csv: a callback for foreachBatch."""

    def __init__(self, work: str | Path) -> None:
        self.table = Table(Path(work) / "report")
        self.result = Path(work) / "report.csv"

    def __call__(self, changes: DataFrame, batch_id: int) -> None:
        """Take the changes of a micro-batch; the same again if Spark repeats it."""
        self.table.update(changes, batch_id)
        rows = changes.sparkSession.read.parquet(self.table.path(batch_id)).drop("order").orderBy(KEY).toArrow()
        unfinished = self.result.with_suffix(".unfinished")
        pyarrow.csv.write_csv(rows, unfinished)
        os.replace(unfinished, self.result)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the four jobs")
    parser.add_argument("--delays", default="delays", help="topic to subscribe (default delays)")
    args = parser.parse_args()

    spark = jobpipe.session(
        SparkSession.builder.appName("report")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
    )
    spark.sparkContext.setLogLevel("WARN")

    delays = (
        spark.readStream.format("jobpipe")
        .option("subscribe", args.delays)
        .option("name", "report")
        .option("startingOffsets", "earliest")
        .option("includeMetadata", True)  # adds the column _jobpipe: where each row stood in the topic
        .load()
    )

    query = (
        delays.writeStream.queryName("report")
        .foreachBatch(stoppable(Report(args.work)))
        .option("checkpointLocation", str(args.work / "checkpoints" / "report"))
        .start()
    )
    return jobpipe.run(query)


if __name__ == "__main__":
    sys.exit(main())
