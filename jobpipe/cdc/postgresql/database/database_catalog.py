"""What PostgreSQL's catalog says: tables and their keys, types, the publication, the slot."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobpipe.cdc.changes import Column, ColumnType, Table
from jobpipe.cdc.postgresql.database.column_types import UNLIKE_ARRAYS, ArrayType, base_type
from jobpipe.cdc.postgresql.stream.pgoutput import Relation
from jobpipe.cdc.text_conversions import TEXT

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "pg_toast")

_TABLES = """
    SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident, c.reltuples::float8,
        EXISTS (SELECT FROM pg_catalog.pg_inherits WHERE inhparent = c.oid) AND c.relkind = 'r',
        pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
        pg_catalog.pg_has_role(c.relowner, 'USAGE'),
        (SELECT count(*) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> ''),
        (SELECT i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
        (SELECT i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
        AND {only} AND c.relpersistence <> 't'
    ORDER BY n.nspname, c.relname
"""
_COLUMNS = """
    SELECT a.attname, a.atttypid, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod),
        a.attnum = ANY (ARRAY(SELECT k FROM pg_catalog.pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY u(k, place)
            WHERE i.indexrelid = %(index)s AND place <= i.indnkeyatts)),
        CASE WHEN a.attcollation <> 0 THEN
            (SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(l.collname)
             FROM pg_catalog.pg_collation l JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
             WHERE l.oid = a.attcollation) END
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    ORDER BY a.attnum
"""
_KEY = """
    SELECT a.attname
    FROM pg_catalog.pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
        JOIN pg_catalog.pg_attribute a ON a.attnum = k.attnum
    WHERE i.indexrelid = %s AND a.attrelid = i.indrelid AND k.place <= i.indnkeyatts
    ORDER BY k.place
"""
_TYPES = """
    SELECT t.oid, t.typtype, t.typbasetype, t.typtypmod, t.typelem, t.typcategory, n.nspname
    FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = ANY (%s)
"""
_PUBLISHED = """
    SELECT c.oid FROM pg_catalog.pg_class c, pg_catalog.pg_publication p
    WHERE p.oid = %s AND (
        EXISTS (SELECT FROM pg_catalog.pg_publication_rel WHERE prpubid = p.oid AND prrelid = c.oid)
        OR c.relkind IN ('r', 'p') AND NOT c.relispartition AND (p.puballtables {schemas})
    )
"""
_PUBLISHED_SCHEMAS = """
    OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace WHERE pnpubid = p.oid AND pnnspid = c.relnamespace)
"""
_SLOTS = """
    SELECT slot_name, plugin, database, active_pid, coalesce(confirmed_flush_lsn, '0/0') - '0/0'::pg_lsn, wal_status,
        pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
        ELSE pg_catalog.pg_current_wal_lsn() END, restart_lsn), safe_wal_size
    FROM pg_catalog.pg_replication_slots WHERE {only} ORDER BY slot_name
