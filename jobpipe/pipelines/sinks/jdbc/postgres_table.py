"""A table of PostgreSQL as sink jdbc-upsert writes it: types, catalog, and the statements of the transaction.

Statements with names of the user's have no parameters, but literals: psycopg takes a % in a name for a placeholder.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import (
    ArrayType,
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
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from jobpipe.errors import ConfigError
from jobpipe.pipelines.databases.postgres import PostgresDatabase
from jobpipe.pipelines.sinks.jdbc.staging_copy import DELETED, ORDER, TAG, Copied, as_json, named
from jobpipe.pipelines.sinks.jdbc.upsert_table import (
    Target,
    TargetPlan,
    Written,
    check_columns,
    check_keys,
    missing_table,
    no_table,
    staging_name,
)

if TYPE_CHECKING:
    from psycopg import sql
    from pyspark.sql import Column

    from jobpipe.pipelines.databases.postgres import Connection

log = logging.getLogger(__name__)

JSON_TYPES = ("json", "jsonb")
_PLAIN: dict[type[DataType], str] = {
    BooleanType: "boolean",
    ByteType: "smallint",
    ShortType: "smallint",
    IntegerType: "integer",
    LongType: "bigint",
    FloatType: "real",
    DoubleType: "double precision",
    StringType: "text",
    VarcharType: "text",
    CharType: "text",
    BinaryType: "bytea",
    DateType: "date",
    TimestampType: "timestamp with time zone",
    TimestampNTZType: "timestamp without time zone",
}
MAKING = 0x6A6F627069706521  # key of the advisory lock that is held while a table is made
_FIND = """
    SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod), attidentity = 'a' OR attgenerated <> '' FROM pg_attribute
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# Whole, at once, and over columns alone: others cannot serve ON CONFLICT.
_UNIQUE = """
    SELECT ARRAY(
        SELECT a.attname FROM unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
        WHERE k.place <= i.indnkeyatts ORDER BY k.place
    )::text[]
    FROM pg_index i
    WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
        AND i.indpred IS NULL AND i.indexprs IS NULL
    ORDER BY i.indisprimary DESC, i.indexrelid
"""


