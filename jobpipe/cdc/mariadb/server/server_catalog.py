"""What the server's information_schema says of tables: columns, keys, engines, foreign keys."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobpipe.cdc.changes import Column, Table
from jobpipe.cdc.mariadb.server.mysql_types import column_type
from jobpipe.cdc.text_conversions import TEXT
from jobpipe.pipelines.databases.mysql import NO_TABLE, execute

if TYPE_CHECKING:
    from jobpipe.pipelines.databases.mysql import Connection

SYSTEM_SCHEMAS = ("information_schema", "mysql", "performance_schema", "sys")
_MARKS = ", ".join(f"'{each}'" for each in SYSTEM_SCHEMAS)
_TABLES = f"""
    SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, COALESCE(TABLE_ROWS, 0) FROM information_schema.TABLES
    WHERE TABLE_SCHEMA NOT IN ({_MARKS}) ORDER BY TABLE_SCHEMA, TABLE_NAME
"""  # noqa: S608 - constants
_COLUMNS = """
    SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, NUMERIC_PRECISION, NUMERIC_SCALE, CHARACTER_MAXIMUM_LENGTH,
        CHARACTER_SET_NAME, COLLATION_NAME
    FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
_KEY = """
    SELECT COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
    WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX
"""
_KIND_OF = "SELECT TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_TRIGGERS = """
    SELECT 1 FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s LIMIT 1
