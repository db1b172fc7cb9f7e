"""Changed rows of a topic that wait for their seal: as PostgreSQL sent them, until all are made columns at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobpipe.cdc.changes import UNCHANGED_FIELD, ChangeColumns, Operation, RowImage, Table, same_columns
from jobpipe.cdc.postgresql.database.database_catalog import ReadableTable
from jobpipe.cdc.postgresql.stream.pgoutput import Begin
from jobpipe.cdc.postgresql.waiting.row_columns import (
    DELETE,
    INSERT,
    OLD,
    UPDATE,
    DecodedRows,
    Flags,
    Places,
    Tuples,
    decode_rows,
)
from jobpipe.errors import SchemaMismatch


@dataclass(frozen=True)
class Run:
    """Changes of one table in one transaction, one after the other.

    Attributes:
        table: as the stream has told of it.
        readable: as the catalog has it.
        begun: the transaction.
        messages: of rows, with their headers; None: the table was truncated.
    """

    table: Table
    readable: ReadableTable
    begun: Begin
    messages: list[bytes] | None

    @property
    def count(self) -> int:
        """How many messages it has."""
        return 1 if self.messages is None else len(self.messages)


@dataclass(frozen=True)
class TableChanges:
    """Changes of one table.

    Attributes:
        order: where each message stands among all that wait; two changes may be of one message.
        transactions: the number of each change's.
        truncates: all of them are TRUNCATE.
    """

    columns: ChangeColumns
    order: Places
    transactions: Places
    truncates: bool = False

    @property
    def table(self) -> Table:
        """The table as the stream has told of it."""
        return self.columns.table

    def keys(self, readable: ReadableTable) -> list[tuple[str, ...]]:
        """Return the key of each change, as texts; its columns must be there. Raises SchemaMismatch: it is none."""
        named = {column.name: place for place, column in enumerate(self.table.columns)}
        images = [image for image in (self.columns.after, self.columns.before) if image is not None]
        if not images or not readable.key:
            return [tuple("" for _ in readable.key)] * len(self.order)
        try:
            parts: list[Any] = [
                pc.coalesce(*(image.columns[named[column.name]] for image in images), pa.scalar(b"")).cast(pa.string())
                for column in readable.key
            ]
        except pa.ArrowInvalid:
            raise SchemaMismatch(
                f"table {self.table}: a key is not UTF-8; the database's encoding must be", table=str(self.table)
            ) from None
        return list(zip(*(part.to_pylist() for part in parts), strict=True))

    def kept(self, which: Flags) -> TableChanges:
        """Return some of them."""
        if which.all():
            return self
        columns = self.columns.take(pa.array(np.flatnonzero(which)))
        return replace(self, columns=columns, order=self.order[which], transactions=self.transactions[which])


class WaitingRows:
    """Changes of a topic, in the order in which they came."""

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def count(self) -> int:
        """How many messages wait."""
        return sum(run.count for run in self._runs)

    @property
    def size(self) -> int:
        """How many bytes they have."""
        return sum(len(message) for run in self._runs for message in run.messages or ())

    def fits(self, table: Table) -> bool:
        """Tell whether changes of a table can be in one batch with those that wait."""
        return not self._runs or same_columns(self._runs[0].table.columns, table.columns)

    def begin_run(self, table: Table, readable: ReadableTable, begun: Begin) -> list[bytes]:
        """Return the list to which messages of rows are to be added; it counts until other changes come."""
        messages: list[bytes] = []
        self._runs.append(Run(table, readable, begun, messages))
        return messages

    def truncate(self, table: Table, readable: ReadableTable, begun: Begin) -> None:
        """Let a TRUNCATE wait, which fits always: it has no values, so it takes the columns of what waits."""
        if not self.fits(table):
            table = replace(table, columns=self._runs[0].table.columns)
        self._runs.append(Run(table, readable, begun, None))

    def clear(self) -> None:
        """Let nothing wait any more."""
        self._runs = []

    def changes(self) -> list[TableChanges]:
        """Return what waits, the changes of each table together.

        Raises:
            RemoteProtocolError: a message is none of a row of its table.
        """
        groups: dict[tuple[int, int, bool], list[tuple[int, Run]]] = {}
        place = 0
        for run in self._runs:
            if run.count:
                key = (id(run.table), id(run.readable), run.messages is None)
                groups.setdefault(key, []).append((place, run))
            place += run.count
        return [_changes(group) for group in groups.values()]


def in_order(changes: Sequence[TableChanges], rows: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of the changes of several tables, in the order in which the changes came."""
    if len(rows) == 1:
        return rows[0]
    order = np.argsort(np.concatenate([each.order for each in changes]), kind="stable")
    return pa.concat_tables(rows).combine_chunks().take(order)