class PostgresTarget(Target):
    """A table of PostgreSQL that this attempt has taken over."""

    product: ClassVar[str] = PostgresDatabase.product

    @classmethod
    def _type_of(cls, kind: DataType, *, key: bool = False) -> str | None:
        if isinstance(kind, (StructType, MapType)):
            return "jsonb"
        if isinstance(kind, DecimalType):
            return f"numeric({kind.precision},{kind.scale})"
        if isinstance(kind, ArrayType):
            inner = cls._type_of(kind.elementType)
            if inner is None or inner == "jsonb":
                return inner
            return inner if inner.endswith("[]") else f"{inner}[]"
        return next((text for each, text in _PLAIN.items() if isinstance(kind, each)), None)

    @classmethod
    def order_type(cls, kind: DataType) -> str | None:
        """Return the type of the value that tells which row of a key is the last, None if it has no order."""
        found = cls._type_of(kind)
        return None if found is None or found == "jsonb" or found.endswith("[]") else found

    def column(self, name: str, kind: DataType) -> Column:
        """Return a column as tasks copy it: structs, maps, and arrays for JSON, as JSON."""
        if self._type_of(kind) == "jsonb" or (isinstance(kind, ArrayType) and self.types[name] in JSON_TYPES):
            return as_json(name)
        return named(name)

    # -- the beginning -------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, plan: TargetPlan) -> PostgresTarget:
        """Take a table over; see :meth:`Target.open`."""
        database = plan.database
        with database.connection(f"jobpipe {plan.job}") as connection:
            with database.transaction(connection):
                schema = plan.schema or _current_schema(connection)
                ledger = (plan.ledger_schema or schema, plan.ledger)
                _make_missing(connection, plan, (schema, plan.table), ledger)
            with database.transaction(connection):
                types = _check(connection, plan, schema)
                return cls._take(connection, plan, (schema, plan.table), ledger, types)

    @classmethod
    def _take(
        cls,
        connection: Connection,
        plan: TargetPlan,
        table: tuple[str, str],
        ledger: tuple[str, str],
        types: Mapping[str, str],
    ) -> PostgresTarget:
        """Raise the fence, and make a staging table: of what is left there nothing counts."""
        from psycopg import sql

        staging = (ledger[0], staging_name(plan.job, table, 32))
        raised = sql.SQL(
            "INSERT INTO {} AS known (job, target, fence) VALUES ({}, {}, 1) "
            "ON CONFLICT (job, target) DO UPDATE SET fence = known.fence + 1 RETURNING fence"
        )
        (fence,) = _row(connection, raised.format(sql.Identifier(*ledger), plan.job, ".".join(table)))
        extra = [sql.SQL("NULL::uuid AS {}").format(sql.Identifier(TAG))]
        if plan.deletes:
            extra.append(sql.SQL("false AS {}").format(sql.Identifier(DELETED)))
        if plan.order_type is not None:
            # As Spark compares: texts by their bytes.
            collation = sql.SQL(' COLLATE "C"' if plan.order_type == "text" else "")
            order_type = sql.SQL(plan.order_type)
            extra.append(sql.SQL("NULL::{}{} AS {}").format(order_type, collation, sql.Identifier(ORDER)))
        name, source = sql.Identifier(*staging), sql.Identifier(*table)
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
        # Types and collations of the table, so that keys are told apart as there; none of its constraints.
        statement = sql.SQL("CREATE UNLOGGED TABLE {} AS SELECT {}, {} FROM {} WITH NO DATA")
        connection.execute(statement.format(name, _names(plan.columns), _list(extra), source))
        about = f"Rows of jobpipe's job {plan.job} on their way into {'.'.join(table)}"
        connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(name, sql.Literal(about)))
        return cls(plan, table, ledger, staging, fence, types)

    # -- a micro-batch -------------------------------------------------------------------------------------------------

    def _lock(self, connection: Connection) -> Written | None:
        from psycopg import sql

        statement = sql.SQL("SELECT fence, query, batch FROM {} WHERE job = {} AND target = {} FOR UPDATE")
        ledger = sql.Identifier(*self.ledger)
        row = connection.execute(statement.format(ledger, self.plan.job, ".".join(self.table))).fetchone()
        return None if row is None else Written(*row)

    def _empty(self, connection: Connection) -> None:
        from psycopg import sql

        name = sql.Identifier(*self.staging)
        if _row(connection, sql.SQL("SELECT EXISTS (SELECT FROM {})").format(name))[0]:
            connection.execute(sql.SQL("TRUNCATE {}").format(name))

    def _counts(self, connection: Connection, copied: Copied) -> Sequence[int]:
        from psycopg import sql

        empty = [sql.SQL("count(*) FILTER (WHERE {} IS NULL)").format(sql.Identifier(key)) for key in self.plan.keys]
        statement = sql.SQL("SELECT count(*), {empty} FROM {staging} WHERE {ours}")
        return _row(connection, statement.format(**self._parts(copied), empty=_list(empty)))

    def _differing(self, connection: Connection, copied: Copied) -> int:
        from psycopg import sql

        parts = self._parts(copied)
        several = sql.SQL("SELECT EXISTS (SELECT FROM {staging} WHERE {ours} GROUP BY {keys} HAVING count(*) > 1)")
        if not _row(connection, several.format(**parts))[0]:
            return 0
        written = [*self.plan.columns, *([DELETED] if self.plan.deletes else [])]
        differing = sql.SQL(
            'SELECT count(*) FROM (SELECT FROM (SELECT {keys}, ROW({written})::text COLLATE "C" AS _jobpipe_text, '
            "rank() OVER (PARTITION BY {keys} ORDER BY {order}) AS _jobpipe_rank "
            "FROM {staging} WHERE {ours}) AS ranked WHERE _jobpipe_rank = 1 "
            "GROUP BY {keys} HAVING min(_jobpipe_text) <> max(_jobpipe_text)) AS several"
        )
        (count,) = _row(connection, differing.format(**parts, written=_names(written)))
        return int(count)

    def _merge(self, connection: Connection, copied: Copied) -> tuple[int, int]:
        """Write and delete; return how many rows."""
        from psycopg import sql

        plan = self.plan
        parts = self._parts(copied)
        parts["last"] = _list([parts["keys"], *([parts["order"]] if plan.order_type is not None else [])])
        parts["rows"] = sql.SQL(
            "(SELECT DISTINCT ON ({keys}) * FROM {staging} WHERE {ours} ORDER BY {last}) new"
        ).format(**parts)
        deleted = 0
        if plan.deletes:
            parts["same"] = sql.SQL(" AND ").join(
                sql.SQL("old.{0} = new.{0}").format(sql.Identifier(key)) for key in plan.keys
            )
            statement = sql.SQL("DELETE FROM {table} AS old USING {rows} WHERE new.{deleted} AND {same}")
            deleted = connection.execute(statement.format(**parts)).rowcount
        others = [sql.Identifier(name) for name in plan.columns if name not in plan.keys]
        values = _list([sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in others])
        parts["change"] = sql.SQL("UPDATE SET {}").format(values) if others else sql.SQL("NOTHING")
        parts["which"] = sql.SQL("WHERE NOT new.{deleted}").format(**parts) if plan.deletes else sql.SQL("")
        statement = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM {rows} {which} ON CONFLICT ({keys}) DO {change}"
        )
        written = connection.execute(statement.format(**parts)).rowcount
        return written, deleted

    def _note(self, connection: Connection, query: str, batch_id: int) -> None:
        from psycopg import sql

        statement = sql.SQL("UPDATE {} SET query = {}, batch = {}, written_at = now() WHERE job = {} AND target = {}")
        ledger, called = sql.Identifier(*self.ledger), ".".join(self.table)
        connection.execute(statement.format(ledger, query, batch_id, self.plan.job, called))

    def _parts(self, copied: Copied) -> dict[str, sql.Composable]:
        from psycopg import sql

        ordered = self.plan.order_type is not None
        return {
            "staging": sql.Identifier(*self.staging),
            "table": sql.Identifier(*self.table),
            "ours": sql.SQL("{} = ANY ({}::uuid[])").format(sql.Identifier(TAG), list(copied.tags)),
            "deleted": sql.Identifier(DELETED),
            "keys": _names(self.plan.keys),
            "columns": _names(self.plan.columns),
            "order": sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(ORDER)) if ordered else sql.SQL("1"),
        }


