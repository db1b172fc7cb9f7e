"""Chains with an end that is no query of Spark's: plain publishers and clients, flow jobs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

import jobpipe
from benchmarks.side_by_side.arrivals import Arrivals
from benchmarks.side_by_side.contestants.contestant import Told
from benchmarks.side_by_side.contestants.jobpipe import JobPipe
from benchmarks.side_by_side.notes import Notes, connect, note, note_and_pass

Ids = NDArray[np.int64]
SCHEMA = pa.schema([("id", pa.int64()), ("made", pa.int64()), ("amount", pa.float64()), ("kind", pa.int32())])
NEXT_SECONDS = 0.2  # between two looks at whether a client is to end


def narrow(ids: Ids, made: Ids) -> pa.RecordBatch:
    """Return narrow rows: the same columns as Spark's job A has."""
    amount = (ids * 2_654_435_761 % 1_000_000) / 100
    return pa.record_batch([ids, made, amount, (ids * 40_503 % 2**31).astype(np.int32)], schema=SCHEMA)


class Taking(Protocol):
    """The job B that takes: where rows are noted, and threads live."""

    arrivals: Arrivals

    def guarded(self, work: Callable[[], None]) -> threading.Thread:
        """Start a thread whose error fails the run."""


class Chain(Protocol):
    """What such contestants have beside what all have; ``spark_roles`` says which jobs are Spark applications."""

    name: str
    spark_roles: str

    def prepare_plain(self, stream: str) -> None:
        """Make the topic; in job A."""

    def sender(self, stream: str) -> Callable[[Ids, Ids], None]:
        """Return what publishes rows, given their ids and when each was made; in job A."""

    def finish(self, stream: str) -> None:
        """End what :meth:`sender` began; in job A."""

    def take(self, spark: SparkSession | None, stream: str, name: str, job: Taking) -> Callable[[], None]:
        """Take rows, and note them; return what stops it. In job B."""

    def taker_conf(self) -> Mapping[str, str]:
        """Return what job B needs of Spark, if it is an application of Spark's."""

    def close(self) -> None:
        """Give up all."""


class PlainClient(JobPipe):
    """``jobpipe.publisher`` to ``jobpipe.subscribe``: no Spark at all."""

    name = "plain"
    spark_roles = ""
    partitions = 0  # of the topic; 0 for as many as cores

    def __init__(self, told: Told) -> None:
        super().__init__(told)
        self._publishers: dict[str, jobpipe.PlainPublisher] = {}

    def prepare_plain(self, stream: str) -> None:
        count = self.partitions or self.cores
        self._publishers[stream] = jobpipe.publisher(stream, schema=SCHEMA, parallelism=count)

    def sender(self, stream: str) -> Callable[[Ids, Ids], None]:
        publisher = self._publishers[stream]
        return lambda ids, made: (publisher.write(narrow(ids, made)), None)[1]

    def finish(self, stream: str) -> None:
        pass  # subscribers may still read: it is closed at the end

    def taker_conf(self) -> Mapping[str, str]:
        return self.conf()

    def take(self, spark: SparkSession | None, stream: str, name: str, job: Taking) -> Callable[[], None]:
        return self._client(stream, name, job)

    def _client(self, stream: str, name: str, job: Taking) -> Callable[[], None]:
        over: list[bool] = []
        client = jobpipe.subscribe(stream, name=name, starting="earliest")

        def read() -> None:
            with client:
                while not over:
                    for batch in client.batches(timeout=NEXT_SECONDS):
                        at = time.time_ns() // 1_000
                        job.arrivals.add(batch.column("id").to_numpy(), batch.column("made").to_numpy(), at)

        thread = job.guarded(read)

        def stop() -> None:
            over.append(True)
            thread.join(30.0)

        return stop

    def close(self) -> None:
        super().close()
        for publisher in self._publishers.values():
            publisher.close()
        self._publishers.clear()


class PlainFlow(PlainClient):
    """``jobpipe.publisher`` to the function of a flow job on Spark."""

    name = "plain-flow"
    spark_roles = "b"
    flows = 1

    def taker_conf(self) -> Mapping[str, str]:
        """Return what gives each flow a core for each partition, and one that it leaves free."""
        count = (self.partitions or self.cores) * self.flows
        return {**self.conf(), "spark.master": f"local[{count + 1}]"}

    def take(self, spark: SparkSession | None, stream: str, name: str, job: Taking) -> Callable[[], None]:
        notes = Notes(lambda: job.arrivals)
        flow = jobpipe.flow(
            spark, subscribe=stream, name=name, function=note, setup=connect(notes.port), starting="earliest"
        )

        def stop() -> None:
            flow.stop()
            notes.close()

        return stop


class PlainFlow8(PlainFlow):
    """The same with eight partitions."""

    name = "plain-flow-8"
    partitions = 8


class PlainFlows(PlainFlow):
    """``jobpipe.publisher`` to two flow jobs one behind the other, to ``jobpipe.subscribe``."""

    name = "plain-flow-flow"
    flows = 2

    def take(self, spark: SparkSession | None, stream: str, name: str, job: Taking) -> Callable[[], None]:
        with contextlib.ExitStack() as whole:
            source = stream
            for number in range(self.flows):
                target = f"{stream}-{number + 1}"
                flow = jobpipe.flow(
                    spark, subscribe=source, name=f"{name}-{number + 1}", function=note_and_pass, publish=target,
                    schema=SCHEMA, starting="earliest",
                )  # fmt: skip
                whole.callback(flow.stop)
                source = target
            whole.callback(self._client(source, name, job))
            return whole.pop_all().close


class JobFlow(PlainFlow):
    """``foreachBatch(JobPipeSink(...))`` to the function of a flow job on Spark."""

    name = "flow"
    spark_roles = "ab"
