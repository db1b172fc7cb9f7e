"""A table of SQLite as sink jdbc-upsert writes it: types, catalog, and the statements that are its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, DecimalType

from jobpipe.errors import ConfigError
from jobpipe.pipelines.databases.sqlite import SCHEMA, Connection, SqliteDatabase
from jobpipe.pipelines.sinks.jdbc.portable_sql import TargetPlan
from jobpipe.pipelines.sinks.jdbc.staging_copy import DELETED, named
from jobpipe.pipelines.sinks.jdbc.upsert_table import Catalog, Target, no_table, staging_name

if TYPE_CHECKING:
    from pyspark.sql import Column

# ruff: noqa: S608 - all names are quoted
MOST_DIGITS = 18  # of a decimal that orders rows: as a whole number it is a bigint


@dataclass(frozen=True)
class SqliteTarget(Target):
    """A table of SQLite that this attempt has taken over.

    Attributes:
        collations: what stands at a key that is compared, for the collation of its unique index.
    """

    product: ClassVar[str] = SqliteDatabase.product
    place: ClassVar[int] = 2
    find: ClassVar[str] = f"SELECT type FROM sqlite_master WHERE '{SCHEMA}' = ? AND name = ?"
    now: ClassVar[str] = "datetime('now')"
    ledger_types: ClassVar[tuple[str, str]] = ("text", "text")
    tag_type: ClassVar[str] = "text"
    locking: ClassVar[str] = ""

    collations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def order_type(cls, kind: DataType) -> str | None:
        """Return the type of the value that tells which row of a key is the last, None if it has no order."""
        if isinstance(kind, DecimalType):
            return "integer" if kind.precision <= MOST_DIGITS else None
        return super().order_type(kind)

    @classmethod
    def order_column(cls, name: str, kind: DataType) -> Column:
        """Return that value as tasks copy it: decimals as whole numbers, since here they are texts."""
        if isinstance(kind, DecimalType):
            return (named(name) * sf.lit(10**kind.scale)).cast("bigint")
        return named(name)

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
            cls.make_missing(connection, plan, table, ledger)
            there = cls.check(connection, plan, table)
            fence = cls.raise_fence(connection, plan, table, ledger)
            cls._make_staging(connection, plan, staging, there)
        return cls(plan, table, ledger, staging, fence, there.types, there.collations)

    @classmethod
    def catalog(cls, connection: Any, plan: TargetPlan, table: tuple[str, str], found: tuple[Any, ...]) -> Catalog:
        """Return what the catalog has of the table, and how its keys are compared."""
        if found != ("table",):
            raise no_table(plan.database.called(table))
        quoted = plan.database.quoted
        there = connection.execute(f"PRAGMA table_xinfo({quoted(plan.table)})").fetchall()
        primary = tuple(column for _, column, *_, place, _ in sorted(there, key=lambda row: row[-2]) if place)
        unique = [primary] if primary else []
        collations: dict[str, str] = {}
        indexes = connection.execute(f"PRAGMA index_list({quoted(plan.table)})").fetchall()
        for _, index, is_unique, origin, partial in indexes:
            parts = connection.execute(f"PRAGMA index_xinfo({quoted(index)})").fetchall()
            columns = {part[2]: part[4] for part in parts if part[5]}
            if not is_unique or partial or None in columns:
                continue
            if tuple(columns) != primary:
                unique.append(tuple(columns))
            if set(columns) == set(plan.keys) and (not collations or origin == "pk"):
                collations = {column: f" COLLATE {quoted(collation)}" for column, collation in columns.items()}
        types = {column: kind for _, column, kind, *_ in there}
        return Catalog(types, [column for _, column, *_, hidden in there if hidden], unique, collations)

    @classmethod
    def _make_staging(cls, connection: Connection, plan: TargetPlan, staging: tuple[str, str], there: Catalog) -> None:
        """Make the staging table again: of what is left there nothing counts."""
        name, quoted = plan.database.dotted(staging), plan.database.quoted
        connection.execute(f"DROP TABLE IF EXISTS {name}")
        # Types and collations of the table, so that keys are told apart as there; none of its constraints.
        columns = [
            # In such a table "any" is a number, if the value looks like one.
            f"{quoted(name)} {'' if kind.upper() in ('', 'ANY') else quoted(kind)}{there.collations.get(name, '')}"
            for name, kind in there.types.items()
        ]
        columns += [f"{quoted(name)} {kind}" for name, kind in cls.beyond(plan).items()]
        connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")

    # -- a micro-batch -------------------------------------------------------------------------------------------------

    def _empty(self, connection: Connection) -> None:
        connection.execute(f"DELETE FROM {self._name(self.staging)}")

    def _deletion(self, new: str) -> str:
        compared = ", ".join(self._quoted(key) + self.collations.get(key, "") for key in self.plan.keys)
        gone = f"SELECT {self._keys} FROM {new} WHERE new.{self._quoted(DELETED)}"
        return f"DELETE FROM {self._name(self.table)} WHERE ({compared}) IN ({gone})"