def _changes(group: Sequence[tuple[int, Run]]) -> TableChanges:
    counts = [run.count for _, run in group]
    first = group[0][1]
    count = sum(counts)
    before = np.cumsum([0, *counts[:-1]])
    order = np.arange(count) + _repeated([place for place, _ in group] - before, counts)
    transactions = _repeated([run.begun.xid for _, run in group], counts)
    lsns = _repeated([run.begun.commit_lsn for _, run in group], counts)
    table = first.table
    plain = ChangeColumns(
        table=table,
        schemas=pa.repeat(pa.scalar(table.schema, pa.string()), count),
        names=pa.repeat(pa.scalar(table.name, pa.string()), count),
        operations=pa.repeat(pa.scalar(Operation.TRUNCATE.value, pa.string()), count),
        before=None,
        after=None,
        unchanged=pa.nulls(count, UNCHANGED_FIELD),
        committed_ms=pa.array(_repeated([run.begun.committed_ms for _, run in group], counts)),
        places=[pa.array(each, mask=each == 0) for each in (transactions, lsns)],
    )
    if first.messages is None:
        return TableChanges(plain, order, transactions, truncates=True)
    messages = [message for _, run in group for message in run.messages or ()]
    rows = decode_rows(messages, len(table.columns))
    changed = _key_changed(rows, table, first.readable)
    columns = _with_rows(plain, rows, changed)
    if not changed.any():
        return TableChanges(columns, order, transactions)
    places = np.repeat(np.arange(count), 1 + changed)  # of a changed key two: its deletion, and a creation
    again = np.zeros(len(places), np.bool_)
    again[1:] = places[1:] == places[:-1]
    return TableChanges(
        _as_two(columns.take(pa.array(places)), deleted=changed[places] & ~again, created=again),
        order[places],
        transactions[places],
    )


def _repeated(values: Any, counts: list[int]) -> Places:
    return np.repeat(np.asarray(values, np.int64), counts)


def _key_changed(rows: DecodedRows, table: Table, readable: ReadableTable) -> Flags:
    """Tell which rows are updates of a key."""
    changed = np.zeros(len(rows.kinds), np.bool_)
    old, new = rows.old, rows.new
    if old is None or new is None:
        return changed
    keys = table.keys
    if table.whole_rows:
        names = {column.name for column in readable.key}
        keys = tuple(place for place, column in enumerate(table.columns) if column.name in names)
    for place in keys:
        one, other = old.texts[place], new.texts[place]
        differs = pc.coalesce(pc.not_equal(one, other), pc.xor(pc.is_null(one), pc.is_null(other)))
        changed |= differs.to_numpy(zero_copy_only=False) & ~new.same[place]
    return changed & old.there & new.there


def _with_rows(plain: ChangeColumns, rows: DecodedRows, changed: Flags) -> ChangeColumns:
    """Return changes with what rows have."""
    old, new, table = rows.old, rows.new, plain.table
    letters = np.zeros(256, np.int64)
    letters[[INSERT, UPDATE, DELETE]] = range(3)
    names = pa.array([Operation.CREATE, Operation.UPDATE, Operation.DELETE], pa.string())
    operations = names.take(letters[rows.kinds])
    before = after = None
    unchanged = plain.unchanged
    if old is not None:
        shown = old.there & (changed | (rows.kinds == DELETE) | (rows.tags == OLD))
        before = _image(old, shown)
    if new is not None:
        sent, unchanged = _filled(table, old, new)
        after = _image(sent, new.there)
    return replace(plain, operations=operations, before=before, after=after, unchanged=unchanged)


def _image(tuples: Tuples, shown: Flags) -> RowImage | None:
    if shown.all():
        return RowImage(tuples.texts, None)
    return RowImage(tuples.texts, pa.array(~shown)) if shown.any() else None


def _filled(table: Table, old: Tuples | None, new: Tuples) -> tuple[Tuples, pa.Array[Any]]:
    """Return new values, with the old ones for those that are unchanged, and the names of those that are not known.

    What is unchanged is long, and so not null: an old value that is null was not sent. A partition may send less than
    its table's replica identity says.
    """
    if not any(same.any() for same in new.same):
        return new, pa.nulls(len(new.there), UNCHANGED_FIELD)
    texts, unknown = list(new.texts), np.column_stack(new.same)
    if old is not None:
        for place, same in enumerate(new.same):
            known = same & old.there & pc.is_valid(old.texts[place]).to_numpy(zero_copy_only=False)
            if known.any():
                texts[place] = pc.if_else(pa.array(known), old.texts[place], texts[place])
                unknown[:, place] &= ~known
    counts = unknown.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    names = pa.array([column.name for column in table.columns], pa.string())
    values = names.take(np.nonzero(unknown)[1])
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=pa.array(counts == 0))
    return replace(new, texts=texts), lists


def _as_two(columns: ChangeColumns, deleted: Flags, created: Flags) -> ChangeColumns:
    """Return changes of which some are the two halves of a change of a key."""
    after = columns.after
    assert after is not None  # noqa: S101 - updates have it
    gone = pa.array(deleted)
    letters = pc.if_else(gone, Operation.DELETE.value, columns.operations)
    missing = gone if after.missing is None else pc.or_(gone, after.missing)
    return replace(
        columns,
        operations=pc.if_else(pa.array(created), Operation.CREATE.value, letters),
        after=RowImage([pc.if_else(gone, pa.scalar(None, each.type), each) for each in after.columns], missing),
        unchanged=pc.if_else(gone, pa.scalar(None, UNCHANGED_FIELD), columns.unchanged),
    )
