"""Sealing what the tasks of a flow job publish: each part is a batch of its own, and moves its cursor, in one step."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from jobpipe.errors import Fenced, FlowNotFound, JobpipeError, RemoteProtocolError, SegmentCorrupt, SpoolError
from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.flow_cursors import Cursor, FlowCursors, FlowKey
from jobpipe.store.log.seal import BatchSealer, NewBatch
from jobpipe.store.spool.segment_index import SegmentInfo
from jobpipe.store.subscriptions.positions import Subscriptions


@dataclass(frozen=True)
class SegmentPart:
    """What one task returned for a part of one partition of its source.

    Attributes:
        key, partition, claim: whose cursor, and what shows that it may be moved.
        start, to: the part of the source; it is published if the cursor stands at ``start``.
        batch: what is sealed; without segments none is, and only the cursor moves.
        segments: what was written.
        read: rows of the source that the function was given; None of a task that does not count them.
    """

    key: FlowKey
    partition: int
    claim: int
    start: Position
    to: Position
    batch: NewBatch
    segments: list[SegmentInfo] = field(default_factory=list)
    read: int | None = None


@dataclass(frozen=True)
class PartOutcome:
    """What became of a part.

    Attributes:
        cursor: where it stands now. At ``to`` or beyond, the part is sealed, by this call or an earlier one; elsewhere,
            nothing of it is.
        rows: that this call has published.
    """

    cursor: Cursor
    rows: int


class FlowCommitter:
    """Seals parts, many in one transaction."""

    def __init__(
        self,
        database: Database,
        batches: Batches,
        sealer: BatchSealer,
        cursors: FlowCursors,
        subscriptions: Subscriptions,
    ) -> None:
        self._db = database
        self._batches = batches
        self._sealer = sealer
        self._cursors = cursors
        self._subscriptions = subscriptions

    def seal(self, parts: Sequence[SegmentPart], writing: Container[str]) -> list[PartOutcome | JobpipeError]:
        """Seal parts in their order; what is wrong with one of them is its own outcome, and the others are sealed.

        Args:
            parts: of any flows and partitions.
            writing: write ids of what is being written, as for :meth:`jobpipe.store.log.topic_log.TopicLog.seal`.

        Returns:
            By part, what became of it, or the error: Fenced (another task has its partition), FlowNotFound,
            SegmentCorrupt, RemoteProtocolError, or a SpoolError with ``fields["again"]``: its files may be gone, so
            that it must be written again.

        Raises:
            Fenced: another publisher has the topic; nothing is sealed.
            SpoolError: the disk fails; nothing is sealed.
        """
        checked = [self._checked(part, writing) for part in parts]
        first = self._batches.next_n()
        with self._db.write():
            outcomes = [
                self._one(part, found) if isinstance(found, list) else found
                for part, found in zip(parts, checked, strict=True)
            ]
            self._subscriptions.write()
        self._subscriptions.written()
        self._subscriptions.note_sealed(first)
        return outcomes

    def _checked(self, part: SegmentPart, writing: Container[str]) -> list[SegmentInfo] | PartOutcome | JobpipeError:
        """Return what is to be sealed, or what becomes of the part without that."""
        if part.start.log != part.key.log or part.to.log != part.key.log or part.to.place <= part.start.place:
            return RemoteProtocolError("a part of a source is described wrongly", start=part.start.to_json())
        if part.batch.write_id not in writing and any(segment.file for segment in part.segments):
            return self._no_longer_kept(part)
        try:
            return self._sealer.check(part.batch, part.segments)
        except (SegmentCorrupt, RemoteProtocolError) as error:
            return error

    def _no_longer_kept(self, part: SegmentPart) -> PartOutcome | JobpipeError:
        try:
            cursor = self._cursors.held(part.key, part.partition, part.claim)
        except (Fenced, FlowNotFound) as error:
            return error
        if cursor.position.place >= part.to.place:  # its files were kept until it was sealed
            return PartOutcome(cursor, 0)
        return SpoolError(
            f"topic {self._batches.topic!r}: what call {part.batch.write_id} wrote may be removed by now; it is to be "
            "written again",
            topic=self._batches.topic,
            write_id=part.batch.write_id,
            again=True,
        )

    def _one(self, part: SegmentPart, segments: list[SegmentInfo]) -> PartOutcome | JobpipeError:
        try:
            cursor = self._cursors.held(part.key, part.partition, part.claim)
        except (Fenced, FlowNotFound) as error:
            return error
        if cursor.position.place != part.start.place:
            return PartOutcome(cursor, 0)
        rows = sum(segment.rows for segment in segments)
        if rows:
            self._sealer.insert(part.batch, segments)
        self._cursors.move(part.key, part.partition, part.to, part.read)
        return PartOutcome(Cursor(part.partition, part.claim, part.to), rows)
