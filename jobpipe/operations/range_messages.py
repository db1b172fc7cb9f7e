"""What several answers hold: news, ranges of the log, batches that are lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from jobpipe.operations.messages.checked_values import Integer, Items, PositionValue, Text
from jobpipe.operations.messages.message_fields import MAX_PARTITION, At, Count, Fields, Flag, Nested, message
from jobpipe.store.catalog.position import Position

if TYPE_CHECKING:
    from jobpipe.store.reading.read_plan import ReadPlan  # loads SQLite, which a worker has no use for

MAX_LISTED = 1_000_000  # plans, lost batches and pieces of one answer; the 16 MiB of a frame hold fewer

SchemaId = Annotated[int | None, Integer()]
Stop = Annotated[Position | None, PositionValue()]


@message
class News(Fields):
    """The newest position, whether the topic has ended, what its publisher waits for."""

    head: At
    ended: Flag
    waiting: Annotated[str | None, Text(4096, printable=False)] = None

    def is_beyond(self, position: Position) -> bool:
        """True when there may be something to plan after ``position``: a head that lies before it is no news."""
        before = self.head.log == position.log and self.head.place < position.place
        return self.head != position and not before


@message
class LostBatch(Fields):
    """A batch of which lost host servers kept a part."""

    start: At
    end: At
    rows: Count
    hosts: Annotated[tuple[str, ...], Items(Text(255), MAX_LISTED)]


@message(kw_only=True)
class PlannedRange(Fields):
    """A range of the log; its attributes are those of :class:`jobpipe.store.reading.read_plan.ReadPlan`."""

    start: At
    end: At
    rows: Count
    bytes: Count
    partitions: Annotated[int, Integer(0, MAX_PARTITION)]
    schema_id: SchemaId = None
    ends: Flag

    @classmethod
    def of(cls, plan: ReadPlan, **more: Any) -> Self:
        """Return what is answered of a plan."""
        return cls(
            start=plan.start,
            end=plan.end,
            rows=plan.rows,
            bytes=plan.bytes,
            partitions=plan.partitions,
            schema_id=plan.schema_id,
            ends=plan.ends,
            **more,
        )

    def holes(self, lost: Sequence[LostBatch]) -> tuple[LostBatch, ...]:
        """Return those of the lost batches of which this range has a part."""
        last = self.end.n + (1 if self.end.r else 0)
        return tuple(batch for batch in lost if self.start.n <= batch.start.n < last)


LostBatches = Annotated[tuple[LostBatch, ...], Items(Nested(LostBatch), MAX_LISTED)]
