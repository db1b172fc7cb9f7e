"""What a task does with its input partition: fetch, cast to exactly Spark's schema, yield."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from jobpipe.arrow.casting import cast_batch
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.schema.metadata_columns import METADATA, metadata_column
from jobpipe.spark.schema.spark_arrow_schema import arrow_schema
from jobpipe.spark.session.python_workers import gc_freeze
from jobpipe.spark.source.schema_check import require_fit_in_task
from jobpipe.subscribing.fetching.count_report import CountedRange
from jobpipe.subscribing.fetching.part_fetch import FetchRange, fetch
from jobpipe.subscribing.lease_renewal import HeldLease


class RangePartition(InputPartition):
    """One publisher partition of a range of batches; carries the range and a hint of its endpoint, not the segments.

    Args:
        wanted: the range.
        counts: of which range it is a part, for the ledger; None for a batch read.
    """

    def __init__(self, wanted: FetchRange, counts: CountedRange | None = None) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.counts = counts
        self.held: HeldLease | None = None  # what keeps a batch read from retention


def read_range(wanted: FetchRange, schema: StructType, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``wanted`` in exactly ``schema``.

    Raises:
        SchemaMismatch: a batch does not fit; names topic, offset and column.
        DataLoss, SegmentCorrupt, LinkError: see :func:`jobpipe.subscribing.fetching.part_fetch.fetch`.
    """
    gc_freeze()
    target = arrow_schema(schema)
    rows = target.remove(target.get_field_index(METADATA)) if options.include_metadata else target
    accepted: pa.Schema | None = None

    def accept(found: pa.Schema) -> None:
        nonlocal accepted
        if accepted is None or not found.equals(accepted, check_metadata=True):
            where = f"topic {wanted.topic!r}, partition {wanted.partition}"
            require_fit_in_task(found, rows, options.schema_evolution, wanted.topic, where)
            accepted = found

    for fetched in fetch(wanted, options.config, accept):
        batch = fetched.batch
        if options.include_metadata:
            batch = batch.append_column(METADATA, metadata_column(fetched, wanted))
        where = f"topic {wanted.topic!r}, offset {fetched.header.n}, partition {wanted.partition}"
        yield cast_batch(batch, target, where, evolve=True)
