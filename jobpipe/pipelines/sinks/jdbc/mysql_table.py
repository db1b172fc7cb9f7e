"""A table of MySQL or MariaDB as sink jdbc-upsert writes it: types, catalog, and the statements that are its own.

A statement that makes or drops a table ends a transaction there. So each attempt has a staging table of its own, by its
fence, and drops those of earlier ones.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, CharType, DataType, DecimalType, StringType, VarcharType

from jobpipe.errors import ConfigError, LinkError
from jobpipe.pipelines.databases.mysql import DUPLICATE, MySqlDatabase, execute, is_mariadb
from jobpipe.pipelines.sinks.jdbc.portable_sql import TargetPlan
from jobpipe.pipelines.sinks.jdbc.staging_copy import DELETED, named
from jobpipe.pipelines.sinks.jdbc.upsert_table import Catalog, Target, no_table, staging_name

if TYPE_CHECKING:
    from pyspark.sql import Column

    from jobpipe.pipelines.databases.mysql import Connection

# ruff: noqa: S608 - all names are quoted
log = logging.getLogger(__name__)

KEY_LENGTH = 255  # characters, or bytes, of a key in a table that is made here; the server has a limit, of 3072 bytes
ORDER_BYTES = 1020  # of a text that orders rows; the server compares no more than 1024 bytes where it sorts
MOST_DIGITS = 30  # after the point, in MySQL
_TEXTS = (StringType, VarcharType, CharType)
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


class MySqlTarget(Target):
    """A table of MySQL or MariaDB that this attempt has taken over."""

    product: ClassVar[str] = MySqlDatabase.product
    place: ClassVar[int] = 1
    find: ClassVar[str] = (
        "SELECT table_type, engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    )
    now: ClassVar[str] = "UTC_TIMESTAMP(6)"
    ledger_types: ClassVar[tuple[str, str]] = ("varchar(255)", "datetime(6)")
    tag_type: ClassVar[str] = "char(36) CHARACTER SET ascii COLLATE ascii_bin"
    known: ClassVar[str] = "ON DUPLICATE KEY UPDATE"

    @classmethod
    def _type_of(cls, kind: DataType, *, key: bool = False) -> str | None:
        if isinstance(kind, DecimalType) and kind.scale > MOST_DIGITS:
            return None
        found = super()._type_of(kind, key=key)
        short = {"longtext": f"varchar({KEY_LENGTH})", "longblob": f"varbinary({KEY_LENGTH})"} if key else {}
        return short.get(found or "", found)

    @classmethod
    def order_type(cls, kind: DataType) -> str | None:
        """Return the type of the value that tells which row of a key is the last, None if it has no order."""
        return f"varbinary({ORDER_BYTES})" if isinstance(kind, (*_TEXTS, BinaryType)) else super().order_type(kind)

    @classmethod
    def order_column(cls, name: str, kind: DataType) -> Column:
        """Return that value as tasks copy it: of texts their bytes, which have the order of Spark's."""
        return sf.encode(named(name), "UTF-8") if isinstance(kind, _TEXTS) else named(name)

    # -- the beginning -------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, plan: TargetPlan) -> MySqlTarget:
        """Take a table over; see :meth:`Target.open`. If staging cannot be made, earlier attempts are shut out too."""
        database = plan.database
        assert isinstance(database, MySqlDatabase)  # noqa: S101 - it made the plan
        schema = plan.schema or database.schema
        table, ledger = (schema, plan.table), (plan.ledger_schema or schema, plan.ledger)
        with database.connection(f"jobpipe {plan.job}") as connection:
            cls.make_missing(connection, plan, table, ledger)
            types = cls.check(connection, plan, table).types
            with database.transaction(connection):
                fence = cls.raise_fence(connection, plan, table, ledger)
            staging = cls._make_staging(connection, plan, (ledger[0], staging_name(plan.job, table, 24)), fence, types)
        return cls(plan, table, ledger, staging, fence, types)

    @classmethod
    def making(cls, connection: Any) -> str:
        """Return the engine of tables, and their collation: texts are told apart as in Spark, by their bytes."""
        by_bytes = "utf8mb4_nopad_bin" if is_mariadb(connection) else "utf8mb4_0900_bin"
        return f" ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE {by_bytes}"

    @classmethod
    def catalog(cls, connection: Any, plan: TargetPlan, table: tuple[str, str], found: tuple[Any, ...]) -> Catalog:
        """Return what the catalog has of the table."""
        called, (kind, engine) = plan.database.called(table), found
        if "VIEW" in kind or kind == "SEQUENCE":
            raise no_table(called)
        if execute(connection, _SAFE, engine).fetchone() != ("YES",):
            what = f"table {called} has the engine {engine}, which has no transactions; use InnoDB"
            raise ConfigError(what, key="table", table=called)
        columns = execute(connection, _COLUMNS, *table).fetchall()
        types = {
            name: f"{kind} CHARACTER SET {charset} COLLATE {collation}" if charset else str(kind)
            for name, kind, charset, collation, _ in columns
        }
        unique = [tuple(filter(None, names)) for names in _unique(connection, table).values() if None not in names]
        return Catalog(types, [name for name, *_, made in columns if made], unique)

    @classmethod
    def _make_staging(
        cls, connection: Connection, plan: TargetPlan, base: tuple[str, str], fence: int, types: Mapping[str, str]
    ) -> tuple[str, str]:
        """Make the staging table of an attempt, and drop those of earlier ones; return its schema and name."""
        database, schema, prefix = plan.database, base[0], f"{base[1]}_"
        for (name,) in execute(connection, _STAGING, schema, len(prefix), prefix).fetchall():
            number = name.removeprefix(prefix)
            if number.isdecimal() and int(number) <= fence:  # one that is equal is of a ledger that was deleted
                execute(connection, f"DROP TABLE IF EXISTS {database.dotted((schema, name))}")
        # Types and collations of the table, so that keys are told apart as there; none of its constraints.
        columns = [f"{database.quoted(name)} {kind.replace('%', '%%')} NULL" for name, kind in types.items()]
        columns += [f"{database.quoted(name)} {kind}" for name, kind in cls.beyond(plan).items()]
        columns.append('"_jobpipe_row" bigint unsigned AUTO_INCREMENT PRIMARY KEY')  # some servers demand a key
        staging = (schema, f"{prefix}{fence}")
        about = f"Rows of jobpipe's job {plan.job} on their way into a table"
        statement = f"CREATE TABLE {database.dotted(staging)} ({', '.join(columns)}) ENGINE = InnoDB COMMENT = %s"
        execute(connection, statement, about)
        return staging

    # -- a micro-batch -------------------------------------------------------------------------------------------------

    def _empty(self, connection: Connection) -> None:
        """Leave it to :meth:`_emptied`: to delete each row would cost as much as to write it."""

    def _emptied(self, connection: Connection) -> None:
        self._truncate(connection)

    def _tidy(self, connection: Connection) -> None:
        """Do not let a micro-batch fail that is written: the next one empties staging too."""
        import pymysql

        try:
            self._emptied(connection)
        except pymysql.MySQLError as error:
            log.info("%s is not emptied: %s", ".".join(self.staging), error)

    def _deletion(self, new: str) -> str:
        table = self._name(self.table)
        return f"DELETE old FROM {table} AS old JOIN {new} ON {self._same} WHERE new.{self._quoted(DELETED)}"

    def _write(self, connection: Connection, new: str, lives: str) -> int:
        """Insert new keys, and replace the rows of known ones; return how many.

        Not by ``ON DUPLICATE KEY UPDATE``, which would write over a row with another key, if a unique constraint of
        other columns says that it is the same.
        """
        import pymysql

        table, database, columns, written = self._name(self.table), self.plan.database, self.plan.columns, 0
        if self._others:
            values = ", ".join(f"old.{self._quoted(name)} = new.{self._quoted(name)}" for name in self._others)
            statement = f"UPDATE {table} AS old JOIN {new} ON {self._same} SET {values} WHERE {lives}"
            written = self.run(connection, statement).rowcount
        statement = (
            f"INSERT INTO {table} ({database.names(columns)}) SELECT {database.names(columns, 'new.')} FROM {new} "
            f"LEFT JOIN {table} AS old ON {self._same} WHERE old.{self._quoted(self.plan.keys[0])} IS NULL AND {lives}"
        )
        try:
            written += int(self.run(connection, statement).rowcount)
        except pymysql.IntegrityError as error:
            if error.args[0] in DUPLICATE and self._is_of_keys(connection, str(error.args[-1])):
                raise self._another_writer() from None
            raise
        (wanted,) = self.run(connection, f"SELECT COUNT(*) FROM {new} WHERE {lives}").fetchone()
        if self._others and written != wanted:
            raise self._another_writer()
        return written

    def _is_of_keys(self, connection: Connection, text: str) -> bool:
        """Whether a duplicate is one of the keys, and not of another unique constraint."""
        found = re.search(r" for key '(?:[^']*\.)?([^'.]*)'$", text)
        names = _unique(connection, self.table).get(found[1], []) if found else []
        return set(names) == set(self.plan.keys)

    def _another_writer(self) -> LinkError:
        """Return the error of rows that came between looking for their keys and writing them: a repeat finds them."""
        called = ".".join(self.table)
        return LinkError(f"another writer inserted a key of the micro-batch into {called} meanwhile", table=called)


def _unique(connection: Connection, table: tuple[str, str]) -> dict[str, list[str | None]]:
    """Return the columns of each unique index; None is a part of a column, which is no key."""
    found: dict[str, list[str | None]] = {}
    for index, column, part in execute(connection, _UNIQUE, *table).fetchall():
        found.setdefault(index, []).append(column if part is None else None)
    return found