"""
# In what SHOW CREATE TABLE says: MariaDB's information_schema hides foreign keys from who may only SELECT.
_CASCADE = re.compile(
    r"""^\s*CONSTRAINT\ ("(?:[^"]|"")*"|`(?:[^`]|``)*`|\S+)\ FOREIGN\ KEY\ .*
    \ ON\ (?:DELETE|UPDATE)\ (?:CASCADE|SET\ NULL|SET\ DEFAULT)(?:\ ON\ UPDATE\ [A-Z ]+)?,?$""",
    re.MULTILINE | re.VERBOSE,
)
_DENIED = (1142, 1143)
_GEOMETRIES = {
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
    *("geometrycollection", "geomcollection"),
}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_BYTES = {"varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint"}


@dataclass(frozen=True)
class FoundTable:
    """A table as the catalog lists it.

    Attributes:
        kind: BASE TABLE, VIEW and the like.
        estimate: how many rows it may have.
    """

    schema: str
    name: str
    kind: str
    engine: str | None
    estimate: float

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class KeyColumn:
    """A column of a primary key.

    Attributes:
        kind: see :mod:`.mysql_types`.
        character_set, collation: None for what has none.
        prefix: the key has so many characters of it alone; None: all.
    """

    name: str
    kind: str
    character_set: str | None
    collation: str | None
    prefix: int | None = None


@dataclass(frozen=True)
class ReadableTable:
    """A table with what is needed to read it.

    Attributes:
        kinds: of its columns.
        key: its primary key, in whose order it is read.
        cascades: foreign keys by which other tables change it.
        unknown: columns whose kinds cannot be captured, and those.
        sums: what is added to columns so that the server shows them in full: a float would have six digits, a number
            with ZEROFILL leading zeros.
        denied: the user has rights to columns alone, and is shown no others.
    """

    table: Table
    kinds: Mapping[str, str]
    key: tuple[KeyColumn, ...]
    cascades: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)
    denied: bool = False

    @property
    def key_print(self) -> str:
        """What changes with the columns of the key, and their types."""
        return _print([[column.name, column.kind, column.collation, column.prefix] for column in self.key])

    @property
    def key_places(self) -> tuple[int, ...]:
        """Where the columns of the key are in the table."""
        names = [column.name for column in self.table.columns]
        return tuple(names.index(each.name) for each in self.key)


class ServerCatalog:
    """Asks one connection of the server.

    Args:
        text_columns: columns that stay texts, as database.table.column.
    """

    def __init__(self, connection: Connection, text_columns: Iterable[str] = ()) -> None:
        self._connection = connection
        self._text_columns = frozenset(text_columns)
        self._numbers: dict[str, int] = {}

    def tables(self, patterns: Sequence[str]) -> list[FoundTable]:
        """Return what matches one of some regular expressions of database.table; views only if they are named."""
        rows = execute(self._connection, _TABLES)
        found = [FoundTable(schema, name, kind, engine, float(count)) for schema, name, kind, engine, count in rows]
        return [
            table
            for table in found
            if str(table) in patterns
            or (table.kind == "BASE TABLE" and any(re.fullmatch(each, str(table)) for each in patterns))
        ]

    def readable(self, schema: str, name: str) -> ReadableTable | None:
        """Return a table as it is now; None if it is gone."""
        rows = execute(self._connection, _COLUMNS, schema, name).fetchall()
        if not rows:
            return None
        prefixes = dict(execute(self._connection, _KEY, schema, name).fetchall())
        kinds: dict[str, str] = {}
        sets: dict[str, tuple[str | None, str | None]] = {}
        sums: dict[str, str] = {}
        for column, data_type, column_type_, precision, scale, length, character_set, collation in rows:
            kinds[column] = _kind(data_type.lower(), column_type_, precision, scale, length)
            sets[column] = character_set, collation
            if kinds[column] in ("float", "double") or "zerofill" in column_type_.lower():
                sums[column] = "+ 0e0" if kinds[column] in ("float", "double") else "+ 0"
        table = self.table(schema, name, kinds, set(prefixes))
        key = tuple(
            KeyColumn(column, kinds[column], *sets[column], None if prefix is None else int(prefix))
            for column, prefix in prefixes.items()
            if column in kinds
        )
        cascades = self._cascades(schema, name) if key else ()
        unknown = {column: kind for column, kind in kinds.items() if column_type(kind) is None}
        return ReadableTable(table, kinds, key, cascades or (), unknown, sums, denied=cascades is None)

    def is_plain(self, schema: str, name: str) -> bool | None:
        """Tell whether a name is a table without triggers that this user could see; None if there is none to see."""
        kinds = execute(self._connection, _KIND_OF, schema, name).fetchall()
        if not kinds:
            return None
        return kinds[0][0] == "BASE TABLE" and not execute(self._connection, _TRIGGERS, schema, name).fetchall()

    def _cascades(self, schema: str, name: str) -> tuple[str, ...] | None:
        """Return the foreign keys of a table by which others change it; None without a right to the whole table."""
        import pymysql

        try:
            rows = execute(self._connection, f"SHOW CREATE TABLE {quoted(schema)}.{quoted(name)}").fetchall()
        except pymysql.MySQLError as error:
            if error.args[0] not in (NO_TABLE, *_DENIED):
                raise
            return None if error.args[0] in _DENIED else ()
        return tuple(_unquoted(found) for found in _CASCADE.findall(str(rows[0][1])))

    def table(self, schema: str, name: str, kinds: Mapping[str, str], key: Iterable[str]) -> Table:
        """Return a table with columns of some kinds; what is no known kind stays a text."""
        named = f"{schema}.{name}"
        names = frozenset(key)
        columns = tuple(
            Column(
                column,
                column_type(kind, as_text=f"{named}.{column}" in self._text_columns) or TEXT,
                kind,
                column in names,
            )
            for column, kind in kinds.items()
        )
        number = self._numbers.setdefault(named, len(self._numbers) + 1)
        return Table(number, schema, name, columns, whole_rows=True)


def quoted(name: str) -> str:
    """Return a name as it stands in a statement of a session with ANSI_QUOTES, which has marks for values."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _unquoted(name: str) -> str:
    return name[1:-1].replace(name[0] * 2, name[0]) if name[0] in '"`' else name


def _kind(data_type: str, declared: str, precision: int | None, scale: int | None, length: int | None) -> str:
    """Return the kind of a column; one that :func:`.column_type` does not know is the type's own name."""
    if "COMPRESSED" in declared.upper():
        return "compressed"
    if data_type in _INTEGERS:
        return f"{data_type} unsigned" if "unsigned" in declared.lower() else data_type
    if data_type == "decimal":
        return f"decimal({precision},{scale})"
    if data_type == "bit":
        return f"bit({precision})"
    if data_type == "binary":
        return f"binary({length})"
    if data_type in _TEXTS:
        return "string"
    if data_type in _BYTES:
        return "bytes"
    return "geometry" if data_type in _GEOMETRIES else data_type


def fingerprint(table: Table) -> str:
    """Return what changes with a table's columns: their names, types and key."""
    return _print([[column.name, column.declared, column.key] for column in table.columns])


def _print(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
