"""A micro-batch with each kind of checkpoint settings: of Spark's rate source, and of a topic; each run in a new JVM.

Prints the medians of the last micro-batches of a query whose callback does nothing, once the JVM is warm:

    python benchmarks/checkpoints.py [--runs 3] [--warm 300] [--measured 200]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jobpipe.spark.session.job_session import recommended_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
SETTINGS = {
    "spark": recommended_conf(),
    "submitted": {**recommended_conf(), MANAGER: BY_FILE_SYSTEM},  # as recommended_conf where the JVM runs already
    "raw": {
        **recommended_conf(),
        MANAGER: BY_FILE_SYSTEM,
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    },
    "in process": recommended_conf(checkpoints_local=True),
}
ROWS = 100  # of a micro-batch


def rate(spark: SparkSession, batches: int) -> DataFrame:
    """Rows that cost nothing."""
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()


def topic(spark: SparkSession, batches: int) -> DataFrame:
    """Rows of a backlog, so that no micro-batch waits for a publisher."""
    import pyarrow as pa

    import jobpipe

    table = pa.table({"id": pa.array(range(ROWS), pa.int64())})
    publisher = jobpipe.publisher("backlog", schema=table.schema, name="till")
    for number in range(batches):
        publisher.write(table, batch_id=number)
    options = {"subscribe": "backlog", "name": "reader", "startingOffsets": "earliest", "maxRowsPerTrigger": ROWS}
    return spark.readStream.format("jobpipe").options(**options).load()


SOURCES = {"rate": rate, "topic": topic}


def measure(settings: str, source: str, warm: int, measured: int) -> dict[str, float]:
    """Return medians in milliseconds, of a micro-batch and of its two logs."""
    from pyspark.sql import SparkSession

    conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.memory": "1g"}
    conf |= {"spark.sql.streaming.numRecentProgressUpdates": "10000", **SETTINGS[settings]}
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = SOURCES[source](spark, warm + measured + 20).writeStream.foreachBatch(lambda df, batch_id: None)
        query = writer.option("checkpointLocation", Path(checkpoint).as_uri()).start()
        while query.isActive and (query.lastProgress or {"batchId": 0})["batchId"] < warm + measured:
            time.sleep(0.2)
        if (error := query.exception()) is not None:
            raise error
        took = [each["durationMs"] for each in query.recentProgress if warm < each["batchId"] <= warm + measured]
        query.stop()
    spark.stop()
    return {
        "micro-batch": statistics.median(each["triggerExecution"] for each in took),
        "logs": statistics.median(each["walCommit"] + each["commitOffsets"] for each in took),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--warm", type=int, default=300, help="micro-batches before those that count")
    parser.add_argument("--measured", type=int, default=200)
    parser.add_argument("--settings", choices=SETTINGS)
    parser.add_argument("--source", choices=SOURCES)
    args = parser.parse_args()
    if args.settings:
        print(json.dumps(measure(args.settings, args.source, args.warm, args.measured)))
        return
    common = [sys.executable, __file__, "--warm", str(args.warm), "--measured", str(args.measured)]
    print("run  source  settings     micro-batch   logs  load of the machine")
    for run in range(args.runs):
        for source in SOURCES:
            names = list(SETTINGS)
            for settings in names[run % len(names) :] + names[: run % len(names)]:
                with tempfile.TemporaryDirectory() as home:
                    done = subprocess.run(
                        [*common, "--settings", settings, "--source", source],
                        env={**os.environ, "JOBPIPE__HOME": home, "PYSPARK_PYTHON": sys.executable},
                        stdout=subprocess.PIPE,
                        text=True,
                        check=True,
                    )
                found = json.loads(done.stdout.splitlines()[-1])
                shown = f"{found['micro-batch']:8.1f} ms {found['logs']:6.1f}"
                print(f"{run + 1:3}  {source:6}  {settings:10} {shown} ms  {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
