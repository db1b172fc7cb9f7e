"""What a task does with its input partition: fetch, cast to exactly Spark's schema, yield."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from jobpipe.config import Config
from jobpipe.spark.metadata import METADATA, metadata_column
from jobpipe.spark.schema import arrow_schema, cast_batch
from jobpipe.store.segment import empty_batch
from jobpipe.subscriber.fetch import FetchRange, fetch

__all__ = ["RangePartition", "read_range"]


class RangePartition(InputPartition):
    """One publisher partition of a range of batches; carries the range and a hint of its endpoint, not the segments."""

    def __init__(self, wanted: FetchRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def read_range(wanted: FetchRange, schema: StructType, config: Config) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``wanted`` in exactly ``schema``.

    Raises:
        SchemaMismatch: a batch does not fit; names topic, offset and column.
        DataLoss, SegmentCorrupt, LinkError: see :func:`jobpipe.subscriber.fetch.fetch`.
    """
    target = arrow_schema(schema)
    at = target.get_field_index(METADATA)
    rows = target if at < 0 else target.remove(at)

    def accept(schema: pa.Schema) -> None:
        cast_batch(empty_batch(schema), rows, f"topic {wanted.topic!r}, partition {wanted.partition}")

    for fetched in fetch(wanted, config, accept):
        where = f"topic {wanted.topic!r}, offset {fetched.header['n']}, partition {wanted.partition}"
        batch = cast_batch(fetched.batch, rows, where)
        if at >= 0:
            columns = list(batch.columns)
            columns.insert(at, metadata_column(fetched, wanted, target.field(at).type))
            batch = pa.RecordBatch.from_arrays(columns, schema=target)
        yield batch
