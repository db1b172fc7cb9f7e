"""Which changes of a table that is being read are published: :mod:`.capture_session` has the rule."""

from __future__ import annotations

import numpy as np

from jobpipe.cdc.postgresql.capture_state import CapturedTable, CaptureState, TopicState, seen_now
from jobpipe.cdc.postgresql.postgres_note import Chunk, Visibility
from jobpipe.cdc.postgresql.table_chunks import places_of
from jobpipe.cdc.postgresql.waiting.row_columns import Flags, Places
from jobpipe.cdc.postgresql.waiting.waiting_rows import TableChanges

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

    def sort_out(self, topic: TopicState, changes: list[TableChanges]) -> list[TableChanges]:
        """Return those of some changes that chunks do not have, and will not have."""
        for table in topic.tables:
            if (chunk := table.chunk) is None:
                continue
            mine = [each for each in changes if each.table.number == table.number]
            if chunk.key == table.readable.key_print and all(each.truncates or _has_key(table, each) for each in mine):
                kept = [each.kept(self._kept(table, chunk, each)) for each in mine]
            else:
                for each in mine:
                    self._drop(each.transactions)
                kept = []
                table.begin_again()
            changes = [each for each in changes if each.table.number != table.number]
            changes += [each for each in kept if len(each.columns)]
        return changes

    def _drop(self, transactions: Places) -> None:
        for xid in np.unique(transactions).tolist():
            self.dropped.add(xid)

    def _kept(self, table: CapturedTable, chunk: Chunk, changes: TableChanges) -> Flags:
        """Tell of each change whether it is published."""
        if changes.truncates:
            return np.ones(len(changes.order), np.bool_)
        regions = np.ones(len(changes.order), np.int64)  # 0: before the chunk, 1: in it, 2: after it
        bounds = [bound for bound in (chunk.low, chunk.high) if bound is not None]
        if table.readable.key and bounds:
            found = places_of(self._state.control, table.readable.key, changes.keys(table.readable), bounds)
            regions = np.array(found, np.int64) + (chunk.low is None)
        self._drop(changes.transactions[regions > 1])
        seen = [xid for xid in np.unique(changes.transactions).tolist() if chunk.seen.sees(chunk.seen.full(xid))]
        published: Flags = (regions == 0) | ((regions == 1) & ~np.isin(changes.transactions, seen))
        return published


def _has_key(table: CapturedTable, changes: TableChanges) -> bool:
    """Tell whether changes have the columns of the key by which a table is being read."""
    return {column.name for column in table.readable.key} <= {column.name for column in changes.table.columns}
