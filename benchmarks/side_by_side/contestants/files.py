"""A directory of parquet files as a stream, both ends Spark's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.side_by_side.contestants.plain import Plain, schema_of
from benchmarks.side_by_side.shapes import Shape


class Files(Plain):
    """``writeStream.format("parquet")`` to ``readStream.format("parquet")``."""

    name = "files"

    def prepare(self, spark: SparkSession, stream: str, rows: DataFrame) -> None:
        self._directory(stream).mkdir(parents=True)

    def write(self, rows: DataFrame, stream: str) -> DataStreamWriter:
        return rows.writeStream.format("parquet").option("path", str(self._directory(stream)))

    def read(self, spark: SparkSession, stream: str, shape: Shape, name: str, pace: Mapping[str, Any]) -> DataFrame:
        return spark.readStream.schema(schema_of(spark, shape)).parquet(str(self._directory(stream)))

    def _directory(self, stream: str) -> Path:
        return self.folder / "files" / stream
