"""The column that ``includeMetadata=true`` adds: where each row comes from, so that order can be rebuilt."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from jobpipe.errors import SchemaMismatch
from jobpipe.spark.schema.spark_arrow_schema import arrow_schema
from jobpipe.subscribing.fetching.part_fetch import Fetched, FetchRange

METADATA = "_jobpipe"

_FIELDS = StructType(
    [
        StructField("topic", StringType(), False),
        StructField("offset", LongType(), False),  # the batch lies between offset and offset + 1
        StructField("partition", IntegerType(), False),  # 0..parallelism-1
        StructField("parallelism", IntegerType(), False),
        StructField("publisher", StringType(), False),
        StructField("published", TimestampType(), False),  # when the batch was sealed; never falls within a topic
        StructField("row", LongType(), False),  # number of the row within its partition of its batch
    ]
)
_ARROW = arrow_schema(_FIELDS)


def with_metadata(schema: StructType) -> StructType:
    """Return ``schema`` with the metadata column at its end.

    Raises:
        SchemaMismatch: it has a column of that name.
    """
    if METADATA in schema.names:
        raise SchemaMismatch(
            f"a column {METADATA} is published: leave includeMetadata out to read it, or drop it before publishing",
            columns=[METADATA],
        )
    return StructType([*schema.fields, StructField(METADATA, _FIELDS, False)])


def metadata_column(fetched: Fetched, wanted: FetchRange) -> pa.StructArray:
    """Return the metadata of one record batch."""
    count, header = fetched.batch.num_rows, fetched.header
    values: dict[str, Any] = {
        "topic": pa.repeat(pa.scalar(wanted.topic), count),
        "offset": pa.repeat(pa.scalar(header.n, pa.int64()), count),
        "partition": pa.repeat(pa.scalar(header.partition, pa.int32()), count),
        "parallelism": pa.repeat(pa.scalar(header.partitions, pa.int32()), count),
        "publisher": pa.repeat(pa.scalar(header.publisher), count),
        "published": pa.repeat(pa.scalar(header.sealed_ms * 1000, pa.int64()), count).cast(
            pa.timestamp("us", tz="UTC")
        ),
        "row": pa.array(range(fetched.row, fetched.row + count), pa.int64()),
    }
    return pa.StructArray.from_arrays([values[field.name].cast(field.type) for field in _ARROW], fields=list(_ARROW))
