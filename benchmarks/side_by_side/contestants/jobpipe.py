"""jobpipe, as it is installed: TLS, fsync and the registry on, as they are by default."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.side_by_side.asking import read_line
from benchmarks.side_by_side.contestants.contestant import Told
from benchmarks.side_by_side.contestants.plain import Plain
from benchmarks.side_by_side.processes import Processes
from benchmarks.side_by_side.shapes import Shape
from jobpipe import JobPipeSink

START_SECONDS = 60.0
ENSURE = (
    "import sys, pathlib; from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper; "
    "print(EmbeddedZooKeeper(pathlib.Path(sys.argv[1])).ensure(), flush=True)"
)


class JobPipe(Plain):
    """``foreachBatch(JobPipeSink(...))`` to ``readStream.format("jobpipe")``, over its embedded ZooKeeper."""

    name = "jobpipe"
    options: Mapping[str, str] = {}
    # Beside what is the same for all: spark.KEY, source.OPTION, sink.ARGUMENT, or a key of the configuration.
    settings: Mapping[str, str] = {}

    def __init__(self, told: Told) -> None:
        super().__init__(told)
        self._sinks: dict[str, JobPipeSink] = {}

    @contextmanager
    def carrier(self, run: Processes) -> Iterator[Told]:
        # Started before the jobs, so that its cost counts as the carrier's, as the broker's does.
        child = run.start([sys.executable, "-c", ENSURE, str(self.folder / "home")], "carrier", log="zookeeper")
        read_line(child, START_SECONDS, "ZooKeeper")
        yield {}

    def environ(self) -> Mapping[str, str]:
        own = {key: value for key, value in self.settings.items() if not key.startswith(("spark.", "source.", "sink."))}
        named = {key.replace(".", "__").upper(): value for key, value in own.items()}
        return {"JOBPIPE__HOME": str(self.folder / "home"), **named}

    def conf(self) -> Mapping[str, str]:
        return {key: value for key, value in self.settings.items() if key.startswith("spark.")}

    def of(self, side: str) -> dict[str, str]:
        """Return the settings of ``source`` or ``sink``, by their own names."""
        return {
            key.removeprefix(f"{side}."): value for key, value in self.settings.items() if key.startswith(f"{side}.")
        }

    def arguments(self) -> dict[str, Any]:
        """Return what the sink is told."""
        return {
            "parallelism": self.cores,
            "spool_max_bytes": "40GiB",
            "retention_bytes": "40GiB",
            **self.of("sink"),
        }

    def prepare(self, spark: SparkSession, stream: str, rows: DataFrame) -> None:
        self._sinks[stream] = JobPipeSink(stream, schema=rows.schema, **self.arguments())

    def write(self, rows: DataFrame, stream: str) -> DataStreamWriter:
        return rows.writeStream.foreachBatch(self._sinks[stream])

    def read(self, spark: SparkSession, stream: str, shape: Shape, name: str, pace: Mapping[str, Any]) -> DataFrame:
        reader = spark.readStream.format("jobpipe").option("subscribe", stream).option("name", name)
        if self.told["purpose"] == "alone":  # all is there already
            reader = reader.option("maxRowsPerTrigger", pace["rows_per_batch"])
        return reader.option("startingOffsets", "earliest").options(**self.options, **self.of("source")).load()

    def close(self) -> None:
        for sink in self._sinks.values():
            sink.close()
        self._sinks.clear()


class JobPipePlain(JobPipe):
    """The same without TLS."""

    name = "jobpipe-plain"
    settings: Mapping[str, str] = {"jobpipe.ssl.enabled": "false"}


class JobPipeAhead(JobPipe):
    """The same with ``readAhead``: job B plans each micro-batch before its rows are there."""

    name = "jobpipe-ahead"
    options: Mapping[str, str] = {"readAhead": "true"}


class JobPipeFormat(JobPipe):
    """The same with ``writeStream.format("jobpipe")`` in job A."""

    name = "jobpipe-format"

    def prepare(self, spark: SparkSession, stream: str, rows: DataFrame) -> None:
        # Nothing runs at the query's start, and job B wants a schema before the first rows.
        empty = spark.createDataFrame([], rows.schema).write.format("jobpipe").options(**self._given(stream, rows))
        empty.mode("append").save()

    def write(self, rows: DataFrame, stream: str) -> DataStreamWriter:
        return rows.writeStream.format("jobpipe").options(**self._given(stream, rows))

    def _given(self, stream: str, rows: DataFrame) -> dict[str, str]:
        arguments = {name: str(value) for name, value in self.arguments().items()}
        return {"topic": stream, "schema": rows.schema.json(), **arguments}
