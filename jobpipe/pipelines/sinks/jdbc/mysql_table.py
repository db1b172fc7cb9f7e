"""A table of MySQL or MariaDB as sink jdbc-upsert writes it: types, catalog, and the statements of the transaction.

A statement that makes or drops a table ends a transaction there. So each attempt has a staging table of its own, by its
fence, and drops those of earlier ones.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import functions as sf
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from jobpipe.errors import ConfigError, LinkError
from jobpipe.pipelines.databases.mysql import DUPLICATE, MySqlDatabase, dotted, execute, is_mariadb, quoted
from jobpipe.pipelines.sinks.jdbc.portable_sql import NESTED, PlainTarget, has_json
from jobpipe.pipelines.sinks.jdbc.staging_copy import DELETED, HASH, ORDER, TAG, Copied, named
from jobpipe.pipelines.sinks.jdbc.upsert_table import (
    TargetPlan,
    check_columns,
    check_keys,
    missing_table,
    no_table,
    staging_name,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

    from jobpipe.pipelines.databases.mysql import Connection

# ruff: noqa: S608 - all names are quoted
log = logging.getLogger(__name__)

KEY_LENGTH = 255  # characters, or bytes, of a key in a table that is made here; the server has a limit, of 3072 bytes
ORDER_BYTES = 1020  # of a text that orders rows; the server compares no more than 1024 bytes where it sorts
MOST_DIGITS = 30  # after the point, in MySQL
_TEXTS = (StringType, VarcharType, CharType)
_PLAIN: dict[type[DataType], str] = {
    BooleanType: "boolean",
    ByteType: "tinyint",
    ShortType: "smallint",
    IntegerType: "int",
    LongType: "bigint",
    FloatType: "float",
    DoubleType: "double",
    DateType: "date",
    TimestampType: "datetime(6)",
    TimestampNTZType: "datetime(6)",
}
_BYTES = "CHARACTER SET utf8mb4 COLLATE {}"  # texts are told apart by their bytes, as in Spark, with blanks at the end
_FIND = "SELECT table_type, engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
_SAFE = "SELECT transactions FROM information_schema.engines WHERE engine = %s"
_COLUMNS = """
    SELECT column_name, column_type, character_set_name, collation_name, coalesce(generation_expression, '') <> ''
    FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_UNIQUE = """
    SELECT index_name, column_name, sub_part FROM information_schema.statistics
    WHERE table_schema = %s AND table_name = %s AND non_unique = 0
    ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index
"""
_STAGING = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND LEFT(table_name, %s) = %s"


