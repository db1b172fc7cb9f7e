"""Changed rows as columns: what thousands of messages become equals what one after the other does."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobpipe.cdc.change_rows import ChangeRows, RowFormat
from jobpipe.cdc.changes import UNCHANGED_FIELD, Change, ChangeColumns, Column, Operation, Table
from jobpipe.cdc.postgresql.database.column_types import BINARY, base_type
from jobpipe.cdc.postgresql.database.database_catalog import KeyColumn, ReadableTable
from jobpipe.cdc.postgresql.postgres_capture import ORIGIN
from jobpipe.cdc.postgresql.stream.pgoutput import HEADER, Begin
from jobpipe.cdc.postgresql.waiting.row_columns import DELETE, NEW, OLD, decode_rows
from jobpipe.cdc.postgresql.waiting.waiting_rows import TableChanges, WaitingRows, in_order
from jobpipe.cdc.text_conversions import TEXT
from jobpipe.errors import RemoteProtocolError, SchemaMismatch

COLUMNS = (
    Column("id", base_type(23, -1), "integer", key=True),
    Column("name", TEXT, "text", key=True),
    Column("data", BINARY, "bytea", key=False),
    Column("note", TEXT, "text", key=False),
)
KEY = (KeyColumn("id", "integer", None), KeyColumn("name", "text", None))
TEXTS = [b"", b"a", "é€😀".encode(), b"t\0\0", b"N" * 300]


class _Unchanged:
    """A value that an update left alone, and that PostgreSQL does not send."""


UNCHANGED = _Unchanged()
Value = bytes | _Unchanged | None
Row = tuple[str, list[Value] | None, list[Value] | None]  # kind, old and new values


class RowChange(NamedTuple):
    """A change of a row; some of its values may be unchanged."""

    table: Table
    operation: Operation
    before: list[Value] | None
    after: list[Value] | None
    begun: Begin


def packed(values: Sequence[Value]) -> bytes:
    """Return a tuple as PostgreSQL sends it."""
    letters: dict[Value, bytes] = {None: b"n", UNCHANGED: b"u"}
    parts = [
        b"t" + struct.pack(">I", len(value)) + value if isinstance(value, bytes) else letters[value] for value in values
    ]
    return struct.pack(">H", len(values)) + b"".join(parts)


def message(row: Row, number: int = 7, *, whole: bool = False) -> bytes:
    kind, old, new = row
    before = b"" if old is None else (b"O" if whole else b"K") + packed(old)
    return (
        b"w"
        + bytes(24)
        + kind.encode()
        + struct.pack(">I", number)
        + before
        + (b"" if new is None else b"N" + packed(new))
    )


def table(number: int = 7, *, whole: bool = False, name: str = "t") -> Table:
    columns = tuple(Column(each.name, each.type, each.declared, key=whole or each.key) for each in COLUMNS)
    return Table(number, "public", name, columns, whole_rows=whole)


def changes_of(row: Row, of: Table, begun: Begin) -> list[RowChange]:
    """Return what a row is published as, by the rules of docs/cdc.md."""
    kind, old, new = row

    def change(operation: Operation, before: list[Value] | None, after: list[Value] | None) -> RowChange:
        return RowChange(of, operation, before, after, begun)

    if kind == "I":
        return [change(Operation.CREATE, None, new)]
    if kind == "D":
        return [change(Operation.DELETE, old, None)]
    assert new is not None
    if old is not None:  # what is long, and has not changed
        new = [
            old[place] if value is UNCHANGED and old[place] is not None else value for place, value in enumerate(new)
        ]
    if old is not None and any(old[place] != new[place] for place in (0, 1) if new[place] is not UNCHANGED):
        return [change(Operation.DELETE, old, None), change(Operation.CREATE, old, new)]
    return [change(Operation.UPDATE, old if of.whole_rows else None, new)]


def key_of(change: RowChange) -> tuple[str, ...]:
    """Return the key of a change; new values count, where they were sent."""
    found = []
    for place in (0, 1):
        value = None if change.after is None else change.after[place]
        if not isinstance(value, bytes):
            value = None if change.before is None else change.before[place]
        found.append(value.decode() if isinstance(value, bytes) else "")
    return tuple(found)


numbers = st.integers(-5, 5).map(lambda number: str(number).encode())
texts = st.sampled_from(TEXTS)
hexes = st.binary(max_size=6).map(lambda data: b"\\x" + data.hex().encode())


@st.composite
def rows_of(draw: st.DrawFn, *, whole: bool) -> Row:
    def values(*, same: bool) -> list[Value]:
        maybe: Any = st.sampled_from([None, UNCHANGED]) if same else st.none()
        key: list[Value] = [
            draw(st.one_of(numbers, st.none()) if whole else numbers),
            draw(st.one_of(texts, st.just(UNCHANGED)) if same else texts),
        ]
        return [*key, draw(st.one_of(hexes, maybe)), draw(st.one_of(texts, maybe))]

    def old_values() -> list[Value]:
        old = values(same=False)
        return old if whole else [*old[:2], None, None]

    kind = draw(st.sampled_from("IUD"))
    if kind == "I":
        return kind, None, values(same=False)
    if kind == "D":
        return kind, old_values(), None
    new = values(same=True)
    has_old = whole or draw(st.booleans())
    old = old_values() if has_old else None
    if old is not None and not whole and (old[0] == new[0] and new[1] == old[1]):
        old = None  # PostgreSQL sends it with changes of a key, and if a part of the key is long
    if old is None and new[1] is UNCHANGED:
        new[1] = b"a"
    return kind, old, new


FORMS = [ChangeRows(form, "shop", ORIGIN) for form in RowFormat]


def one_by_one(form: ChangeRows, changes: Sequence[RowChange]) -> pa.Table:
    """Return the rows of changes that were not made columns at once."""
    none = (None,) * len(COLUMNS)
    sent = [[None if isinstance(value, _Unchanged) else value for value in each.after or none] for each in changes]
    lacking = [
        [column.name for column, value in zip(COLUMNS, each.after or none, strict=True) if value is UNCHANGED] or None
        for each in changes
    ]
    plain = [
        Change(
            *(each.table, each.operation, each.before, None if each.after is None else values),
            *(each.begun.xid, each.begun.commit_lsn, each.begun.committed_ms),
        )
        for each, values in zip(changes, sent, strict=True)
    ]
    places = [[each.transaction or None for each in plain], [each.at or None for each in plain]]
    columns = ChangeColumns.of(plain, [pa.array(each, pa.int64()) for each in places])
    return form.of_columns(replace(columns, unchanged=pa.array(lacking, UNCHANGED_FIELD)))


def readable(of: Table) -> ReadableTable:
    return ReadableTable(of, KEY, 0)


def plain(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows without the time at which they were made."""
    rows.validate(full=True)
    return [{name: value for name, value in row.items() if name != "ts_ms"} for row in rows.to_pylist()]


