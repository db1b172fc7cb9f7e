"""What tests of rows share: a topic with numbered rows, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from jobpipe.admin import Admin
from jobpipe.config import Config
from jobpipe.control.rows.rows_query import PAGE_BOUNDS, RowBounds, RowPlace, RowsFound, RowsQuery
from jobpipe.control.rows.topic_rows import TopicRows
from jobpipe.publishing.topic_publisher import Publisher


@dataclass
class RowsTopic:
    """A topic of two partitions whose rows are numbered through, batch after batch, partition after partition."""

    topic: str
    config: Config
    publisher: Publisher
    admin: Admin
    batches: int = 0
    rows: int = 0

    def publish(self, *sizes: tuple[int, int], **columns: Callable[[int], Any]) -> None:
        """Seal batches of so many rows in both partitions, with column ``n`` and some that are made of it."""
        for batch in sizes:
            tables = []
            for size in batch:
                numbers = range(self.rows, self.rows + size)
                self.rows += size
                kinds = {name: pa.array([make(0)]).type for name, make in columns.items()}
                made = {name: pa.array([make(n) for n in numbers], kinds[name]) for name, make in columns.items()}
                tables.append(pa.table({"n": pa.array(numbers, pa.int64()), **made}))
            self.publisher.seal("query", self.batches, tables, run_id=str(self.publisher.epoch))
            self.batches += 1

    def reads(self, *masked: str) -> TopicRows:
        """Return what reads its rows, as a server does whose configuration masks some columns."""
        return TopicRows(replace(self.config, server_masked_columns=masked or None), self.admin.locate)

    def read(
        self,
        place: str = "newest",
        limit: int = 50,
        where: str = "",
        bounds: RowBounds = PAGE_BOUNDS,
        masked: tuple[str, ...] = (),
    ) -> RowsFound:
        """Read rows."""
        return self.reads(*masked).read(
            RowsQuery(topic=self.topic, place=RowPlace.of(place), limit=limit, where=where, bounds=bounds)
        )


def values(found: RowsFound, column: str = "n") -> list[Any]:
    """Return the values of a column."""
    return [value for batch in found.batches for value in batch.column(column).to_pylist()]