class MySqlTarget(PlainTarget):
    """A table of MySQL or MariaDB that this attempt has taken over."""

    product: ClassVar[str] = MySqlDatabase.product
    mark: ClassVar[str] = "%s"
    now: ClassVar[str] = "UTC_TIMESTAMP(6)"
    quote = staticmethod(quoted)
    _locking: ClassVar[str] = " FOR UPDATE"

    @classmethod
    def _type_of(cls, kind: DataType, *, key: bool = False) -> str | None:
        if isinstance(kind, NESTED):
            return "json" if has_json(kind) else None
        if isinstance(kind, DecimalType):
            return f"decimal({kind.precision},{kind.scale})" if kind.scale <= MOST_DIGITS else None
        if isinstance(kind, _TEXTS):
            return f"varchar({KEY_LENGTH})" if key else "longtext"
        if isinstance(kind, BinaryType):
            return f"varbinary({KEY_LENGTH})" if key else "longblob"
        return next((text for each, text in _PLAIN.items() if isinstance(kind, each)), None)

    @classmethod
    def order_type(cls, kind: DataType) -> str | None:
        """Return the type of the value that tells which row of a key is the last, None if it has no order."""
        if isinstance(kind, NESTED):
            return None
        if isinstance(kind, (*_TEXTS, BinaryType)):
            return f"varbinary({ORDER_BYTES})"
        return cls._type_of(kind)

    @classmethod
    def order_column(cls, name: str, kind: DataType) -> Column:
        """Return that value as tasks copy it: of texts their bytes, which have the order of Spark's."""
        return sf.encode(named(name), "UTF-8") if isinstance(kind, _TEXTS) else named(name)

    def called(self, table: tuple[str, str]) -> str:
        """Return schema and name as they stand in a statement."""
        return dotted(table)

    def run(self, connection: Connection, statement: str, *values: Any) -> Any:
        """Run a statement; return its cursor."""
        return execute(connection, statement, *values)

    # -- the beginning -------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, plan: TargetPlan) -> MySqlTarget:
        """Take a table over; see :meth:`Target.open`. If staging cannot be made, earlier attempts are shut out too."""
        database = plan.database
        assert isinstance(database, MySqlDatabase)  # noqa: S101 - it made the plan
        schema = plan.schema or database.schema
        table, ledger = (schema, plan.table), (plan.ledger_schema or schema, plan.ledger)
        with database.connection(f"jobpipe {plan.job}") as connection:
            _make_missing(connection, plan, table, ledger)
            types = _check(connection, plan, table)
            name = ".".join(table)
            with database.transaction(connection):
                execute(
                    connection,
                    f"INSERT INTO {dotted(ledger)} (job, target, fence) VALUES (%s, %s, 1) "
                    "ON DUPLICATE KEY UPDATE fence = fence + 1",
                    *(plan.job, name),
                )
                statement = f"SELECT fence FROM {dotted(ledger)} WHERE job = %s AND target = %s"
                (fence,) = execute(connection, statement, plan.job, name).fetchone()
            staging = _make_staging(connection, plan, (ledger[0], staging_name(plan.job, table, 24)), fence, types)
        return cls(plan, table, ledger, staging, fence, types)

    # -- a micro-batch -------------------------------------------------------------------------------------------------

    def _empty(self, connection: Connection) -> None:
        """Leave it to :meth:`_emptied`: to delete each row would cost as much as to write it."""

    def _emptied(self, connection: Connection) -> None:
        name = dotted(self.staging)
        if execute(connection, f"SELECT 1 FROM {name} LIMIT 1").fetchone() is not None:
            execute(connection, f"TRUNCATE TABLE {name}")

    def _tidy(self, connection: Connection) -> None:
        """Do not let a micro-batch fail that is written: the next one empties staging too."""
        import pymysql

        try:
            self._emptied(connection)
        except pymysql.MySQLError as error:
            log.info("%s is not emptied: %s", ".".join(self.staging), error)

    def _merge(self, connection: Connection, copied: Copied) -> tuple[int, int]:
        """Write and delete; return how many rows.

        Not by ``ON DUPLICATE KEY UPDATE``, which would write over a row with another key, if a unique constraint of
        other columns says that it is the same.
        """
        import pymysql

        table, rows = dotted(self.table), f"({self._rows(copied)}) AS new"
        same = " AND ".join(f"old.{quoted(key)} = new.{quoted(key)}" for key in self.plan.keys)
        lives = f"NOT new.{quoted(DELETED)}" if self.plan.deletes else "TRUE"
        deleted = written = 0
        if self.plan.deletes:
            statement = f"DELETE old FROM {table} AS old JOIN {rows} ON {same} WHERE new.{quoted(DELETED)}"
            deleted = self.run(connection, statement).rowcount
        if self._others:
            values = ", ".join(f"old.{quoted(name)} = new.{quoted(name)}" for name in self._others)
            statement = f"UPDATE {table} AS old JOIN {rows} ON {same} SET {values} WHERE {lives}"
            written = self.run(connection, statement).rowcount
        columns = self.plan.columns
        statement = (
            f"INSERT INTO {table} ({self.names(columns)}) SELECT {self.names(columns, 'new.')} FROM {rows} "
            f"LEFT JOIN {table} AS old ON {same} WHERE old.{quoted(self.plan.keys[0])} IS NULL AND {lives}"
        )
        try:
            written += int(self.run(connection, statement).rowcount)
        except pymysql.IntegrityError as error:
            if error.args[0] in DUPLICATE and self._is_of_keys(connection, str(error.args[-1])):
                raise self._another_writer() from None
            raise
        (wanted,) = self.run(connection, f"SELECT COUNT(*) FROM {rows} WHERE {lives}").fetchone()
        if self._others and written != wanted:
            raise self._another_writer()
        return written, deleted

    def _is_of_keys(self, connection: Connection, text: str) -> bool:
        """Whether a duplicate is one of the keys, and not of another unique constraint."""
        found = re.search(r" for key '(?:[^']*\.)?([^'.]*)'$", text)
        names = _unique(connection, self.table).get(found[1], []) if found else []
        return set(names) == set(self.plan.keys)

    def _another_writer(self) -> LinkError:
        """Return the error of rows that came between looking for their keys and writing them: a repeat finds them."""
        called = ".".join(self.table)
        return LinkError(f"another writer inserted a key of the micro-batch into {called} meanwhile", table=called)


