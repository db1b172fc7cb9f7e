"""Whether rows of a schema may be published, and what publishing them needs."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from jobpipe.errors import ConfigError, SchemaMismatch
from jobpipe.spark.options.partitioner import Partitioner
from jobpipe.spark.schema.spark_arrow_schema import arrow_schema, check_types


@dataclass(frozen=True)
class CheckedRows:
    """A schema that was found to be right.

    Attributes:
        found: of the rows.
        arrow: of what is published: the declared schema, if there is one.
        json: the same as Spark writes it.
        places: of the ``partition_by`` columns.
        hashes_here: these can be hashed in Python.
    """

    found: StructType
    arrow: pa.Schema
    json: str
    places: tuple[int, ...]
    hashes_here: bool


def check_rows(
    topic: str, found: StructType, declared: StructType | None, partitioner: Partitioner, *, case_sensitive: bool
) -> CheckedRows:
    """See that rows may be published.

    Args:
        topic: where to.
        found: the rows' schema.
        declared: what every batch must have; None for what is found.
        partitioner: what divides them.
        case_sensitive: Spark tells columns apart by case (``spark.sql.caseSensitive``).

    Raises:
        UnsupportedType: a column's type cannot be published.
        ConfigError: ``partition_by`` names a column that does not exist.
        SchemaMismatch: the rows have other columns than were declared.
    """
    check_types(found, topic)
    try:
        places = partitioner.places(found.names, case_sensitive=case_sensitive)
    except LookupError as error:
        (missing,) = error.args
        raise ConfigError(
            f"topic {topic!r}: partition_by names {', '.join(missing)}; each name must match exactly one "
            f"column, and the rows have the columns {', '.join(found.names)}",
            topic=topic,
            columns=missing,
        ) from None
    published = declared or found
    as_found, arrow = arrow_schema(found), arrow_schema(published)
    if as_found.names != arrow.names:
        raise SchemaMismatch(
            f"topic {topic!r}: the declared columns are {', '.join(published.names)}; the rows have "
            f"{', '.join(found.names)}",
            topic=topic,
        )
    here = partitioner.hashes_here(found, as_found, places)
    return CheckedRows(found, arrow, published.json(), places, hashes_here=here)
