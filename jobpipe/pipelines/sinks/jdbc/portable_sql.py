"""What the statements of sink jdbc-upsert have in common in MySQL, MariaDB and SQLite."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from jobpipe.pipelines.sinks.jdbc.staging_copy import DELETED, HASH, ORDER, TAG, Copied, as_json, named
from jobpipe.pipelines.sinks.jdbc.upsert_table import Target, Written

if TYPE_CHECKING:
    from pyspark.sql import Column

# ruff: noqa: S608 - all names are quoted, and tags are UUIDs of our own
NESTED = (ArrayType, MapType, StructType)
NUMBER = "_jobpipe_number"


def has_json(kind: DataType) -> bool:
    """Whether Spark can write a nested type as JSON."""
    return not any(name in kind.simpleString() for name in ("variant", "interval", "void"))


class PlainTarget(Target):
    """A table that this attempt has taken over, in a database with plain SQL."""

    hashes: ClassVar[bool] = True
    mark: ClassVar[str]
    """What stands in a statement for a value."""
    now: ClassVar[str]
    """The time of the server, in UTC."""
    _locking: ClassVar[str] = ""

    def column(self, name: str, kind: DataType) -> Column:
        """Return a column as tasks copy it: structs, maps and arrays as JSON."""
        return as_json(name) if isinstance(kind, NESTED) else named(name)

    @staticmethod
    @abstractmethod
    def quote(name: str) -> str:
        """Return a name as it stands in a statement."""

    @abstractmethod
    def called(self, table: tuple[str, str]) -> str:
        """Return schema and name as they stand in a statement."""

    @abstractmethod
    def run(self, connection: Any, statement: str, *values: Any) -> Any:
        """Run a statement; return its cursor."""

    def names(self, names: Collection[str], prefix: str = "") -> str:
        """Return names as they stand in a statement, with commas."""
        return ", ".join(prefix + self.quote(name) for name in names)

    def _lock(self, connection: Any) -> Written | None:
        statement = f"SELECT fence, query, batch FROM {self.called(self.ledger)} WHERE job = {self.mark}"
        found = self.run(
            connection, f"{statement} AND target = {self.mark}{self._locking}", self.plan.job, ".".join(self.table)
        ).fetchone()
        return None if found is None else Written(*found)

    def _counts(self, connection: Any, copied: Copied) -> Sequence[int]:
        empty = [f"COALESCE(SUM({self.quote(key)} IS NULL), 0)" for key in self.plan.keys]
        statement = f"SELECT {', '.join(['COUNT(*)', *empty])} FROM {self.called(self.staging)} WHERE {_ours(copied)}"
        return [int(count) for count in self.run(connection, statement).fetchone()]

    def _differing(self, connection: Any, copied: Copied) -> int:
        keys, number = self.names(self.plan.keys), self.quote(NUMBER)
        ranked = (
            f"SELECT {keys}, {self.quote(HASH)}, RANK() OVER (PARTITION BY {keys} {self._last_first}) AS {number} "
            f"FROM {self.called(self.staging)} WHERE {_ours(copied)}"
        )
        several = (
            f"SELECT 1 AS one FROM ({ranked}) AS ranked WHERE {number} = 1 GROUP BY {keys} "
            f"HAVING MIN({self.quote(HASH)}) <> MAX({self.quote(HASH)})"
        )
        (count,) = self.run(connection, f"SELECT COUNT(*) FROM ({several}) AS several").fetchone()
        return int(count)

    def _rows(self, copied: Copied) -> str:
        """Return the query of the last row of each key."""
        number = self.quote(NUMBER)
        columns = self.names([*self.plan.columns, *([DELETED] if self.plan.deletes else [])])
        numbered = (
            f"SELECT {columns}, ROW_NUMBER() OVER (PARTITION BY {self.names(self.plan.keys)} {self._last_first}) "
            f"AS {number} FROM {self.called(self.staging)} WHERE {_ours(copied)}"
        )
        return f"SELECT {columns} FROM ({numbered}) AS numbered WHERE {number} = 1"

    @property
    def _last_first(self) -> str:
        return (
            f"ORDER BY {self.quote(ORDER)} DESC" if self.plan.order_type is not None else "ORDER BY 1"
        )  # null is last

    @property
    def _others(self) -> list[str]:
        """The columns that are no keys."""
        return [name for name in self.plan.columns if name not in self.plan.keys]

    def _note(self, connection: Any, query: str, batch_id: int) -> None:
        mark = self.mark
        statement = f"UPDATE {self.called(self.ledger)} SET query = {mark}, batch = {mark}, written_at = {self.now} "
        which = f"WHERE job = {mark} AND target = {mark}"
        self.run(connection, statement + which, query, batch_id, self.plan.job, ".".join(self.table))


def _ours(copied: Copied) -> str:
    return f'"{TAG}" IN ({", ".join(repr(tag) for tag in copied.tags)})'
