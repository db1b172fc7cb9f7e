"""Reading a table in chunks by its key, each in a short transaction whose snapshot is known.

A chunk locks nothing. What its snapshot sees of the changes that the stream brings later is in its rows already; see
:class:`.postgres_note.Chunk`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv

from jobpipe.cdc.postgresql.capture_state import seen_now
from jobpipe.cdc.postgresql.database.database_catalog import KeyColumn, ReadableTable
from jobpipe.cdc.postgresql.postgres_note import Visibility
from jobpipe.cdc.postgresql.stream.pgoutput import lsn_number

if TYPE_CHECKING:
    from psycopg import sql

    from jobpipe.cdc.postgresql.database.database_catalog import Connection

LOCK_MS = 200  # for a table's lock, which a migration may hold; meanwhile other changes wait
PIECE_BYTES = 16 * 1024 * 1024
Key = tuple[str, ...]


@dataclass(frozen=True)
class Piece:
    """Some rows of a chunk.

    Attributes:
        texts: a column of texts for each of the table's.
        high: the key of the last row; None for a table without a key.
        last: no row of the chunk follows.
    """

    texts: pa.Table
    high: Key | None
    last: bool


class ChunkReader:
    """A chunk in its transaction, on a connection of its own.

    Attributes:
        seen: what the snapshot sees.
        until: a place in the log; all transactions that the snapshot sees were committed before it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.seen = Visibility(0, 0, frozenset())
        self.until = 0

    @contextmanager
    def snapshot(self, marking: Connection, schema: str, table: str) -> Iterator[None]:
        """Make the block one transaction that sees a table as it is now.

        The lock, which each query takes, comes before the snapshot: a table that is emptied between the two would have
        no rows, though the snapshot does not see why.

        Args:
            marking: a connection without a transaction; it writes a mark to the log, which the stream will pass.
        """
        from psycopg import sql

        connection = self._connection
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_MS}ms'")
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(schema, table)))
            self.seen = seen_now(connection)
            mark = marking.execute("SELECT pg_catalog.pg_logical_emit_message(true, 'jobpipe', '')::text").fetchone()
            assert mark is not None  # noqa: S101 - it returns one
            self.until = lsn_number(mark[0])
            yield
        finally:
            if not connection.closed:
                connection.execute("ROLLBACK")

    def pieces(self, readable: ReadableTable, after: Key | None, through: Key | None, limit: int) -> Iterator[Piece]:
        """Yield the rows after a key, in the order of keys, at most ``limit``, and none after ``through``.

        The last piece may have no rows. A table without a key is read as a whole.
        """
        rows: list[bytes] = []
        size = count = 0
        with self._connection.cursor().copy(_copy(readable, after, through, limit)) as copy:
            for data in copy:
                rows.append(bytes(data))
                size += len(rows[-1])
                count += 1
                if size >= PIECE_BYTES:
                    yield _piece(readable, rows, last=False)
                    rows, size = [], 0
        yield _piece(readable, rows, last=True)


def places_of(
    connection: Connection, key: Sequence[KeyColumn], keys: Sequence[Key], bounds: Sequence[Key]
) -> list[int]:
    """Return for each of some keys how many of some bounds, which rise, are below it. The database compares.

    Args:
        keys: at least one.
    """
    from psycopg import sql

    names = [sql.Identifier(f"k{place}") for place in range(len(key))]
    given = _keys([_typed(name, column) for name, column in zip(names, key, strict=True)])
    terms = [
        sql.SQL("({} > {})::int").format(given, _keys([_typed(sql.Literal(text), column) for text, column in pairs]))
        for pairs in (zip(bound, key, strict=True) for bound in bounds)
    ]
    statement = sql.SQL("SELECT {} FROM ROWS FROM ({}) WITH ORDINALITY AS k({}, place) ORDER BY place").format(
        sql.SQL(" + ").join(terms) if terms else sql.SQL("0"),
        sql.SQL(", ").join(
            sql.SQL("unnest({}::text[])").format(sql.Literal([each[place] for each in keys]))
            for place in range(len(key))
        ),
        sql.SQL(", ").join(names),
    )
    return [int(place) for (place,) in connection.execute(statement)]


def _copy(readable: ReadableTable, after: Key | None, through: Key | None, limit: int) -> sql.Composed:
    from psycopg import sql

    table, key = readable.table, readable.key
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
    query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(table.schema, table.name))
    if key:
        names = _keys([sql.Identifier(column.name) for column in key])
        bounds = [(">", after), ("<=", through)]
        conditions = [
            sql.SQL("{} {} {}").format(
                names, sql.SQL(operator), _keys([_typed(sql.Literal(text), column) for text, column in pairs])
            )
            for operator, bound in bounds
            if bound is not None
            for pairs in [zip(bound, key, strict=True)]
        ]
        if conditions:
            query += sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(conditions))
        order = sql.SQL(", ").join(sql.Identifier(column.name) for column in key)
        query += sql.SQL(" ORDER BY {} LIMIT {}").format(order, sql.Literal(limit))
    return sql.SQL("COPY ({}) TO STDOUT (FORMAT csv, FORCE_QUOTE *, NULL '')").format(query)


def _keys(parts: Sequence[sql.Composable]) -> sql.Composed:
    from psycopg import sql

    return sql.SQL("ROW({})").format(sql.SQL(", ").join(parts))


def _typed(value: sql.Composable, column: KeyColumn) -> sql.Composed:
    from psycopg import sql

    cast = sql.SQL("({}::{})").format(value, sql.SQL(column.declared))
    return cast if column.collation is None else cast + sql.SQL(f" COLLATE {column.collation}")


def _piece(readable: ReadableTable, rows: list[bytes], *, last: bool) -> Piece:
    names = [str(place) for place in range(len(readable.table.columns))]
    if not rows:
        return Piece(pa.table({name: pa.array([], pa.string()) for name in names}), None, last)
    data = b"".join(rows)
    texts = csv.read_csv(
        io.BytesIO(data),
        read_options=csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).combine_chunks()
    if texts.num_rows != len(rows):
        raise AssertionError(f"PostgreSQL sent {len(rows)} rows, of which {texts.num_rows} were read")
    high = tuple(texts.column(place)[-1].as_py() for place in readable.key_places) or None
    return Piece(texts, high, last)
