"""A table of PostgreSQL as sink jdbc-upsert writes it: types, catalog, and the statements that are its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from jobpipe.errors import ConfigError
from jobpipe.pipelines.databases.postgres import PostgresDatabase
from jobpipe.pipelines.sinks.jdbc.portable_sql import TargetPlan
from jobpipe.pipelines.sinks.jdbc.staging_copy import DELETED, ORDER, Copied, named
from jobpipe.pipelines.sinks.jdbc.upsert_table import Catalog, Target, no_table, staging_name

if TYPE_CHECKING:
    from pyspark.sql import Column

    from jobpipe.pipelines.databases.postgres import Connection

# ruff: noqa: S608 - all names are quoted
JSON_TYPES = ("json", "jsonb")
MAKING = 0x6A6F627069706521  # key of the advisory lock that is held while a table is made
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
    place: ClassVar[int] = 0
    find: ClassVar[str] = """
        SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = %s
    """
    hashes: ClassVar[bool] = False
    now: ClassVar[str] = "now()"
    ledger_types: ClassVar[tuple[str, str]] = ("text", "timestamp with time zone")
    tag_type: ClassVar[str] = "uuid"
    null_is_last: ClassVar[str] = " NULLS LAST"

    @classmethod
    def _type_of(cls, kind: DataType, *, key: bool = False) -> str | None:
        if isinstance(kind, (StructType, MapType)):
            return "jsonb"
        if isinstance(kind, ArrayType):
            inner = cls._type_of(kind.elementType)
            return inner if inner is None or inner == "jsonb" or inner.endswith("[]") else f"{inner}[]"
        return super()._type_of(kind, key=key)

    @classmethod
    def order_type(cls, kind: DataType) -> str | None:
        """Return the type of the value that tells which row of a key is the last, None if it has no order."""
        found = super().order_type(kind)
        return 'text COLLATE "C"' if found == "text" else found  # as Spark compares: texts by their bytes

    def column(self, name: str, kind: DataType) -> Column:
        """Return a column as tasks copy it: structs, maps, and arrays for JSON, as JSON."""
        if self._type_of(kind) != "jsonb" and isinstance(kind, ArrayType) and self.types[name] not in JSON_TYPES:
            return named(name)
        return super().column(name, kind)

    # -- the beginning -------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, plan: TargetPlan) -> PostgresTarget:
        """Take a table over; see :meth:`Target.open`."""
        database = plan.database
        with database.connection(f"jobpipe {plan.job}") as connection:
            with database.transaction(connection):
                schema = plan.schema or _current_schema(connection)
                table, ledger = (schema, plan.table), (plan.ledger_schema or schema, plan.ledger)
                cls.make_missing(connection, plan, table, ledger)
            with database.transaction(connection):
                types = cls.check(connection, plan, table).types
                fence = cls.raise_fence(connection, plan, table, ledger)
                staging = (ledger[0], staging_name(plan.job, table, 32))
                cls._make_staging(connection, plan, table, staging)
        return cls(plan, table, ledger, staging, fence, types)

    @classmethod
    def _make_staging(
        cls, connection: Connection, plan: TargetPlan, table: tuple[str, str], staging: tuple[str, str]
    ) -> None:
        """Make the staging table again: of what is left there nothing counts."""
        database, name = plan.database, plan.database.dotted(staging)
        database.execute(connection, f"DROP TABLE IF EXISTS {name}")
        # Types and collations of the table, so that keys are told apart as there; none of its constraints.
        extra = [f"NULL::{kind} AS {database.quoted(name)}" for name, kind in cls.beyond(plan).items()]
        columns = ", ".join([database.names(plan.columns), *extra])
        statement = f"CREATE UNLOGGED TABLE {name} AS SELECT {columns} FROM {database.dotted(table)} WITH NO DATA"
        database.execute(connection, statement)
        about = f"Rows of jobpipe's job {plan.job} on their way into {'.'.join(table)}"
        database.execute(connection, f"COMMENT ON TABLE {name} IS %s", about)

    @classmethod
    def making(cls, connection: Any) -> str:
        """Let no other make tables at the same time: one of the two would fail."""
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [MAKING])
        return ""

    @classmethod
    def catalog(cls, connection: Any, plan: TargetPlan, table: tuple[str, str], found: tuple[Any, ...]) -> Catalog:
        """Return what the catalog has of the table."""
        number, kind = found
        if kind not in ("r", "p"):
            raise no_table(plan.database.called(table))
        there = connection.execute(_COLUMNS, [number]).fetchall()
        unique = [tuple(names) for (names,) in connection.execute(_UNIQUE, [number]).fetchall()]
        return Catalog({name: kind for name, kind, _ in there}, [name for name, _, made in there if made], unique)

    # -- a micro-batch -------------------------------------------------------------------------------------------------

    def _empty(self, connection: Connection) -> None:
        self._truncate(connection)

    def _differing(self, connection: Connection, copied: Copied) -> int:
        several = f"SELECT 1 FROM {self._staged(copied)} GROUP BY {self._keys} HAVING count(*) > 1 LIMIT 1"
        return super()._differing(connection, copied) if self.run(connection, several).fetchone() else 0

    @property
    def _compared(self) -> str:
        written = [*self.plan.columns, *([DELETED] if self.plan.deletes else [])]
        return f'ROW({self.plan.database.names(written)})::text COLLATE "C"'

    def _deletion(self, new: str) -> str:
        table, gone = self._name(self.table), f"new.{self._quoted(DELETED)}"
        return f"DELETE FROM {table} AS old USING {new} WHERE {gone} AND {self._same}"

    def _rows(self, copied: Copied) -> str:
        last = f", {self._quoted(ORDER)} DESC{self.null_is_last}" if self.plan.order_type else ""
        return f"SELECT DISTINCT ON ({self._keys}) * FROM {self._staged(copied)} ORDER BY {self._keys}{last}"


def _current_schema(connection: Connection) -> str:
    ((found,),) = connection.execute("SELECT current_schema()").fetchall()
    if found is None:
        raise ConfigError("the search path of the database names no schema; write table: schema.table", key="table")
    return str(found)
