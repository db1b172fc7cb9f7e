"""What the statements of sink jdbc-upsert, and the types of its tables, have in common in all databases.

Where only words differ, they are class variables; for what differs more, a database's own module has methods. The SQL
is by hand: SQLAlchemy reads no types that it does not know from a catalog, nor the collations of SQLite's indexes, nor
which constraints of PostgreSQL are deferrable, and the statements would be no shorter.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import types as st

from jobpipe.errors import UnsupportedType
from jobpipe.pipelines.databases.database_api import Database
from jobpipe.pipelines.sinks.jdbc.staging_copy import DELETED, HASH, ORDER, TAG, Copied, as_json, named

if TYPE_CHECKING:
    from pyspark.sql import Column

# ruff: noqa: S608 - all names are quoted, and tags are UUIDs of our own
log = logging.getLogger(__name__)

NESTED = (st.ArrayType, st.MapType, st.StructType)
NUMBER, COMPARED = "_jobpipe_number", "_jobpipe_compared"
_TYPES: dict[type[st.DataType], tuple[str, str, str]] = {
    # of Spark: of PostgreSQL, of MySQL and MariaDB, of SQLite
    st.BooleanType: ("boolean", "boolean", "boolean"),
    st.ByteType: ("smallint", "tinyint", "integer"),
    st.ShortType: ("smallint", "smallint", "integer"),
    st.IntegerType: ("integer", "int", "integer"),
    st.LongType: ("bigint", "bigint", "integer"),
    st.FloatType: ("real", "float", "real"),
    st.DoubleType: ("double precision", "double", "real"),
    st.DecimalType: ("numeric", "decimal", "text"),
    st.StringType: ("text", "longtext", "text"),
    st.VarcharType: ("text", "longtext", "text"),
    st.CharType: ("text", "longtext", "text"),
    st.BinaryType: ("bytea", "longblob", "blob"),
    st.DateType: ("date", "date", "text"),
    st.TimestampType: ("timestamp with time zone", "datetime(6)", "text"),
    st.TimestampNTZType: ("timestamp without time zone", "datetime(6)", "text"),
    st.StructType: ("jsonb", "json", "text"),
    st.MapType: ("jsonb", "json", "text"),
    st.ArrayType: ("jsonb", "json", "text"),
}


@dataclass(frozen=True)
class TargetPlan:
    """What is to be written, and where.

    Attributes:
        schema, ledger_schema: None is the server's current one, and that of the table.
        keys: columns that tell rows apart.
        columns: what is written; with the types in which missing tables get them.
        order_type: of the value that tells which row of a key is the last; None without.
        deletes: whether rows can delete their key.
        create: whether to make a table that is missing.
    """

    database: Database
    job: str
    schema: str | None
    table: str
    ledger_schema: str | None
    ledger: str
    keys: tuple[str, ...]
    columns: Mapping[str, str]
    order_type: str | None = None
    deletes: bool = False
    create: bool = False


@dataclass(frozen=True)
class Written:
    """What the ledger knows of a job and a table; query and batch are None before the first micro-batch."""

    fence: int
    query: str | None
    batch: int | None


@dataclass(frozen=True)
class Statements(ABC):
    """A table that this attempt has taken over, in SQL.

    Attributes:
        table, ledger, staging: schema and name.
        fence: of this attempt.
        types: of the table's columns.
        place: of the database's types.
        hashes: whether rows are staged with a hash of all that is written of them.
        find: the statement that finds what the catalog has of a schema and name.
        now: the time of the server, in UTC.
        ledger_types: of a text that may be a key, and of a time.
        known: how a statement goes on that finds its row of the ledger there.
    """

    product: ClassVar[str]
    place: ClassVar[int]
    hashes: ClassVar[bool] = True
    find: ClassVar[str]
    now: ClassVar[str]
    ledger_types: ClassVar[tuple[str, str]]
    tag_type: ClassVar[str]
    known: ClassVar[str] = "ON CONFLICT (job, target) DO UPDATE SET"
    locking: ClassVar[str] = " FOR UPDATE"
    null_is_last: ClassVar[str] = ""

    plan: TargetPlan
    table: tuple[str, str]
    ledger: tuple[str, str]
    staging: tuple[str, str]
    fence: int
    types: Mapping[str, str] = field(repr=False)

    # -- types ---------------------------------------------------------------------------------------------------------

    @classmethod
    def type_of(cls, name: str, kind: st.DataType, *, key: bool = False) -> str:
        """Return the type of a column of a missing table, for one of Spark's.

        Raises:
            UnsupportedType: there is none.
        """
        found = cls._type_of(kind, key=key)
        if found is None:
            what = f"column {name}: type {kind.simpleString()} cannot be written to {cls.product}"
            raise UnsupportedType(f"{what}; cast it, or leave it out", column=name, type=kind.simpleString())
        return found

    @classmethod
    def _type_of(cls, kind: st.DataType, *, key: bool = False) -> str | None:
        """Return that type, None if there is none."""
        if isinstance(kind, NESTED) and any(name in kind.simpleString() for name in ("variant", "interval", "void")):
            return None  # Spark cannot write it as JSON
        found = _TYPES[type(kind)][cls.place] if type(kind) in _TYPES else None
        if isinstance(kind, st.DecimalType) and found != "text":
            return f"{found}({kind.precision},{kind.scale})"
        return found

    @classmethod
    def order_type(cls, kind: st.DataType) -> str | None:
        """Return the type of the value that tells which row of a key is the last, None if it has no order."""
        return None if isinstance(kind, NESTED) else cls._type_of(kind)

    @classmethod
    def order_column(cls, name: str, kind: st.DataType) -> Column:
        """Return that value as tasks copy it."""
        return named(name)

    def column(self, name: str, kind: st.DataType) -> Column:
        """Return a column as tasks copy it: structs, maps and arrays as JSON."""
        return as_json(name) if isinstance(kind, NESTED) else named(name)

    @classmethod
    def beyond(cls, plan: TargetPlan) -> dict[str, str]:
        """Return the types of what is staged beyond the columns."""
        found = {TAG: cls.tag_type}
        if plan.deletes:
            found[DELETED] = "boolean"
        if plan.order_type is not None:
            found[ORDER] = plan.order_type
        if cls.hashes:
            found[HASH] = "bigint"
        return found

    # -- the beginning -------------------------------------------------------------------------------------------------

    @classmethod
    def making(cls, connection: Any) -> str:
        """Prepare to make tables; return what stands at the end of their statement."""
        return ""

    @classmethod
    def make_missing(cls, connection: Any, plan: TargetPlan, table: tuple[str, str], ledger: tuple[str, str]) -> None:
        """Make the ledger, and the table if that is asked for, where they are missing."""
        database, (text, time) = plan.database, cls.ledger_types
        wanted = {
            ledger: f"job {text}, target {text}, fence bigint NOT NULL, query {text}, batch bigint, written_at {time}, "
            "PRIMARY KEY (job, target)"
        }
        if plan.create:
            columns = [
                f"{database.quoted(name)} {kind}{' NOT NULL' if name in plan.keys else ''}"
                for name, kind in plan.columns.items()
            ]
            wanted[table] = f"{', '.join(columns)}, PRIMARY KEY ({database.names(plan.keys)})"
        missing = [name for name in wanted if database.execute(connection, cls.find, *name).fetchone() is None]
        end = cls.making(connection) if missing else ""
        for name in missing:
            statement = f"CREATE TABLE IF NOT EXISTS {database.dotted(name)} ({wanted[name]}){end}"
            database.execute(connection, statement)
            if name == table:
                log.info("made table %s with primary key %s", database.called(table), ", ".join(plan.keys))

    @classmethod
    def raise_fence(cls, connection: Any, plan: TargetPlan, table: tuple[str, str], ledger: tuple[str, str]) -> int:
        """Raise the fence in the ledger, whose row is locked then until the end of the transaction; return it."""
        database, ours = plan.database, (plan.job, ".".join(table))
        name, mark = database.dotted(ledger), database.mark
        statement = f"INSERT INTO {name} (job, target, fence) VALUES ({mark}, {mark}, 1) {cls.known}"
        database.execute(connection, f"{statement} fence = {name}.fence + 1", *ours)
        statement = f"SELECT fence FROM {name} WHERE job = {mark} AND target = {mark}"
        return int(database.execute(connection, statement, *ours).fetchone()[0])

    # -- a micro-batch -------------------------------------------------------------------------------------------------

    def run(self, connection: Any, statement: str, *values: Any) -> Any:
        """Run a statement; return its cursor."""
        return self.plan.database.execute(connection, statement, *values)

    def _lock(self, connection: Any) -> Written | None:
        """Lock the ledger's row until the end of the transaction; return it, None if it is gone."""
        statement = f"SELECT fence, query, batch FROM {self._name(self.ledger)} {self._our_row}{self.locking}"
        row = self.run(connection, statement, self.plan.job, ".".join(self.table)).fetchone()
        return None if row is None else Written(*row)

    def _note(self, connection: Any, query: str, batch_id: int) -> None:
        """Note in the ledger that a micro-batch is written."""
        mark, ours = self.plan.database.mark, (self.plan.job, ".".join(self.table))
        values = f"query = {mark}, batch = {mark}, written_at = {self.now}"
        statement = f"UPDATE {self._name(self.ledger)} SET {values} {self._our_row}"
        self.run(connection, statement, query, batch_id, *ours)

    @abstractmethod
    def _empty(self, connection: Any) -> None:
        """Remove all rows of staging, as a part of the transaction."""

    def _emptied(self, connection: Any) -> None:  # noqa: B027 - most need nothing
        """Remove them after the transaction, where that cannot be a part of it."""

    def _tidy(self, connection: Any) -> None:  # noqa: B027
        """Do the same after a micro-batch is written."""

    def _truncate(self, connection: Any) -> None:
        """Remove all rows of staging at once, if it has any."""
        if self.run(connection, f"SELECT 1 FROM {self._name(self.staging)} LIMIT 1").fetchone() is not None:
            self.run(connection, f"TRUNCATE TABLE {self._name(self.staging)}")

    def _counts(self, connection: Any, copied: Copied) -> Sequence[int]:
        """Return how many rows are staged, and for each key, in how many it is null."""
        empty = [f"COUNT(*) - COUNT({self._quoted(key)})" for key in self.plan.keys]
        counts: Sequence[int] = self.run(
            connection, f"SELECT {', '.join(['COUNT(*)', *empty])} FROM {self._staged(copied)}"
        ).fetchone()
        return counts

    def _differing(self, connection: Any, copied: Copied) -> int:
        """Return how many keys have several rows that differ, none of which is the last."""
        keys, number, compared = self._keys, self._quoted(NUMBER), self._quoted(COMPARED)
        ranked = (
            f"SELECT {keys}, {self._compared} AS {compared}, RANK() OVER (PARTITION BY {keys} {self._last_first}) "
            f"AS {number} FROM {self._staged(copied)}"
        )
        several = (
            f"SELECT 1 AS one FROM ({ranked}) AS ranked WHERE {number} = 1 GROUP BY {keys} "
            f"HAVING MIN({compared}) <> MAX({compared})"
        )
        (count,) = self.run(connection, f"SELECT COUNT(*) FROM ({several}) AS several").fetchone()
        return int(count)

    def _merge(self, connection: Any, copied: Copied) -> tuple[int, int]:
        """Write and delete; return how many rows."""
        new, lives, deleted = f"({self._rows(copied)}) AS new", "TRUE", 0
        if self.plan.deletes:
            deleted, lives = self.run(connection, self._deletion(new)).rowcount, f"NOT new.{self._quoted(DELETED)}"
        return self._write(connection, new, lives), deleted

    @abstractmethod
    def _deletion(self, new: str) -> str:
        """Return the statement that deletes the keys of those of the new rows that are deleted."""

    def _write(self, connection: Any, new: str, lives: str) -> int:
        """Insert new keys, and replace the rows of known ones; return how many."""
        columns = self.plan.database.names(self.plan.columns)
        values = ", ".join(f"{self._quoted(name)} = excluded.{self._quoted(name)}" for name in self._others)
        change = f"UPDATE SET {values}" if values else "NOTHING"
        statement = f"INSERT INTO {self._name(self.table)} ({columns}) SELECT {columns} FROM {new} WHERE {lives}"
        return int(self.run(connection, f"{statement} ON CONFLICT ({self._keys}) DO {change}").rowcount)

    def _rows(self, copied: Copied) -> str:
        """Return the query of the last row of each key."""
        number = self._quoted(NUMBER)
        columns = self.plan.database.names([*self.plan.columns, *([DELETED] if self.plan.deletes else [])])
        numbered = (
            f"SELECT {columns}, ROW_NUMBER() OVER (PARTITION BY {self._keys} {self._last_first}) AS {number} "
            f"FROM {self._staged(copied)}"
        )
        return f"SELECT {columns} FROM ({numbered}) AS numbered WHERE {number} = 1"

    # -- parts of statements -------------------------------------------------------------------------------------------

    def _name(self, table: tuple[str, str]) -> str:
        return self.plan.database.dotted(table)

    def _quoted(self, name: str) -> str:
        return self.plan.database.quoted(name)

    def _staged(self, copied: Copied) -> str:
        """Return where the rows are that count."""
        tags = ", ".join(repr(tag) for tag in copied.tags)
        return f"{self._name(self.staging)} WHERE {self._quoted(TAG)} IN ({tags})"

    @property
    def _our_row(self) -> str:
        mark = self.plan.database.mark
        return f"WHERE job = {mark} AND target = {mark}"

    @property
    def _compared(self) -> str:
        """By what rows of a key are told apart."""
        return self._quoted(HASH)

    @property
    def _last_first(self) -> str:
        if self.plan.order_type:
            return f"ORDER BY {self._quoted(ORDER)} DESC{self.null_is_last}"
        return f"ORDER BY {self._keys}"  # any; MySQL takes no number here

    @property
    def _keys(self) -> str:
        return self.plan.database.names(self.plan.keys)

    @property
    def _same(self) -> str:
        """Whether a row of the table has the key of a new one."""
        return " AND ".join(f"old.{self._quoted(key)} = new.{self._quoted(key)}" for key in self.plan.keys)

    @property
    def _others(self) -> list[str]:
        """The columns that are no keys."""
        return [name for name in self.plan.columns if name not in self.plan.keys]
