"""The floor: what Spark alone takes. Job A's rows go nowhere, job B's come from memory; nothing links the two.

Job A takes its rows through ``mapInArrow``, as jobpipe's tasks do, and keeps only a count; or, ``floor-collect``, into
the driver, as jobpipe's ``collect`` path does. Job B has a Python source whose rows are in memory. Both run at the same
time, so that they share the processors as two linked jobs do.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from benchmarks.side_by_side.contestants.plain import Plain, schema_of
from benchmarks.side_by_side.shapes import Shape

TEMPLATE_ROWS = 50_000
COUNTS = "made long, rows long"


class Floor(Plain):
    """Spark alone, through ``mapInArrow``."""

    name = "floor"
    chained = False

    def write(self, rows: DataFrame, stream: str) -> DataStreamWriter:
        def nowhere(batch: DataFrame, batch_id: int) -> None:
            made = self._take(batch)
            self.arrivals.add(np.zeros_like(made), made, time.time_ns() // 1_000)  # it counts them only

        return rows.writeStream.foreachBatch(nowhere)

    def _take(self, batch: DataFrame) -> NDArray[np.int64]:
        """Take all rows; return when each was made."""
        counts = batch.mapInArrow(count, COUNTS).toArrow()
        return np.repeat(counts.column("made").to_numpy(), counts.column("rows").to_numpy())

    def read(self, spark: SparkSession, stream: str, shape: Shape, name: str, pace: Mapping[str, Any]) -> DataFrame:
        spark.dataSource.register(MemorySource)
        template = self.folder / f"{stream}-{name}.arrow"
        rows = shape.of(spark.range(0, TEMPLATE_ROWS, 1, 1).withColumn("made", F.lit(0).cast("long"))).toArrow()
        with pa.ipc.new_file(str(template), rows.schema) as writer:
            writer.write_table(rows.combine_chunks())
        # Spark makes one reader for offsets and others for tasks: all must count from the same moment.
        pace = {**pace, "began": time.time()}
        options = {"template": str(template), "gate": str(self._gate(stream)), "cores": self.cores, **pace}
        schema = schema_of(spark, shape)
        return spark.readStream.format(MemorySource.name()).schema(schema).options(**options).load()

    def release(self, stream: str, batches: int) -> None:
        fresh = self._gate(stream).with_suffix(".new")
        fresh.write_text(str(batches))
        fresh.rename(self._gate(stream))

    def _gate(self, stream: str) -> Path:
        return self.folder / f"{stream}.gate"


class FloorCollect(Floor):
    """Spark alone, into the driver."""

    name = "floor-collect"

    def _take(self, batch: DataFrame) -> NDArray[np.int64]:
        return batch.toArrow().column("made").to_numpy()


def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return how many rows were made at each time."""
    for batch in batches:
        found = pc.value_counts(batch.column("made"))
        yield pa.record_batch([found.field("values"), found.field("counts")], names=["made", "rows"])


class _Part(InputPartition):
    def __init__(self, first: int, until: int) -> None:
        super().__init__(None)
        self.first, self.until = first, until


class MemorySource(DataSource):
    """Rows from memory: at a rate, or batch after batch as far as a file of the harness says."""

    @classmethod
    def name(cls) -> str:
        return "bench_memory"

    def streamReader(self, schema: StructType) -> MemoryReader:
        return MemoryReader(dict(self.options))


class MemoryReader(DataSourceStreamReader):
    """Copies a template: in the driver it only counts."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._rate = float(options.get("rate", 0))
        self._batch_rows = int(options.get("rows_per_batch", 0))
        self._began = float(options["began"])

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        if self._rate:
            return {"rows": int((time.time() - self._began) * self._rate)}
        gate = Path(self._options["gate"])
        allowed = int(gate.read_text()) * self._batch_rows if gate.exists() else 0
        return {"rows": min(start["rows"] + self._batch_rows, max(allowed, start["rows"]))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[_Part]:
        if start["rows"] == end["rows"]:
            return []
        parts = int(self._options.get("cores", 1))
        cuts = [start["rows"] + (end["rows"] - start["rows"]) * n // parts for n in range(parts + 1)]
        return [_Part(first, until) for first, until in itertools.pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        template = _load(self._options["template"])
        for first in range(partition.first, partition.until, template.num_rows):
            rows = template.slice(0, min(template.num_rows, partition.until - first))
            columns = rows.columns
            ids = np.arange(first, first + rows.num_rows)
            columns[0] = pa.array(ids)
            if self._rate:
                columns[1] = pa.array(((self._began + ids / self._rate) * 1e6).astype(np.int64))
            yield pa.RecordBatch.from_arrays(columns, schema=rows.schema)


_loaded: dict[str, pa.RecordBatch] = {}


def _load(path: str) -> pa.RecordBatch:
    if path not in _loaded:
        with pa.ipc.open_file(path) as file:
            _loaded[path] = file.get_batch(0)
    return _loaded[path]
