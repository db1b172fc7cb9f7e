"""A table of SQLite as sink jdbc-upsert writes it: types, catalog, and the statements of the transaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
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

from jobpipe.errors import ConfigError
from jobpipe.pipelines.databases.sqlite import SCHEMA, Connection, SqliteDatabase, quoted
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

# ruff: noqa: S608 - all names are quoted
log = logging.getLogger(__name__)

MOST_DIGITS = 18  # of a decimal that orders rows: as a whole number it is a bigint
_PLAIN: dict[type[DataType], str] = {
    BooleanType: "boolean",
    ByteType: "integer",
    ShortType: "integer",
    IntegerType: "integer",
    LongType: "integer",
    FloatType: "real",
    DoubleType: "real",
    DecimalType: "text",
    StringType: "text",
    VarcharType: "text",
    CharType: "text",
    BinaryType: "blob",
    DateType: "text",
    TimestampType: "text",
    TimestampNTZType: "text",
}
_FIND = "SELECT type FROM sqlite_master WHERE name = ?"


@dataclass(frozen=True)
class SqliteTarget(PlainTarget):
    """A table of SQLite that this attempt has taken over.

    Attributes:
        collations: by which the unique index of the keys compares them.
    """

    product: ClassVar[str] = SqliteDatabase.product
    mark: ClassVar[str] = "?"
    now: ClassVar[str] = "datetime('now')"
    quote = staticmethod(quoted)

    collations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def _type_of(cls, kind: DataType, *, key: bool = False) -> str | None:
        if isinstance(kind, NESTED):
            return "text" if has_json(kind) else None
        return next((text for each, text in _PLAIN.items() if isinstance(kind, each)), None)

    @classmethod
    def order_type(cls, kind: DataType) -> str | None:
        """Return the type of the value that tells which row of a key is the last, None if it has no order."""
        if isinstance(kind, NESTED):
            return None
        if isinstance(kind, DecimalType):
            return "integer" if kind.precision <= MOST_DIGITS else None
        return cls._type_of(kind)

    @classmethod
    def order_column(cls, name: str, kind: DataType) -> Column:
        """Return that value as tasks copy it: decimals as whole numbers, since here they are texts."""
        if isinstance(kind, DecimalType):
            return (named(name) * sf.lit(10**kind.scale)).cast("bigint")
        return named(name)

    def called(self, table: tuple[str, str]) -> str:
        """Return the name as it stands in a statement."""
        return quoted(table[1])

    def run(self, connection: Connection, statement: str, *values: Any) -> Any:
        """Run a statement; return its cursor."""
        return connection.execute(statement, values)

    # -- the beginning -------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, plan: TargetPlan) -> SqliteTarget:
        """Take a table over; see :meth:`Target.open`."""
        database = plan.database
        assert isinstance(database, SqliteDatabase)  # noqa: S101 - it made the plan
        for key, schema in (("table", plan.schema), ("ledger", plan.ledger_schema)):
            if schema not in (None, SCHEMA):
                raise ConfigError(f"SQLite has no schema {schema}; give the name of the table alone", key=key)
        if plan.create:
            database.make()
        table, ledger = (SCHEMA, plan.table), (SCHEMA, plan.ledger)
        staging = (SCHEMA, staging_name(plan.job, table, 32))
        with database.connection(f"jobpipe {plan.job}") as connection, database.transaction(connection):
            _make_missing(connection, plan)
            types, collations = _check(connection, plan)
            ours = (plan.job, ".".join(table))
            connection.execute(
                f"INSERT INTO {quoted(plan.ledger)} (job, target, fence) VALUES (?, ?, 1) "
                "ON CONFLICT (job, target) DO UPDATE SET fence = fence + 1",
                ours,
            )
            statement = f"SELECT fence FROM {quoted(plan.ledger)} WHERE job = ? AND target = ?"
            (fence,) = connection.execute(statement, ours).fetchone()
            _make_staging(connection, plan, staging[1], types, collations)
        return cls(plan, table, ledger, staging, fence, types, collations)

    # -- a micro-batch -------------------------------------------------------------------------------------------------

    def _empty(self, connection: Connection) -> None:
        connection.execute(f"DELETE FROM {quoted(self.staging[1])}")

    def _merge(self, connection: Connection, copied: Copied) -> tuple[int, int]:
        """Write and delete; return how many rows."""
        table, rows, keys = quoted(self.table[1]), self._rows(copied), self.names(self.plan.keys)
        deleted, lives = 0, "TRUE"
        if self.plan.deletes:
            compared = ", ".join(quoted(key) + _collate(self.collations, key) for key in self.plan.keys)
            statement = (
                f"DELETE FROM {table} WHERE ({compared}) IN (SELECT {keys} FROM ({rows}) WHERE {quoted(DELETED)})"
            )
            deleted, lives = connection.execute(statement).rowcount, f"NOT {quoted(DELETED)}"
        columns = self.names(self.plan.columns)
        values = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in self._others)
        change = f"UPDATE SET {values}" if values else "NOTHING"
        statement = f"INSERT INTO {table} ({columns}) SELECT {columns} FROM ({rows}) WHERE {lives}"
        return connection.execute(f"{statement} ON CONFLICT ({keys}) DO {change}").rowcount, deleted


def _collate(collations: Mapping[str, str], name: str) -> str:
    return f" COLLATE {quoted(collations[name])}" if name in collations else ""


def _make_missing(connection: Connection, plan: TargetPlan) -> None:
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {quoted(plan.ledger)} (job text, target text, fence integer NOT NULL, "
        "query text, batch integer, written_at text, PRIMARY KEY (job, target))"
    )
    if plan.create and connection.execute(_FIND, (plan.table,)).fetchone() is None:
        columns = ", ".join(
            f"{quoted(name)} {kind}{' NOT NULL' if name in plan.keys else ''}" for name, kind in plan.columns.items()
        )
        keys = ", ".join(map(quoted, plan.keys))
        connection.execute(f"CREATE TABLE {quoted(plan.table)} ({columns}, PRIMARY KEY ({keys}))")
        log.info("made table %s with primary key %s", plan.table, ", ".join(plan.keys))


def _check(connection: Connection, plan: TargetPlan) -> tuple[dict[str, str], dict[str, str]]:
    """Return the types of the table's columns, and how its keys are compared; see that it has those of the rows."""
    found = connection.execute(_FIND, (plan.table,)).fetchone()
    if found is None:
        raise missing_table(plan, plan.table)
    if found != ("table",):
        raise no_table(plan.table)
    name = quoted(plan.table)
    there = connection.execute(f"PRAGMA table_xinfo({name})").fetchall()
    made = [column for _, column, *_, hidden in there if hidden]
    types = check_columns(plan, plan.table, {column: kind for _, column, kind, *_ in there}, made)
    primary = tuple(column for _, column, *_, place, _ in sorted(there, key=lambda row: row[-2]) if place)
    unique = [primary] if primary else []
    collations: dict[str, str] = {}
    for _, index, is_unique, origin, partial in connection.execute(f"PRAGMA index_list({name})").fetchall():
        parts = connection.execute(f"PRAGMA index_xinfo({quoted(index)})").fetchall()
        columns = {part[2]: part[4] for part in parts if part[5]}
        if not is_unique or partial or None in columns:
            continue
        if tuple(columns) != primary:
            unique.append(tuple(columns))
        if set(columns) == set(plan.keys) and (not collations or origin == "pk"):
            collations = columns
    check_keys(plan, plan.table, unique)
    return types, collations


def _make_staging(
    connection: Connection, plan: TargetPlan, staging: str, types: dict[str, str], collations: dict[str, str]
) -> None:
    """Make the staging table again: of what is left there nothing counts."""
    connection.execute(f"DROP TABLE IF EXISTS {quoted(staging)}")
    # Types and collations of the table, so that keys are told apart as there; none of its constraints.
    columns = [
        # In such a table "any" is a number, if the value looks like one.
        f"{quoted(name)} {'' if kind.upper() in ('', 'ANY') else quoted(kind)}{_collate(collations, name)}"
        for name, kind in types.items()
    ]
    columns.append(f"{quoted(TAG)} text")
    if plan.deletes:
        columns.append(f"{quoted(DELETED)} boolean")
    if plan.order_type is not None:
        columns.append(f"{quoted(ORDER)} {plan.order_type}")
    columns.append(f"{quoted(HASH)} integer")
    connection.execute(f"CREATE TABLE {quoted(staging)} ({', '.join(columns)})")