def _make_missing(connection: Connection, plan: TargetPlan, table: tuple[str, str], ledger: tuple[str, str]) -> None:
    by_bytes = _BYTES.format("utf8mb4_nopad_bin" if is_mariadb(connection) else "utf8mb4_0900_bin")
    if execute(connection, _FIND, *ledger).fetchone() is None:
        execute(
            connection,
            f"CREATE TABLE IF NOT EXISTS {dotted(ledger)} (job varchar(255), target varchar(255), "
            "fence bigint NOT NULL, query varchar(255), batch bigint, written_at datetime(6), "
            f"PRIMARY KEY (job, target)) ENGINE = InnoDB {by_bytes}",
        )
    if plan.create and execute(connection, _FIND, *table).fetchone() is None:
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in plan.columns.items())
        keys = ", ".join(map(quoted, plan.keys))
        statement = f"CREATE TABLE IF NOT EXISTS {dotted(table)} ({columns}, PRIMARY KEY ({keys}))"
        execute(connection, f"{statement} ENGINE = InnoDB {by_bytes}")
        log.info("made table %s with primary key %s", ".".join(table), ", ".join(plan.keys))


def _check(connection: Connection, plan: TargetPlan, table: tuple[str, str]) -> dict[str, str]:
    """Return the types of the table's columns; see that it has those of the rows, and the keys."""
    called = ".".join(table)
    found = execute(connection, _FIND, *table).fetchone()
    if found is None:
        raise missing_table(plan, called)
    kind, engine = found
    if "VIEW" in kind or kind == "SEQUENCE":
        raise no_table(called)
    if execute(connection, _SAFE, engine).fetchone() != ("YES",):
        what = f"table {called} has the engine {engine}, which has no transactions; use InnoDB"
        raise ConfigError(what, key="table", table=called)
    columns = execute(connection, _COLUMNS, *table).fetchall()
    there = {
        name: f"{kind} CHARACTER SET {charset} COLLATE {collation}" if charset else str(kind)
        for name, kind, charset, collation, _ in columns
    }
    whole = [
        tuple(name for name in names if name) for names in _unique(connection, table).values() if None not in names
    ]
    types = check_columns(plan, called, there, [name for name, *_, is_made in columns if is_made])
    check_keys(plan, called, whole)
    return types


def _unique(connection: Connection, table: tuple[str, str]) -> dict[str, list[str | None]]:
    """Return the columns of each unique index; None is a part of a column, which is no key."""
    found: dict[str, list[str | None]] = {}
    for index, column, part in execute(connection, _UNIQUE, *table).fetchall():
        found.setdefault(index, []).append(column if part is None else None)
    return found


def _make_staging(
    connection: Connection, plan: TargetPlan, base: tuple[str, str], fence: int, types: dict[str, str]
) -> tuple[str, str]:
    """Make the staging table of an attempt, and drop those of earlier ones; return its schema and name."""
    schema, prefix = base[0], f"{base[1]}_"
    for (name,) in execute(connection, _STAGING, schema, len(prefix), prefix).fetchall():
        if (number := name.removeprefix(prefix)).isdecimal() and int(
            number
        ) <= fence:  # one that is equal is of a ledger that was deleted
            execute(connection, f"DROP TABLE IF EXISTS {dotted((schema, name))}")
    # Types and collations of the table, so that keys are told apart as there; none of its constraints.
    columns = [f"{quoted(name)} {kind.replace('%', '%%')} NULL" for name, kind in types.items()]
    columns.append(f"{quoted(TAG)} char(36) CHARACTER SET ascii COLLATE ascii_bin")
    if plan.deletes:
        columns.append(f"{quoted(DELETED)} boolean")
    if plan.order_type is not None:
        columns.append(f"{quoted(ORDER)} {plan.order_type}")
    columns.append(f"{quoted(HASH)} bigint")
    columns.append('"_jobpipe_row" bigint unsigned AUTO_INCREMENT PRIMARY KEY')  # some servers demand a key
    staging = (schema, f"{prefix}{fence}")
    about = f"Rows of jobpipe's job {plan.job} on their way into a table"
    execute(connection, f"CREATE TABLE {dotted(staging)} ({', '.join(columns)}) ENGINE = InnoDB COMMENT = %s", about)
    return staging