def _make_missing(connection: Connection, plan: TargetPlan, table: tuple[str, str], ledger: tuple[str, str]) -> None:
    from psycopg import sql

    make = [name for name in (ledger, table) if connection.execute(_FIND, name).fetchone() is None]
    if not plan.create:
        make = [name for name in make if name != table]
    if not make:
        return
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [MAKING])  # two that make one at once would fail
    if ledger in make:
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (job text, target text, fence bigint NOT NULL, query text, "
                "batch bigint, written_at timestamp with time zone, PRIMARY KEY (job, target))"
            ).format(sql.Identifier(*ledger))
        )
    if table in make:
        columns = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in plan.columns.items()]
        statement = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))")
        connection.execute(statement.format(sql.Identifier(*table), _list(columns), _names(plan.keys)))
        log.info("made table %s with primary key %s", ".".join(table), ", ".join(plan.keys))


def _check(connection: Connection, plan: TargetPlan, schema: str) -> dict[str, str]:
    """Return the types of the table's columns; see that it has those of the rows, and the keys."""
    called = f"{schema}.{plan.table}"
    found = connection.execute(_FIND, [schema, plan.table]).fetchone()
    if found is None:
        raise missing_table(plan, called)
    if found[1] not in ("r", "p"):
        raise no_table(called)
    there = connection.execute(_COLUMNS, found[:1]).fetchall()
    made = [name for name, _, is_made in there if is_made]
    types = check_columns(plan, called, {name: kind for name, kind, _ in there}, made)
    check_keys(plan, called, [tuple(names) for (names,) in connection.execute(_UNIQUE, found[:1]).fetchall()])
    return types


def _current_schema(connection: Connection) -> str:
    (found,) = _row(connection, "SELECT current_schema()")
    if found is None:
        raise ConfigError("the search path of the database names no schema; write table: schema.table", key="table")
    return str(found)


def _row(connection: Connection, statement: Any) -> tuple[Any, ...]:
    """Return the only row."""
    found = connection.execute(statement).fetchone()
    assert found is not None  # noqa: S101 - such statements have one
    return found


def _names(names: Sequence[str] | Mapping[str, str]) -> sql.Composed:
    from psycopg import sql

    return _list([sql.Identifier(name) for name in names])


def _list(parts: Sequence[sql.Composable]) -> sql.Composed:
    from psycopg import sql

    return sql.SQL(", ").join(parts)