def made(changes: list[TableChanges], rows: ChangeRows) -> pa.Table:
    return in_order(changes, [rows.of_columns(each.columns) for each in changes])


@settings(max_examples=25, deadline=None)
@given(data=st.data(), whole=st.booleans())
def test_columns_equal_rows(data: st.DataObject, whole: bool) -> None:
    """Runs of two tables, of several transactions, and TRUNCATE among them, in both forms."""
    tables = [table(7, whole=whole), table(8, whole=whole, name="other")]
    waiting, expected = WaitingRows(), []
    of_catalog = [readable(each) for each in tables]
    for number in range(data.draw(st.integers(1, 5))):
        which = data.draw(st.integers(0, 1))
        begun = Begin(number * 100 + 1, 1000 + number, number // 2 + 1)
        rows = data.draw(st.lists(rows_of(whole=whole), max_size=8))
        assert waiting.fits(tables[which])
        if data.draw(st.integers(0, 9)) == 0:
            waiting.truncate(tables[which], of_catalog[which], begun)
            expected.append(RowChange(tables[which], Operation.TRUNCATE, None, None, begun))
        run = waiting.begin_run(tables[which], of_catalog[which], begun)
        for row in rows:
            run.append(message(row, whole=whole))
            expected += changes_of(row, tables[which], begun)
    changes = waiting.changes()
    if not expected:
        assert changes == []
        return
    for form in FORMS:
        assert plain(made(changes, form)) == plain(one_by_one(form, expected))
    for each in changes:
        if not each.truncates:
            own = [one for one in expected if one.table is each.table and one.operation is not Operation.TRUNCATE]
            assert each.keys(of_catalog[0]) == [key_of(one) for one in own]
            assert each.transactions.tolist() == [one.begun.xid for one in own]
            kept = [place % 3 == 1 for place in range(len(own))]
            some = each.kept(np.array(kept, np.bool_))
            left = [one for one, keep in zip(own, kept, strict=True) if keep]
            assert plain(FORMS[0].of_columns(some.columns)) == (plain(one_by_one(FORMS[0], left)) if left else [])


def test_many_columns_and_rows() -> None:
    width = 300
    values: list[list[Value]] = [
        [None if (place + row) % 7 == 0 else str(place * row).encode() for place in range(width)] for row in range(40)
    ]
    decoded = decode_rows([message(("I", None, each)) for each in values], width)
    assert decoded.old is None
    assert decoded.new is not None
    columns = [column.to_pylist() for column in decoded.new.texts]
    assert [list(row) for row in zip(*columns, strict=True)] == values
    assert set(decoded.tags.tolist()) == {NEW}


def test_kinds_of_old_values() -> None:
    decoded = decode_rows([message(("D", [b"1"], None), whole=True), message(("U", [b"1"], [b"2"]), whole=True)], 1)
    assert (decoded.kinds[0], decoded.tags[0]) == (DELETE, OLD)
    assert decoded.old is not None
    assert decoded.new is not None
    assert (decoded.old.texts[0].to_pylist(), decoded.new.texts[0].to_pylist()) == ([b"1", b"1"], [None, b"2"])


GOOD = message(("U", [b"1", None], [b"12", UNCHANGED]))


@pytest.mark.parametrize(
    "wrong",
    [
        GOOD[:HEADER],
        GOOD[:-1],
        GOOD[:-6],
        GOOD + GOOD[HEADER:-2],
        GOOD[: HEADER + 5] + b"Z" + GOOD[HEADER + 6 :],
        GOOD[:HEADER] + b"X" + GOOD[HEADER + 1 :],
        GOOD[:HEADER] + b"I" + GOOD[HEADER + 1 :],
        message(("I", None, [b"1"])),
        message(("I", None, [b"1", b"2", b"3"])),
        message(("U", [b"1", UNCHANGED], [b"12", None])),
        message(("D", None, [b"1", b"2"])),
        message(("I", None, [b"1", b"2"])).replace(b"t\0\0\0\1" + b"2", b"b\0\0\0\1" + b"2"),
        message(("I", None, [b"1", b"2"])).replace(b"t\0\0\0\1" + b"2", b"t\0\0\0\2" + b"2"),
        message(("I", None, [b"1", b"2"])).replace(b"t\0\0\0\1" + b"1", b"t\xff\xff\xff\xff" + b"1"),
    ],
)
def test_wrong_messages(wrong: bytes) -> None:
    decode_rows([GOOD, GOOD], 2)
    for messages in ([wrong], [GOOD, wrong], [wrong, GOOD]):
        with pytest.raises(RemoteProtocolError):
            decode_rows(messages, 2)


def test_what_is_not_unicode_names_the_column() -> None:
    """As in a database of encoding SQL_ASCII."""
    of = table()
    for text in (b"\xc3\xa9", b"\xe9"):
        waiting = WaitingRows()
        waiting.begin_run(of, readable(of), Begin(1, 1, 1)).append(message(("I", None, [b"1", b"a", None, text])))
        if text != b"\xe9":
            assert plain(made(waiting.changes(), FORMS[0]))[0]["after"]["note"] == "é"
            continue
        with pytest.raises(SchemaMismatch, match=r"public.t, column note \(text\)"):
            made(waiting.changes(), FORMS[0])
