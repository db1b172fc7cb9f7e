"""Rows that come into the driver: all of them, or an error."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from jobpipe.arrow.list_offsets import with_offsets


def collect_batches(frame: DataFrame) -> list[pa.RecordBatch]:
    """Return all rows, bounded by ``spark.driver.maxResultSize``; no batch if there are none.

    It is what ``toArrow`` does before its last step, a cast that refuses a null struct whose children may not be null.
    """
    collected: Any = frame
    batches: list[pa.RecordBatch] = collected._collect_as_arrow()
    return [with_offsets(batch) for batch in batches]


def collect_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return all rows, by their columns' names.

    ``DataFrame.collect`` must not decide what is committed: if the JVM dies while it sends the rows, it returns those
    that have come, without an error (PySpark 4.3.0: ``Serializer.load_stream`` takes the end of the connection for the
    end of the rows). Arrow's way ends with the number of batches.

    Raises:
        Exception: whatever Spark, Py4J or Arrow say when a task fails, or when the JVM is gone.
    """
    return [row for batch in collect_batches(frame) for row in batch.to_pylist()]
