"""A stream that cannot start: Spark hears why from the reader's first call, in words of ours and no others.

Spark's runner answers an error of ``streamReader`` itself with one of its own, which hides ours (PySpark 4.3: it stops
a reader that it does not have yet).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from jobpipe.errors import JobpipeError
from jobpipe.spark.plainly import plainly

__all__ = ["RefusedStream"]


class RefusedStream(DataSourceStreamReader):
    """Raises ``why`` in every call."""

    def __init__(self, why: JobpipeError) -> None:
        self._why = why

    @plainly
    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        raise self._why

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raise the error."""
        raise self._why

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._why

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error; never reached, since there is nothing to read."""
        raise self._why
