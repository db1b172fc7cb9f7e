"""Which changes of a table that is being read are published: :mod:`.capture_session` has the rule."""

from __future__ import annotations

from typing import Any

from jobpipe.cdc.changes import UNCHANGED, Change, Operation
from jobpipe.cdc.postgresql.capture_state import CapturedTable, CaptureState, TopicState, seen_now
from jobpipe.cdc.postgresql.database.database_catalog import ReadableTable
from jobpipe.cdc.postgresql.postgres_note import Chunk, Visibility
from jobpipe.cdc.postgresql.table_chunks import Key, places_of

MAX_REMEMBERED = 100_000  # transactions, unless so many are open


class StreamedTransactions:
    """Transactions that were streamed, and that the next snapshot must see."""

    def __init__(self, state: CaptureState) -> None:
        self._state = state
        self._remembered: set[int] = set()

    def add(self, xid: int) -> None:
        """Remember one."""
        self._remembered.add(xid)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered = set(self.unseen(seen_now(self._state.control)))

    def unseen(self, seen: Visibility) -> list[int]:
        """Return those that a snapshot does not see."""
        return [xid for xid in self._remembered if not seen.sees(seen.full(xid))]

    def clear(self) -> None:
        """Forget them: something was read that sees all of them."""
        self._remembered.clear()


class ChangeFilter:
    """Drops changes.

    Attributes:
        dropped: the transactions of which something was dropped: the next chunk must see them.
    """

    def __init__(self, state: CaptureState) -> None:
        self.dropped = StreamedTransactions(state)
        self._state = state

    def sort_out(self, topic: TopicState) -> None:
        """Drop those changes that wait which chunks have, or will have."""
        pending = topic.writer.pending
        for table in topic.tables:
            if table.chunk is None:
                continue
            places = [place for place, change in enumerate(pending) if change.table.number == table.number]
            changes = [pending[place] for place in places]
            same_key = table.chunk.key == table.readable.key_print and _has_key(table, changes)
            kept = self._kept(table, table.chunk, changes) if same_key else []
            if not same_key:
                for change in changes:
                    self.dropped.add(change.transaction)
                kept = [False] * len(changes)
                table.begin_again()
            gone = {place for place, keep in zip(places, kept, strict=True) if not keep}
            pending = [change for place, change in enumerate(pending) if place not in gone]
        topic.writer.pending = pending

    def _kept(self, table: CapturedTable, chunk: Chunk, changes: list[Change]) -> list[bool]:
        """Tell of each change whether it is published."""
        if not changes:
            return []
        regions = [1] * len(changes)  # 0: before the chunk, 1: in it, 2: after it
        bounds = [bound for bound in (chunk.low, chunk.high) if bound is not None]
        if table.readable.key and bounds:
            keys = [key_of(change, table.readable) for change in changes]
            found = places_of(self._state.control, table.readable.key, keys, bounds)
            regions = [place + (chunk.low is None) for place in found]
        kept = []
        for change, region in zip(changes, regions, strict=True):
            if change.operation is Operation.TRUNCATE:
                kept.append(True)
            elif region > 1:
                self.dropped.add(change.transaction)
                kept.append(False)
            else:
                kept.append(region == 0 or not chunk.seen.sees(chunk.seen.full(change.transaction)))
        return kept


def _has_key(table: CapturedTable, changes: list[Change]) -> bool:
    """Tell whether changes have the columns of the key by which a table is being read."""
    names = {column.name for column in table.readable.key}
    return all(names <= {column.name for column in each} for each in {change.table.columns for change in changes})


def key_of(change: Change, readable: ReadableTable) -> Key:
    """Return the key of a change, as texts."""
    places = {column.name: place for place, column in enumerate(change.table.columns)}
    key: list[Any] = []
    for column in readable.key:
        place = places[column.name]
        value = None if change.after is None else change.after[place]
        if value is None or value is UNCHANGED:
            value = None if change.before is None else change.before[place]
        key.append(value.decode() if isinstance(value, bytes) else "")
    return tuple(key)
