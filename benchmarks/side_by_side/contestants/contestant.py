"""What a contestant is: one way to bring the rows of job A into job B."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.side_by_side.arrivals import Arrivals
from benchmarks.side_by_side.processes import Processes
from benchmarks.side_by_side.shapes import Shape

Told = dict[str, Any]
"""What both jobs are told: ``folder``, ``cores`` (of each job), ``purpose`` (``latency`` or ``throughput``), ``cache``
(of jars), and what the carrier adds. JSON."""


class Contestant(Protocol):
    """Made anew in the harness, in job A and in each job B, from the same words.

    A *stream* is one topic, or one directory; many are used one after another. Job A prepares it, then the jobs B read
    it, each by a name of its own, then job A writes it.
    """

    name: str
    chained: bool  # what A writes is what B reads; else the two only share the processors
    arrivals: Arrivals  # where job A notes the rows that it keeps to itself

    def __init__(self, told: Told) -> None: ...

    def carrier(self, run: Processes) -> AbstractContextManager[Told]:
        """Run what stands between the jobs; yield what they are told beside."""
        ...

    def environ(self) -> Mapping[str, str]:
        """Return what the jobs find in their environment."""
        ...

    def conf(self) -> Mapping[str, str]:
        """Return what the format needs of Spark: jars."""
        ...

    def prepare(self, spark: SparkSession, stream: str, rows: DataFrame) -> None:
        """Make the topic; in job A, once for each stream."""
        ...

    def write(self, rows: DataFrame, stream: str) -> DataStreamWriter:
        """Return what writes these rows; the checkpoint is set by the caller. In job A."""
        ...

    def read(self, spark: SparkSession, stream: str, shape: Shape, name: str, pace: Mapping[str, Any]) -> DataFrame:
        """Return the stream of typed rows. In job B.

        Args:
            pace: of those that make their rows themselves: ``rate`` (rows a second), or ``rows_per_batch``.
        """
        ...

    def release(self, stream: str, batches: int) -> None:
        """Let rows that job B makes itself come: so many batches in all. In job A, when its own begin."""
        ...

    def close(self) -> None:
        """Give up what :meth:`prepare` took."""
        ...
