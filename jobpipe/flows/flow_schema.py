"""The schema in which a flow's function gets its batches: fixed when the flow starts, and kept until it ends.

It is the newest that is published, as a query's; if the batch that comes next does not fit that, it is this batch's. So
a flow that ended before a schema that does not fit goes on with it when it is started again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa

from jobpipe.arrow.arrow_evolution import as_nullable, left_out, misfits
from jobpipe.arrow.casting import cast_batch
from jobpipe.errors import SchemaMismatch
from jobpipe.subscribing.fetching.part_fetch import Fetched

log = logging.getLogger(__name__)

EVOLUTIONS = ("compatible", "strict")


def input_schema(newest: pa.Schema, following: pa.Schema | None, evolution: str) -> pa.Schema:
    """Return the schema that a flow asks for.

    Args:
        newest: that is published.
        following: of the batch that comes next; None if there is none.
        evolution: ``compatible``: columns may be null, since older and later batches need not have them; or ``strict``.
    """

    def asked(schema: pa.Schema) -> pa.Schema:
        return schema if evolution == "strict" else as_nullable(schema)

    if following is not None and misfits(following, asked(newest), evolution):
        return asked(following)
    return asked(newest)


class SchemaAdapter:
    """Brings record batches into the schema that the function gets.

    Args:
        topic: of the source.
        asked: the schema; None if there was none when the flow started.
        evolution: what may differ.
        newest: gives the newest schema, where there was none.
    """

    def __init__(
        self, topic: str, asked: pa.Schema | None, evolution: str, newest: Callable[[], pa.Schema | None]
    ) -> None:
        self._topic = topic
        self._inputs = asked
        self._evolution = evolution
        self._newest = newest
        self._accepted: pa.Schema | None = None
        self._left_out: set[str] | None = None  # None before the first batch: what is left out then is not wanted

    def fitted(self, fetched: Fetched) -> pa.RecordBatch:
        """Return the rows in the schema that is asked for.

        Raises:
            SchemaMismatch: they do not fit; names topic, offset and each column with both types.
        """
        batch, n = fetched.batch, fetched.header.n
        if self._inputs is None:
            self._inputs = input_schema(self._newest() or batch.schema, batch.schema, self._evolution)
        asked = self._inputs
        if self._accepted is None or not batch.schema.equals(self._accepted):
            lines = misfits(batch.schema, asked, self._evolution)
            if lines:
                raise SchemaMismatch(
                    f"topic {self._topic!r}, offset {n}: what is published does not fit the schema that the flow reads "
                    f"(schema_evolution={self._evolution}): {'; '.join(lines)}. Everything before it is done. Start "
                    "the flow again, with a function that takes this schema: it begins there with the new schema",
                    topic=self._topic,
                    offset=n,
                    columns=lines,
                )
            self._warn_left_out(left_out(batch.schema, asked), n)
            self._accepted = batch.schema
        where = f"topic {self._topic!r}, offset {n}, partition {fetched.header.partition}"
        return cast_batch(batch, asked, where, evolve=True)

    def _warn_left_out(self, columns: list[str], n: int) -> None:
        known = self._left_out
        added = [] if known is None else [column for column in columns if column not in known]
        self._left_out = {*(known or ()), *columns}
        if added:
            log.warning(
                "topic %s: from offset %d on there is a column that this flow does not read: %s. It is left out until "
                "the flow is started again",
                *(self._topic, n, ", ".join(added)),
            )
