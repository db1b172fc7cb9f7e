"""Apache Kafka with librdkafka's producer and consumer, and with Spark's Real-Time Mode between two topics.

The producer sends each row at once (``linger.ms=0``, ``acks=all``), as JSON, and does not wait for one acknowledgement
before the next row, as services use it; jobpipe's plain publisher returns from each write when the rows are durable.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.side_by_side.contestants.chains import Ids, Taking, narrow
from benchmarks.side_by_side.contestants.contestant import Told
from benchmarks.side_by_side.contestants.kafka import Kafka

CONSUMED = 500  # messages taken at once, of those that are there
WAIT_SECONDS = 0.2
FLUSH_SECONDS = 30.0


class KafkaPlain(Kafka):
    """A plain producer to a plain consumer."""

    name = "kafka-plain"
    spark_roles = ""

    def __init__(self, told: Told) -> None:
        super().__init__(told)
        self._producers: list[Any] = []

    def _topics(self, stream: str) -> list[str]:
        return [stream]

    def prepare_plain(self, stream: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        topics = [NewTopic(topic, num_partitions=self.cores, replication_factor=1) for topic in self._topics(stream)]
        admin = AdminClient(self._servers())  # kept: with it go the answers
        for made in admin.create_topics(topics).values():
            made.result(FLUSH_SECONDS)

    def _servers(self) -> dict[str, str]:
        return {"bootstrap.servers": self.told["bootstrap"]}

    def sender(self, stream: str) -> Callable[[Ids, Ids], None]:
        from confluent_kafka import Producer

        producer = Producer({**self._servers(), "linger.ms": 0, "acks": "all", "enable.idempotence": True})
        self._producers.append(producer)

        def send(ids: Ids, made: Ids) -> None:
            for row in narrow(ids, made).to_pylist():
                producer.produce(stream, json.dumps(row).encode())
            producer.poll(0)

        return send

    def finish(self, stream: str) -> None:
        for producer in self._producers:
            producer.flush(FLUSH_SECONDS)

    def taker_conf(self) -> Mapping[str, str]:
        return self.conf()

    def take(self, spark: SparkSession | None, stream: str, name: str, job: Taking) -> Callable[[], None]:
        return self._consume(stream, name, job)

    def _consume(self, topic: str, name: str, job: Taking) -> Callable[[], None]:
        from confluent_kafka import Consumer

        over: list[bool] = []
        settings = {**self._servers(), "group.id": f"{name}-{topic}", "auto.offset.reset": "earliest"}
        consumer = Consumer({**settings, "fetch.wait.max.ms": 100})
        consumer.subscribe([topic])

        def read() -> None:
            try:
                while not over:
                    messages = consumer.consume(1, WAIT_SECONDS)
                    messages += consumer.consume(CONSUMED, 0) if messages else []
                    for message in messages:
                        if message.error():
                            raise RuntimeError(message.error())
                    rows = [json.loads(message.value()) for message in messages]
                    at = time.time_ns() // 1_000
                    ids, made = (np.array([row[key] for row in rows], np.int64) for key in ("id", "made"))
                    job.arrivals.add(ids, made, at)
            finally:
                consumer.close()

        thread = job.guarded(read)

        def stop() -> None:
            over.append(True)
            thread.join(FLUSH_SECONDS)

        return stop


class KafkaRealTime(KafkaPlain):
    """A plain producer, a query in Spark's Real-Time Mode from topic to topic, and a plain consumer."""

    name = "kafka-rtm"
    spark_roles = "b"

    def _topics(self, stream: str) -> list[str]:
        return [stream, f"{stream}-1"]

    def taker_conf(self) -> Mapping[str, str]:
        return {**self.conf(), "spark.master": f"local[{self.cores + 1}]"}

    def take(self, spark: SparkSession | None, stream: str, name: str, job: Taking) -> Callable[[], None]:
        assert spark is not None
        writer = self.written(self.values(spark, stream), f"{stream}-1").outputMode("update")
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoints" / f"rtm-{stream}"))
        query = writer.trigger(realTime="5 minutes").start()
        stop_client = self._consume(f"{stream}-1", name, job)

        def stop() -> None:
            error = query.exception()
            query.stop()
            stop_client()
            if error is not None:
                raise error

        return stop