"""
SCHEMAS_SINCE = 150_000  # the version from which all tables of a schema can be published
FAILOVER_SINCE = 170_000  # the version from which slots go on at a standby


@dataclass(frozen=True)
class FoundTable:
    """A table as the catalog lists it.

    Attributes:
        kind: of pg_class: r is a table, p a partitioned one, others cannot be captured.
        identity: its replica identity: d (the primary key), n (none), f (all columns) or i (an index).
        estimate: how many rows it may have; negative if nothing is known.
        generated: how many columns are computed by the database, and are not in its log.
        primary, identifying: their indexes.
    """

    number: int
    schema: str
    name: str
    kind: str
    persistence: str
    identity: str
    estimate: float
    has_children: bool
    readable: bool
    owned: bool
    generated: int
    primary: int | None
    identifying: int | None

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def key_index(self) -> int | None:
        """The index by whose columns the database names a changed row; None if it names it by all, or by none."""
        return {"d": self.primary, "i": self.identifying}.get(self.identity)

    @property
    def has_identity(self) -> bool:
        """Whether the database can name a changed row."""
        return self.identity == "f" or self.key_index is not None


@dataclass(frozen=True)
class KeyColumn:
    """A column by which a table is read in parts: its name, its type as PostgreSQL writes it, and its collation."""

    name: str
    declared: str
    collation: str | None


@dataclass(frozen=True)
class ReadableTable:
    """A table with what is needed to read it.

    Attributes:
        key: the columns by which it is read in parts; empty if it is read as a whole.
    """

    table: Table
    key: tuple[KeyColumn, ...]
    estimate: float

    @property
    def key_print(self) -> str:
        """What changes with the columns of the key, and their types."""
        return _print([[column.name, column.declared, column.collation] for column in self.key])

    @property
    def key_places(self) -> tuple[int, ...]:
        """Where the columns of the key are in the table."""
        names = [column.name for column in self.table.columns]
        return tuple(names.index(each.name) for each in self.key)


@dataclass(frozen=True)
class Slot:
    """A replication slot.

    Attributes:
        active_pid: the server's process that streams to who reads it; None: no one does.
        confirmed: all before it was confirmed.
        wal_status: reserved, extended, unreserved or lost.
        retained: bytes of the log that it keeps.
        safe: bytes that may still be written before it may be lost; None: without end.
    """

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed: int
    wal_status: str | None
    retained: int
    safe: int | None


class DatabaseCatalog:
    """Asks one connection of the database.

    Args:
        text_columns: columns that stay texts, as schema.table.column.
    """

    def __init__(self, connection: Connection, text_columns: Iterable[str] = ()) -> None:
        self._connection = connection
        self._text_columns = frozenset(text_columns)
        self._types: dict[int, tuple[str, int, int, int, str, str]] = {}
        self.version = connection.info.server_version

    def tables(self, patterns: Sequence[str]) -> list[FoundTable]:
        """Return what matches one of some regular expressions of schema.table; views and the like only if named."""
        statement = _TABLES.format(only="n.nspname <> ALL (%s)")
        rows = self._connection.execute(statement, (list(_SYSTEM_SCHEMAS),)).fetchall()
        found = [FoundTable(*row) for row in rows]
        return [
            table
            for table in found
            if str(table) in patterns
            or (
                table.kind in "rp"
                and table.persistence == "p"
                and any(re.fullmatch(each, str(table)) for each in patterns)
            )
        ]

    def table(self, number: int) -> FoundTable | None:
        """Return a table as it is now; None if it is gone."""
        row = self._connection.execute(_TABLES.format(only="c.oid = %s"), (number,)).fetchone()
        return None if row is None else FoundTable(*row)

    def readable(self, found: FoundTable) -> ReadableTable:
        """Return a table as it is in the present transaction."""
        rows = self._connection.execute(_COLUMNS, {"table": found.number, "index": found.key_index}).fetchall()
        self._load_types([row[1] for row in rows])
        columns = tuple(
            Column(name, self._type(found, name, oid, modifier), declared, bool(key) or found.identity == "f")
            for name, oid, modifier, declared, key, _ in rows
        )
        table = Table(found.number, found.schema, found.name, columns, whole_rows=found.identity == "f")
        index = found.key_index if found.key_index is not None else found.primary
        by_name = {row[0]: row for row in rows}
        key: tuple[KeyColumn, ...] = ()
        if index is not None:
            names = [name for (name,) in self._connection.execute(_KEY, (index,))]
            if all(name in by_name and self._is_ordered(by_name[name][1]) for name in names):
                key = tuple(KeyColumn(name, by_name[name][3], by_name[name][5]) for name in names)
        return ReadableTable(table, key, found.estimate)

    def of_relation(self, relation: Relation) -> Table:
        """Return a table as the stream tells of it."""
        self._load_types([column.type_oid for column in relation.columns])
        columns = tuple(
            Column(
                column.name,
                self._type(relation, column.name, column.type_oid, column.modifier),
                self._declared(column.type_oid, column.modifier),
                column.key,
            )
            for column in relation.columns
        )
        return Table(relation.oid, relation.schema, relation.name, columns, whole_rows=relation.identity == "f")

    def slot(self, name: str) -> Slot | None:
        """Return a slot of the server; None if there is none of that name."""
        return next(iter(slots(self._connection, "slot_name = %s", name)), None)

    def published(self, publication: str) -> set[int] | None:
        """Return the numbers of a publication's tables, roots of partitions; None if there is no such publication.

        The server's own view of them waits, from PostgreSQL 16 on, for locks of the tables.
        """
        row = self._connection.execute(
            "SELECT oid FROM pg_catalog.pg_publication WHERE pubname = %s", (publication,)
        ).fetchone()
        if row is None:
            return None
        statement = _PUBLISHED.format(schemas=_PUBLISHED_SCHEMAS if self.version >= SCHEMAS_SINCE else "")
        return {number for (number,) in self._connection.execute(statement, row)}

    def wal_lsn(self) -> int:
        """Return how far the log of the database is on its disk."""
        row = self._connection.execute("SELECT pg_catalog.pg_current_wal_flush_lsn() - '0/0'::pg_lsn").fetchone()
        return 0 if row is None else int(row[0])

    # -- types ---------------------------------------------------------------------------------------------------------

    def _load_types(self, oids: Iterable[int]) -> None:
        """Ask for types, and for those that they are made of."""
        wanted = {oid for oid in oids if oid and oid not in self._types}
        while wanted:
            found = self._connection.execute(_TYPES, (sorted(wanted),)).fetchall()
            self._types |= {row[0]: row[1:] for row in found}
            parts = {part for row in found for part in (row[2], row[4]) if part}
            wanted = parts - set(self._types)

    def _type(self, table: object, column: str, oid: int, modifier: int) -> ColumnType:
        named = f"{table.schema}.{table.name}.{column}"  # type: ignore[attr-defined]
        return TEXT if named in self._text_columns else self._made(oid, modifier)

    def _made(self, oid: int, modifier: int) -> ColumnType:
        if oid not in self._types:  # it was dropped since
            return TEXT
        kind, base, base_modifier, element, category, _ = self._types[oid]
        if kind == "d":
            return self._made(base, base_modifier if modifier < 0 else modifier)
        if category == "A" and element and oid not in UNLIKE_ARRAYS:
            return ArrayType(self._made(element, modifier))
        return base_type(oid, modifier)

    def _root(self, oid: int) -> int:
        kind, base, *_ = self._types[oid]
        return self._root(base) if kind == "d" else oid

    def _is_ordered(self, oid: int) -> bool:
        """Tell whether keys of a type are compared by operators that are found without a search path."""
        root = self._root(oid)
        kind, *_, schema = self._types[root]
        return kind == "e" or schema == "pg_catalog"

    def _declared(self, oid: int, modifier: int) -> str:
        row = self._connection.execute("SELECT pg_catalog.format_type(%s::oid, %s)", (oid, modifier)).fetchone()
        return str(row[0]) if row else "?"


def slots(connection: Connection, only: str, *values: str) -> list[Slot]:
    """Return slots.

    Args:
        only: a condition of pg_replication_slots, with ``%s`` for values.
    """
    rows = connection.execute(_SLOTS.format(only=only).encode(), values or None).fetchall()
    return [
        Slot(name, plugin, database, pid, int(confirmed), status, int(retained or 0), safe)
        for name, plugin, database, pid, confirmed, status, retained, safe in rows
    ]


def fingerprint(table: Table) -> str:
    """Return what changes with a table's columns: their names, types and key."""
    return _print([[column.name, column.declared, column.key] for column in table.columns])


def _print(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
