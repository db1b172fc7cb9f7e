"""Job A or job B: a Spark application of its own that does what the harness says, line by line.

python -m benchmarks.side_by_side.job a|b CONTESTANT WHAT_IT_IS_TOLD_AS_JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.observation import Observation
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.side_by_side.arrivals import Arrivals, Counting
from benchmarks.side_by_side.contestants import kind_of
from benchmarks.side_by_side.contestants.chains import PlainClient
from benchmarks.side_by_side.contestants.kafka_chains import KafkaPlain
from benchmarks.side_by_side.obey import obey
from benchmarks.side_by_side.plain_jobs import Sender, Taker
from benchmarks.side_by_side.processes import ROLE
from benchmarks.side_by_side.settings import session
from benchmarks.side_by_side.shapes import SHAPES

POLL_SECONDS = 0.02
BULK_SECONDS = 600.0


class Job(Counting):
    """What both have: a session, the contestant, queries by stream."""

    def __init__(self, contestant: str, told: dict[str, Any]) -> None:
        super().__init__()
        self.contestant = kind_of(contestant)(told)
        self.folder = Path(told["folder"])
        self.cores = int(told["cores"])
        self.role = os.environ[ROLE]
        self.spark = session(f"bench {contestant} {self.role}", self.folder, self.cores, self.contestant.conf())
        self.queries: dict[str, StreamingQuery] = {}

    def checkpoint(self, stream: str) -> str:
        """Return the folder of a stream's checkpoint."""
        return str(self.folder / "checkpoints" / f"{self.role}-{stream}")

    def check(self) -> None:
        """Raise the error of a query that failed."""
        for query in self.queries.values():
            error = query.exception()
            if error is not None:
                raise error

    def stop(self, stream: str) -> None:
        """End a query."""
        query = self.queries.pop(stream)
        query.stop()

    def end(self) -> None:
        """End all."""
        for stream in list(self.queries):
            self.stop(stream)
        self.contestant.close()
        self.spark.stop()


class JobA(Job):
    """Makes rows and writes them."""

    def prepare(self, stream: str, shape: str) -> None:
        """Make the topic, without a row."""
        nothing = self.spark.range(0).withColumn("made", F.lit(0).cast("long"))
        self.contestant.prepare(self.spark, stream, SHAPES[shape].of(nothing))

    def paced(self, stream: str, shape: str, port: int, trigger: float) -> None:
        """Write the rows of a feed: a micro-batch each so many seconds, 0 for one after another as fast as they go."""
        lines = self.spark.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
        first, count, made = (F.split("value", " ")[n].cast("long") for n in range(3))
        rows = lines.select(F.explode(F.sequence(first, first + count - 1)).alias("id"), made.alias("made"))
        self.contestant.arrivals = self.arrivals = Arrivals()
        self._start(stream, SHAPES[shape].of(rows), trigger)

    def pile(self, stream: str, shape: str) -> None:
        """Write what :meth:`bulk` will bring: a micro-batch for each of its batches, nothing until then."""
        size = SHAPES[shape].rows_per_batch // self.cores
        (self._orders(stream) / "0").mkdir(parents=True)
        source = self.spark.readStream.format("text").option("maxFilesPerTrigger", self.cores)
        number, made = (F.split("value", " ")[n].cast("long") for n in range(2))
        ids = F.sequence(number * size, (number + 1) * size - 1)
        rows = source.load(f"{self._orders(stream)}/*").select(F.explode(ids).alias("id"), made.alias("made"))
        self._start(stream, SHAPES[shape].of(rows))

    def bulk(self, stream: str, first: int, batches: int) -> dict[str, float]:
        """Write so many batches more, of which there were ``first`` before; return when the first began and all ended.

        Spark makes the rows from a number in a small file, a file for each task: so they cost little to make, come all
        at once, and still in many micro-batches. A job B that makes its own gets as many.
        """
        fresh = self._orders(stream).with_name(f"{stream}.new")
        fresh.mkdir()
        for number in range(first * self.cores, (first + batches) * self.cores):
            (fresh / f"{number:08}").write_text(f"{number} {time.time_ns() // 1_000}")
        fresh.rename(self._orders(stream) / str(first + 1))
        self.contestant.release(stream, first + batches)
        deadline = time.monotonic() + BULK_SECONDS
        while len(spans := _spans(self.queries[stream])) < first + batches:
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(spans)} of {first + batches} batches are written in {BULK_SECONDS:g} s")
            time.sleep(POLL_SECONDS)
        return {"began": spans[first][0], "ended": spans[-1][1]}

    def _orders(self, stream: str) -> Path:
        return self.folder / "orders" / stream

    def _start(self, stream: str, rows: DataFrame, trigger: float = 0.0) -> None:
        writer = self.contestant.write(rows, stream).trigger(processingTime=f"{trigger:g} seconds")
        self.queries[stream] = writer.option("checkpointLocation", self.checkpoint(stream)).start()


