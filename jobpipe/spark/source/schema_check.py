"""Whether what a topic has fits what a query reads: judged in the driver, before a range is planned into a batch.

So a query ends at the boundary between two schemas, with all that lies before delivered, and not in a task. Each task
looks at the schema of what it gets once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from jobpipe.errors import SchemaMismatch, UnsupportedType
from jobpipe.operations.range_messages import PlannedRange
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.schema.metadata_columns import with_metadata
from jobpipe.spark.schema.spark_arrow_schema import published_schema, spark_schema
from jobpipe.spark.schema.spark_evolution import left_out, misfits
from jobpipe.store.catalog.position import Position

log = logging.getLogger(__name__)

Ask: TypeAlias = Callable[[int | None], tuple[bytes, str | None] | None]
"""Return a schema of the topic by its id, or the newest, as Arrow and Spark have it; None if it is not known."""


@dataclass(frozen=True)
class SchemaRemedies:
    """What to do about rows that do not fit.

    Attributes:
        newer: The newest schema does not fit, either.
        older: The newest one does.
    """

    newer: str
    older: str


STREAM = SchemaRemedies(
    "Everything before it has been delivered. Leave .schema() out and start the query again, from a new load(): it "
    "learns the newest schema. If the rest of the query does not accept the new types, cast them; if its checkpoint "
    "does not, a new one under the same name continues where this one stopped",
    "What was published later fits. Start the query with a .schema(...) that these batches fit, or both, and leave it "
    "out after the change; or, if these batches are not needed, move the subscription past them by `jobpipe "
    "subscriptions seek`",
)
BATCH = SchemaRemedies(
    "Leave .schema() out: load() learns the newest schema",
    "What was published later fits. Begin there (startingOffsets), or give a .schema(...) that fits all, without the "
    "columns that cannot",
)


class SchemaCheck:
    """Knows what one ``load()`` asks for, and judges each published schema once."""

    def __init__(self, asked: StructType, options: SourceOptions, remedies: SchemaRemedies) -> None:
        self._asked = asked
        self._evolution = options.schema_evolution
        self._includes_metadata = options.include_metadata
        self._remedies = remedies
        self._judged: dict[str, dict[tuple[Any, ...], list[str]]] = {}  # by topic; the verdict on each schema
        self._known: dict[str, set[str]] = {}  # columns that are left out, by topic; those the log has told of
        self.left_out: dict[str, list[str]] = {}  # by topic: of the schema that was planned last

    def require(self, topic: str, plan: PlannedRange, ask: Ask, *, stop: Position | None = None) -> None:
        """See that the batches of a plan fit; asks once for each schema.

        If nothing is there to be read yet, and nothing was, the newest schema has to fit: what comes next has it, and a
        wrong ``.schema(...)`` is an error at the start.

        Args:
            topic: whose plan.
            plan: as the coordinator answers; all its batches have one schema.
            ask: how to get a schema.
            stop: nothing after that is read.

        Raises:
            SchemaMismatch: names topic, offset, and each column with both types.
            UnsupportedType: Spark has no type for a column.
        """
        start, end, number = plan.start, plan.end, plan.schema_id
        if start == end or number is None:
            if topic in self._judged or stop is not None:
                return
            number = None
        # Ids are the catalog's own; with acks=all a lost one is made again under the same log id, with a higher epoch.
        key = (number, end.log, end.epoch)
        judged = self._judged.get(topic, {})
        if key in judged:
            self.left_out[topic] = judged[key]
            return
        found = ask(number)
        if found is None:
            return  # nothing is published yet
        lines = self._misfits(topic, *found)
        if lines:
            newest = found if number is None else ask(None)
            older = newest is not None and not self._misfits(topic, *newest)
            remedy = self._remedies.older if older else self._remedies.newer
            raise self._mismatch(f"topic {topic!r}, offset {start.n}", lines, remedy, topic, offset=start.n)
        columns = left_out(self._published(topic, *found), self._asked)
        self._judged.setdefault(topic, {})[key] = self.left_out[topic] = columns
        self._warn_left_out(topic, columns, start.n)

    def _warn_left_out(self, topic: str, columns: list[str], n: int) -> None:
        """Log columns that were added under the query; those that it left out from the start it does not want."""
        known = self._known.get(topic)
        added = [] if known is None else [column for column in columns if column not in known]
        self._known.setdefault(topic, set()).update(columns)
        if added:
            log.warning(
                "topic %s: from offset %d on there is a column that this query does not read: %s. It is left out until "
                "the query is started again, from a new load()",
                *(topic, n, ", ".join(added)),
            )

    def fits(self, topic: str, number: int, ask: Ask) -> bool:
        """Tell whether a schema fits."""
        found = ask(number)
        try:
            return found is not None and not self._misfits(topic, *found)
        except UnsupportedType:
            return False

    def require_newest(self, topic: str, arrow: bytes, spark: str | None, remedy: str) -> None:
        """See that a topic's newest schema fits.

        Raises:
            SchemaMismatch: names topic and columns.
            UnsupportedType: Spark has no type for a column.
        """
        lines = self._misfits(topic, arrow, spark)
        if lines:
            raise self._mismatch(f"topic {topic!r}", lines, remedy, topic)

    def _misfits(self, topic: str, arrow: bytes, spark: str | None) -> list[str]:
        return misfits(self._published(topic, arrow, spark), self._asked, self._evolution)

    def _published(self, topic: str, arrow: bytes, spark: str | None) -> StructType:
        published = published_schema(topic, arrow, spark)
        return with_metadata(published) if self._includes_metadata else published

    def _mismatch(self, where: str, lines: list[str], remedy: str, topic: str, **fields: Any) -> SchemaMismatch:
        return SchemaMismatch(
            f"{where}: what is published does not fit the schema that is read (schemaEvolution={self._evolution}): "
            f"{'; '.join(lines)}. {remedy}",
            topic=topic,
            columns=lines,
            **fields,
        )


def require_fit_in_task(found: pa.Schema, asked: pa.Schema, evolution: str, topic: str, where: str) -> None:
    """See that record batches fit; both schemas without the metadata column.

    Raises:
        SchemaMismatch: they do not; names the columns.
    """
    if found.equals(asked):
        return
    lines = misfits(spark_schema(topic, found), spark_schema(topic, asked), evolution)
    if lines:
        raise SchemaMismatch(
            f"{where}: the rows do not fit the schema that is read (schemaEvolution={evolution}): {'; '.join(lines)}",
            topic=topic,
            columns=lines,
        )
