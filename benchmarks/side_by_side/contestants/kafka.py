"""Apache Kafka with Spark's own connector: JSON, as it is mostly used, and Arrow inside, its best case.

Settings: ``acks=all``, the producer's default (with one broker it costs the same as ``1``). For latency
``linger.ms=0``, so that no message waits for others; for throughput 5 ms and batches of 512 KiB. No compression, and no
TLS: both in Kafka's favour, jobpipe runs with TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from benchmarks.side_by_side.contestants.broker import broker
from benchmarks.side_by_side.contestants.contestant import Told
from benchmarks.side_by_side.contestants.plain import Plain, schema_of
from benchmarks.side_by_side.processes import Processes
from benchmarks.side_by_side.shapes import Shape

MESSAGE_BYTES = 512 * 1024  # of Arrow in one message: Kafka likes them below 1 MiB
PRODUCER = {
    "latency": {"linger.ms": "0", "acks": "all"},
    "throughput": {"linger.ms": "5", "acks": "all", "batch.size": str(512 * 1024), "buffer.memory": str(128 << 20)},
}
CONSUMER = {"max.partition.fetch.bytes": str(16 << 20), "fetch.max.bytes": str(64 << 20)}


class Kafka(Plain):
    """The broker, and both ends of Spark's connector."""

    @contextmanager
    def carrier(self, run: Processes) -> Iterator[Told]:
        with broker(run, Path(self.told["cache"])) as address:
            yield {"bootstrap": address}

    def conf(self) -> Mapping[str, str]:
        return {"spark.driver.extraClassPath": f"{self.told['cache']}/connector/*"}  # both jobs are local[n]

    def prepare(self, spark: SparkSession, stream: str, rows: DataFrame) -> None:
        jvm: Any = spark.sparkContext._jvm
        settings = jvm.java.util.Properties()
        settings.put("bootstrap.servers", self.told["bootstrap"])
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            topic = jvm.org.apache.kafka.clients.admin.NewTopic(stream, self.cores, 1)
            admin.createTopics(jvm.java.util.Collections.singletonList(topic)).all().get()
        finally:
            admin.close()

    def written(self, values: DataFrame, stream: str) -> DataStreamWriter:
        """Return what writes the column ``value`` into a topic."""
        writer = values.writeStream.format("kafka").option("topic", stream)
        for key, value in {**PRODUCER[self.told["purpose"]], "max.request.size": str(16 << 20)}.items():
            writer = writer.option(f"kafka.{key}", value)
        return writer.option("kafka.bootstrap.servers", self.told["bootstrap"])

    def values(self, spark: SparkSession, stream: str) -> DataFrame:
        """Return the column ``value`` of a topic."""
        reader = spark.readStream.format("kafka").option("subscribe", stream).option("startingOffsets", "earliest")
        for key, value in CONSUMER.items():
            reader = reader.option(f"kafka.{key}", value)
        return reader.option("kafka.bootstrap.servers", self.told["bootstrap"]).load().select("value")


class KafkaJson(Kafka):
    """A message is a row as JSON."""

    name = "kafka-json"

    def write(self, rows: DataFrame, stream: str) -> DataStreamWriter:
        return self.written(rows.select(F.to_json(F.struct("*")).alias("value")), stream)

    def read(self, spark: SparkSession, stream: str, shape: Shape, name: str, pace: Mapping[str, Any]) -> DataFrame:
        parsed = F.from_json(F.col("value").cast("string"), schema_of(spark, shape)).alias("row")
        return self.values(spark, stream).select(parsed).select("row.*")


class KafkaArrow(Kafka):
    """A message is an Arrow IPC stream of as many rows of one partition as there are, up to 512 KiB."""

    name = "kafka-arrow"

    def write(self, rows: DataFrame, stream: str) -> DataStreamWriter:
        return self.written(rows.mapInArrow(pack, "value binary"), stream)

    def read(self, spark: SparkSession, stream: str, shape: Shape, name: str, pace: Mapping[str, Any]) -> DataFrame:
        schema = schema_of(spark, shape)
        return self.values(spark, stream).mapInArrow(_unpack(schema), schema)


def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make each batch messages of about :data:`MESSAGE_BYTES`."""
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = max(1, MESSAGE_BYTES * batch.num_rows // max(batch.nbytes, 1))
        for first in range(0, batch.num_rows, rows):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch.slice(first, rows))
            yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["value"])


def _unpack(schema: StructType) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column(0):
                with pa.ipc.open_stream(value.as_buffer()) as reader:
                    yield from reader

    return unpack