class JobB(Job):
    """Reads rows, and notes when its callback had them."""

    def __init__(self, contestant: str, told: dict[str, Any]) -> None:
        super().__init__(contestant, told)
        self._bulk: list[dict[str, Any]] = []

    def paced(self, stream: str, shape: str, pace: dict[str, Any]) -> None:
        """Read; a row is there once the callback holds it, with all its columns."""
        self.arrivals = arrivals = Arrivals()

        def callback(batch: DataFrame, batch_id: int) -> None:
            rows = batch.toArrow()
            at = time.time_ns() // 1_000
            arrivals.add(np.asarray(rows.column("id")), np.asarray(rows.column("made")), at)

        self._read(stream, shape, pace, callback)

    def bulk(self, stream: str, shape: str, pace: dict[str, Any]) -> None:
        """Read; all columns are taken row by row and thrown away: ``noop`` lets Spark leave out none."""
        self._bulk = found = []

        def callback(batch: DataFrame, batch_id: int) -> None:
            began = time.time()
            seen = Observation()
            rows = batch.observe(seen, F.count(F.lit(1)).alias("rows"), F.sum("id").alias("sum"))
            rows.write.format("noop").mode("overwrite").save()
            if seen.get["rows"]:
                found.append({"began": began, "ended": time.time(), **seen.get})

        self._read(stream, shape, pace, callback)

    def taken(self, rows: int, within: float) -> dict[str, Any]:
        """Wait until so many rows of the bulk are there; return when they came, and forget them."""
        deadline = time.monotonic() + within
        while sum(batch["rows"] for batch in self._bulk) < rows:
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{sum(batch['rows'] for batch in self._bulk)} of {rows} rows in {within:g} s")
            time.sleep(POLL_SECONDS)
        found, self._bulk[:] = list(self._bulk), []
        totals = {name: sum(batch[name] for batch in found) for name in ("rows", "sum")}
        spans = [(batch["began"], batch["ended"], batch["rows"]) for batch in found]
        return {"began": spans[0][0], "ended": spans[-1][1], "batches": len(spans), "spans": spans, **totals}

    def _read(self, stream: str, shape: str, pace: dict[str, Any], callback: Callable[[DataFrame, int], None]) -> None:
        rows = self.contestant.read(self.spark, stream, SHAPES[shape], self.role, pace)
        writer = rows.writeStream.foreachBatch(callback)
        self.queries[stream] = writer.option("checkpointLocation", self.checkpoint(stream)).start()


def _spans(query: StreamingQuery) -> list[tuple[float, float]]:
    """Return when each micro-batch with data began and ended: its progress has both to the millisecond."""
    found = []
    for progress in query.recentProgress:
        if "addBatch" in progress.durationMs:  # idle triggers make progress too
            began = datetime.fromisoformat(progress.timestamp).timestamp()
            found.append((began, began + progress.durationMs["triggerExecution"] / 1e3))
    return found


def job(side: str, contestant: str, told: dict[str, Any]) -> Job | Sender | Taker:
    """Make a job: one whose rows come from, or end in, a query, or one of a chain with other ends."""
    made = kind_of(contestant)(told)
    if not isinstance(made, PlainClient | KafkaPlain):
        return {"a": JobA, "b": JobB}[side](contestant, told)
    spark = side in made.spark_roles
    if side == "a":
        return JobA(contestant, told) if spark else Sender(made)
    role, conf = os.environ[ROLE], made.taker_conf()
    folder, cores = Path(told["folder"]), int(told["cores"])
    return Taker(made, role, session(f"bench {contestant} {role}", folder, cores, conf) if spark else None)


def main() -> None:
    """Do what the lines say until there are no more."""
    side, contestant, told = sys.argv[1:]
    obey(lambda: job(side, contestant, json.loads(told)))


if __name__ == "__main__":
    main()
