"""``python -m tests.faults.pipelines.sink_program``: a Spark application that writes files, to be killed.

A streaming one writes the same rows with a sink of each format; which rows a micro-batch has follows from its id. A
BATCH one writes one run, with files of its own for each of many values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import jobpipe
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sinks import format_sinks
from tests.harness.jvm import QUICK
from tests.spark.jobs.session import session

ROWS = 30  # of a micro-batch
TASKS = 2
KEYS = 150  # of a run: a folder, and a file, for each
SINKS = {
    "csv": format_sinks.CsvSink,
    "json": format_sinks.JsonSink,
    "orc": format_sinks.OrcSink,
    "text": format_sinks.TextSink,
    "xml": format_sinks.XmlSink,
}


@dataclass(frozen=True)
class SinkOrder:
    """What the application is told.

    Attributes:
        folder: below it checkpoints, and a folder of rows for each format.
        mode: of the run: append or overwrite; None for the streams.
        attempt: the number of this life.
    """

    folder: str
    mode: str | None = None
    attempt: int = 1

    def line(self) -> bytes:
        """Return one line for its standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"


def stream(spark: SparkSession, order: SinkOrder) -> int:
    """Write streams, until SIGTERM."""
    folder = Path(order.folder)
    queries = []
    for kind, sink in SINKS.items():
        rows = (
            spark.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS, numPartitions=TASKS).load()
        ).selectExpr("CAST(value AS STRING) AS value")
        job = JobContext(
            pipeline="faults",
            job=kind,
            mode=Mode.STREAMING,
            storage=str(folder / "state" / kind),
            folder=folder,
            run=RunValues("run"),
        )
        made = sink(sink.parse({"path": f"{kind}.out", "options": {"rowTag": "row"} if kind == "xml" else {}}, folder))
        made.open(rows, job)
        queries.append(made.start(rows, job))
    return jobpipe.run(*queries)


def run(spark: SparkSession, order: SinkOrder) -> int:
    """Write one run, whole."""
    folder = Path(order.folder)
    job = JobContext(
        pipeline="faults",
        job="run",
        mode=Mode.BATCH,
        storage=str(folder / "state"),
        folder=folder,
        run=RunValues("run"),
        attempt=order.attempt,
    )
    given: dict[str, object] = {"path": "out", "mode": order.mode, "partition-by": ["key"], "options": {}}
    rows = spark.range(0, KEYS, 1, TASKS).selectExpr("id", "id AS key")
    format_sinks.ParquetSink(format_sinks.ParquetSink.parse(given, folder)).write(rows, 0, job)
    return 0


def main() -> int:
    """Obey one order."""
    order = SinkOrder(**json.loads(sys.stdin.buffer.readline()))
    with _ending(session("local[2]", spark_driver_extraJavaOptions=QUICK)) as spark:
        return stream(spark, order) if order.mode is None else run(spark, order)


@contextmanager
def _ending(spark: SparkSession) -> Iterator[SparkSession]:
    try:
        yield spark
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
